"""Reads and writes that find out if a table or a path exists and can be written, without an error in the log.

Spark logs a stack trace for every missing path that is read, and Spark Connect a second one for the error. So a folder
that may be missing is read together with an *anchor*, a small file or folder that exists: in a read with two paths
Spark does not look for the output of a file sink. The caller drops the anchor's rows by its path. Arguments and results
of `in_checkpoint` are patterns, which `literal` makes of paths.
"""

from __future__ import annotations

import re
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.places import split_uri
from spark_purgatory.spark.storage.spark_access import NO_SUCCESS_FILE, SMALL_QUERY, settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def literal(path: str) -> str:
    """Return a path without characters that are wildcards to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def in_checkpoint(folder: str, *wanted: str, anchor: str = "metadata") -> list[str]:
    """Return paths of ``wanted`` in a checkpoint, which may be missing, and of ``anchor``, which exists."""
    return [f"{folder}/{anchor}", f"{folder}/{{{','.join((anchor, *wanted))}}}"]


DETAILS = ("format", "id", "location", "partitionColumns", "properties", "tableFeatures", "numFiles")
_NOT_THERE = re.compile(r"\[DELTA_FILE_NOT_FOUND\] File path (?!\S*/_delta_log/)|\[DELTA_MISSING_DELTA_TABLE\]")


def back_ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def sql_text(value: str) -> str:
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"


def described(spark: SparkSession, place: str) -> Row | None:
    """Return Delta's description of ``place``, a table's name or the literal of a path; None if nothing is there.

    The format is None if the path exists but is not a Delta table.
    """
    try:
        return spark.sql(f"DESCRIBE DETAIL {place}").select(*DETAILS).first()
    except SPARK_FAULTS as error:
        if _NOT_THERE.search(str(error)):
            return None
        raise


def absolute(spark: SparkSession, path: str) -> str:
    """Return a path that begins at a root. Only Spark knows the folder of a relative path."""
    scheme, authority, rest = split_uri(path)
    if scheme or authority or rest.startswith("/"):
        return path
    nowhere = f"{literal(path.rstrip('/'))}/{uuid4()}"
    try:
        # Spark logs nothing if two paths are missing. Spark Connect looks for them when it needs the schema.
        _ = spark.read.text([nowhere, nowhere]).schema
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return (error.getMessageParameters() or {})["path"].rpartition("/")[0]
    return path


def write_line(spark: SparkSession, path: str, line: str, mode: str) -> None:
    row = spark.range(0, 1, 1, 1).select(F.lit(line).alias("value"))
    with settings(spark, SMALL_QUERY):
        row.write.mode(mode).option(NO_SUCCESS_FILE, "false").text(path)


def write_nothing(spark: SparkSession, path: str, mode: str) -> None:
    """Write no rows into a folder, to get an error if it cannot be written. An object store then has nothing."""
    nothing = spark.range(0, 0, 1, 1).select(F.lit("").alias("value"), F.lit(0).alias("gone"))
    writer = nothing.write.partitionBy("gone").mode(mode).option("partitionOverwriteMode", "static")
    for is_last in (*(False,) * 9, True):
        try:
            with settings(spark, SMALL_QUERY):
                return writer.option(NO_SUCCESS_FILE, "false").text(path)
        except SPARK_FAULTS as error:
            if is_last or "_temporary" not in str(error):  # Another query that does so now may remove that folder.
                raise
