"""What a state keeps of events for outcomes, in a query that keeps other columns of them.

Each segment of a log of events has a table of these columns. They are matched by name, as the operations' own are
(`payload_evolution`). A column that the query no longer names is dropped, for nothing else reads it; one that it names
anew is null in the events that are there already.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import Tables
from spark_purgatory.core.state.payload_evolution import Comparison, StoredPayload
from spark_purgatory.core.state.payload_schema import sent
from spark_purgatory.core.state.table_encoding import Arrays

EVENT_LOGS = ("control", "unmatched")
"""Owners of logs of events, besides that of completions."""


def differences_of_events(spec: EngineSpec, facts: dict[str, Any], tables: Tables) -> list[str]:
    """What cannot be changed of them, a sentence each with the remedy."""
    held = [tables[name] for name in _event_tables(facts) if name in tables] if spec.event_columns else []
    return [f"completions.columns: {text}" for each in held for text in _carried(spec, facts, each).differences()]


def event_columns_of(facts: dict[str, Any], tables: Tables) -> pa.Schema | None:
    """What a state keeps of events, by name; void where it holds no event. None: nothing was asked for."""
    names = facts["event_columns"]
    if names is None:
        return None
    held = next((tables[name][0].schema.types for name in _event_tables(facts) if name in tables), None)
    kinds = [pa.null()] * len(names) if held is None else held
    return pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])


def _event_tables(facts: dict[str, Any]) -> list[str]:
    """The tables of what is kept of events for outcomes, one for each segment of a log of events."""
    names = [f"log.{i}" for i in range(facts["numbers"]["segments"])]
    for n, each in enumerate(facts["logs"]):
        names += [f"logs.{n}.{i}" for i in range(each["segments"])] if each["owner"] in EVENT_LOGS else []
    return [f"{name}.columns" for name in names]


def evolve_events(spec: EngineSpec, facts: dict[str, Any], arrays: Arrays, tables: Tables) -> None:
    """What is kept of events becomes what the query keeps: it lacks nothing, and null is what was not kept."""
    for table in _event_tables(facts):
        held = tables.pop(table, None)
        if not spec.event_columns:
            continue
        if held is None:
            kind = pa.struct(sent(spec.event_columns))
            rows = pa.nulls(len(arrays[table.removesuffix("columns") + "time_us"]), kind)
            tables[table] = [pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(kind))]
        else:
            tables[table] = _carried(spec, facts, held).evolved()


def _carried(spec: EngineSpec, facts: dict[str, Any], held: list[pa.RecordBatch]) -> StoredPayload:
    """What a segment keeps of its events, matched with what the query keeps."""
    return carried_of(spec, held, facts["event_columns"])


def carried_of(spec: EngineSpec, held: list[pa.RecordBatch], names: list[str]) -> StoredPayload:
    """What is kept of events, matched with what a query keeps."""
    assert spec.event_columns is not None
    return StoredPayload(held, names, spec.event_columns, Comparison(spec.case_sensitive, drops_any=True))
