"""Who runs against whom: each contender makes a streaming DataFrame of the two folders, nothing else.

Those that decide outcomes return rows with a column ``status``; the floors return what they were given.

| contender | what a row goes through |
| --- | --- |
| ours | `Purgatory`, criterion any_key, emit early |
| join | Spark's own stream-stream left outer join, in the JVM |
| identity | the packed exchange of ours: both ``mapInArrow`` stages and the state function, without an engine |
| identity_rows | the state function over plain rows, as pandas |
| jvm_only | a shuffle; no Python, no state |
| per_operation | ``applyInPandasWithState``, one group an operation, as it is written by the book |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_purgatory import Completions, Operations, criteria
from spark_purgatory.spark.exchange import EVENTS, EXCHANGE_DDL, OPERATIONS, packer, unpacker
from spark_purgatory.spark.operator import Purgatory
from spark_purgatory.spark.sides import WATERMARK_METADATA

SHARDS = 8
OPERATIONS_DDL = "op_id string, key string, created timestamp, deadline timestamp, amount double"
EVENTS_DDL = "key string, time timestamp"
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


@dataclass(frozen=True)
class Contender:
    """A way to run the workload."""

    name: str
    says: str
    build: Callable[[SparkSession, Path], DataFrame]
    decides: bool
    """Whether its rows are outcomes; else they are the rows it read."""
    at_most: int | None = None
    """Operations beyond which it would take too long to wait for."""
    grace_ms: int = 0
    """How long after its deadline it lets an operation expire."""


def read_sides(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Operations and events as streams, one file a side and micro-batch."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    operations = reader.schema(OPERATIONS_DDL).parquet(str(folder / "operations"))
    return operations, reader.schema(EVENTS_DDL).parquet(str(folder / "events"))


def ours(spark: SparkSession, folder: Path) -> DataFrame:
    """The library as its users call it."""
    operations, events = read_sides(spark, folder)
    purgatory = Purgatory(
        operations=Operations(id="op_id", keys="key", created="created", deadline="deadline"),
        completions=Completions(key="key", time="time"),
        criterion=criteria.any_key(),
        emit="early",
        shards=SHARDS,
    )
    return purgatory.resolve(operations, events)


def join(spark: SparkSession, folder: Path) -> DataFrame:
    """A left outer join on key and time range; an operation without an event leaves at its deadline.

    Spark drops state by one time column a side. With ``created`` there, every operation would be held for the
    longest delay; so the watermark is made from ``created``, and the mark moved on to ``deadline``. For a condition
    with ``<=`` Spark holds that clock 1 ms back, to be safe: a row leaves up to 1 ms after its deadline.
    """
    operations, events = read_sides(spark, folder)
    left = operations.withWatermark("created", "0 seconds").select(
        "op_id",
        "key",
        F.col("created").alias("created", metadata={}),
        F.col("deadline").alias("deadline", metadata={WATERMARK_METADATA: 0}),
        "amount",
    )
    right = events.withWatermark("time", "0 seconds").withColumnRenamed("key", "event_key")
    condition = "key = event_key AND time >= created AND time <= deadline AND time >= deadline - INTERVAL 3 MINUTES"
    joined = left.join(right, F.expr(condition), "leftOuter")
    resolved = F.coalesce("time", "deadline")
    return joined.select(
        "op_id",
        "key",
        "created",
        "deadline",
        "amount",
        F.when(F.col("time").isNull(), "EXPIRED").otherwise("COMPLETED").alias("status"),
        resolved.alias("resolved_at"),
        (F.unix_millis(resolved) - F.unix_millis("created")).alias("wait_ms"),
    )


def as_rows(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Both sides as `ROWS`, each with its watermark."""
    operations, events = read_sides(spark, folder)
    left = operations.withColumnRenamed("created", "time").withColumn("side", F.lit(OPERATIONS).cast("tinyint"))
    right = events.withColumn("side", F.lit(EVENTS).cast("tinyint"))
    for field in ROWS.fields:
        if field.name not in right.columns:
            right = right.withColumn(field.name, F.lit(None).cast(field.dataType))
    return (
        left.withWatermark("time", "0 seconds").select(ROWS.names),
        right.withWatermark("time", "0 seconds").select(ROWS.names),
    )


def identity(spark: SparkSession, folder: Path) -> DataFrame:
    """What the packed exchange costs by itself: pack, shuffle, hand over, unpack."""
    ddl = EXCHANGE_DDL.format(shard_type="int")
    engine = [F.xxhash64("key").alias("route"), F.col("time").alias("guarded")]
    packed = [
        rows.drop("side").select("*", *engine).mapInArrow(packer(side, SHARDS, broadcast=False), ddl)
        for side, rows in zip((OPERATIONS, EVENTS), as_rows(spark, folder), strict=True)
    ]
    marker = F.lit(None).cast("timestamp").alias("marker", metadata={WATERMARK_METADATA: 0})
    handed = (
        packed[0]
        .unionByName(packed[1])
        .select("shard", "side", "blob", marker)
        .groupBy("shard")
        .applyInPandasWithState(
            _hand_over_blobs, "blob binary", "blob binary", "append", GroupStateTimeout.EventTimeTimeout
        )
    )
    fields = T.StructType(
        [*(field for field in ROWS.fields if field.name != "side"), T.StructField("ahead", T.BooleanType())]
    )
    return handed.mapInArrow(unpacker(fields.names), fields)


def _hand_over_blobs(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["blob"]]


def identity_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """The state function over plain rows: conversion to pandas and back is all it does."""
    operations, events = as_rows(spark, folder)
    shard = F.pmod(F.xxhash64("key"), F.lit(SHARDS)).cast("int").alias("shard")
    rows = operations.unionByName(events).select("*", shard)
    return rows.groupBy("shard").applyInPandasWithState(
        _hand_over_rows, ROWS, "blob binary", "append", GroupStateTimeout.EventTimeTimeout
    )


def _hand_over_rows(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[ROWS.names]


def jvm_only(spark: SparkSession, folder: Path) -> DataFrame:
    """A shuffle by key and nothing else."""
    operations, events = as_rows(spark, folder)
    return operations.unionByName(events).repartition("key")


STATE_DDL = "op_id string, created_us bigint, deadline_us bigint, amount double, event_us bigint"
OUTCOME_DDL = (
    "op_id string, key string, created timestamp, deadline timestamp, amount double, status string, "
    "resolved_at timestamp, wait_ms bigint"
)


def per_operation(spark: SparkSession, folder: Path) -> DataFrame:
    """One group an operation: state is its row, the time-out its deadline."""
    operations, events = as_rows(spark, folder)
    rows = operations.unionByName(events).select(
        "*", F.unix_micros("time").alias("time_us"), F.unix_micros("deadline").alias("deadline_us")
    )
    return rows.groupBy("key").applyInPandasWithState(
        _on_operation, OUTCOME_DDL, STATE_DDL, "append", GroupStateTimeout.EventTimeTimeout
    )


def _on_operation(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    held: Any = state.get if state.exists else (None,) * 5
    op_id, created_us, deadline_us, amount, event_us = held
    for frame in frames:
        row: Any
        for row in frame.itertuples():
            if row.side == OPERATIONS:
                op_id, amount = row.op_id, float(row.amount)
                created_us, deadline_us = int(row.time_us), int(row.deadline_us)
            else:
                event_us = int(row.time_us) if event_us is None else min(event_us, int(row.time_us))
    watermark_ms = state.getCurrentWatermarkMs()
    # Spark's time-outs fire at time-out < watermark, a deadline is due at deadline <= watermark. An event that came
    # first is held until no operation of its time can come any more.
    last_ms = event_us // 1000 if created_us is None else -(-deadline_us // 1000) - 1
    completed = created_us is not None and event_us is not None and created_us <= event_us <= deadline_us
    if not completed and not state.hasTimedOut and last_ms >= watermark_ms:
        state.update((op_id, created_us, deadline_us, amount, event_us))
        state.setTimeoutTimestamp(last_ms)
        return
    if state.exists:
        state.remove()
    if created_us is None:
        return
    resolved_us = event_us if completed else deadline_us
    outcome = {
        "op_id": op_id,
        "key": key[0],
        "created": pd.Timestamp(created_us, unit="us"),
        "deadline": pd.Timestamp(deadline_us, unit="us"),
        "amount": amount,
        "status": "COMPLETED" if completed else "EXPIRED",
        "resolved_at": pd.Timestamp(resolved_us, unit="us"),
        "wait_ms": (resolved_us - created_us) // 1000,
    }
    yield pd.DataFrame([outcome])


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("ours", "Purgatory, any_key, emit early", ours, decides=True),
        Contender("join", "stream-stream left outer join", join, decides=True, grace_ms=1),
        Contender("identity", "packed exchange, no engine", identity, decides=False),
        Contender("identity_rows", "applyInPandasWithState, plain rows, no work", identity_rows, decides=False),
        Contender("jvm_only", "union, repartition; no Python, no state", jvm_only, decides=False),
        Contender("per_operation", "applyInPandasWithState, a group an operation", per_operation, True, at_most=20_000),
    )
}
