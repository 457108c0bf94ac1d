"""An `EventTimePurgatory` as a blob and back: columns as they are, sorted runs sorted as they are.

Saved are the primary columns and the sorted runs. What follows from them at the speed of memory is derived again: which
entry belongs to which row, which are listed, the timer's ticks where no outcome is held back, what the payload has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.sorted_runs import EMPTY, ROW_BITS, GrowableArray, Int64s
from spark_purgatory.core.arrays.times import saturating_add, tick_up_ms
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.operation_table import extra_columns
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.events.event_log import EventLog, EventSegment
from spark_purgatory.core.kafka.purgatory import WAITING
from spark_purgatory.core.kafka.timing_wheel import UNARMED
from spark_purgatory.core.spec.arrivals import payload_role
from spark_purgatory.core.spec.codes import KINDS, EventKind
from spark_purgatory.core.spec.engine_spec import LATER_FIELDS, ROLES, EngineSpec, difference, spec_of
from spark_purgatory.core.state.blob import Tables, read_blob, write_blob
from spark_purgatory.core.state.payload_schema import plain_batch, restored
from spark_purgatory.core.state.purgatory_snapshot import (
    purgatory_numbers,
    restore_counts,
    restore_keys,
    restore_runs,
    restore_timer,
    restore_watchers,
    save_keys,
    save_runs,
    save_timer,
    save_watchers,
)
from spark_purgatory.core.state.table_encoding import Arrays
from spark_purgatory.errors import LimitError, StateMismatchError

PAYLOAD = "rows.payload"
"""The table of the operations' own columns."""


def save(engine: EventTimePurgatory, shards: int) -> bytes:
    """The engine's whole state. Raises LimitError where it exceeds ``max_state_bytes``."""
    engine.purgatory.purge()
    arrays: Arrays = {}
    tables: Tables = {}
    _save_rows(engine, arrays, tables)
    watchers = engine.purgatory.watchers
    save_watchers(watchers, engine.purgatory.state.values == WAITING, arrays)
    if engine.spec.role("keys") is None:
        save_keys("watch.keys", watchers.keys, tables)
    save_timer(engine.purgatory.timer, _ticks_of_deadlines(engine), arrays)
    save_runs("ids.run", engine.ids.index, arrays)
    arrays["ids.deadline_us"] = engine.ids.deadline_us.values
    for i, column in enumerate(engine.ids.columns):
        save_keys(f"ids.{i}", column, tables)
    for i, segment in enumerate(engine.events.log.segments):
        _save_segment(f"log.{i}", segment, arrays, tables)
    for log_name, log in _control_logs(engine).items():
        for i, segment in enumerate(log.segments):
            _save_segment(f"{log_name}.{i}", segment, arrays, tables)
    blob = write_blob(_facts(engine), arrays, tables, shards)
    if len(blob) > engine.spec.max_state_bytes:
        raise LimitError(
            f"max_state_bytes_per_shard is {engine.spec.max_state_bytes:,} and a shard's state of "
            f"{engine.pending:,} pending operations and {len(engine.events.log):,} events has {len(blob):,}: "
            "use more shards (a new checkpoint); nothing was lost"
        )
    return blob


def restore(spec: EngineSpec, blob: bytes, shards: int) -> EventTimePurgatory:
    """The engine that `save` saw. Raises StateError where the blob is damaged or belongs to another query."""
    facts, arrays, tables = _read(blob, shards)
    by_name = spec.columns is not None and "columns" in facts
    _check_fingerprint({**LATER_FIELDS, **cast("dict[str, object]", facts["spec"])}, spec, by_name)
    if spec.columns is not None:
        _match_columns(spec, facts, tables)
    return _restored(spec, facts, arrays, tables)


def inspect(blob: bytes) -> tuple[EventTimePurgatory, list[str] | None]:
    """(an engine to look at, names of the payload's columns), of a state of any query.

    What the blob does not say of the query, its limits above all, is as it is by default: the engine is not for going
    on with. The names are None in states that were written before they were remembered. Raises StateError where the
    blob is damaged.
    """
    facts, arrays, tables = _read(blob, None)
    spec = replace(spec_of(cast("dict[str, Any]", facts["spec"])), control_events="rows.id_slot" in arrays)
    return _restored(spec, facts, arrays, tables), cast("list[str] | None", facts.get("columns"))


def _read(blob: bytes, shards: int | None) -> tuple[dict[str, object], Arrays, Tables]:
    """A blob's metadata, arrays and tables; of the payload the types as they were written."""
    facts, arrays, tables = read_blob(blob, shards)
    tables = {name: batches if name == PAYLOAD else list(map(plain_batch, batches)) for name, batches in tables.items()}
    return facts, arrays, tables


def _restored(spec: EngineSpec, facts: dict[str, object], arrays: Arrays, tables: Tables) -> EventTimePurgatory:
    """The engine of a state that was found to belong to the query."""
    counts = cast("dict[str, int]", facts["numbers"])
    engine = EventTimePurgatory(spec)
    engine.watermark_ms = counts["watermark_ms"]
    tally = cast("dict[str, int]", facts["tally"])
    engine.outcomes.tally = Tally(**tally)  # type: ignore[arg-type]
    _restore_rows(engine, arrays, tables)
    restore_counts(engine.purgatory, counts, arrays)
    _restore_watchers(engine, arrays, tables)
    restore_timer(engine.purgatory.timer, counts, _ticks_of_deadlines(engine), arrays)
    engine.ids.index = restore_runs("ids.run", arrays)
    engine.ids.deadline_us = GrowableArray(arrays["ids.deadline_us"])
    engine.ids.columns = [restore_keys(f"ids.{i}", tables) for i in range(spec.identity_width)]
    segments = [_restore_segment(f"log.{i}", arrays, tables) for i in range(counts["segments"])]
    engine.events.log = EventLog(segments, counts["log_kept"])
    for name, (count, kept) in cast("dict[str, list[int]]", facts.get("logs", {})).items():
        prefix, _, log_name = name.partition(".")
        segments = [_restore_segment(f"{name}.{i}", arrays, tables) for i in range(count)]
        if log_name.endswith(KINDS[EventKind.EXTEND]):
            segments = [_in_microseconds(segment) for segment in segments]
        _logs_by_prefix(engine)[prefix][log_name] = EventLog(segments, kept)
    if spec.control_events and "rows.id_slot" not in arrays:
        engine.deduplication.find_slots()
        if engine.events.controls.extends:
            waiting = engine.purgatory.waiting()
            engine.deduplication.extend(waiting, engine.resolver.resolve(waiting).deadline_us)
    return engine


def _match_columns(spec: EngineSpec, facts: dict[str, object], tables: Tables) -> None:
    """Put a checkpoint's payload into the query's order. Raises StateMismatchError where the columns are others.

    A shard in which nothing waits holds no column: it goes on with what the query brings.
    """
    assert spec.columns is not None
    names = cast("list[str] | None", facts.get("columns"))
    order: list[int] | None = None
    if PAYLOAD in tables:
        tables[PAYLOAD], order = restored(tables[PAYLOAD], names, spec.columns, spec.case_sensitive)
    if names is None:
        return
    then, now = cast("dict[str, str]", facts["roles"]), dict(spec.roles)
    for role in ROLES:
        same = (role in then) == (role in now)
        if same and role in then and order is not None:
            same = names[order[now[role]]] == then[role]
        if not same:
            was, wanted = (_source(played.get(role)) for played in (then, spec.role_names()))
            raise StateMismatchError(
                f"operations.{role.removesuffix('_us')}: the checkpoint takes it from {was}, the query from {wanted}: "
                "set it back, or start a new checkpoint"
            )


def _source(name: str | None) -> str:
    return "an expression or a column of another type" if name is None else f"column {name!r}"


def _check_fingerprint(then: dict[str, object], spec: EngineSpec, by_name: bool) -> None:
    """Raise StateMismatchError where the checkpoint was written by another query; roles ``by_name`` are left out."""
    now = {**LATER_FIELDS, **spec.fingerprint()}
    if then["number"] == numbers.DOUBLE != now["number"]:
        raise StateMismatchError(
            f"number: the checkpoint was written with 'double', the query has {now['number']!r} (completions.value is "
            f"{spec.number}): as doubles, in which earlier versions compared all numbers, values are rounded already: "
            "start a new checkpoint, or cast completions.value to double and go on as before"
        )
    for name in now:
        if then[name] != now[name] and not (by_name and name == "roles"):
            raise StateMismatchError(difference(name, then[name], now[name]))


def _control_logs(engine: EventTimePurgatory) -> dict[str, EventLog]:
    by_prefix = _logs_by_prefix(engine)
    return {f"{prefix}.{name}": log for prefix, logs in by_prefix.items() for name, log in logs.items()}


def _logs_by_prefix(engine: EventTimePurgatory) -> dict[str, dict[str, EventLog]]:
    """Logs by name, by what the names of their tables begin with."""
    orphans = engine.events.orphans
    return {"control": engine.events.controls.logs, "unheard": orphans.unmatched.logs, "ended": orphans.ended.logs}


def _facts(engine: EventTimePurgatory) -> dict[str, object]:
    counts = {
        "watermark_ms": engine.watermark_ms,
        **purgatory_numbers(engine.purgatory),
        "segments": len(engine.events.log.segments),
        "log_kept": engine.events.log.kept,
    }
    tally = {name: count for name, count in vars(engine.outcomes.tally).items() if count or name != "events_counted"}
    facts = {"spec": engine.spec.fingerprint(), "numbers": counts, "tally": tally}
    logs = {name: [len(log.segments), log.kept] for name, log in _control_logs(engine).items()}
    if engine.spec.columns is not None:
        facts |= {"columns": engine.spec.columns.names, "roles": engine.spec.role_names()}
    return {**facts, "logs": logs} if logs else facts


def _save_rows(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    rows = engine.rows
    times = {"created_us": rows.created_us, "deadline_us": rows.deadline_us}
    for name, values in times.items():
        if engine.spec.role(name) is None:
            arrays[f"rows.{name}"] = values
    if not np.array_equal(rows.from_us, _usual_from_us(engine)):
        arrays["rows.from_us"] = rows.from_us
    for name in extra_columns(engine.spec):
        arrays[f"rows.{name}"] = rows.columns[name].values
    if engine.spec.control_events:
        arrays["rows.id_slot"] = np.where(engine.purgatory.state.values == WAITING, rows.id_slot, -1)
    for name, number in rows.numbers.items():
        arrays[f"rows.{name}"] = numbers.stored(number.values)
    arrays["rows.late"], arrays["rows.state"] = rows.late, engine.purgatory.state.values
    if len(engine.deduplication.undecided):
        arrays["rows.contested"], arrays["rows.contested_hash"] = (
            engine.deduplication.undecided,
            engine.deduplication.undecided_hash,
        )
    save_keys("rows.ids", rows.own_ids, tables)
    rows.payload.merge()
    if rows.payload.chunks:
        tables[PAYLOAD] = [pa.RecordBatch.from_struct_array(chunk) for chunk in rows.payload.chunks]


def _restore_rows(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    rows = engine.rows
    rows.payload = ValueColumn([batch.to_struct_array() for batch in tables.get(PAYLOAD, [])])
    for name in ("created_us", "deadline_us"):
        values = arrays.get(f"rows.{name}")
        if values is None:
            parts = [payload_role(chunk, engine.spec, name).to_numpy() for chunk in rows.payload.chunks]
            values = np.concatenate(parts) if parts else EMPTY
        rows.columns[name] = GrowableArray(values)
    for name in extra_columns(engine.spec):
        # Slots came later, and only where there may be control events: `restore` finds them.
        rows.columns[name] = GrowableArray(
            arrays.get(f"rows.{name}", EMPTY) if name == "id_slot" else arrays[f"rows.{name}"]
        )
    for name in rows.numbers:
        rows.numbers[name] = GrowableArray(numbers.restored(arrays[f"rows.{name}"]))
    rows.late_column = GrowableArray(arrays["rows.late"])
    from_us = arrays.get("rows.from_us")
    engine.deduplication.undecided = arrays.get("rows.contested", EMPTY)
    engine.deduplication.undecided_hash = arrays.get("rows.contested_hash", EMPTY)
    if engine.spec.keeps_ids:
        # Earlier states have none: such rows are met by no other row of their id.
        unnamed = [pa.nulls(len(batch), pa.string()) for batch in tables.get(PAYLOAD, [])]
        rows.own_ids = restore_keys("rows.ids", tables) if "rows.ids" in tables else ValueColumn(unnamed)
    rows.columns["from_us"] = GrowableArray(_usual_from_us(engine) if from_us is None else from_us)


def _usual_from_us(engine: EventTimePurgatory) -> Int64s:
    """Where an operation that was on time begins to read events."""
    return saturating_add(engine.rows.created_us, -engine.spec.lookback_us)


def _restore_watchers(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    watchers = engine.purgatory.watchers
    restore_watchers(watchers, engine.purgatory.state.values == WAITING, arrays)
    if engine.spec.role("keys") is None:
        watchers.keys = restore_keys("watch.keys", tables)
    else:
        chunks = engine.rows.payload.chunks
        watchers.keys = ValueColumn([payload_role(chunk, engine.spec, "keys") for chunk in chunks])


def _ticks_of_deadlines(engine: EventTimePurgatory) -> Int64s:
    """What the timer holds where no outcome is held back: every waiting row at its deadline's tick."""
    ticks = tick_up_ms(engine.rows.deadline_us, engine.spec.tick_ms) // engine.spec.tick_ms
    return np.where(engine.purgatory.state.values == WAITING, ticks, UNARMED)


def _save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
    arrays[f"{name}.group_prefix"], arrays[f"{name}.start"] = segment.group_hash >> ROW_BITS, segment.start
    arrays[f"{name}.time_us"] = segment.time_us
    if segment.value is not None:
        arrays[f"{name}.value"] = numbers.stored(segment.value)
    tables[f"{name}.keys"] = [pa.RecordBatch.from_arrays([segment.group_keys], names=["key"])]
    if segment.event_ids is not None:
        tables[f"{name}.event_ids"] = [pa.RecordBatch.from_arrays([segment.event_ids], names=["key"])]


def _in_microseconds(segment: EventSegment) -> EventSegment:
    """Extensions, which earlier states have in seconds."""
    if segment.value is None or not numbers.is_double(segment.value):
        return segment
    return replace(segment, value=numbers.seconds_us(pa.array(segment.value)))


def _restore_segment(name: str, arrays: Arrays, tables: Tables) -> EventSegment:
    return EventSegment(
        arrays[f"{name}.group_prefix"] << ROW_BITS,
        tables[f"{name}.keys"][0].column(0),
        arrays[f"{name}.start"],
        arrays[f"{name}.time_us"],
        numbers.restored(arrays[f"{name}.value"]) if f"{name}.value" in arrays else None,
        tables[f"{name}.event_ids"][0].column(0) if f"{name}.event_ids" in tables else None,
    )
