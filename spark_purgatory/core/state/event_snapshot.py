"""Events in a snapshot: segments of logs as arrays and tables, and the columns of events that outcomes carry.

Each segment has a table of these columns. A query that keeps other columns matches them by name, like the operations'
own columns (`payload`). A column that the query no longer names is dropped, because nothing else reads it. A
new one is null in events from before. So a query that orders events by value has to wait until none of these counts.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import ROW_BITS
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import Tables
from spark_purgatory.core.state.encodings import Arrays
from spark_purgatory.core.state.payload import Comparison, StoredPayload, sent

UNVALUED = (
    "evidence_order='value': the checkpoint has events without their values, because outcomes carried none when they "
    "arrived, and operations may still count them: set evidence='all' and evidence_order='time' until the operations "
    "that wait now have their outcomes"
)
EVENT_LOGS = ("control", "unmatched")  # owners of logs of events, besides that of completions


def save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
    """Save a segment as arrays and tables whose names begin with ``name``."""
    arrays[f"{name}.group_prefix"], arrays[f"{name}.start"] = segment.group_hash >> ROW_BITS, segment.start
    arrays[f"{name}.time_us"] = segment.time_us
    if segment.value is not None:
        arrays[f"{name}.value"] = numbers.stored(segment.value)
    tables[f"{name}.keys"] = [pa.RecordBatch.from_arrays([segment.group_keys], names=["key"])]
    if segment.event_ids is not None:
        tables[f"{name}.event_ids"] = [pa.RecordBatch.from_arrays([segment.event_ids], names=["key"])]
    if segment.columns is not None:
        tables[f"{name}.columns"] = [pa.RecordBatch.from_struct_array(segment.columns)]


def restore_segment(name: str, arrays: Arrays, tables: Tables) -> EventSegment:
    columns = tables.get(f"{name}.columns")
    return EventSegment(
        group_hash=arrays[f"{name}.group_prefix"] << ROW_BITS,
        group_keys=tables[f"{name}.keys"][0].column(0),
        start=arrays[f"{name}.start"],
        time_us=arrays[f"{name}.time_us"],
        value=numbers.restored(arrays[f"{name}.value"]) if f"{name}.value" in arrays else None,
        event_ids=tables[f"{name}.event_ids"][0].column(0) if f"{name}.event_ids" in tables else None,
        columns=None if columns is None else columns[0].to_struct_array(),
    )


def differences_of_events(spec: EngineSpec, facts: dict[str, Any], tables: Tables) -> list[str]:
    """Return the changes that the columns carried by outcomes do not allow, each with its remedy."""
    held = [tables[name] for name in _event_tables(facts, tables) if name in tables] if spec.event_columns else []
    matched = (carried_of(spec, each, facts["event_columns"]) for each in held)
    found = [f"completions.columns: {text}" for each in matched for text in each.differences()]
    return found + ([UNVALUED] if _lacks_values(spec, facts) else [])


def _lacks_values(spec: EngineSpec, facts: dict[str, Any]) -> bool:
    """Return True if the query orders events by value, and an operation may count one that was kept without it."""
    until_us = facts["unvalued_until_us"]
    if until_us is None or spec.evidence is None or not spec.evidence.largest:
        return False
    oldest_us, watermark_us = facts["gauges"]["oldest_us"], 1000 * facts["numbers"]["watermark_ms"]
    first_us = watermark_us + 1 if oldest_us is None else min(oldest_us, watermark_us + 1)
    return bool(until_us >= first_us - spec.lookback_us)


def event_columns_of(facts: dict[str, Any], tables: Tables) -> pa.Schema | None:
    """Return the columns of events that outcomes carry, void if the state has no event; None: they carry none."""
    names = facts["event_columns"]
    if names is None:
        return None
    held = (tables[name][0].schema.types for name in _event_tables(facts, tables) if name in tables)
    return pa.schema(zip(names, next(held, [pa.null()] * len(names)), strict=True))


def _event_tables(facts: dict[str, Any], tables: Tables) -> list[str]:
    """Return the names of the tables of these columns, one for each segment of a log of events."""
    logs = {"log", *(f"logs.{n}" for n, each in enumerate(facts["logs"]) if each["owner"] in EVENT_LOGS)}
    segments = [name.removesuffix(".keys") for name in tables if name.endswith(".keys")]
    return [f"{name}.columns" for name in segments if name.rpartition(".")[0] in logs]


def evolve_events(spec: EngineSpec, facts: dict[str, Any], arrays: Arrays, tables: Tables) -> None:
    """Give the events the columns that the query keeps, null if they were not kept before."""
    for table in _event_tables(facts, tables):
        held = tables.pop(table, None)
        if not spec.event_columns:
            continue
        if held is None:
            kind = pa.struct(sent(spec.event_columns))
            rows = pa.nulls(len(arrays[table.removesuffix("columns") + "time_us"]), kind)
            tables[table] = [pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(kind))]
        else:
            tables[table] = carried_of(spec, held, facts["event_columns"]).evolved()


def carried_of(spec: EngineSpec, held: list[pa.RecordBatch], names: list[str]) -> StoredPayload:
    """Match the columns that are kept of events with those that a query keeps."""
    assert spec.event_columns is not None
    return StoredPayload(held, names, spec.event_columns, Comparison(spec.case_sensitive, drops_any=True))
