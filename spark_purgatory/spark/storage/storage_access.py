"""Whether a table, a folder or a writable place exists, without an error in the log if it does not."""

from __future__ import annotations

import re
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.places import split_uri
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import NO_SUCCESS_FILE
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

DETAILS = ("format", "id", "location", "partitionColumns", "properties", "tableFeatures")
_NOT_THERE = re.compile(r"\[DELTA_FILE_NOT_FOUND\] File path (?!\S*/_delta_log/)|\[DELTA_MISSING_DELTA_TABLE\]")


def back_ticked(name: str) -> str:
    """A name in back-ticks."""
    return "`" + name.replace("`", "``") + "`"


def sql_text(value: str) -> str:
    """A text as a literal of SQL."""
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"


def described(spark: SparkSession, place: str) -> Row | None:
    """Return what Delta says of ``place``, a table's name or the literal of a path; None if nothing is there.

    The format is None where a path is there and no table of Delta is.
    """
    try:
        return spark.sql(f"DESCRIBE DETAIL {place}").select(*DETAILS).first()
    except SPARK_FAULTS as error:
        if _NOT_THERE.search(str(error)):
            return None
        raise


def absolute(spark: SparkSession, path: str) -> str:
    """A path that begins at a root: Spark alone knows the folder that a relative one begins at."""
    scheme, authority, rest = split_uri(path)
    if scheme or authority or rest.startswith("/"):
        return path
    nowhere = f"{literal(path.rstrip('/'))}/{uuid4()}"
    try:
        # Of two paths that are not there Spark logs nothing. Under Spark Connect they are looked for with the schema.
        _ = spark.read.text([nowhere, nowhere]).schema
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return (error.getMessageParameters() or {})["path"].rpartition("/")[0]
    return path


def write_line(spark: SparkSession, path: str, line: str, mode: str) -> None:
    """Write a line into a folder, as its one file."""
    row = spark.range(0, 1, 1, 1).select(F.lit(line).alias("value"))
    row.write.mode(mode).option(NO_SUCCESS_FILE, "false").text(path)


def write_nothing(spark: SparkSession, path: str, mode: str) -> None:
    """Write no rows into a folder: an error if it cannot be written, else an empty folder, or nothing in a store."""
    nothing = spark.range(0, 0, 1, 1).select(F.lit("").alias("value"), F.lit(0).alias("gone"))
    writer = nothing.write.partitionBy("gone").mode(mode).option("partitionOverwriteMode", "static")
    writer.option(NO_SUCCESS_FILE, "false").text(path)
