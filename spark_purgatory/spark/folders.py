"""Folders and tables that may not be there, looked at without an error.

Spark writes a stack trace to its log for every missing path that someone reads, and Spark Connect writes a second one
for the error itself. It writes a warning when every path of a read is hidden, as ``_delta_log`` is. So a folder that
may be missing, or is hidden, is read together with one that is there: the *anchor*, whose files the reader's
``pathGlobFilter`` leaves out. Spark looks neither for the output of a file sink nor for hidden names where a read has
two paths.
"""

from __future__ import annotations

import re

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.spark.entries import NO_SUCCESS_FILE, literal
from spark_purgatory.spark.faults import SPARK_FAULTS

DETAILS = ("format", "id", "location", "partitionColumns", "properties", "tableFeatures")
_NOT_THERE = re.compile(r"\[DELTA_FILE_NOT_FOUND\] File path (?!\S*/_delta_log/)|\[DELTA_MISSING_DELTA_TABLE\]")


def beside(folder: str, anchor: str, *wanted: str) -> list[str]:
    """Paths for a reader: what is there of ``wanted``, patterns of names below ``folder``; ``anchor`` is there.

    The files of ``anchor`` are among them: leave them out by ``pathGlobFilter``, or by their path.
    """
    base = literal(folder.rstrip("/"))
    return [f"{base}/{anchor}", f"{base}/{{{','.join((anchor, *wanted))}}}"]


def delta_log(location: str, anchor: str) -> list[str]:
    """Paths for a reader: the log of a Delta table; ``anchor`` is a path that is there."""
    return [literal(anchor), f"{literal(location)}/_delta_log"]


def sql_text(value: str) -> str:
    """A text as a literal of SQL."""
    return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"


def described(spark: SparkSession, place: str) -> Row | None:
    """What Delta says of ``place``, a table's name or the literal of a path; None if nothing is there.

    The format is None where a path is there and no table of Delta is.
    """
    try:
        return spark.sql(f"DESCRIBE DETAIL {place}").select(*DETAILS).first()
    except SPARK_FAULTS as error:
        if _NOT_THERE.search(str(error)):
            return None
        raise


def touch(spark: SparkSession, path: str) -> None:
    """Write no rows into a folder: an error if it cannot be written, else an empty folder, or nothing in a store."""
    nothing = spark.range(0, 0, 1, 1).select(F.lit("").alias("value"), F.lit(0).alias("gone"))
    nothing.write.partitionBy("gone").mode("append").option(NO_SUCCESS_FILE, "false").text(path)
