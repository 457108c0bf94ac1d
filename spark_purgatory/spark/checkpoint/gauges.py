"""`gauges`: the number and size of what waits, read from a checkpoint's latest state.

A micro-batch calls only the shards that it touches, so its counters cannot give the total. The checkpoint has the state
of all shards. Workers read the header, the checksum and the metadata of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict, cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.spark.checkpoint.shard_states import collected, shard_states, states_in


class Gauges(TypedDict):
    """The result of `gauges`."""

    pending: int
    watched: int
    state_bytes: int
    shards: int
    largest_shard_pending: int
    largest_shard_state_bytes: int
    oldest_created_ms: int | None
    next_due_ms: int | None
    watermark_ms: int
    batch_id: int | None


UNKNOWN = ("oldest_created_ms", "next_due_ms", "batch_id")
"""Gauges that are None before the first micro-batch. The others are 0."""
OF_SHARDS = "pending bigint, watched bigint, state_bytes bigint, oldest_us bigint, next_due_ms bigint"


@refuses_wrong_calls
def gauges(spark: SparkSession, *, checkpoint: str) -> Gauges:
    """Return how much waits after a query's latest committed micro-batch. The query may be running.

    This is a Spark job that reads the whole state, so call it every few minutes, not in every micro-batch. The changes
    of a micro-batch are in ``observedMetrics`` (`spark_purgatory.schema.COUNTERS`). It works through Spark Connect.

    Args:
        spark: Any session, not necessarily the one that runs the query.
        checkpoint: The query's ``checkpointLocation``.

    Returns:
        - ``pending``: operations that wait (Kafka: ``NumDelayedOperations``). ``watched``: entries in the lists of
          watchers (Kafka: ``PurgatorySize``).
        - ``state_bytes``: bytes of all shards' states, as the state store keeps them. ``shards``: shards that have a
          state. ``largest_shard_pending`` and ``largest_shard_state_bytes`` show how evenly they are filled.
        - ``oldest_created_ms``: the earliest created time of a waiting operation. ``next_due_ms``: the watermark at
          which the next outcome is due. Both are in milliseconds since 1970, and None while nothing waits.
        - ``watermark_ms``: the watermark of the micro-batch, 0 before there is one. ``batch_id``: its number, None
          before the first is committed. Then all other values are 0 or None.

    Raises:
        ConfigError: There is no checkpoint, or its query has no purgatory.

    Example::

        waiting = gauges(spark, checkpoint="/lake/_checkpoints/outcomes")["pending"]
    """
    states = shard_states(spark, checkpoint)
    if states is None:
        return cast("Gauges", {**dict.fromkeys(Gauges.__annotations__, 0), **dict.fromkeys(UNKNOWN)})
    row = states.heads.mapInArrow(_of_shards, OF_SHARDS).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("pending", "watched", "state_bytes")),
        F.count("*").alias("shards"),
        F.coalesce(F.max("pending"), F.lit(0)).alias("largest_shard_pending"),
        F.coalesce(F.max("state_bytes"), F.lit(0)).alias("largest_shard_state_bytes"),
        F.floor(F.min("oldest_us") / 1000).alias("oldest_created_ms"),
        F.min("next_due_ms").alias("next_due_ms"),
    )
    found = collected(row)[0].asDict()
    return cast("Gauges", {**found, "watermark_ms": states.watermark_ms, "batch_id": states.batch_id})


def _of_shards(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row for every shard's state, by decoding only its metadata (for ``mapInArrow``)."""
    schema = pa.schema([(part.split()[0], pa.int64()) for part in OF_SHARDS.split(", ")])
    for batch in batches:
        told = [(state.size, state.metadata()) for state in states_in(batch)]
        rows = [{"pending": Tally(**said["tally"]).pending, "state_bytes": n, **said["gauges"]} for n, said in told]
        yield pa.RecordBatch.from_pylist(rows, schema)
