"""An `EventTimePurgatory` as a blob and back.

The primary columns and the sorted runs are saved as they are (`_places`). Everything that follows from them at the
speed of memory is derived again: the rows of entries, ticks of timers, and columns of the payload.

A segment of a log has the columns of events that outcomes carry. A query that keeps other columns matches them by
name, like the operations' own columns (`payload`). A column that the query no longer names is dropped, because nothing
else reads it. A new one is null in events from before. So the order of events is a setting that a restart cannot
change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import ROW_BITS, ROW_MASK, GrowableArray, Int64s, SortedRuns
from spark_purgatory.core.arrays.times import tick_up_ms
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.operation_table import TIMES
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.engine.shard_events import EVENT_LOGS
from spark_purgatory.core.events.control_log import LogKey
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.kafka.purgatory import WAITING
from spark_purgatory.core.kafka.timing_wheel import UNARMED
from spark_purgatory.core.spec.arrivals import payload_role
from spark_purgatory.core.spec.codes import KINDS, EventKind
from spark_purgatory.core.spec.engine_spec import ROLES, EngineSpec, Evidence, difference, other_zone, spec_of
from spark_purgatory.core.state.blob import WHAT, Columns, other_shards, read_blob, write_blob
from spark_purgatory.core.state.frame import decoding
from spark_purgatory.core.state.payload import Comparison, StoredPayload, matched, sent
from spark_purgatory.errors import LimitError, StateMismatchError

PAYLOAD = "rows.payload"  # the column of the operations' own columns
NO_LIMIT = (1 << 63) - 1
MOST_DIFFERENCES = 40  # that an error lists: a query that reads another table differs in every column


# --- the columns -------------------------------------------------------------------------------------------------


def _places(engine: EventTimePurgatory) -> Iterator[tuple[str, Any, Any]]:
    """Yield the columns that are saved as they are: the name in the state, and the owner and key that hold it."""
    rows, spec, purgatory, watchers = engine.rows, engine.spec, engine.purgatory, engine.purgatory.watchers
    deduplication, ids = engine.deduplication, engine.deduplication.ids
    for name in rows.columns:
        if spec.role(name) is None:
            yield f"rows.{name}", rows.columns, name
    for name in rows.numbers:
        yield f"rows.{name}", rows.numbers, name
    for name in ("late_column", "late_rows", "late_from_us", "own_ids"):
        yield f"rows.{name}", vars(rows), name
    for name in ("undecided", "undecided_hash"):
        yield f"rows.{name}", vars(deduplication), name
    yield "rows.state", vars(purgatory), "state"
    if spec.role("keys") is None:
        yield "watch.keys", vars(watchers), "keys"
    yield "watch.listed", vars(watchers), "listed"
    yield "watch.index", vars(watchers), "index"
    yield "ids.index", vars(ids), "index"
    yield "ids.deadline_us", vars(ids), "deadline_us"
    for i in range(len(ids.columns)):
        yield f"ids.{i}", ids.columns, i


def _put(name: str, value: Any, columns: Columns) -> None:
    """Save a value of an engine under its name; an empty one leaves nothing."""
    if isinstance(value, SortedRuns):
        for i, run in enumerate(value.runs):  # Prefixes and rows pack closer apart
            columns[f"{name}.{i}.prefix"], columns[f"{name}.{i}.row"] = run >> ROW_BITS, run & ROW_MASK
    elif isinstance(value, EventSegment):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        parts["group_hash"] = value.group_hash >> ROW_BITS
        columns.update({f"{name}.{part}": held for part, held in parts.items() if held is not None})
    elif len(value):
        columns[name] = value if isinstance(value, np.ndarray) else value.values


def _got(name: str, fresh: Any, columns: Columns) -> Any:
    """Return the value that `_put` saved, of the type of a ``fresh`` engine's."""
    if isinstance(fresh, SortedRuns):
        runs: list[Int64s] = []
        while (prefix := columns.get(f"{name}.{len(runs)}.prefix")) is not None:
            runs.append((prefix << ROW_BITS) | columns[f"{name}.{len(runs)}.row"])
        return SortedRuns(runs)
    if (held := columns.get(name)) is None:
        return fresh
    return held if isinstance(fresh, np.ndarray) else type(fresh)(held)


def _log_of(name: str, kept: int, columns: Columns) -> EventLog:
    segments = list[EventSegment]()
    while (prefix := columns.get(f"{name}.{len(segments)}.group_hash")) is not None:
        parts = {field.name: columns.get(f"{name}.{len(segments)}.{field.name}") for field in fields(EventSegment)}
        segments.append(EventSegment(**{**parts, "group_hash": prefix << ROW_BITS}))
    return EventLog(segments, kept)


# --- the columns of events that outcomes carry -------------------------------------------------------------------


def _segments_of_events(facts: dict[str, Any], columns: Columns) -> list[str]:
    logs = {f"logs.{n}" for n, each in enumerate(facts["logs"]) if each["owner"] in EVENT_LOGS}
    segments = [name.removesuffix(".time_us") for name in columns if name.endswith(".time_us")]
    return [name for name in segments if name.rpartition(".")[0] in logs]


def event_columns_of(facts: dict[str, Any], columns: Columns) -> pa.Schema | None:
    """Return the columns of events that outcomes carry, void if the state has no event; None: they carry none."""
    names = facts["event_columns"]
    if names is None:
        return None
    held = (columns.get(f"{name}.columns") for name in _segments_of_events(facts, columns))
    kinds = ([field.type for field in each.type] for each in held if each is not None)
    return pa.schema(zip(names, next(kinds, [pa.null()] * len(names)), strict=True))


def _evolve_events(spec: EngineSpec, facts: dict[str, Any], columns: Columns) -> None:
    """Give the events the columns that the query keeps, null if they were not kept before."""
    for name in _segments_of_events(facts, columns):
        held, n = columns.pop(f"{name}.columns", None), len(columns[f"{name}.time_us"])
        if spec.event_columns:
            kind = pa.struct(sent(spec.event_columns))
            nothing = [pa.nulls(n, field.type) for field in kind]
            columns[f"{name}.columns"] = (
                pa.StructArray.from_arrays(nothing, fields=list(kind))
                if held is None
                else carried_of(spec, held, facts["event_columns"]).evolved()
            )


def carried_of(spec: EngineSpec, held: pa.StructArray, names: list[str]) -> StoredPayload:
    assert spec.event_columns is not None
    return StoredPayload(held, names, spec.event_columns, Comparison(spec.case_sensitive, drops_any=True))


# --- an engine as a blob -----------------------------------------------------------------------------------------


def save(engine: EventTimePurgatory, shards: int) -> bytes:
    """Return the engine's whole state. Raises LimitError if it exceeds ``max_state_bytes``."""
    engine.purgatory.purge()
    columns: Columns = {}
    for name, owner, key in _places(engine):
        _put(name, owner[key], columns)
    if len(engine.rows.payload):
        columns[PAYLOAD] = engine.rows.payload.take()
    watchers, armed_tick = engine.purgatory.watchers, engine.purgatory.timer.armed_tick.values
    if watchers.rows != len(watchers.listed):
        columns["watch.first_entry"] = watchers.first_entry
    if not np.array_equal(armed_tick, _ticks_of_deadlines(engine)):
        armed = armed_tick != UNARMED
        columns["timer.armed"], columns["timer.tick"] = armed, armed_tick[armed]
    for n, (_, log) in enumerate(_logs(engine)):
        for i, segment in enumerate(log.segments):
            _put(f"logs.{n}.{i}", segment, columns)
    blob = write_blob({**_facts(engine), "shards": shards}, columns)
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
    facts, columns = read_blob(blob)
    refuse(_of_shards(facts, shards) + differences_of(spec, facts, columns))
    if spec.columns is not None and PAYLOAD in columns:
        columns[PAYLOAD] = payload_of(spec, columns[PAYLOAD], facts["columns"]).evolved()
    _evolve_events(spec, facts, columns)
    return _restored(spec, facts, columns)


@decoding(WHAT)
def differences(spec: EngineSpec, blob: bytes, shards: int) -> list[str]:
    """Return why `restore` would refuse the blob, each with its remedy. Raises StateError if it cannot be read."""
    facts, columns = read_blob(blob)
    return _of_shards(facts, shards) + differences_of(spec, facts, columns)


def _of_shards(facts: dict[str, Any], shards: int) -> list[str]:
    return [other_shards(facts["shards"], shards)] if facts["shards"] != shards else []


def refuse(differences: Iterable[str]) -> None:
    found = list(dict.fromkeys(differences))
    left = [f"{more} more"] if (more := len(found) - MOST_DIFFERENCES) > 0 else []
    if found:
        start_over = "or start over: a new checkpoint and a new table"
        raise StateMismatchError("; ".join([*found[:MOST_DIFFERENCES], *left, start_over]))


@decoding(WHAT)
def inspect(blob: bytes, deadline_is_sum: bool | None = None) -> tuple[EventTimePurgatory, list[str]]:
    """Return an engine of any query, without limits, and the names of the payload's columns.

    It may take steps, and is saved as in the query that wrote the blob, if ``deadline_is_sum`` is that query's. Then
    its outcomes carry no events.
    """
    facts, columns = read_blob(blob)
    names, carried = facts["columns"], event_columns_of(facts, columns)
    spec = replace(
        spec_of(facts["spec"]),
        roles=tuple(facts["roles"].items()),
        control_events=facts["control_events"],
        event_columns=carried,
        evidence=None if carried is None or deadline_is_sum is not None else Evidence(facts["event_value"]),
        deadline_is_sum=bool(deadline_is_sum),
        columns=pa.schema([pa.field(name, pa.null()) for name in names]) if names else None,
        sources=tuple((argument, tuple(columns)) for argument, columns in facts["sources"].items()),
        texts=tuple(facts["texts"].items()),
        zone=facts["zone"],
        max_pending=NO_LIMIT,
        max_state_bytes=NO_LIMIT,
    )
    return _restored(spec, facts, columns), names


def _restored(spec: EngineSpec, facts: dict[str, Any], columns: Columns) -> EventTimePurgatory:
    engine = EventTimePurgatory(spec)
    engine.watermark_ms = facts["watermark_ms"]
    engine.outcomes.tally = Tally(**facts["tally"])
    for name, owner, key in _places(engine):
        owner[key] = _got(name, owner[key], columns)
    if PAYLOAD in columns:
        payload = columns[PAYLOAD]
        for name in TIMES:
            if spec.role(name) is not None:
                engine.rows.columns[name] = GrowableArray(payload_role(payload, spec, name).to_numpy())
        if spec.role("keys") is not None:
            engine.purgatory.watchers.keys = ValueColumn(payload_role(payload, spec, "keys"))
        engine.rows.payload.append(payload)
    _restore_watchers(engine, columns)
    _restore_timer(engine, columns)
    engine.purgatory.ended = int(np.count_nonzero(engine.purgatory.state.values != WAITING))
    logs = engine.events.logs()
    for n, each in enumerate(facts["logs"]):
        key = LogKey(EventKind(KINDS.index(each["kind"])), each["is_named"])
        logs[each["owner"]][key] = _log_of(f"logs.{n}", each["kept"], columns)
    if spec.control_events and not facts["control_events"]:
        engine.deduplication.find_slots()
        if engine.events.controls.extends:
            waiting = engine.purgatory.waiting()
            engine.deduplication.extend(waiting, engine.resolver.resolve(waiting).deadline_us)
    return engine


def _restore_watchers(engine: EventTimePurgatory, columns: Columns) -> None:
    watchers, rows = engine.purgatory.watchers, engine.purgatory.next_row
    # Without this array, operations have one key each: entry and row are the same number.
    watchers.set_first_entry(columns.get("watch.first_entry", np.arange(rows + 1)))
    watchers.watched = int(np.count_nonzero(watchers.listed.values))
    # An entry that was never listed belongs to an operation that has ended, and its hash is not needed again.
    hashes = np.zeros(len(watchers.listed), np.int64)
    for run in watchers.index.runs:
        hashes[run & ROW_MASK] = run & ~ROW_MASK
    watchers.hashes = GrowableArray(hashes)


def _restore_timer(engine: EventTimePurgatory, columns: Columns) -> None:
    """Arm the waiting rows again, by a clock at the watermark, which has passed none of them."""
    timer, ticks = engine.purgatory.timer, _ticks_of_deadlines(engine)
    if "timer.armed" in columns:
        ticks = np.full(len(ticks), UNARMED)
        ticks[columns["timer.armed"]] = columns["timer.tick"]
    if engine.watermark_ms > 0:
        timer.wheel.clock = engine.watermark_ms // timer.tick_ms
    timer.armed_tick.fill(len(ticks), UNARMED)
    armed = np.flatnonzero(ticks != UNARMED)
    timer.add(armed, ticks[armed] * timer.tick_ms)
    engine.purgatory.estimated_total = timer.size


def differences_of(
    spec: EngineSpec, facts: dict[str, Any], columns: Columns, but_for: Collection[str] = ()
) -> list[str]:
    """Return the differences between a state and the query: settings except ``but_for``, then columns."""
    then, now = facts["spec"], spec.fingerprint()
    changed = [name for name in now if then[name] != now[name] and name not in but_for]
    found = [difference(name, then[name], now[name]) for name in changed]
    if facts["zone"] is not None and spec.zone is not None and facts["zone"] != spec.zone:
        found.append(other_zone(facts["zone"], spec.zone))
    found += _differences_of_roles(spec, facts, PAYLOAD in columns)
    if spec.columns is not None and PAYLOAD in columns:
        found += payload_of(spec, columns[PAYLOAD], facts["columns"]).differences()
    for name in _segments_of_events(facts, columns) if spec.event_columns else ():
        if (held := columns.get(f"{name}.columns")) is not None:
            texts = carried_of(spec, held, facts["event_columns"]).differences()
            found += [f"completions.columns: {text}" for text in texts]
    return list(dict.fromkeys(found))


def payload_of(spec: EngineSpec, held: pa.StructArray, names: list[str]) -> StoredPayload:
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


def _logs(engine: EventTimePurgatory) -> list[tuple[dict[str, Any], EventLog]]:
    logs = [(owner, *key, log) for owner, of in engine.events.logs().items() for key, log in of.items()]
    return [
        ({"owner": owner, "kind": KINDS[kind], "is_named": named, "kept": log.kept}, log)
        for owner, kind, named, log in logs
    ]


def _facts(engine: EventTimePurgatory) -> dict[str, Any]:
    spec, kind = engine.spec, engine.rows.payload.kind
    return {
        "spec": spec.fingerprint(),
        "columns": [field.name for field in kind or ()] if spec.columns is None else spec.columns.names,
        "roles": dict(spec.roles),
        "sources": dict(spec.sources),
        "texts": dict(spec.texts),
        "zone": spec.zone,
        "control_events": spec.control_events,
        "event_columns": None if spec.event_columns is None else spec.event_columns.names,
        "event_value": spec.evidence is not None and spec.evidence.has_value,
        "watermark_ms": engine.watermark_ms,
        "tally": tally_of(engine),
        "gauges": gauges_of(engine),
        "logs": [about for about, _ in _logs(engine)],
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


def _ticks_of_deadlines(engine: EventTimePurgatory) -> Int64s:
    """Return the timer's ticks if no outcome is held: every waiting row at its deadline's tick."""
    ticks = tick_up_ms(engine.rows.deadline_us, engine.spec.tick_ms) // engine.spec.tick_ms
    return np.where(engine.purgatory.state.values == WAITING, ticks, UNARMED)
