"""An engine as tables: those that `export_state` writes and `move_checkpoint` deals to other shards.

They have everything that decides an outcome (docs/formats.md) and no hash, position or timer. So they can be
dealt to any number of shards, and a person can read, count, filter and edit them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.events.control_log import LogKey, split_pairs
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.spec.codes import KINDS, RULES, EventKind
from spark_purgatory.core.spec.engine_spec import EngineSpec

# Events are kept as completions; control events, or completions that name an operation; or events that no operation has
# counted. The last two are time ranges of operations that ended: of events that would have counted, and after it.
LOG, CONTROL, UNMATCHED, ENDED, PAST = KEPT_AS = ("log", "control", "unmatched", "ended", "past")


def operations_table(engine: EventTimePurgatory, names: list[str]) -> pa.Table | None:
    """Return the operations that wait, with the ``names`` of their own columns; None if nothing waits."""
    rows = engine.purgatory.waiting()
    if not len(rows):
        return None
    table, watchers = engine.rows, engine.purgatory.watchers
    entries, owner = watchers.entries_of(rows)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(rows)))))
    undecided = np.isin(rows, engine.deduplication.undecided)
    slots = _slots(engine, rows)
    known = slots >= 0
    until_us = np.zeros(len(rows), np.int64)
    until_us[known] = engine.deduplication.ids.deadline_us.values[slots[known]]
    columns = {
        "operation": _named(table.payload.take(rows), names),
        "id": table.ids.take(rows) if table.ids.chunks else _seen(engine, slots),
        "keys": _lists(offsets, watchers.keys.take(entries)),
        "created_us": pa.array(table.created_us[rows]),
        "deadline_us": pa.array(table.deadline_us[rows]),
        "from_us": pa.array(table.from_us_of(rows)),
        "late": pa.array(table.late[rows]),
        "undecided": pa.array(undecided),
        "id_until_us": pa.array(until_us, mask=~known),
    }
    if engine.spec.by_row:
        columns |= {
            "rule": pa.array(RULES).take(pa.array(table.rule[rows])),
            "need": pa.array(table.need[rows], from_pandas=True),  # NaN: the rule needs none
            "sum_need": needs_as_text(table.sum_need[rows], engine.spec),
            "level_needs": _lists(offsets, needs_as_text(table.level_need[entries], engine.spec)),
        }
    return pa.table(columns)


def ids_table(engine: EventTimePurgatory) -> pa.Table:
    """Return the live ids of operations that do not wait; the key is null if the id alone identifies."""
    ids = engine.deduplication.ids
    left = ids.deadline_us.values > engine.watermark_us
    slots = _slots(engine, engine.purgatory.waiting())
    left[slots[slots >= 0]] = False
    at = np.flatnonzero(left)
    held = [column.take(at) if column.chunks else pa.nulls(len(at), pa.string()) for column in ids.columns]
    key = held[1] if len(held) > 1 else pa.nulls(len(at), held[0].type)
    return pa.table({"id": held[0], "key": key, "until_us": pa.array(ids.deadline_us.values[at])})


def events_tables(engine: EventTimePurgatory) -> Iterator[pa.Table]:
    """Yield the events that are kept, a table for each segment of a log."""
    spec, events = engine.spec, engine.events
    names = None if spec.event_columns is None else spec.event_columns.names
    for kept_as, logs in ((LOG, {LogKey(EventKind.COMPLETE, False): events.log}), *events.other_logs().items()):
        for key, log in logs.items():
            for segment in log.segments:
                yield _of_segment(kept_as, key, segment, spec, names)


def has_number_value(kept_as: str, kind: int, spec: EngineSpec) -> bool:
    """Return True if a log has the values of events; else they are times, durations or marks."""
    if kind != EventKind.COMPLETE or kept_as in (ENDED, PAST):
        return False
    return kept_as != UNMATCHED or spec.orphans != "all"


def needs_as_text(needs: numbers.Numbers, spec: EngineSpec) -> pa.Array:
    """Return needs as texts that are read back exactly; "never" if no value reaches one."""
    if spec.scale is None:
        return pa.array(needs).cast(pa.string())
    wide = numbers.widened(needs)
    never, always = wide == numbers.UNREACHED, wide == numbers.ALWAYS_REACHED
    texts = numbers.as_decimals(wide, spec.scale).cast(pa.string())
    for which, text in ((never, "never"), (always, "always")):
        if which.any():
            texts = pa.compute.if_else(pa.array(which), text, texts)
    return texts


def _of_segment(
    kept_as: str, key: LogKey, segment: EventSegment, spec: EngineSpec, names: list[str] | None
) -> pa.Table:
    n = len(segment)
    keys, ids = segment.keys, pa.nulls(n, pa.string())
    if key.is_named:
        ids, keys = split_pairs(keys)
    is_value = has_number_value(kept_as, key.kind, spec)
    value, number = pa.nulls(n), pa.nulls(n, pa.int64())
    if segment.value is not None and not is_value:
        number = pa.array(segment.value)
    elif segment.value is not None and spec.scale is not None:
        value = numbers.as_decimals(segment.value, spec.scale)
    elif segment.value is not None:
        value = pa.array(segment.value, from_pandas=True)  # NaN is no value
    columns = {
        "kept_as": pa.repeat(kept_as, n),
        "kind": pa.repeat(KINDS[key.kind], n),
        "is_named": pa.repeat(key.is_named, n),
        "operation_id": ids,
        "key": keys,
        "time_us": pa.array(segment.time_us),
        "value": value,
        "number": number,
        "event_id": pa.nulls(n, pa.string()) if segment.event_ids is None else segment.event_ids,
    }
    if names is not None:
        kind = pa.struct([pa.field(name, pa.null()) for name in names])
        columns["columns"] = pa.nulls(n, kind) if segment.columns is None else _named(segment.columns, names)
    return pa.table(columns)


def _slots(engine: EventTimePurgatory, rows: Int64s) -> Int64s:
    """Return the slots of waiting rows' ids, (n,); -1 if rows are undecided or have no ids."""
    deduplication, table = engine.deduplication, engine.rows
    if engine.spec.control_events:
        return table.id_slot[rows]
    slots = np.full(len(rows), -1)
    if len(rows) and table.ids.chunks:
        decided = ~np.isin(rows, deduplication.undecided)
        identity = deduplication.identity_of(rows[decided])
        slots[decided] = deduplication.ids.slots_of(identity, table.deadline_us[rows[decided]])
    return slots


def _seen(engine: EventTimePurgatory, slots: Int64s) -> pa.Array:
    """Return the ids at slots, (n,), null for -1, for rows without ids of their own."""
    held = engine.deduplication.ids.columns[0]
    if not held.chunks:
        return pa.nulls(len(slots), pa.string())
    return held.take(np.maximum(slots, 0)).take(pa.array(np.arange(len(slots)), mask=slots < 0))


def _lists(offsets: Int64s, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def _named(structs: pa.StructArray, names: list[str]) -> pa.StructArray:
    fields = [field.with_name(name) for field, name in zip(structs.type, names, strict=True)]
    return pa.StructArray.from_arrays(structs.flatten(), fields=fields) if fields else structs
