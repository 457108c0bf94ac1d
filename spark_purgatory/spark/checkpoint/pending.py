"""The operations that wait, and their number and size (`gauges`), read from a checkpoint's latest state.

A micro-batch calls only the shards that it touches, so its counters cannot give the total. The checkpoint has the state
of all shards. For `gauges` workers read the header, the checksum and the metadata of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypedDict

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.engine.waiting import WAITING_FIELDS, Waiting, waiting_fields
from spark_purgatory.core.state.engine_snapshot import inspect
from spark_purgatory.core.state.payload import conform, matched
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, gather_states, rows_of_states, shard_states
from spark_purgatory.spark.host.calls import clock_behind
from spark_purgatory.spark.operator.carried import arrow_schema, merged_texts, schema_text, spark_types


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
    shards = [] if states is None else gather_states(states.heads, _of_shard)

    def known(name: str) -> list[int]:
        return [shard[name] for shard in shards if shard[name] is not None]

    delay_ms = max(known("clock_delay_ms"), default=0)
    found = Gauges(
        pending=sum(known("pending")),
        watched=sum(known("watched")),
        state_bytes=sum(known("state_bytes")),
        shards=len(shards),
        largest_shard_pending=max(known("pending"), default=0),
        largest_shard_state_bytes=max(known("state_bytes"), default=0),
        oldest_created_ms=min(known("oldest_created_ms"), default=None),
        next_due_ms=min(known("next_due_ms"), default=None),
        newest_operation_ms=max(known("newest_operation_ms"), default=None),
        newest_event_ms=max(known("newest_event_ms"), default=None),
        watermark_ms=0 if states is None else clock_behind(states.watermark_ms, delay_ms),
        batch_id=None if states is None else states.batch_id,
    )
    return found, sum(known("received")), sum(known("decided"))


def _of_shard(state: ShardState) -> Iterator[dict[str, int | None]]:
    metadata = state.metadata()
    tally, oldest_us = Tally(**metadata["tally"]), metadata["gauges"].pop("oldest_us")
    newest_us = {"newest_operation_ms": tally.newest_operation_us, "newest_event_ms": tally.newest_event_us}
    yield {
        "received": tally.received,
        "decided": tally.decided(),
        "pending": tally.pending,
        "state_bytes": state.size,
        "oldest_created_ms": None if oldest_us is None else oldest_us // 1000,
        **{name: None if time_us == MIN_TIME_US else time_us // 1000 for name, time_us in newest_us.items()},
        **metadata["gauges"],
    }


@refuses_wrong_calls
def pending(
    spark: SparkSession,
    *,
    checkpoint: str,
    batch_id: int | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
) -> DataFrame:
    """Return the operations that wait, one row each, as a DataFrame to filter and sort.

    Executors read and decode the whole state in the checkpoint. The query may be running. It works through Spark
    Connect.

    Args:
        spark: Any session, not necessarily the one that runs the query.
        checkpoint: The query's ``checkpointLocation``.
        batch_id: The micro-batch whose state is read, by default the latest that is committed. A checkpoint keeps the
            last 100 (``spark.sql.streaming.minBatchesToRetain``).
        columns: The columns to return, by default all. A choice here is faster than a later select.
        prefix: Put before the names below, in case the operations have columns of these names.

    Returns:
        The operations' own columns, as the state of the shards has them. After a restart with other columns
        (docs/upgrading.md) a shard has the new ones once a micro-batch calls it. Then:

        - ``watch_keys`` (array of string): the keys it waits for. ``missing_keys``: those without an event yet, null
          under ``count`` and ``sum_at_least``.
        - ``matched`` (bigint): relevant events so far.
        - ``criterion`` (string), ``reached`` and ``needed``: keys, events or a sum of values. Their type is
          double, or decimal for sums of decimals or integers; more than 38 digits are null. ``progress`` (string): the
          same as text, "3 of 5".
        - ``created_at``, ``deadline_at`` (timestamp): the deadline includes the extensions so far.
        - ``held_until`` (timestamp), if the criterion is met and ``emit="final"`` still waits for the watermark.
        - ``age_ms``, ``remaining_ms`` (bigint): the time since it was created and until its deadline, measured at the
          watermark in the micro-batch (`gauges`), not by the wall clock; null before there is one.
        - ``events`` (array of struct), if outcomes carry events: the first 100 of those that count so far.

    Raises:
        ConfigError: There is no such checkpoint, micro-batch or column, or an operation's column has the name of one
            above: then give ``prefix``.
        StateCorruptError: A state is damaged. It is raised when the DataFrame is evaluated.
        StateMismatchError: The types of a column differ between shards, and none of them is wider than the others.

    Example::

        waiting = pending(spark, checkpoint="/lake/_checkpoints/outcomes")
        waiting.where("order_id = 7").show(truncate=False)
        waiting.orderBy("remaining_ms").limit(20).show()
    """
    return pending_in(spark, shard_states(spark, checkpoint, batch_id), columns, prefix)


def pending_in(
    spark: SparkSession, states: ShardStates | None, columns: Sequence[str] | None, prefix: str
) -> DataFrame:
    own, fields = (T.StructType(), [*WAITING_FIELDS]) if states is None else _held(states)
    schema = T.StructType([*own.fields, *_prefixed(own, prefix, fields)])
    chosen = _chosen(schema, columns)
    if states is None:
        return spark.createDataFrame([], chosen)
    added = {prefix + field.name: field.name for field in fields}
    return rows_of_states(states.whole, partial(waiting_rows, states.watermark_ms, arrow_schema(chosen), added), chosen)


def _prefixed(own: T.StructType, prefix: str, fields: list[pa.Field]) -> list[T.StructField]:
    added = spark_types([field.with_name(prefix + field.name) for field in fields])
    taken = {name.lower() for name in own.names}
    if clash := [name for name in added.names if name.lower() in taken]:
        raise ConfigError(
            f"the operations have a column {', '.join(clash)} of their own: give pending() a prefix=, such as 'waits_'"
        )
    return added.fields


def _chosen(schema: T.StructType, columns: Sequence[str] | None) -> T.StructType:
    if columns is None:
        return schema
    asked = [columns] if isinstance(columns, str) else list(columns)
    if unknown := [name for name in asked if name not in schema.names]:
        raise ConfigError(f"columns={unknown!r} do not exist: choose from {', '.join(schema.names)}")
    return T.StructType([schema[name] for name in asked])


def _held(states: ShardStates) -> tuple[T.StructType, list[pa.Field]]:
    """Return (the operations' columns, our columns) of all shards. Only shards with operations know the types."""
    found = gather_states(states.whole, _schemas)
    own = merged_texts([own for own, waits, _ in found if waits] or [own for own, _, _ in found])
    return spark_types(own), merged_texts(ours for _, _, ours in found) or [*WAITING_FIELDS]


def _schemas(state: ShardState) -> Iterator[tuple[str | None, bool, str | None]]:
    """Yield (the payload's schema, with void columns if nothing waits; if something waits; our columns) of a shard."""
    engine, names = inspect(state.blob())
    held = engine.rows.payload.kind or [pa.field(name, pa.null()) for name in names]
    own = pa.schema([field.with_name(name) for field, name in zip(held, names, strict=True)])
    yield schema_text(own), engine.rows.payload.kind is not None, schema_text(pa.schema(waiting_fields(engine.spec)))


def waiting_rows(
    watermark_ms: int, schema: pa.Schema, added: dict[str, str], state: ShardState
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard's state. ``added``: our columns, by their names in the result."""
    engine, names = inspect(state.blob())
    if not engine.pending:
        return
    clock_ms = clock_behind(watermark_ms, state.metadata()["gauges"]["clock_delay_ms"])
    waiting = Waiting(engine, clock_ms * 1000 if clock_ms > 0 else None)
    payload = waiting.payload()
    order, _ = matched(names, schema.names)

    def column(at: int, name: str, kind: pa.DataType) -> pa.Array:
        if name not in added:
            return conform(payload.field(at), kind) if at >= 0 else pa.nulls(len(payload), kind)
        has_none = added[name] == "events" and engine.spec.evidence is None
        return pa.nulls(len(waiting), kind) if has_none else conform(waiting.column(added[name]), kind)

    columns = [column(at, field.name, field.type) for at, field in zip(order, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, schema=schema)
