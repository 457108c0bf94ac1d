"""A `DelayedOperationPurgatory` as named arrays and tables, and back; columns that follow are derived again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import ROW_BITS, ROW_MASK, Bools, GrowableArray, Int64s, SortedRuns
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.kafka.purgatory import DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.core.state.blob import Tables
from spark_purgatory.core.state.table_encoding import Arrays

Numbers = dict[str, int]


def purgatory_numbers(purgatory: DelayedOperationPurgatory) -> Numbers:
    """Return counts and clocks."""
    wheel = purgatory.timer.wheel
    numbers = {"ended": purgatory.ended, "estimated_total": purgatory.estimated_total}
    return {**numbers, "wheel_clock": wheel.clock, "wheel_levels": len(wheel.spans)}


def restore_counts(purgatory: DelayedOperationPurgatory, numbers: Numbers, arrays: Arrays) -> None:
    """Restore the rows' states and the number that has ended."""
    purgatory.state = GrowableArray(arrays["rows.state"])
    purgatory.ended, purgatory.estimated_total = numbers["ended"], numbers["estimated_total"]


def save_runs(name: str, runs: SortedRuns, arrays: Arrays) -> None:
    """Save each run under its number, with prefixes and rows apart, which packs closer."""
    for i, run in enumerate(runs.runs):
        arrays[f"{name}.{i}.prefix"], arrays[f"{name}.{i}.row"] = run >> ROW_BITS, run & ROW_MASK


def restore_runs(name: str, arrays: Arrays) -> SortedRuns:
    """Restore the runs that `save_runs` saw."""
    runs: list[Int64s] = []
    while (prefix := arrays.get(f"{name}.{len(runs)}.prefix")) is not None:
        runs.append((prefix << ROW_BITS) | arrays[f"{name}.{len(runs)}.row"])
    return SortedRuns(runs)


def save_keys(name: str, keys: ValueColumn, tables: Tables) -> None:
    """Save a column of keys, chunk by chunk."""
    keys.merge()
    if keys.chunks:
        tables[name] = [pa.RecordBatch.from_arrays([chunk], names=["key"]) for chunk in keys.chunks]


def restore_keys(name: str, tables: Tables) -> ValueColumn:
    """Restore the keys that `save_keys` saw."""
    return ValueColumn.restored([batch.column(0) for batch in tables.get(name, [])])


def save_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    """Save the watch lists without their keys; ``waiting`` are flags of rows, (rows,) bool."""
    listed = watchers.listed.values
    if not np.array_equal(listed, watchers.entries_among(waiting)):
        arrays["watch.listed"] = listed
    if watchers.rows != len(listed):
        arrays["watch.first_entry"] = watchers.first_entry
    save_runs("watch.run", watchers.index, arrays)


def restore_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    """Restore the watch lists that `save_watchers` saw."""
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


def save_timer(timer: SystemTimer, usual_tick: Int64s | None, arrays: Arrays) -> None:
    """Save the timer without its runs, which are sorted again; ``usual_tick`` has ticks of rows that did not move."""
    if usual_tick is None or not np.array_equal(timer.armed_tick.values, usual_tick):
        armed = timer.armed_tick.values != UNARMED
        arrays["timer.armed"], arrays["timer.tick"] = armed, timer.armed_tick.values[armed]
    arrays["timer.queued"] = np.concatenate(timer.wheel.queued)


def restore_timer(timer: SystemTimer, numbers: Numbers, usual_tick: Int64s | None, arrays: Arrays) -> None:
    """Restore the timer that `save_timer` saw."""
    wheel, levels = timer.wheel, numbers["wheel_levels"]
    wheel.clock = numbers["wheel_clock"]
    wheel.queued = list(arrays["timer.queued"].reshape(levels, wheel.wheel_size))
    wheel.spans = [wheel.wheel_size**level for level in range(levels)]
    armed_tick = usual_tick
    if armed_tick is None or "timer.armed" in arrays:
        armed_tick = np.full(len(arrays["timer.armed"]), UNARMED)
        armed_tick[arrays["timer.armed"]] = arrays["timer.tick"]
    timer.armed_tick = GrowableArray(armed_tick)
    rows = np.flatnonzero(armed_tick != UNARMED)
    timer.size = len(rows)
    if len(rows):
        timer.entries.add(armed_tick[rows], rows)
