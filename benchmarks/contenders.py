"""Who runs against whom: each contender makes a streaming DataFrame of the two folders, nothing else.

Those that decide outcomes return rows with a column ``status``; the floors return what they were given.

| contender | what a row goes through |
| --- | --- |
| ours | `Purgatory`, criterion any_key, emit early |
| ours_columns, log_columns, join_columns | these three, with a text of 20 bytes of the event in the outcome |
| ours_heap | the same over the HDFS-backed store |
| log | the same hosted by ``transformWithState``: snapshot and log, over RocksDB |
| join | Spark's own stream-stream left outer join, in the JVM |
| identity | the packed exchange of ours: both ``mapInArrow`` stages and the state function, without an engine |
| identity_log | the same through ``transformWithState`` |
| identity_rows | the state function over plain rows, as pandas |
| jvm_only | a shuffle; no Python, no state |
| join_rocksdb | the same join over Spark's RocksDB store |
| per_operation | ``applyInPandasWithState``, one group an operation, as it is written by the book |
| with_timers | ``transformWithStateInPandas``, one group and one timer an operation |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.inputs import EVENTS_DDL, NOTE_DDL, ROWS, as_rows, read_sides
from benchmarks.per_operation import per_operation, with_timers
from spark_purgatory import Completions, Operations, criteria
from spark_purgatory.core.state.payload import conform_batch
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, WATERMARK_METADATA, by_shard, exchanged
from spark_purgatory.spark.host.requirements import PROVIDER, STATE_STORE_SETTINGS
from spark_purgatory.spark.host.requirements import ROCKSDB as ROCKSDB_PROVIDER
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.operator.carried import arrow_schema
from spark_purgatory.spark.operator.purgatory import Purgatory


@dataclass(frozen=True)
class Contender:
    """A way to run the workload."""

    name: str
    says: str
    build: Callable[[SparkSession, Path, int], DataFrame]
    """Of the session, the workload's folder and how many shards."""
    decides: bool
    """Whether its rows are outcomes; else they are the rows it read."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the session, while it runs."""
    at_most: int | None = None
    """Operations beyond which it would take too long to wait for."""
    grace_ms: int = 0
    """How long after its deadline it lets an operation expire."""


def ours(spark: SparkSession, folder: Path, shards: int, columns: Sequence[str] = (), **options: Any) -> DataFrame:
    """The library as its users call it; ``options`` are more of `Purgatory`."""
    sides = read_sides(spark, folder, NOTE_DDL if columns else EVENTS_DDL)
    return purgatory_of(shards, columns, **options).resolve(*sides)


def purgatory_of(shards: int, columns: Sequence[str] = (), **options: Any) -> Purgatory:
    """A purgatory for the workloads' two sides."""
    return Purgatory(
        operations=Operations(id="op_id", keys="key", created="created", deadline="deadline", watermark="0 seconds"),
        completions=Completions(key="key", time="time", columns=columns, watermark="0 seconds"),
        criterion=criteria.any_key(),
        emit="early",
        shards=shards,
        **options,
    )


def join(
    spark: SparkSession, folder: Path, shards: int, longest_delay_minutes: int = 3, columns: Sequence[str] = ()
) -> DataFrame:
    """A left outer join of the workload's folders."""
    return joined(*read_sides(spark, folder, NOTE_DDL if columns else EVENTS_DDL), longest_delay_minutes, columns)


def joined(
    operations: DataFrame, events: DataFrame, longest_delay_minutes: int, columns: Sequence[str] = ()
) -> DataFrame:
    """A left outer join on key and time range; an operation without an event leaves at its deadline.

    Spark drops state by one time column a side. With ``created`` there, every operation would be held for the
    longest delay; so the watermark is made from ``created``, and the mark moved on to ``deadline``. For a condition
    with ``<=`` Spark holds that clock 1 ms back, to be safe: a row leaves up to 1 ms after its deadline.
    """
    left = operations.withWatermark("created", "0 seconds").select(
        "op_id",
        "key",
        F.col("created").alias("created", metadata={}),
        F.col("deadline").alias("deadline", metadata={WATERMARK_METADATA: 0}),
        "amount",
    )
    right = events.withWatermark("time", "0 seconds").withColumnRenamed("key", "event_key")
    condition = (
        "key = event_key AND time >= created AND time <= deadline "
        f"AND time >= deadline - INTERVAL {longest_delay_minutes} MINUTES"
    )
    pairs = left.join(right, F.expr(condition), "leftOuter")
    resolved = F.coalesce("time", "deadline")
    return pairs.select(
        "op_id",
        "key",
        "created",
        "deadline",
        "amount",
        F.when(F.col("time").isNull(), "EXPIRED").otherwise("COMPLETED").alias("status"),
        resolved.alias("resolved_at"),
        (F.unix_millis(resolved) - F.unix_millis("created")).alias("wait_ms"),
        *columns,
    )


def identity(spark: SparkSession, folder: Path, shards: int, host: str = "applyInPandasWithState") -> DataFrame:
    """What the packed exchange costs by itself: pack, shuffle, hand over, unpack."""
    engine = [F.xxhash64("key").alias("route"), F.col("time").alias("guarded")]
    packed = [
        exchanged(rows.drop("side").select("*", *engine), side, shards)
        for side, rows in zip((OPERATIONS, EVENTS), as_rows(spark, folder), strict=True)
    ]
    groups = by_shard(packed[0].unionByName(packed[1]))
    if host == "transformWithState":
        handed = groups.transformWithState(_HandOver(), "blob binary", "append", "EventTime")
    else:
        handed = groups.applyInPandasWithState(
            _hand_over_blobs, "blob binary", "blob binary", "append", GroupStateTimeout.EventTimeTimeout
        )
    fields = T.StructType(
        [*(field for field in ROWS.fields if field.name != "side"), T.StructField("ahead", T.BooleanType())]
    )
    return handed.mapInArrow(_rows_of_blobs(arrow_schema(fields)), fields)


def _rows_of_blobs(schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow`` that gives back what was packed."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for blob in batch.column("blob"):
                with pa.ipc.open_stream(blob.as_buffer()) as reader:
                    for rows in reader:
                        yield conform_batch(rows, schema)

    return unpack


def _hand_over_blobs(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["blob"]]


class _HandOver(StatefulProcessor):
    """`_hand_over_blobs` as the processor of ``transformWithState``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """No state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """The blobs as they came."""
        for row in rows:
            yield Row(blob=row["blob"])

    def close(self) -> None:
        """Nothing to do."""


def identity_rows(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """The state function over plain rows: conversion to pandas and back is all it does."""
    operations, events = as_rows(spark, folder)
    shard = F.pmod(F.xxhash64("key"), F.lit(shards)).cast("int").alias("shard")
    rows = operations.unionByName(events).select("*", shard)
    return rows.groupBy("shard").applyInPandasWithState(
        _hand_over_rows, ROWS, "blob binary", "append", GroupStateTimeout.EventTimeTimeout
    )


def _hand_over_rows(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[ROWS.names]


def jvm_only(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """A shuffle by key and nothing else."""
    operations, events = as_rows(spark, folder)
    return operations.unionByName(events).repartition("key")


ROCKSDB = {PROVIDER: ROCKSDB_PROVIDER}
log = partial(ours, host="transformWithState")
ours_columns, log_columns, join_columns = (partial(build, columns=["note"]) for build in (ours, log, join))
identity_log = partial(identity, host="transformWithState")

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("ours", "Purgatory, any_key, emit early", ours, True, settings=STATE_STORE_SETTINGS),
        Contender("ours_heap", "ours, state on the heap of the JVM", ours, decides=True),
        Contender("log", "ours, a snapshot and a log in RocksDB", log, decides=True, settings=STATE_STORE_SETTINGS),
        Contender("ours_columns", "ours, with a column of the event", ours_columns, decides=True),
        Contender("log_columns", "log, with a column of the event", log_columns, True, STATE_STORE_SETTINGS),
        Contender("join", "stream-stream left outer join", join, decides=True, grace_ms=1),
        Contender("join_columns", "join, with a column of the event", join_columns, decides=True, grace_ms=1),
        Contender("identity", "packed exchange, no engine", identity, decides=False),
        Contender("identity_log", "the same, log host's operator", identity_log, False, settings=STATE_STORE_SETTINGS),
        Contender("identity_rows", "applyInPandasWithState, plain rows, no work", identity_rows, decides=False),
        Contender("jvm_only", "union, repartition; no Python, no state", jvm_only, decides=False),
        Contender("join_rocksdb", "the same, state in RocksDB", join, decides=True, grace_ms=1, settings=ROCKSDB),
        Contender("per_operation", "applyInPandasWithState, a group an operation", per_operation, True, at_most=20_000),
        Contender(
            "with_timers",
            "transformWithStateInPandas, a group and a timer an operation",
            with_timers,
            decides=True,
            settings=ROCKSDB,
            at_most=20_000,
        ),
    )
}
