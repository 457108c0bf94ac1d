"""An `EventTimePurgatory` as a blob and back.

The primary columns and the sorted runs are saved as they are. Everything that follows from them at the speed of memory
is derived again: the rows of entries, the entries that are listed, ticks of timers, and columns of the payload.

Segments of logs are arrays and tables, and each has a table of the columns of events that outcomes carry. A query that
keeps other columns matches them by name, like the operations' own columns (`payload`). A column that the query no
longer names is dropped, because nothing else reads it. A new one is null in events from before. So the order of
events is a setting that a restart cannot change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import EMPTY, ROW_BITS, ROW_MASK, Bools, GrowableArray, Int64s, SortedRuns
from spark_purgatory.core.arrays.times import tick_up_ms
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.operation_table import TIMES, extra_columns
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.events.control_log import LogKey
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.kafka.purgatory import WAITING, Watchers
from spark_purgatory.core.kafka.timing_wheel import FOREVER, UNARMED, SystemTimer
from spark_purgatory.core.spec.arrivals import payload_role
from spark_purgatory.core.spec.codes import KINDS, EventKind
from spark_purgatory.core.spec.engine_spec import ROLES, EngineSpec, Evidence, difference, other_zone, spec_of
from spark_purgatory.core.state.blob import WHAT, Arrays, Tables, other_shards, read_blob, shard_count, write_blob
from spark_purgatory.core.state.frame import decoding
from spark_purgatory.core.state.payload import Comparison, StoredPayload, matched, sent
from spark_purgatory.errors import LimitError, StateMismatchError

EVENT_LOGS = ("control", "unmatched")  # owners of logs of events, besides that of completions


def save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
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
    return [f"completions.columns: {text}" for each in matched for text in each.differences()]


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
    assert spec.event_columns is not None
    return StoredPayload(held, names, spec.event_columns, Comparison(spec.case_sensitive, drops_any=True))


def save_runs(name: str, runs: SortedRuns, arrays: Arrays) -> None:
    """Save each run under its number, with prefixes and rows apart, which packs closer."""
    for i, run in enumerate(runs.runs):
        arrays[f"{name}.{i}.prefix"], arrays[f"{name}.{i}.row"] = run >> ROW_BITS, run & ROW_MASK


def restore_runs(name: str, arrays: Arrays) -> SortedRuns:
    runs: list[Int64s] = []
    while (prefix := arrays.get(f"{name}.{len(runs)}.prefix")) is not None:
        runs.append((prefix << ROW_BITS) | arrays[f"{name}.{len(runs)}.row"])
    return SortedRuns(runs)


def save_keys(name: str, keys: ValueColumn, tables: Tables) -> None:
    if len(keys):
        tables[name] = [pa.RecordBatch.from_arrays([keys.values], names=["key"])]


def restore_keys(name: str, tables: Tables) -> ValueColumn:
    return ValueColumn(tables[name][0].column(0) if name in tables else None)


def save_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    """Save the watch lists without their keys; ``waiting`` are flags of rows, (rows,) bool."""
    listed = watchers.listed.values
    if not np.array_equal(listed, watchers.entries_among(waiting)):
        arrays["watch.listed"] = listed
    if watchers.rows != len(listed):
        arrays["watch.first_entry"] = watchers.first_entry
    save_runs("watch.run", watchers.index, arrays)


def restore_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    # Without this array, operations have one key each: entry and row are the same number.
    watchers.set_first_entry(arrays.get("watch.first_entry", np.arange(len(waiting) + 1)))
    listed = arrays.get("watch.listed", watchers.entries_among(waiting))
    watchers.listed = GrowableArray(listed)
    watchers.watched = int(np.count_nonzero(listed))
    watchers.index = restore_runs("watch.run", arrays)
    # An entry that was never listed belongs to an operation that has ended, and its hash is not needed again.
    hashes = np.zeros(len(listed), np.int64)
    for run in watchers.index.runs:
        hashes[run & ROW_MASK] = run & ~ROW_MASK
    watchers.hashes = GrowableArray(hashes)


def save_timer(timer: SystemTimer, usual_tick: Int64s, arrays: Arrays) -> None:
    """Save the timer without its runs, which are sorted again; ``usual_tick`` has ticks of rows that did not move."""
    if not np.array_equal(timer.armed_tick.values, usual_tick):
        armed = timer.armed_tick.values != UNARMED
        arrays["timer.armed"], arrays["timer.tick"] = armed, timer.armed_tick.values[armed]


def restore_timer(timer: SystemTimer, counts: dict[str, Any], usual_tick: Int64s, arrays: Arrays) -> None:
    wheel = timer.wheel
    wheel.clock, wheel.rings = counts["wheel_clock"], counts["wheel_rings"]
    wheel.spans = [wheel.wheel_size**level for level in range(len(wheel.rings))]
    armed_tick = usual_tick
    if "timer.armed" in arrays:
        armed_tick = np.full(len(arrays["timer.armed"]), UNARMED)
        armed_tick[arrays["timer.armed"]] = arrays["timer.tick"]
    timer.armed_tick = GrowableArray(armed_tick)
    armed = armed_tick[armed_tick != UNARMED]
    timer.size = len(armed)
    timer.make_entries(int(armed.min(initial=FOREVER)))


PAYLOAD = "rows.payload"  # the table of the operations' own columns
NO_LIMIT = (1 << 63) - 1
MOST_DIFFERENCES = 40  # that an error lists: a query that reads another table differs in every column


def save(engine: EventTimePurgatory, shards: int) -> bytes:
    """Return the engine's whole state. Raises LimitError if it exceeds ``max_state_bytes``."""
    engine.purgatory.purge()
    arrays: Arrays = {}
    tables: Tables = {}
    _save_rows(engine, arrays, tables)
    watchers, ids = engine.purgatory.watchers, engine.deduplication.ids
    save_watchers(watchers, engine.purgatory.state.values == WAITING, arrays)
    if engine.spec.role("keys") is None:
        save_keys("watch.keys", watchers.keys, tables)
    save_timer(engine.purgatory.timer, _ticks_of_deadlines(engine), arrays)
    save_runs("ids.run", ids.index, arrays)
    arrays["ids.deadline_us"] = ids.deadline_us.values
    for i, column in enumerate(ids.columns):
        save_keys(f"ids.{i}", column, tables)
    logs = [("log", engine.events.log), *((f"logs.{n}", log) for n, (_, log) in enumerate(_other_logs(engine)))]
    for name, log in logs:
        for i, segment in enumerate(log.segments):
            save_segment(f"{name}.{i}", segment, arrays, tables)
    blob = write_blob(_facts(engine), arrays, tables, shards)
    if len(blob) > engine.spec.max_state_bytes:
        raise LimitError(
            f"max_state_bytes_per_shard is {engine.spec.max_state_bytes:,}, but a shard's state of {engine.pending:,} "
            f"pending operations and {len(engine.events.log):,} events has {len(blob):,} bytes. Nothing was lost: use "
            "more shards (spark-purgatory move), or raise the limit"
        )
    return blob


@decoding(WHAT)
def restore(spec: EngineSpec, blob: bytes, shards: int) -> EventTimePurgatory:
    """Return the engine that `save` saw. Raises StateError if the blob is damaged or belongs to another query."""
    facts, arrays, tables = read_blob(blob)
    refuse(_of_shards(blob, shards) + differences_of(spec, facts, tables))
    if spec.columns is not None and PAYLOAD in tables:
        tables[PAYLOAD] = payload_of(spec, tables[PAYLOAD], facts["columns"]).evolved()
    evolve_events(spec, facts, arrays, tables)
    return _restored(spec, facts, arrays, tables)


@decoding(WHAT)
def differences(spec: EngineSpec, blob: bytes, shards: int) -> list[str]:
    """Return why `restore` would refuse the blob, each with its remedy. Raises StateError if it cannot be read."""
    facts, _, tables = read_blob(blob)
    return _of_shards(blob, shards) + differences_of(spec, facts, tables)


def _of_shards(blob: bytes, shards: int) -> list[str]:
    return [other_shards(then, shards)] if (then := shard_count(blob)) != shards else []


def refuse(differences: Iterable[str]) -> None:
    found = list(dict.fromkeys(differences))
    left = [f"{more} more"] if (more := len(found) - MOST_DIFFERENCES) > 0 else []
    if found:
        start_over = "or start over: a new checkpoint and a new table"
        raise StateMismatchError("; ".join([*found[:MOST_DIFFERENCES], *left, start_over]))


@decoding(WHAT)
def inspect(blob: bytes) -> tuple[EventTimePurgatory, list[str]]:
    """Return an engine to look at, of any query, and the names of the payload's columns.

    It must not take steps: settings that are not in the blob have their defaults.
    """
    facts, arrays, tables = read_blob(blob)
    return _restored(_spec_as_written(facts, arrays, tables), facts, arrays, tables), facts["columns"]


@decoding(WHAT)
def restore_as_written(blob: bytes, deadline_is_sum: bool) -> EventTimePurgatory:
    """Return an engine that takes steps, without limits, and is saved as in the query that wrote the blob."""
    facts, arrays, tables = read_blob(blob)
    names = facts["columns"]
    spec = replace(
        _spec_as_written(facts, arrays, tables),
        evidence=None,  # outcomes of a replay are dropped
        deadline_is_sum=deadline_is_sum,
        columns=pa.schema([pa.field(name, pa.null()) for name in names]) if names else None,
        sources=tuple((argument, tuple(columns)) for argument, columns in facts["sources"].items()),
        texts=tuple(facts["texts"].items()),
        zone=facts["zone"],
        max_pending=NO_LIMIT,
        max_state_bytes=NO_LIMIT,
    )
    return _restored(spec, facts, arrays, tables)


def _spec_as_written(facts: dict[str, Any], arrays: Arrays, tables: Tables) -> EngineSpec:
    carried = event_columns_of(facts, tables)
    return replace(
        spec_of(facts["spec"]),
        roles=tuple(facts["roles"].items()),
        control_events="rows.id_slot" in arrays,
        event_columns=carried,
        evidence=None if carried is None else Evidence(facts["event_value"]),
    )


def _restored(spec: EngineSpec, facts: dict[str, Any], arrays: Arrays, tables: Tables) -> EventTimePurgatory:
    counts = facts["numbers"]
    engine = EventTimePurgatory(spec)
    purgatory, ids = engine.purgatory, engine.deduplication.ids
    engine.watermark_ms = counts["watermark_ms"]
    engine.outcomes.tally = Tally(**facts["tally"])
    _restore_rows(engine, arrays, tables)
    purgatory.state = GrowableArray(arrays["rows.state"])
    purgatory.ended, purgatory.estimated_total = counts["ended"], counts["estimated_total"]
    restore_watchers(purgatory.watchers, purgatory.state.values == WAITING, arrays)
    if spec.role("keys") is None:
        purgatory.watchers.keys = restore_keys("watch.keys", tables)
    restore_timer(purgatory.timer, counts, _ticks_of_deadlines(engine), arrays)
    ids.index = restore_runs("ids.run", arrays)
    ids.deadline_us = GrowableArray(arrays["ids.deadline_us"])
    ids.columns = [restore_keys(f"ids.{i}", tables) for i in range(spec.identity_width)]

    def restored_log(name: str, segments: int, kept: int) -> EventLog:
        parts = (f"{name}.{i}" for i in range(segments))
        return EventLog([restore_segment(part, arrays, tables) for part in parts], kept)

    engine.events.log = restored_log("log", counts["segments"], counts["log_kept"])
    for n, each in enumerate(facts["logs"]):
        key = LogKey(EventKind(KINDS.index(each["kind"])), each["is_named"])
        logs = engine.events.other_logs()[each["owner"]]
        logs[key] = restored_log(f"logs.{n}", each["segments"], each["kept"])
    if spec.control_events and "rows.id_slot" not in arrays:
        engine.deduplication.find_slots()
        if engine.events.controls.extends:
            waiting = engine.purgatory.waiting()
            engine.deduplication.extend(waiting, engine.resolver.resolve(waiting).deadline_us)
    return engine


def differences_of(spec: EngineSpec, facts: dict[str, Any], tables: Tables, but_for: Collection[str] = ()) -> list[str]:
    """Return the differences between a state and the query: settings except ``but_for``, then columns."""
    then, now = facts["spec"], spec.fingerprint()
    changed = [name for name in now if then[name] != now[name] and name not in but_for]
    found = [difference(name, then[name], now[name]) for name in changed]
    if facts["zone"] is not None and spec.zone is not None and facts["zone"] != spec.zone:
        found.append(other_zone(facts["zone"], spec.zone))
    found += _differences_of_roles(spec, facts, PAYLOAD in tables)
    if spec.columns is not None and PAYLOAD in tables:
        found += payload_of(spec, tables[PAYLOAD], facts["columns"]).differences()
    return list(dict.fromkeys([*found, *differences_of_events(spec, facts, tables)]))


def payload_of(spec: EngineSpec, held: list[pa.RecordBatch], names: list[str]) -> StoredPayload:
    assert spec.columns is not None
    fixed = {column: argument for argument, columns in spec.sources for column in columns}
    return StoredPayload(held, names, spec.columns, Comparison(spec.case_sensitive, fixed, spec.removed_columns))


def _differences_of_roles(spec: EngineSpec, facts: dict[str, Any], waits: bool) -> list[str]:
    """Return the arguments of `Operations` that take another column than before, or keys and ids of another text."""
    names = facts["columns"]
    wanted = names if spec.columns is None else spec.columns.names
    order, _ = matched(names, wanted, spec.case_sensitive)
    then, now = facts["roles"], dict(spec.roles)
    found = []
    for role in ROLES:
        same = (role in then) == (role in now)
        if same and role in then and waits:
            same = order[now[role]] == then[role]
        if not same:
            was, becomes = _column(names, then.get(role)), _column(wanted, now.get(role))
            found.append(_taken_from(f"operations.{role.removesuffix('_us')}", was, becomes))
    for argument, columns in facts["sources"].items() if waits else ():
        wanted_from = dict(spec.sources).get(argument)
        if wanted_from is None:
            # An expression may give the same values, unless the column is gone.
            gone = [name for name in columns if matched([name], wanted, spec.case_sensitive)[1]]
            found += [_taken_from(argument, name, None) for name in gone if "." not in name]
        elif -1 in matched(columns, wanted_from, spec.case_sensitive)[0] or len(columns) != len(wanted_from):
            found.append(_taken_from(argument, ", ".join(columns), ", ".join(wanted_from)))
    texts = facts["texts"]
    return found + [
        f"{argument}: the checkpoint keeps it as the text of {texts[argument]}, but the query has {text}: cast it back"
        for argument, text in spec.texts
        if texts.get(argument, text) != text
    ]


def _column(names: list[str], at: int | None) -> str | None:
    return None if at is None else names[at] if at < len(names) else f"p{at}"


def _taken_from(argument: str, *names: str | None) -> str:
    expression = "an expression or a column of another type"
    then, now = (expression if name is None else f"column {name!r}" for name in names)
    return f"{argument}: the checkpoint takes it from {then}, the query from {now}: set it back"


def _other_logs(engine: EventTimePurgatory) -> list[tuple[dict[str, Any], EventLog]]:
    logs = [(owner, *key, log) for owner, of in engine.events.other_logs().items() for key, log in of.items()]
    return [({"owner": owner, "kind": KINDS[kind], "is_named": named}, log) for owner, kind, named, log in logs]


def _facts(engine: EventTimePurgatory) -> dict[str, Any]:
    log, purgatory = engine.events.log, engine.purgatory
    counts = {
        "watermark_ms": engine.watermark_ms,
        "ended": purgatory.ended,
        "estimated_total": purgatory.estimated_total,
        "wheel_clock": purgatory.timer.wheel.clock,
        "wheel_rings": purgatory.timer.wheel.rings,
        "segments": len(log.segments),
        "log_kept": log.kept,
    }
    spec, kind = engine.spec, engine.rows.payload.kind
    return {
        "spec": spec.fingerprint(),
        "columns": [field.name for field in kind or ()] if spec.columns is None else spec.columns.names,
        "roles": dict(spec.roles),
        "sources": dict(spec.sources),
        "texts": dict(spec.texts),
        "zone": spec.zone,
        "event_columns": None if spec.event_columns is None else spec.event_columns.names,
        "event_value": spec.evidence is not None and spec.evidence.has_value,
        "numbers": counts,
        "tally": tally_of(engine),
        "gauges": gauges_of(engine),
        "logs": [{**key, "segments": len(log.segments), "kept": log.kept} for key, log in _other_logs(engine)],
    }


def gauges_of(engine: EventTimePurgatory) -> dict[str, int | None]:
    """Return facts about the waiting operations, so that nobody needs to decode the state for them."""
    return {
        "oldest_us": engine.oldest_us(),
        "next_due_ms": engine.next_due_ms(),
        "watched": engine.purgatory.watchers.watched,
        "clock_delay_ms": engine.spec.clock_delay_ms,
    }


def tally_of(engine: EventTimePurgatory) -> dict[str, Any]:
    return dict(vars(engine.outcomes.tally))


def _save_rows(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    rows = engine.rows
    for name in TIMES:
        if engine.spec.role(name) is None:
            arrays[f"rows.{name}"] = rows.columns[name].values
    if len(rows.late_rows):
        arrays["rows.from_us"] = rows.from_us
    for name in extra_columns(engine.spec):
        arrays[f"rows.{name}"] = rows.columns[name].values
    if engine.spec.control_events:
        arrays["rows.id_slot"] = np.where(engine.purgatory.state.values == WAITING, rows.id_slot, -1)
    for name, number in rows.numbers.items():
        arrays[f"rows.{name}"] = numbers.stored(number.values)
    arrays["rows.late"], arrays["rows.state"] = rows.late, engine.purgatory.state.values
    if len(engine.deduplication.undecided):
        arrays["rows.undecided"] = engine.deduplication.undecided
        arrays["rows.undecided_hash"] = engine.deduplication.undecided_hash
    save_keys("rows.ids", rows.own_ids, tables)
    if len(rows.payload):
        tables[PAYLOAD] = [pa.RecordBatch.from_struct_array(rows.payload.take())]


def _restore_rows(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    rows = engine.rows
    chunks = [batch.to_struct_array() for batch in tables.get(PAYLOAD, [])]
    for name in TIMES:
        values = arrays.get(f"rows.{name}")
        if values is None:
            parts = [payload_role(chunk, engine.spec, name).to_numpy() for chunk in chunks]
            values = np.concatenate(parts) if parts else EMPTY
        rows.columns[name] = GrowableArray(values)
    if engine.spec.role("keys") is not None:
        engine.purgatory.watchers.keys = ValueColumn(*(payload_role(chunk, engine.spec, "keys") for chunk in chunks))
    for chunk in chunks:
        rows.payload.append(chunk)
    del chunks
    for name in extra_columns(engine.spec):
        if f"rows.{name}" in arrays or name != "id_slot":  # slots that the query did not keep are found later
            rows.columns[name] = GrowableArray(arrays[f"rows.{name}"])
    for name in rows.numbers:
        rows.numbers[name] = GrowableArray(numbers.restored(arrays[f"rows.{name}"]))
    rows.late_column = GrowableArray(arrays["rows.late"])
    engine.deduplication.undecided = arrays.get("rows.undecided", EMPTY)
    engine.deduplication.undecided_hash = arrays.get("rows.undecided_hash", EMPTY)
    if engine.spec.keeps_ids:
        rows.own_ids = restore_keys("rows.ids", tables)
    if "rows.from_us" in arrays:
        rows.from_us = arrays["rows.from_us"]


def _ticks_of_deadlines(engine: EventTimePurgatory) -> Int64s:
    """Return the timer's ticks if no outcome is held: every waiting row at its deadline's tick."""
    ticks = tick_up_ms(engine.rows.deadline_us, engine.spec.tick_ms) // engine.spec.tick_ms
    return np.where(engine.purgatory.state.values == WAITING, ticks, UNARMED)
