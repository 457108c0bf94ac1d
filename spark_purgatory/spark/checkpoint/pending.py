"""What waits, operation by operation, read from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.core.engine.waiting import WAITING_FIELDS, Waiting, waiting_fields
from spark_purgatory.core.state.engine_snapshot import inspect, waiting_schema
from spark_purgatory.core.state.payload_schema import conform, matched
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, rows_of_states, shard_states, told_by_states
from spark_purgatory.spark.operator.payload import arrow_schema, merged_texts, schema_text, spark_types


@refuses_wrong_calls
def pending(
    spark: SparkSession,
    *,
    checkpoint: str,
    batch_id: int | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
) -> DataFrame:
    """The operations that wait: one row each, to be filtered and sorted as any DataFrame.

    It is read from the checkpoint and decoded on the executors, while the query runs or after. It reads the whole state
    of the query. It works through Spark Connect.

    Args:
        spark: The session; it need not be the one that runs the query.
        checkpoint: The query's ``checkpointLocation``.
        batch_id: After which micro-batch; by default the latest that is committed. A checkpoint keeps the last 100
            (``spark.sql.streaming.minBatchesToRetain``).
        columns: Only these columns, which is faster than to select them afterwards; by default all.
        prefix: Put before the names below, where the operations have columns of these names.

    Returns:
        The operations' own columns, as the state of the shards has them: after a restart with other columns
        (docs/upgrading.md) a shard has the new ones once it is touched. And:

        - ``watch_keys`` (array of string): what it waits for; ``missing_keys``: which of them had no event yet, null
          under ``count`` and ``sum_at_least``.
        - ``matched`` (bigint): relevant events so far.
        - ``criterion`` (string), ``reached`` and ``needed``: keys, events or a sum of values. They are double, or
          decimal where decimals or integers are summed, and then null beyond 38 digits. ``progress`` (string): the same
          as text, "3 of 5".
        - ``created_at``, ``deadline_at`` (timestamp): the deadline with the extensions so far.
        - ``held_until`` (timestamp): where the criterion is met already, and ``emit="final"`` waits for the watermark.
        - ``age_ms``, ``remaining_ms`` (bigint): since it was created and until its deadline, seen from the watermark of
          the micro-batch, not from the clock on the wall; null before there is a watermark.
        - ``events`` (array of struct), where outcomes carry events: the first 100 of those that count so far.

    Raises:
        ConfigError: There is no such checkpoint, micro-batch or column, or an operation's column has the name of one
            above: then give ``prefix``.
        StateCorruptError: A state is damaged. It is raised when the DataFrame is evaluated.
        StateMismatchError: A column has types in several shards of which none is wider than the others.

    Example::

        waiting = pending(spark, checkpoint="/lake/_checkpoints/outcomes")
        waiting.where("order_id = 7").show(truncate=False)
        waiting.orderBy("remaining_ms").limit(20).show()
    """
    states = shard_states(spark, checkpoint, batch_id)
    own, fields = (T.StructType(), [*WAITING_FIELDS]) if states is None else _held(states)
    schema = T.StructType([*own.fields, *_prefixed(own, prefix, fields)])
    chosen = _chosen(schema, columns)
    if states is None:
        return spark.createDataFrame([], chosen)
    added = {prefix + field.name: field.name for field in fields}
    return rows_of_states(states.whole, partial(waiting_rows, states.watermark_ms, arrow_schema(chosen), added), chosen)


def _prefixed(own: T.StructType, prefix: str, fields: list[pa.Field]) -> list[T.StructField]:
    added = spark_types([field.with_name(prefix + field.name) for field in fields])
    taken = {name.casefold() for name in own.names}
    if clash := [name for name in added.names if name.casefold() in taken]:
        raise ConfigError(
            f"the operations have a column {', '.join(clash)}, which pending() adds: set prefix=, for example 'waits_'"
        )
    return added.fields


def _chosen(schema: T.StructType, columns: Sequence[str] | None) -> T.StructType:
    if columns is None:
        return schema
    asked = [columns] if isinstance(columns, str) else list(columns)
    if unknown := [name for name in asked if name not in schema.names]:
        raise ConfigError(f"columns={unknown!r}: there are {', '.join(schema.names)}")
    return T.StructType([schema[name] for name in asked])


def _held(states: ShardStates) -> tuple[T.StructType, list[pa.Field]]:
    """(the operations' columns: of all shards in which something waits; without one their types are not known, our
    columns).
    """
    found = told_by_states(states.whole, _schemas)
    own = merged_texts([own for own, waits, _ in found if waits] or [own for own, _, _ in found])
    return spark_types(own), merged_texts(ours for _, _, ours in found) or [*WAITING_FIELDS]


def _schemas(state: ShardState) -> Iterator[tuple[str | None, bool, str | None]]:
    """(the payload's schema, void columns where nothing waits, whether something waits, our columns) of a shard."""
    schema, waits, spec = waiting_schema(state.blob())
    yield schema_text(schema), waits, schema_text(pa.schema(waiting_fields(spec)))


def waiting_rows(
    watermark_ms: int, schema: pa.Schema, added: dict[str, str], state: ShardState
) -> Iterator[pa.RecordBatch]:
    """The rows of a shard's state. ``added``: our columns by the name that they have here."""
    engine, names = inspect(state.blob())
    if not engine.pending:
        return
    waiting = Waiting(engine, watermark_ms * 1000 if watermark_ms > 0 else None)
    payload = waiting.payload()
    order, _ = matched(names, schema.names)

    def column(at: int, name: str, kind: pa.DataType) -> pa.Array:
        if name not in added:
            return conform(payload.field(at), kind) if at >= 0 else pa.nulls(len(payload), kind)
        has_none = added[name] == "events" and engine.spec.evidence is None
        return pa.nulls(len(waiting), kind) if has_none else conform(waiting.column(added[name]), kind)

    columns = [column(at, field.name, field.type) for at, field in zip(order, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, schema=schema)
