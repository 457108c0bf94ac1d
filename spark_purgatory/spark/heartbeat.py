"""Rows without a payload that move an input's watermark: heartbeats, and the newest times of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.storage.spark_access import own_session
from spark_purgatory.spark.storage.storage_access import literal, write_line

NEWEST = "newest"  # A folder of the checkpoint, with the file of the last start
PATTERN = f"{NEWEST[:-1]}[{NEWEST[-1]}]"  # Spark looks for a folder at once, but for those of a pattern each time


def heartbeats(spark: SparkSession, schema: T.StructType, **values: Column) -> DataFrame:
    """Return a stream with one row in each micro-batch: null, except for ``values`` by column name."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
    return _rows(source.load(), schema, values)


def is_theirs(description: object) -> bool:
    """Return True for a source of the user, by Spark's description: the rows of ours only move time."""
    text = str(description)
    return not text.startswith("RatePerMicroBatch") and not text.endswith(f"/{PATTERN}]")


def newest_lines(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Return a stream with what `write_newest` writes. Within a run it has nothing new, so it begins no micro-batch."""
    return spark.readStream.schema("value string").text(f"{literal(checkpoint.rstrip('/'))}/{PATTERN}")


def newest_times(lines: DataFrame, schema: T.StructType, column: str, *, name: str, least_us: int | None) -> DataFrame:
    """Return a stream with one row for each start of the query: null, except for ``column``.

    This has the time of ``name`` in the lines, or ``least_us`` if that is later. Inputs that share the lines share
    their source.
    """
    known = F.try_element_at(F.from_json("value", "map<string, bigint>"), F.lit(name))
    time_us = F.greatest(known, F.lit(least_us).cast("bigint"))
    return _rows(lines, schema, {column: F.timestamp_micros(time_us)})


def write_newest(spark: SparkSession, checkpoint: str, times_us: Mapping[str, int], keeps_others: bool) -> None:
    """Write the file that the next start reads; a start without any known time needs it for ``least_us``.

    Files of earlier starts are kept if a micro-batch was begun and not committed, which may read one again.
    """
    mode = "append" if keeps_others else "overwrite"
    with own_session(spark) as own:
        write_line(own, f"{checkpoint.rstrip('/')}/{NEWEST}", json.dumps(dict(times_us)), mode)


def _rows(source: DataFrame, schema: T.StructType, values: Mapping[str, Column]) -> DataFrame:
    columns = (values.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in schema.fields)
    return source.select(*columns)
