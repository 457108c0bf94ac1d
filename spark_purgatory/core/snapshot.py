"""An `EventTimePurgatory` as a blob and back: arrays as they lie in memory, sorted runs as they are, nothing rebuilt.

Saved are the primary columns and the sorted runs; what follows from them at the speed of memory (which entry belongs to
which row, how many are listed) is derived again.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa

from spark_purgatory.core.engine_spec import EngineSpec
from spark_purgatory.core.event_log import EventLog, EventSegment
from spark_purgatory.core.event_purgatory import EventTimePurgatory
from spark_purgatory.core.keys import KeyColumn
from spark_purgatory.core.operations import TIME_COLUMNS
from spark_purgatory.core.outcomes import Tally
from spark_purgatory.core.runs import Column, Int64s, SortedRuns
from spark_purgatory.core.state import Arrays, Tables, read_blob, write_blob
from spark_purgatory.core.timing_wheel import SystemTimer
from spark_purgatory.core.watchers import Watchers
from spark_purgatory.errors import LimitError, StateMismatchError


def save(engine: EventTimePurgatory, shards: int) -> bytes:
    """The engine's whole state. Raises LimitError where it exceeds ``max_state_bytes``."""
    engine.purgatory.purge()
    arrays: Arrays = {}
    tables: Tables = {}
    rows, purgatory = engine.rows, engine.purgatory
    for name in TIME_COLUMNS:
        arrays[f"rows.{name}"] = rows.columns[name].values
    arrays["rows.late"] = rows.late
    arrays["rows.state"] = purgatory.state.values
    if rows.payload.chunks:
        tables["rows.payload"] = [pa.RecordBatch.from_struct_array(chunk) for chunk in rows.payload.chunks]
    _save_watchers(purgatory.watchers, arrays, tables)
    _save_timer(purgatory.timer, arrays)
    _save_runs("ids.run", engine.ids.index, arrays)
    arrays["ids.deadline_us"] = engine.ids.deadline_us.values
    for i, column in enumerate(engine.ids.columns):
        _save_keys(f"ids.{i}", column, tables)
    for i, segment in enumerate(engine.log.segments):
        _save_segment(f"log.{i}", segment, arrays, tables)
    blob = write_blob(_facts(engine), arrays, tables, shards)
    if len(blob) > engine.spec.max_state_bytes:
        raise LimitError(
            f"max_state_bytes_per_shard is {engine.spec.max_state_bytes:,} and a shard's state of "
            f"{engine.pending:,} pending operations and {len(engine.log):,} events has {len(blob):,}: "
            "use more shards (a new checkpoint); nothing was lost"
        )
    return blob


def restore(spec: EngineSpec, blob: bytes, shards: int) -> EventTimePurgatory:
    """The engine that `save` saw. Raises StateError where the blob is damaged or belongs to another query."""
    facts, arrays, tables = read_blob(blob, shards)
    then = cast("dict[str, object]", facts["spec"])
    for name, now in spec.fingerprint().items():
        if then[name] != now:
            raise StateMismatchError(
                f"{name}: the checkpoint was written with {then[name]!r}, the query has {now!r}: "
                f"set it back to {then[name]!r}, or start a new checkpoint"
            )
    numbers = cast("dict[str, int]", facts["numbers"])
    engine = EventTimePurgatory(spec, identity_width=numbers["identity_width"])
    engine.watermark_ms = numbers["watermark_ms"]
    tally = cast("dict[str, int]", facts["tally"])
    engine.outcomes.tally = Tally(**tally)  # type: ignore[arg-type]
    for name in TIME_COLUMNS:
        engine.rows.columns[name] = Column(arrays[f"rows.{name}"])
    engine.rows.late_column = Column(arrays["rows.late"])
    payload = [batch.to_struct_array() for batch in tables.get("rows.payload", [])]
    engine.rows.payload = KeyColumn(payload)
    purgatory = engine.purgatory
    purgatory.state = Column(arrays["rows.state"])
    purgatory.ended, purgatory.estimated_total = numbers["ended"], numbers["estimated_total"]
    _restore_watchers(purgatory.watchers, arrays, tables)
    _restore_timer(purgatory.timer, numbers, arrays)
    engine.ids.index = _restore_runs("ids.run", arrays)
    engine.ids.deadline_us, engine.ids.kept = Column(arrays["ids.deadline_us"]), numbers["ids_kept"]
    engine.ids.columns = [_restore_keys(f"ids.{i}", tables) for i in range(numbers["identity_width"])]
    segments = [_restore_segment(f"log.{i}", arrays, tables) for i in range(numbers["segments"])]
    engine.log = EventLog(segments, numbers["log_kept"])
    return engine


def _facts(engine: EventTimePurgatory) -> dict[str, object]:
    timer = engine.purgatory.timer
    numbers = {
        "identity_width": len(engine.ids.columns),
        "watermark_ms": engine.watermark_ms,
        "ended": engine.purgatory.ended,
        "estimated_total": engine.purgatory.estimated_total,
        "ids_kept": engine.ids.kept,
        "segments": len(engine.log.segments),
        "log_kept": engine.log.kept,
        "timer_size": timer.size,
        "timer_base": timer.entries.base,
        "timer_repeats": int(timer.entries.repeats),
        "wheel_clock": timer.wheel.clock,
        "wheel_levels": len(timer.wheel.spans),
    }
    return {"spec": engine.spec.fingerprint(), "numbers": numbers, "tally": vars(engine.outcomes.tally)}


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


def _save_watchers(watchers: Watchers, arrays: Arrays, tables: Tables) -> None:
    entries = np.arange(len(watchers.row_of))
    arrays["watch.hashes"] = watchers.hashes.values
    arrays["watch.listed"] = watchers.is_listed(entries)
    if watchers.rows != len(entries):
        arrays["watch.first_entry"] = watchers.first_entry.values
    _save_runs("watch.run", watchers.index, arrays)
    _save_keys("watch.keys", watchers.keys, tables)


def _restore_watchers(watchers: Watchers, arrays: Arrays, tables: Tables) -> None:
    watchers.hashes = Column(arrays["watch.hashes"])
    listed = arrays["watch.listed"]
    first_entry = arrays.get("watch.first_entry")
    if first_entry is None:
        # One key each: entry and row are the same number.
        watchers.first_entry = Column(np.arange(len(listed) + 1))
        watchers.row_of = Column(np.arange(len(listed), dtype=np.int32))
        listed_of = listed.astype(np.int32)
    else:
        counts = np.diff(first_entry)
        row_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        watchers.first_entry, watchers.row_of = Column(first_entry), Column(row_of)
        listed_of = np.bincount(row_of[listed], minlength=len(counts)).astype(np.int32)
    watchers.listed, watchers.listed_of = Column(listed), Column(listed_of)
    watchers.watched = int(np.count_nonzero(listed))
    watchers.index = _restore_runs("watch.run", arrays)
    watchers.keys = _restore_keys("watch.keys", tables)


def _save_timer(timer: SystemTimer, arrays: Arrays) -> None:
    arrays["timer.armed_tick"] = timer.armed_tick.values
    arrays["timer.queued"] = np.concatenate(timer.wheel.queued)
    arrays["timer.outlier_ticks"] = timer.entries.outlier_ticks
    arrays["timer.outlier_rows"] = timer.entries.outlier_rows
    _save_runs("timer.run", timer.entries.near, arrays)


def _restore_timer(timer: SystemTimer, numbers: dict[str, int], arrays: Arrays) -> None:
    timer.size, entries = numbers["timer_size"], timer.entries
    entries.base, entries.repeats = numbers["timer_base"], bool(numbers["timer_repeats"])
    wheel, levels = timer.wheel, numbers["wheel_levels"]
    wheel.clock = numbers["wheel_clock"]
    wheel.spans = [wheel.wheel_size**level for level in range(levels)]
    wheel.queued = list(arrays["timer.queued"].reshape(levels, wheel.wheel_size).copy())
    timer.armed_tick = Column(arrays["timer.armed_tick"])
    entries.outlier_ticks, entries.outlier_rows = arrays["timer.outlier_ticks"], arrays["timer.outlier_rows"]
    entries.near = _restore_runs("timer.run", arrays)


def _save_segment(name: str, segment: EventSegment, arrays: Arrays, tables: Tables) -> None:
    arrays[f"{name}.group_hash"], arrays[f"{name}.start"] = segment.group_hash, segment.start
    arrays[f"{name}.time_us"] = segment.time_us
    if segment.value is not None:
        arrays[f"{name}.value"] = segment.value
    tables[f"{name}.keys"] = [pa.RecordBatch.from_arrays([segment.group_keys], names=["key"])]


def _restore_segment(name: str, arrays: Arrays, tables: Tables) -> EventSegment:
    return EventSegment(
        arrays[f"{name}.group_hash"],
        tables[f"{name}.keys"][0].column(0),
        arrays[f"{name}.start"],
        arrays[f"{name}.time_us"],
        arrays.get(f"{name}.value"),
    )
