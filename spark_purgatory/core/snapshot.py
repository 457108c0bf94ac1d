"""An `EventTimePurgatory` as a blob and back: columns as they are, sorted runs sorted as they are.

Saved are the primary columns and the sorted runs. What follows from them at the speed of memory is derived again: which
entry belongs to which row, which are listed, the timer's ticks where no outcome is held back, what the payload has.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrivals import payload_role
from spark_purgatory.core.engine_spec import LATER_FIELDS, EngineSpec
from spark_purgatory.core.event_log import EventLog, EventSegment
from spark_purgatory.core.event_purgatory import EventTimePurgatory
from spark_purgatory.core.keys import KeyColumn
from spark_purgatory.core.operations import extra_columns
from spark_purgatory.core.outcomes import Tally
from spark_purgatory.core.purgatory import WAITING
from spark_purgatory.core.runs import EMPTY, PREFIX_MASK, ROW_MASK, Column, Int64s, SortedRuns
from spark_purgatory.core.state import Arrays, Tables, read_blob, write_blob
from spark_purgatory.core.times import saturating_add, tick_up_ms
from spark_purgatory.core.timing_wheel import UNARMED
from spark_purgatory.errors import LimitError, StateMismatchError


def save(engine: EventTimePurgatory, shards: int) -> bytes:
    """The engine's whole state. Raises LimitError where it exceeds ``max_state_bytes``."""
    engine.purgatory.purge()
    arrays: Arrays = {}
    tables: Tables = {}
    _save_rows(engine, arrays, tables)
    _save_watchers(engine, arrays, tables)
    _save_timer(engine, arrays)
    _save_runs("ids.run", engine.ids.index, arrays)
    arrays["ids.deadline_us"] = engine.ids.deadline_us.values
    for i, column in enumerate(engine.ids.columns):
        _save_keys(f"ids.{i}", column, tables)
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
    facts, arrays, tables = read_blob(blob, shards)
    then = {**LATER_FIELDS, **cast("dict[str, object]", facts["spec"])}
    for name, now in {**LATER_FIELDS, **spec.fingerprint()}.items():
        if then[name] != now:
            raise StateMismatchError(
                f"{name}: the checkpoint was written with {then[name]!r}, the query has {now!r}: "
                f"set it back to {then[name]!r}, or start a new checkpoint"
            )
    numbers = cast("dict[str, int]", facts["numbers"])
    engine = EventTimePurgatory(spec)
    engine.watermark_ms = numbers["watermark_ms"]
    tally = cast("dict[str, int]", facts["tally"])
    engine.outcomes.tally = Tally(**tally)  # type: ignore[arg-type]
    _restore_rows(engine, arrays, tables)
    purgatory = engine.purgatory
    purgatory.state = Column(arrays["rows.state"])
    purgatory.ended, purgatory.estimated_total = numbers["ended"], numbers["estimated_total"]
    _restore_watchers(engine, arrays, tables)
    _restore_timer(engine, numbers, arrays)
    engine.ids.index = _restore_runs("ids.run", arrays)
    engine.ids.deadline_us = Column(arrays["ids.deadline_us"])
    engine.ids.columns = [_restore_keys(f"ids.{i}", tables) for i in range(spec.identity_width)]
    segments = [_restore_segment(f"log.{i}", arrays, tables) for i in range(numbers["segments"])]
    engine.events.log = EventLog(segments, numbers["log_kept"])
    for name, (count, kept) in cast("dict[str, list[int]]", facts.get("logs", {})).items():
        prefix, _, log_name = name.partition(".")
        segments = [_restore_segment(f"{name}.{i}", arrays, tables) for i in range(count)]
        control_log = engine.events.controls if prefix == "control" else engine.events.orphans.unheard
        control_log.logs[log_name] = EventLog(segments, kept)
    return engine


def _control_logs(engine: EventTimePurgatory) -> dict[str, EventLog]:
    by_prefix = {"control": engine.events.controls, "unheard": engine.events.orphans.unheard}
    return {f"{prefix}.{name}": log for prefix, logs in by_prefix.items() for name, log in logs.logs.items()}


def _facts(engine: EventTimePurgatory) -> dict[str, object]:
    timer = engine.purgatory.timer
    numbers = {
        "watermark_ms": engine.watermark_ms,
        "ended": engine.purgatory.ended,
        "estimated_total": engine.purgatory.estimated_total,
        "segments": len(engine.events.log.segments),
        "log_kept": engine.events.log.kept,
        "timer_size": timer.size,
        "timer_base": timer.entries.base,
        "timer_repeats": int(timer.entries.repeats),
        "wheel_clock": timer.wheel.clock,
        "wheel_levels": len(timer.wheel.spans),
    }
    facts = {"spec": engine.spec.fingerprint(), "numbers": numbers, "tally": vars(engine.outcomes.tally)}
    logs = {name: [len(log.segments), log.kept] for name, log in _control_logs(engine).items()}
    return {**facts, "logs": logs} if logs else facts


def _save_runs(name: str, runs: SortedRuns, arrays: Arrays) -> None:
    for i, run in enumerate(runs.runs):
        arrays[f"{name}.{i}"] = run


def _restore_runs(name: str, arrays: Arrays) -> SortedRuns:
    runs: list[Int64s] = []
    while (run := arrays.get(f"{name}.{len(runs)}")) is not None:
        runs.append(run)
    return SortedRuns(runs)


def _save_keys(name: str, keys: KeyColumn, tables: Tables) -> None:
    if keys.chunks:
        tables[name] = [pa.RecordBatch.from_arrays([chunk], names=["key"]) for chunk in keys.chunks]


def _restore_keys(name: str, tables: Tables) -> KeyColumn:
    return KeyColumn([batch.column(0) for batch in tables.get(name, [])])


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
    for name, number in rows.numbers.items():
        arrays[f"rows.{name}"] = number.values
    arrays["rows.late"], arrays["rows.state"] = rows.late, engine.purgatory.state.values
    if len(engine.standing.contested):
        arrays["rows.contested"], arrays["rows.contested_hash"] = (
            engine.standing.contested,
            engine.standing.contested_hash,
        )
    _save_keys("rows.ids", rows.own_ids, tables)
    if rows.payload.chunks:
        tables["rows.payload"] = [pa.RecordBatch.from_struct_array(chunk) for chunk in rows.payload.chunks]


def _restore_rows(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    rows = engine.rows
    rows.payload = KeyColumn([batch.to_struct_array() for batch in tables.get("rows.payload", [])])
    for name in ("created_us", "deadline_us"):
        values = arrays.get(f"rows.{name}")
        if values is None:
            parts = [payload_role(chunk, engine.spec, name).to_numpy() for chunk in rows.payload.chunks]
            values = np.concatenate(parts) if parts else EMPTY
        rows.columns[name] = Column(values)
    for name in extra_columns(engine.spec):
        rows.columns[name] = Column(arrays[f"rows.{name}"])
    for name in rows.numbers:
        rows.numbers[name] = Column(arrays[f"rows.{name}"])
    rows.late_column = Column(arrays["rows.late"])
    from_us = arrays.get("rows.from_us")
    engine.standing.contested = arrays.get("rows.contested", EMPTY)
    engine.standing.contested_hash = arrays.get("rows.contested_hash", EMPTY)
    if engine.spec.keeps_ids:
        # Earlier states have none: such rows are met by no other row of their id.
        unnamed = [pa.nulls(len(batch), pa.string()) for batch in tables.get("rows.payload", [])]
        rows.own_ids = _restore_keys("rows.ids", tables) if "rows.ids" in tables else KeyColumn(unnamed)
    rows.columns["from_us"] = Column(_usual_from_us(engine) if from_us is None else from_us)


def _usual_from_us(engine: EventTimePurgatory) -> Int64s:
    """Where an operation that was on time begins to read events."""
    return saturating_add(engine.rows.created_us, -engine.spec.lookback_us)


def _save_watchers(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    watchers = engine.purgatory.watchers
    listed = watchers.is_listed(np.arange(len(watchers.row_of)))
    waiting = engine.purgatory.state.values == WAITING
    if not np.array_equal(listed, waiting[watchers.row_of.values]):
        arrays["watch.listed"] = listed
    if watchers.rows != len(listed):
        arrays["watch.first_entry"] = watchers.first_entry.values
    _save_runs("watch.run", watchers.index, arrays)
    if engine.spec.role("keys") is None:
        _save_keys("watch.keys", watchers.keys, tables)


def _restore_watchers(engine: EventTimePurgatory, arrays: Arrays, tables: Tables) -> None:
    watchers = engine.purgatory.watchers
    waiting = engine.purgatory.state.values == WAITING
    first_entry = arrays.get("watch.first_entry")
    if first_entry is None:
        # One key each: entry and row are the same number.
        first_entry = np.arange(len(waiting) + 1)
        row_of = np.arange(len(waiting), dtype=np.int32)
        listed = arrays.get("watch.listed", waiting)
    else:
        counts = np.diff(first_entry)
        row_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        listed = arrays.get("watch.listed")
        listed = waiting[row_of] if listed is None else listed
    watchers.first_entry, watchers.row_of = Column(first_entry), Column(row_of)
    watchers.listed = Column(listed)
    watchers.watched = int(np.count_nonzero(listed))
    watchers.index = _restore_runs("watch.run", arrays)
    # An entry that was never listed belongs to an operation that has ended: nobody asks for its hash again.
    hashes = np.zeros(len(row_of), np.int64)
    for run in watchers.index.runs:
        hashes[run & ROW_MASK] = run & PREFIX_MASK
    watchers.hashes = Column(hashes)
    if engine.spec.role("keys") is None:
        watchers.keys = _restore_keys("watch.keys", tables)
    else:
        chunks = engine.rows.payload.chunks
        watchers.keys = KeyColumn([payload_role(chunk, engine.spec, "keys") for chunk in chunks])


def _save_timer(engine: EventTimePurgatory, arrays: Arrays) -> None:
    timer = engine.purgatory.timer
    if not np.array_equal(timer.armed_tick.values, _ticks_of_deadlines(engine)):
        arrays["timer.armed_tick"] = timer.armed_tick.values
    arrays["timer.queued"] = np.concatenate(timer.wheel.queued)
    arrays["timer.outlier_ticks"] = timer.entries.outlier_ticks
    arrays["timer.outlier_rows"] = timer.entries.outlier_rows
    _save_runs("timer.run", timer.entries.near, arrays)


def _restore_timer(engine: EventTimePurgatory, numbers: dict[str, int], arrays: Arrays) -> None:
    timer = engine.purgatory.timer
    timer.size, entries = numbers["timer_size"], timer.entries
    entries.base, entries.repeats = numbers["timer_base"], bool(numbers["timer_repeats"])
    wheel, levels = timer.wheel, numbers["wheel_levels"]
    wheel.clock = numbers["wheel_clock"]
    wheel.spans = [wheel.wheel_size**level for level in range(levels)]
    wheel.queued = list(arrays["timer.queued"].reshape(levels, wheel.wheel_size).copy())
    armed_tick = arrays.get("timer.armed_tick")
    timer.armed_tick = Column(_ticks_of_deadlines(engine) if armed_tick is None else armed_tick)
    entries.outlier_ticks, entries.outlier_rows = arrays["timer.outlier_ticks"], arrays["timer.outlier_rows"]
    entries.near = _restore_runs("timer.run", arrays)


def _ticks_of_deadlines(engine: EventTimePurgatory) -> Int64s:
    """What the timer holds where no outcome is held back: every waiting row at its deadline's tick."""
    ticks = tick_up_ms(engine.rows.deadline_us, engine.spec.tick_ms) // engine.spec.tick_ms
    return np.where(engine.purgatory.state.values == WAITING, ticks, UNARMED)


def _save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
    arrays[f"{name}.group_hash"], arrays[f"{name}.start"] = segment.group_hash, segment.start
    arrays[f"{name}.time_us"] = segment.time_us
    if segment.value is not None:
        arrays[f"{name}.value"] = segment.value
    tables[f"{name}.keys"] = [pa.RecordBatch.from_arrays([segment.group_keys], names=["key"])]
    if segment.event_ids is not None:
        tables[f"{name}.event_ids"] = [pa.RecordBatch.from_arrays([segment.event_ids], names=["key"])]


def _restore_segment(name: str, arrays: Arrays, tables: Tables) -> EventSegment:
    return EventSegment(
        arrays[f"{name}.group_hash"],
        tables[f"{name}.keys"][0].column(0),
        arrays[f"{name}.start"],
        arrays[f"{name}.time_us"],
        arrays.get(f"{name}.value"),
        tables[f"{name}.event_ids"][0].column(0) if f"{name}.event_ids" in tables else None,
    )
