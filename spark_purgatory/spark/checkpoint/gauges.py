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
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, collected, shard_states, states_in
from spark_purgatory.spark.host.calls import clock_behind


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
    newest_operation_ms: int | None
    newest_event_ms: int | None
    watermark_ms: int
    batch_id: int | None


NEWEST = ("newest_operation", "newest_event")
UNKNOWN = ("oldest_created_ms", "next_due_ms", *(f"{name}_ms" for name in NEWEST), "batch_id")
"""They are None before the first micro-batch, and the others 0."""
SUMS = ("received", "decided", "pending", "watched", "state_bytes")
LARGEST = {
    "largest_shard_pending": "pending",
    "largest_shard_state_bytes": "state_bytes",
    "clock_delay_ms": "clock_delay_ms",
}
OF_SHARDS = (*SUMS, "oldest_us", "next_due_ms", "clock_delay_ms", *(f"{name}_us" for name in NEWEST))


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
        - ``newest_operation_ms``, ``newest_event_ms``: the newest times of both inputs, None before the first. Less its
          delay, the earlier one holds the watermark.
        - ``watermark_ms``: the watermark of the micro-batch, 0 before there is one. With ``outcomes_of`` it is less the
          delay of that input. ``batch_id``: its number, None before the first is committed, when all other values are 0
          or None.

    Raises:
        ConfigError: There is no checkpoint, or its query has no purgatory.

    Example::

        waiting = gauges(spark, checkpoint="/lake/_checkpoints/outcomes")["pending"]
    """
    return counted(shard_states(spark, checkpoint))[0]


def counted(states: ShardStates | None) -> tuple[Gauges, int, int]:
    """Return the gauges, and how many operations were received and decided over all runs."""
    if states is None:
        return cast("Gauges", {**dict.fromkeys(Gauges.__annotations__, 0), **dict.fromkeys(UNKNOWN)}), 0, 0
    row = states.heads.mapInArrow(_of_shards, ", ".join(f"{name} bigint" for name in OF_SHARDS)).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in SUMS),
        F.count("*").alias("shards"),
        *(F.coalesce(F.max(of), F.lit(0)).alias(name) for name, of in LARGEST.items()),
        F.floor(F.min("oldest_us") / 1000).alias("oldest_created_ms"),
        F.min("next_due_ms").alias("next_due_ms"),
        *(F.floor(F.max(f"{name}_us") / 1000).alias(f"{name}_ms") for name in NEWEST),
    )
    found = {**collected(row)[0].asDict(), "batch_id": states.batch_id}
    found["watermark_ms"] = clock_behind(states.watermark_ms, found.pop("clock_delay_ms"))
    received, decided = found.pop("received"), found.pop("decided")
    return cast("Gauges", found), received, decided


def _of_shards(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a row for every shard's state, by decoding only its metadata (for ``mapInArrow``)."""
    schema = pa.schema([(name, pa.int64()) for name in OF_SHARDS])
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_of_shard(state) for state in states_in(batch)], schema)


def _of_shard(state: ShardState) -> dict[str, int | None]:
    said = state.metadata()
    tally = Tally(**said["tally"])
    counts = {"received": tally.received, "decided": tally.decided(), "pending": tally.pending}
    seen = {f"{name}_us": vars(tally)[f"{name}_us"] for name in NEWEST}
    newest = {name: None if time_us == MIN_TIME_US else time_us for name, time_us in seen.items()}
    return {**counts, **newest, "state_bytes": state.size, **said["gauges"]}
