"""The waiting operations of a checkpoint as tables to read and count (docs/formats.md).

They are written from the states of the checkpoint. A move reads its own into the shards of a query.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.core.arrays.numbers import scale_of
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.engine_spec import MOVABLE, EngineSpec, spec_of
from spark_purgatory.core.state.blob import read_blob
from spark_purgatory.core.state.engine_snapshot import (
    PAYLOAD,
    carried_of,
    differences_of,
    event_columns_of,
    inspect,
    payload_of,
)
from spark_purgatory.core.state.export import (
    ShardTables,
    engine_from_tables,
    events_tables,
    history_of,
    ids_table,
    most_of_any_shard,
    operations_table,
    plain,
)
from spark_purgatory.core.state.payload import StoredPayload, conform
from spark_purgatory.core.state.step_log import ShardState, table_of
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, gather_states, rows_of_states, shard_states
from spark_purgatory.spark.move.old_checkpoint import Files, OldCheckpoint, lie_in_each_other, reaching
from spark_purgatory.spark.operator.carried import arrow_schema, merged_texts, schema_text, spark_types
from spark_purgatory.spark.placement import shard_label
from spark_purgatory.spark.storage.storage_access import absolute, literal
from spark_purgatory.version import __version__

FACTS = ("spec", "columns", "roles", "sources", "texts", "event_columns", "event_value")  # Those about its query


@dataclass(frozen=True)
class ShardFacts:
    facts: dict[str, Any]
    tally: dict[str, Any]
    watermark_ms: int
    shards: int
    payload: str | None  # The schema of the operations' own columns (`schema_text`); None if nothing waits
    carried: str | None  # The schema of the events' columns that outcomes carry
    event_id: str  # Arrow type of event ids
    events: int
    state_bytes: int
    differences: list[str]  # Why the new query cannot take it over


@dataclass(frozen=True)
class Survey:
    states: ShardStates
    found: list[ShardFacts]

    @property
    def operations(self) -> int:
        return self.tally.pending

    @property
    def tally(self) -> Tally:
        return Tally(**history_of([each.tally for each in self.found]))  # type: ignore[arg-type]

    @property
    def watermark_ms(self) -> int:
        return max(each.watermark_ms for each in self.found)

    @property
    def spec(self) -> EngineSpec:
        return spec_of(self.found[0].facts["spec"])


def survey(spark: SparkSession, checkpoint: str, spec: EngineSpec | None = None) -> Survey:
    """Look at every shard of a checkpoint; ``spec``: that of the query that will take it over.

    Raises ConfigError if no micro-batch is committed, and the errors of `shard_states`.
    """
    states = shard_states(spark, checkpoint)
    facts = [] if states is None else gather_states(states.whole, partial(_facts, spec))
    if states is None or not facts:
        raise ConfigError(
            f"checkpoint={checkpoint!r} has no state yet, so there is nothing to move or export: start the query with "
            "any settings"
        )
    return Survey(states, [ShardFacts(**each) for each in facts])


def _facts(spec: EngineSpec | None, state: ShardState) -> Iterator[dict[str, Any]]:
    blob = state.blob()
    facts, columns = read_blob(blob)
    payload = None
    if PAYLOAD in columns:
        held = zip(columns[PAYLOAD].type, facts["columns"], strict=True)
        payload = pa.schema([each.with_name(name) for each, name in held])
    times = [column for name, column in columns.items() if name.endswith(".time_us")]
    event_ids = [column.type for name, column in columns.items() if name.endswith(".event_ids")]
    yield {
        "facts": {name: facts[name] for name in FACTS},
        "tally": facts["tally"],
        "watermark_ms": facts["watermark_ms"],
        "event_id": str(event_ids[0]) if event_ids else "",
        "shards": facts["shards"],
        "events": sum(map(len, times)),
        "state_bytes": len(blob),
        "differences": [] if spec is None else differences_of(spec, facts, columns, MOVABLE),
        "payload": schema_text(payload),
        "carried": schema_text(event_columns_of(facts, columns)),
    }


FORMAT = 1  # The version of the tables' columns.
COUNTS = "counts"
SIDES = {"operations": 0, "events": 1, "ids": 2, "counts": 3}  # The number of each table in the exchange.
TABLES = ("operations", "events", "ids")
COUNTS_DDL = "format int, spark_purgatory string, manifest string"
DEDUPLICATED_IN = 64  # Groups of events by key, in which copies are found


@refuses_wrong_calls
def export_state(spark: SparkSession, *, checkpoint: str, folder: str) -> Mapping[str, int]:
    """Write what waits in a checkpoint as Parquet tables: ``operations``, ``events``, ``ids`` and ``counts``.

    The checkpoint is only read, as its last micro-batch left it. To take operations out of it, give `move_checkpoint`
    a condition on the columns of the table ``operations``.

    Args:
        spark: A session with a JVM, not one of Spark Connect.
        checkpoint: The query's ``checkpointLocation``.
        folder: A new folder for the tables.

    Returns:
        The number of rows in each of ``operations``, ``events`` and ``ids``, and the ``batch_id`` of the micro-batch.

    Raises:
        ConfigError: There is no such checkpoint, nothing is committed there, or the folder is not empty.
        StateCorruptError: A state is damaged.

    Example::

        export_state(spark, checkpoint="/lake/_checkpoints/orders", folder="/lake/export")
        spark.read.parquet("/lake/export/operations").groupBy("operation.customer").count().show()
    """
    files = Files(spark)
    checkpoint, folder = (absolute(spark, path.rstrip("/")) for path in (checkpoint, folder))
    if lie_in_each_other(folder, checkpoint):
        raise ConfigError(f"folder={folder!r} and checkpoint={checkpoint!r} overlap: give another folder")
    with reaching("folder", folder):
        if files.names(folder):
            raise ConfigError(f"folder={folder!r} is not empty: give a folder that does not exist yet")
    with reaching("checkpoint", checkpoint):
        old = OldCheckpoint.read(files, checkpoint, "checkpoint")
    found = survey(spark, checkpoint)
    return {**write_tables(found, old.query_id, folder), "batch_id": found.states.batch_id}


def schemas_of(found: Survey) -> dict[str, T.StructType]:
    texts = {name: text for each in found.found for name, text in each.facts["texts"].items()}
    id_type, key_type = (
        "binary" if texts.get(name) == "binary" else "string" for name in ("operations.id", "operations.keys")
    )
    event_id = next((each.event_id for each in found.found if each.event_id), "string")
    scale = scale_of(found.spec.number)
    value = "double" if scale is None else f"decimal(38,{scale})"
    own = _spark_type(each.payload for each in found.found)
    by_row = ", rule string, need double, sum_need string, level_needs array<string>"
    operations = T.StructType(
        [
            *([T.StructField("operation", own)] if own.fields else []),
            *_ddl(
                f"id {id_type}, keys array<{key_type}>, created_us bigint, deadline_us bigint, from_us bigint, "
                f"late boolean, undecided boolean, id_until_us bigint{by_row if found.spec.by_row else ''}"
            ),
        ]
    )
    events = _ddl(
        f"kept_as string, kind string, is_named boolean, operation_id {id_type}, key {key_type}, time_us bigint, "
        f"value {value}, number bigint, event_id {event_id}"
    )
    if (columns := _spark_type(each.carried for each in found.found)).fields:
        events.append(T.StructField("columns", columns))
    return {
        "operations": operations,
        "events": T.StructType(events),
        "ids": T.StructType(_ddl(f"id {id_type}, key {key_type}, until_us bigint")),
    }


def write_tables(found: Survey, query_id: str, folder: str, where: str = "true") -> dict[str, int]:
    """Write the tables below a new folder, of the operations only those that a move keeps. Return their sizes."""
    spark = found.states.whole.sparkSession
    for name, schema in schemas_of(found).items():
        rows = kept_operations(found, where) if name == "operations" else _table(found, name, schema)
        rows.write.parquet(f"{folder}/{name}")
    counts = {name: spark.read.parquet(f"{literal(folder)}/{name}").count() for name in TABLES}
    facts = [{name: getattr(each, name) for name in ("facts", "payload", "carried")} for each in found.found]
    manifest = {
        "query_id": query_id,
        "batch_id": found.states.batch_id,
        "watermark_ms": found.watermark_ms,
        "shards": found.found[0].shards,
        "host": found.states.host,
        "history": vars(found.tally),
        "queries": [json.loads(text) for text in sorted({json.dumps(each, sort_keys=True) for each in facts})],
        "rows": counts,
    }
    row = (FORMAT, __version__, json.dumps(manifest))
    spark.createDataFrame([row], COUNTS_DDL).coalesce(1).write.parquet(f"{folder}/{COUNTS}")
    return counts


def kept_operations(found: Survey, where: str) -> DataFrame:
    """Return the rows of the table ``operations`` for which a condition is true. Raises ConfigError if it is wrong."""
    schema = schemas_of(found)["operations"]
    try:
        return _table(found, "operations", schema).where(where)
    except (AnalysisException, ParseException) as error:
        own = schema["operation"].dataType if "operation" in schema.names else T.StructType()
        names = [name for name in schema.names if name != "operation"]
        names += [f"operation.{name}" for name in cast("T.StructType", own).names]
        raise ConfigError(
            f"where={where!r} is no condition on the operations that wait: {sentence_of(error)}. Nothing was written. "
            f"Use the columns {', '.join(names)}"
        ) from error


def _table(found: Survey, name: str, schema: T.StructType) -> DataFrame:
    whole, spec = found.states.whole, found.spec
    # Operations with several keys have a copy of each event in every shard.
    is_copied = len(found.found) > 1 and spec.identity_width == 1 and not spec.key_prefix
    if name != "events" or not is_copied:
        return rows_of_states(whole, partial(_rows, name, arrow_schema(schema)), schema)
    with_shard = T.StructType([*schema.fields, T.StructField("shard", T.LongType())])
    copies = rows_of_states(whole, partial(_rows, name, arrow_schema(with_shard)), with_shard)
    group = F.pmod(F.xxhash64("key", "operation_id"), F.lit(DEDUPLICATED_IN))
    return copies.groupBy(group).applyInArrow(_without_copies, schema)


def _without_copies(table: pa.Table) -> pa.Table:
    shard = np.unique(table["shard"].to_numpy(), return_inverse=True)[1]
    return most_of_any_shard(table.drop_columns(["shard"]), shard)


def _rows(name: str, schema: pa.Schema, state: ShardState) -> Iterator[pa.RecordBatch]:
    """Yield a shard's rows of one table, with its number if the schema has one."""
    blob = state.blob()
    shard = secrets.randbits(56)  # Shards without operations may have equal states.
    for table in _tables_of(name, *inspect(blob)):
        columns = {**plain(table), "shard": pa.repeat(shard, len(table))}
        yield pa.RecordBatch.from_arrays([_as(columns[field.name], field.type) for field in schema], schema=schema)


def _tables_of(name: str, engine: Any, names: list[str]) -> Iterator[pa.Table]:
    if name == "events":
        yield from events_tables(engine)
    elif name == "ids":
        yield ids_table(engine)
    elif engine.pending:
        table = operations_table(engine, names)
        assert table is not None
        yield table


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the export's type. Logs of named events have ids and keys as bytes."""
    held = column.type
    if pa.types.is_list(held) and pa.types.is_binary(held.value_type) and pa.types.is_string(kind.value_type):
        return column.cast(kind)
    return column.view(kind) if {held, kind} == {pa.string(), pa.binary()} else conform(column, kind)


def _ddl(text: str) -> list[T.StructField]:
    return list(cast("T.StructType", T.DataType.fromDDL(text)).fields)


def _spark_type(schemas: Iterable[str | None]) -> T.StructType:
    """Return the columns of all shards, without void ones, which Parquet cannot store and which are always null."""
    kept = [field for field in merged_texts(schemas) if not pa.types.is_null(field.type)]
    return T.StructType([T.StructField(each.name, each.dataType, True) for each in spark_types(kept)])


# --- read back ------------------------------------------------------------------------------------------


def with_hashes(name: str, rows: DataFrame, route: str, key_prefix: int, id_prefix: int) -> DataFrame:
    """Return the rows of a table with the hashes that the query's own rows would have, and the one that routes them."""
    if name == "operations":
        first = F.col("keys")[0]
        # An operation that needs no id may have none, and then any shard will do.
        by_id = F.when(F.col("id").isNull(), F.xxhash64(first)).otherwise(F.xxhash64("id"))
        goes_by = {"key": F.xxhash64(first), "id": by_id}
        hashes = {"id_hash": F.xxhash64("id"), "key_hashes": F.transform("keys", lambda key: F.xxhash64(key))}
        scope = _scope(rows, first, "keys", key_prefix)
    elif name == "events":
        by_key = F.xxhash64("key")
        goes_by = {"key": by_key, "id": by_key}
        hashes = {"hash": F.when(F.col("is_named"), F.xxhash64("operation_id")).otherwise(by_key)}
        scope = F.coalesce(
            _scope(rows, F.col("key"), "key", key_prefix),
            _scope(rows, F.col("operation_id"), "operation_id", id_prefix),
        )
    else:
        goes_by = {"key": F.xxhash64(F.coalesce("key", "id")), "id": F.xxhash64("id")}
        hashes = {"id_hash": F.xxhash64("id")}
        scope = _scope(rows, F.col("id"), "id", id_prefix)
    goes_by["scope"] = F.xxhash64(scope)
    added = {**hashes, "route": goes_by[route], "guarded": F.lit(0).cast("timestamp")}
    return rows.select("*", *(column.alias(each) for each, column in added.items()))


def _scope(rows: DataFrame, column: Column, name: str, prefix: int) -> Column:
    """Return the scope's prefix of texts, 32 digits, or of bytes, 16 bytes, as digits."""
    kind = rows.schema[name].dataType
    kind = kind.elementType if isinstance(kind, T.ArrayType) else kind
    head = F.substring(column, 1, prefix)
    return F.lower(F.hex(head)) if isinstance(kind, T.BinaryType) else head


@dataclass(frozen=True)
class Importing:
    """The properties that all shards of an import share. It is sent to the workers."""

    spec: EngineSpec
    shards: int
    watermark_ms: int
    history: Mapping[str, Any]

    def engine(self, key: Any, rows: Iterable[tuple[int, bytes]]) -> EventTimePurgatory:
        sides: dict[int, list[bytes]] = {side: [] for side in SIDES.values()}
        for side, blob in rows:
            sides[int(side)].append(bytes(blob))
        tables = {name: table_of(sides[side]) for name, side in SIDES.items()}
        operations, events = tables["operations"], tables["events"]
        if operations is not None:
            operations = self._evolved(operations, "operation", payload_of)
        if events is not None and self.spec.event_columns is not None:
            events = self._evolved(events, "columns", carried_of)
        first = shard_label(0)
        history = self.history if int(key[0]) == first else None
        return engine_from_tables(self.spec, ShardTables(operations, events, tables["ids"]), self.watermark_ms, history)

    def _evolved(
        self, table: pa.Table, name: str, match: Callable[[EngineSpec, pa.StructArray, list[str]], StoredPayload]
    ) -> pa.Table:
        """Return the table with the query's columns instead of the export's."""
        if name in table.column_names:
            held = pa.concat_arrays(table[name].chunks)
            table = table.drop_columns([name])
        else:
            held = pa.Array.from_buffers(pa.struct([]), len(table), [None])
        names = [field.name for field in held.type]
        return table.append_column(name, match(self.spec, held, names).evolved())
