"""A `DelayedOperationPurgatory` as named arrays and tables, and back: sorted runs and primary columns as they lie.

`snapshot` writes them beside what event time adds; alone, a purgatory goes through `save_purgatory` and
`restore_purgatory`. What follows from the arrays at the speed of memory is derived again: which entry belongs to which
row, its hash, how many are listed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.keys import KeyColumn
from spark_purgatory.core.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.runs import PREFIX_MASK, ROW_MASK, Bools, Column, Int64s, SortedRuns
from spark_purgatory.core.state import Arrays, Tables
from spark_purgatory.core.timing_wheel import SystemTimer
from spark_purgatory.core.watchers import Watchers

Numbers = dict[str, int]


def save_purgatory(purgatory: DelayedOperationPurgatory) -> tuple[Numbers, Arrays, Tables]:
    """All of a purgatory but its hooks and settings."""
    arrays: Arrays = {"rows.state": purgatory.state.values}
    tables: Tables = {}
    save_watchers(purgatory.watchers, purgatory.state.values == WAITING, arrays)
    save_keys("watch.keys", purgatory.watchers.keys, tables)
    save_timer(purgatory.timer, None, arrays)
    return purgatory_numbers(purgatory), arrays, tables


def restore_purgatory(purgatory: DelayedOperationPurgatory, numbers: Numbers, arrays: Arrays, tables: Tables) -> None:
    """Make a purgatory without operations the one that `save_purgatory` saw."""
    restore_counts(purgatory, numbers, arrays)
    waiting = purgatory.state.values == WAITING
    restore_watchers(purgatory.watchers, waiting, arrays)
    purgatory.watchers.keys = restore_keys("watch.keys", tables)
    restore_timer(purgatory.timer, numbers, None, arrays)
    # All that ended: those purged before are on no list and purged again for nothing.
    purgatory.is_to_purge(np.flatnonzero(~waiting))


def purgatory_numbers(purgatory: DelayedOperationPurgatory) -> Numbers:
    """Counts and clocks."""
    timer = purgatory.timer
    return {
        "ended": purgatory.ended,
        "estimated_total": purgatory.estimated_total,
        "timer_size": timer.size,
        "timer_base": timer.entries.base,
        "timer_repeats": int(timer.entries.repeats),
        "wheel_clock": timer.wheel.clock,
        "wheel_levels": len(timer.wheel.spans),
    }


def restore_counts(purgatory: DelayedOperationPurgatory, numbers: Numbers, arrays: Arrays) -> None:
    """The rows' states and how many have ended."""
    purgatory.state = Column(arrays["rows.state"])
    purgatory.ended, purgatory.estimated_total = numbers["ended"], numbers["estimated_total"]


def save_runs(name: str, runs: SortedRuns, arrays: Arrays) -> None:
    """Each run under its number."""
    for i, run in enumerate(runs.runs):
        arrays[f"{name}.{i}"] = run


def restore_runs(name: str, arrays: Arrays) -> SortedRuns:
    """What `save_runs` saw."""
    runs: list[Int64s] = []
    while (run := arrays.get(f"{name}.{len(runs)}")) is not None:
        runs.append(run)
    return SortedRuns(runs)


def save_keys(name: str, keys: KeyColumn, tables: Tables) -> None:
    """A column of keys, chunk by chunk."""
    if keys.chunks:
        tables[name] = [pa.RecordBatch.from_arrays([chunk], names=["key"]) for chunk in keys.chunks]


def restore_keys(name: str, tables: Tables) -> KeyColumn:
    """What `save_keys` saw."""
    return KeyColumn([batch.column(0) for batch in tables.get(name, [])])


def save_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    """The watch lists but for their keys; ``waiting``, (rows,) bool."""
    listed = watchers.listed.values
    of_waiting = int(np.diff(watchers.first_entry.values)[waiting].sum())
    if watchers.watched != of_waiting or not np.array_equal(listed, waiting[watchers.row_of.values]):
        arrays["watch.listed"] = listed
    if watchers.rows != len(listed):
        arrays["watch.first_entry"] = watchers.first_entry.values
    save_runs("watch.run", watchers.index, arrays)


def restore_watchers(watchers: Watchers, waiting: Bools, arrays: Arrays) -> None:
    """What `save_watchers` saw."""
    first_entry = arrays.get("watch.first_entry")
    if first_entry is None:
        # One key each: entry and row are the same number.
        first_entry = np.arange(len(waiting) + 1)
    row_of = np.repeat(np.arange(len(waiting), dtype=np.int32), np.diff(first_entry))
    listed = arrays.get("watch.listed")
    listed = waiting[row_of] if listed is None else listed
    watchers.first_entry, watchers.row_of, watchers.listed = Column(first_entry), Column(row_of), Column(listed)
    watchers.watched = int(np.count_nonzero(listed))
    watchers.index = restore_runs("watch.run", arrays)
    # An entry that was never listed belongs to an operation that has ended: nobody asks for its hash again.
    hashes = np.zeros(len(row_of), np.int64)
    for run in watchers.index.runs:
        hashes[run & ROW_MASK] = run & PREFIX_MASK
    watchers.hashes = Column(hashes)


def save_timer(timer: SystemTimer, usual_tick: Int64s | None, arrays: Arrays) -> None:
    """The timer; ``usual_tick``, (rows,) int64: what each row is armed for where nothing was moved."""
    if usual_tick is None or not np.array_equal(timer.armed_tick.values, usual_tick):
        arrays["timer.armed_tick"] = timer.armed_tick.values
    arrays["timer.queued"] = np.concatenate(timer.wheel.queued)
    arrays["timer.outlier_ticks"] = timer.entries.outlier_ticks
    arrays["timer.outlier_rows"] = timer.entries.outlier_rows
    save_runs("timer.run", timer.entries.near, arrays)


def restore_timer(timer: SystemTimer, numbers: Numbers, usual_tick: Int64s | None, arrays: Arrays) -> None:
    """What `save_timer` saw."""
    timer.size, entries = numbers["timer_size"], timer.entries
    entries.base, entries.repeats = numbers["timer_base"], bool(numbers["timer_repeats"])
    wheel, levels = timer.wheel, numbers["wheel_levels"]
    wheel.clock = numbers["wheel_clock"]
    wheel.spans = [wheel.wheel_size**level for level in range(levels)]
    wheel.queued = list(arrays["timer.queued"].reshape(levels, wheel.wheel_size))
    if usual_tick is None or "timer.armed_tick" in arrays:
        usual_tick = arrays["timer.armed_tick"]
    timer.armed_tick = Column(usual_tick)
    entries.outlier_ticks, entries.outlier_rows = arrays["timer.outlier_ticks"], arrays["timer.outlier_rows"]
    entries.near = restore_runs("timer.run", arrays)
