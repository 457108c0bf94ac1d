"""States in which operations with columns of their own wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.core.state.payload import sent

SPEC = EngineSpec(criteria.count(2), identity_width=2)
WAITING = [{"id": f"o{i}", "key": f"k{i}", "city": f"city {i}", "town": f"town {i}", "n": i} for i in range(5)]
NAMED = pa.schema([(name, pa.string()) for name in ("id", "key", "city", "town")] + [("n", pa.int64())])


def spec_of(columns: pa.Schema, *played: tuple[str, str], **others: Any) -> EngineSpec:
    """A spec for these columns, of which some play roles."""
    roles = tuple((role, columns.names.index(name)) for role, name in played)
    return replace(SPEC, columns=columns, roles=roles, **others)


def arrivals(rows: list[dict[str, Any]], spec: EngineSpec) -> Any:
    return read_operations(delivered(rows, spec), spec)


def delivered(rows: list[dict[str, Any]], spec: EngineSpec) -> pa.Table:
    ids, keys = (pa.array([row[name] for row in rows]) for name in ("id", "key"))
    n = len(rows)
    engine = {
        "id": ids,
        "id_hash": pa.array(hash_keys(ids)),
        "keys": keys,
        "key_hashes": pa.array(hash_keys(keys)),
        "created_us": pa.array([10_000] * n),
        "deadline_us": pa.array([20_000] * n),
        "ahead": pa.array([False] * n),
    }
    assert spec.columns is not None
    table = pa.table({name: column for name, column in engine.items() if spec.role(name) is None})
    for field, named in zip(sent(spec.columns), spec.columns.names, strict=True):
        values = pa.array([row[named] for row in rows], field.type)
        table = table.append_column(field, values)
    return table


def saved(spec: EngineSpec, rows: list[dict[str, Any]] = WAITING) -> bytes:
    engine = EventTimePurgatory(spec)
    assert engine.step(arrivals(rows, spec) if rows else None, None, 0) == []
    return save(engine, 1)


def expired(engine: EventTimePurgatory) -> list[dict[str, Any]]:
    """The payload of all that waits, under the query's names, by id."""
    assert engine.spec.columns is not None
    names = engine.spec.columns.names
    outcomes = engine.step(None, None, 30)
    rows = [row for batch in outcomes for row in batch.select(range(len(names))).rename_columns(names).to_pylist()]
    return sorted(rows, key=lambda row: row["id"])
