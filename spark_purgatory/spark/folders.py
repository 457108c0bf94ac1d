"""What is there: a table, a folder, a place that takes files; asked without an error in the log where it is not."""

from __future__ import annotations

import re

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.spark.entries import NO_SUCCESS_FILE
from spark_purgatory.spark.faults import SPARK_FAULTS

DETAILS = ("format", "id", "location", "partitionColumns", "properties", "tableFeatures")
_NOT_THERE = re.compile(r"\[DELTA_FILE_NOT_FOUND\] File path (?!\S*/_delta_log/)|\[DELTA_MISSING_DELTA_TABLE\]")


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
