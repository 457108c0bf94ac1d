"""Moves of whole sets of shards without Spark: taken apart, dealt to other shards, put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import inspect, save, tally_of
from spark_purgatory.core.state.export import (
    ShardTables,
    engine_from_tables,
    events_tables,
    history_of,
    ids_table,
    most_of_any_shard,
    operations_table,
)
from tests.support.engine_driver import Shards, hashes_of


def moved(before: Shards, spec: EngineSpec, shards: int) -> Shards:
    """The same shards in another number, perhaps with other settings; in the meantime nothing runs."""
    blobs = [save(engine, before.shards) for engine in (before.engine(i) for i in range(before.shards))]
    engines = [inspect(blob)[0] for blob in blobs]
    names = ["id", "row"]
    operations = [each for engine in engines if (each := operations_table(engine, names)) is not None]
    events = [_with_shard(each, i, spec) for i, engine in enumerate(engines) for each in events_tables(engine)]
    ids = [_texts(ids_table(engine)) for engine in engines]
    after = Shards(spec, shards, before.several, before.hash_bits, before.restarts)
    rows = None if not operations else _operations(pa.concat_tables(map(_texts, operations)), after)
    heard = None if not events else _events(_united(events, after), after)
    seen = _ids(pa.concat_tables(ids), after)
    watermark_ms = max(engine.watermark_ms for engine in engines)
    history = history_of([tally_of(engine) for engine in engines])
    for shard in range(shards):
        dealt = ShardTables(
            _of_shard(rows, after, lambda row: row["id"] if after.several else row["keys"][0], shard),
            _of_shard(heard, after, lambda row: row["key"], shard, after.several),
            _of_shard(seen, after, lambda row: row["id"] if after.several else row["key"] or row["id"], shard),
        )
        engine = engine_from_tables(after.spec, dealt, watermark_ms, history if shard == 0 else None)
        _keep(after, shard, engine)
    return after


def _keep(after: Shards, shard: int, engine: EventTimePurgatory) -> None:
    engine.outcomes.tally.conserve(engine.pending)
    after.blobs[shard], after.due_ms[shard] = save(engine, after.shards), engine.next_due_ms()


def _of_shard(table: pa.Table | None, shards: Shards, route: Any, shard: int, to_all: bool = False) -> pa.Table | None:
    if table is None:
        return None
    if to_all:
        return table
    mine = [shards.shard_of(route(row)) == shard for row in table.select(_routing(table)).to_pylist()]
    return table.filter(pa.array(mine, pa.bool_()))


def _routing(table: pa.Table) -> list[str]:
    return [name for name in ("id", "keys", "key", "operation_id") if name in table.column_names]


def _operations(table: pa.Table, shards: Shards) -> pa.Table:
    own = table["operation"].combine_chunks()
    own = own.chunk(0) if isinstance(own, pa.ChunkedArray) else own
    payload = pa.StructArray.from_arrays(own.flatten(), names=["p0", "p1"])
    keys = table["keys"].combine_chunks()
    keys = keys.chunk(0) if isinstance(keys, pa.ChunkedArray) else keys
    hashes = pa.ListArray.from_arrays(keys.offsets, hashes_of(keys.flatten(), shards.hash_bits))
    table = table.set_column(table.column_names.index("operation"), "operation", payload)
    ids = hashes_of(table["id"].combine_chunks(), shards.hash_bits)
    return table.append_column("id_hash", ids).append_column("key_hashes", hashes)


def _events(table: pa.Table, shards: Shards) -> pa.Table:
    named = np.asarray(table["is_named"])
    by_key, by_id = (
        np.asarray(hashes_of(table[name].combine_chunks(), shards.hash_bits)) for name in ("key", "operation_id")
    )
    return table.append_column("hash", pa.array(np.where(named, by_id, by_key)))


def _ids(table: pa.Table, shards: Shards) -> pa.Table:
    return table.append_column("id_hash", hashes_of(table["id"].combine_chunks(), shards.hash_bits))


def _with_shard(table: pa.Table, shard: int, spec: EngineSpec) -> pa.Table:
    if spec.event_columns is not None:
        kind = pa.struct([field.with_name(f"p{i}").with_nullable(True) for i, field in enumerate(spec.event_columns)])
        held, parts = pa.nulls(len(table), kind), table["columns"].combine_chunks()
        if not any(pa.types.is_null(field.type) for field in parts.type):
            held = pa.StructArray.from_arrays(parts.flatten(), fields=list(kind))
        table = table.drop_columns(["columns"]).append_column("columns", held)
    return _texts(table).append_column("shard", pa.array(np.full(len(table), shard)))


def _united(tables: list[pa.Table], shards: Shards) -> pa.Table:
    table = pa.concat_tables(tables, promote_options="permissive")
    where = np.asarray(table["shard"])
    table = table.drop_columns(["shard"])
    return most_of_any_shard(table, where) if shards.several else table


def _texts(table: pa.Table) -> pa.Table:
    """Keys and ids as texts: logs of named events hold bytes."""
    for name in ("id", "key", "operation_id"):
        if name in table.column_names and not pa.types.is_string(table[name].type):
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
    return table
