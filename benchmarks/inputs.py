"""Workload W's two folders as streams, for all contenders."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS

OPERATIONS_DDL = "op_id string, key string, created timestamp, deadline timestamp, amount double"
EVENTS_DDL = "key string, time timestamp"
NOTE_DDL = f"{EVENTS_DDL}, note string"
ROWS = (
    T.StructType()
    .add("op_id", "string")
    .add("key", "string")
    .add("time", "timestamp")
    .add("deadline", "timestamp")
    .add("amount", "double")
    .add("side", T.ByteType())
)
"""Both sides in one schema, for those that union them; ``time`` is an operation's created."""


def read_sides(spark: SparkSession, folder: Path, events_ddl: str = EVENTS_DDL) -> tuple[DataFrame, DataFrame]:
    """Operations and events as streams, one file a side and micro-batch."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    operations = reader.schema(OPERATIONS_DDL).parquet(str(folder / "operations"))
    return operations, reader.schema(events_ddl).parquet(str(folder / "events"))


def as_rows(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Both sides of the workload's folders as `ROWS`, each with its watermark."""
    return sides_as_rows(*read_sides(spark, folder))


def sides_as_rows(operations: DataFrame, events: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Both sides as `ROWS`, each with its watermark."""
    left = operations.withColumnRenamed("created", "time").withColumn("side", F.lit(OPERATIONS).cast("tinyint"))
    right = events.withColumn("side", F.lit(EVENTS).cast("tinyint"))
    for field in ROWS.fields:
        if field.name not in right.columns:
            right = right.withColumn(field.name, F.lit(None).cast(field.dataType))
    return (
        left.withWatermark("time", "0 seconds").select(ROWS.names),
        right.withWatermark("time", "0 seconds").select(ROWS.names),
    )
