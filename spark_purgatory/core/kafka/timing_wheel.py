"""Kafka's hierarchical timing wheel, for arrays of tasks.

Terms. A *tick* is the wheel's unit; times below are whole ticks (``deadline_ms // tick_ms``). Level k has buckets of
``span[k] = wheel_size ** k`` ticks and reaches ``wheel_size`` of them. Its clock is the wheel's clock rounded down to
its span. A task is put into the first level that reaches its deadline. When its bucket is due, the task moves down or
runs. The wheel's clock is not the time: it moves only to the start of buckets that are due, as in Kafka's SystemTimer,
and may lag behind the last `advance_clock`.

Storage. No bucket holds a list. Armed tasks are entries ``tick << 28 | row`` in `SortedRuns`, and the tasks that are
due are a prefix of each run. A task's level follows from its deadline and the queued buckets, because of two facts:

1. All tasks with ``tick <= to`` run in ``advance(to)``: every bucket on a task's way starts at or before its tick.
2. A task that survives a bucket which straddles ``to`` goes to the highest level on which its cell is not that of
   ``to``. A task that is already lower is in that cell, and putting it there again changes nothing.

So a level only stores which buckets are queued, as a ring of ``wheel_size`` bits. A bucket that cancels have emptied
stays queued, is polled when due and moves the clock, as in Kafka. Costs: add O(n log n), cancel O(n), advance O(due)
and, for each bucket of level k >= 1 that is passed, its survivors, or only its cells while no task was cancelled.
tests/unit/test_timing_wheel.py has a worked example.

**Entries.** A prefix of 36 bits names ticks within 2**34 of a base: at 1 ms, 198 days before and after it. A tick
further away, such as the year 9999 among deadlines of today, has the last prefix on its side. Its row has the tick
itself. Once the clock is that far from the base, all entries are made again around the clock. Entries of cancelled and
moved tasks stay until they are due or all are made again.
"""

from __future__ import annotations

import numpy as np

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import (
    ROW_BITS,
    ROW_MASK,
    Bools,
    GrowableArray,
    Int64s,
    Rows,
    SortedRuns,
)
from spark_purgatory.errors import ConfigError

NEAR_TICKS = 1 << 34
REACH_LIMIT = 1 << 62  # a level that reaches this far takes everything: int64 milliseconds end at 2**63
FOREVER = int(np.iinfo(np.int64).max)
UNARMED = np.int64(np.iinfo(np.int64).min)
DROP_FLOOR = 1024  # entries of cancelled tasks below which making all again does not pay


class TimingWheel:
    """Levels, their clocks and the queued buckets (Kafka: ``TimingWheel`` and the ``DelayQueue`` of its buckets)."""

    def __init__(self, wheel_size: int, clock: int) -> None:
        if wheel_size < 2:
            raise ConfigError(f"wheel_size must be at least 2, got {wheel_size}: a level must reach past the one below")
        self.wheel_size = wheel_size
        self.clock = clock
        self.spans: list[int] = [1]
        self.rings: list[int] = [0]  # by level; bit c is set if the bucket numbered c modulo ``wheel_size`` is queued

    def reaches(self, furthest: int) -> Int64s:
        """Return the first tick beyond each level, (levels,). Levels are added until one reaches ``furthest``."""
        while self._reach(self.spans[-1]) <= min(furthest, FOREVER - 1):
            self.spans.append(self.spans[-1] * self.wheel_size)
            self.rings.append(0)
        return np.array([self._reach(span) for span in self.spans], np.int64)

    def _reach(self, span: int) -> int:
        reach = self.clock - self.clock % span + span * self.wheel_size
        return reach if reach < REACH_LIMIT else FOREVER

    def queue(self, level: int, first: int, filled: int) -> None:
        """Queue the buckets ``first + i`` of ``level`` for each bit i of ``filled``."""
        while filled > self._full:
            # Only the last level, which takes everything, has tasks beyond one turn of its ring.
            filled = (filled & self._full) | (filled >> self.wheel_size)
        self.rings[level] |= self._turned(filled, -first)

    def queue_ticks(self, level: int, ticks: Int64s) -> None:
        """Queue the buckets of ``level`` that hold ``ticks``, (n,) int64 ascending, n > 0."""
        span = self.spans[level]
        first, last = int(ticks[0]) // span, int(ticks[-1]) // span
        between, ends = last - first, 1 | 1 << (last - first)
        if between > 1 and self._turned(self.rings[level], first) >> 1 & (ends >> 1) - 1 != (ends >> 1) - 1:
            starts = ticks.searchsorted(np.arange(first + 1, last + 1) * span)
            ends |= bits_of(starts[1:] > starts[:-1]) << 1
        self.queue(level, first, ends)

    def poll(self, to: int) -> tuple[int, int]:
        """Take the queued buckets that start at or before ``to``.

        Returns their latest start, or the clock, and the highest level with a bucket that straddles ``to``, or 0.
        """
        latest, straddling = self.clock, 0
        for level, (span, ring) in enumerate(zip(self.spans, self.rings, strict=True)):
            first, last = self.clock // span + 1, to // span
            if last < first or not ring:
                continue
            ahead = self._turned(ring, first)  # Queued buckets are within wheel_size - 1 of the clock's own
            due = ahead & ((1 << min(last - first + 1, self.wheel_size - 1)) - 1)
            if not due:
                continue
            self.rings[level] = self._turned(ahead ^ due, -first)
            newest = first + due.bit_length() - 1
            latest = max(latest, newest * span)
            if newest == last:
                straddling = level
        return latest, straddling

    @property
    def _full(self) -> int:
        return (1 << self.wheel_size) - 1

    def _turned(self, ring: int, by: int) -> int:
        by %= self.wheel_size
        return ((ring >> by) | (ring << (self.wheel_size - by))) & self._full


def bits_of(flags: Bools) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class SystemTimer:
    """Armed tasks over a `TimingWheel` (Kafka: ``SystemTimer``, ``TimerTaskList``, ``TimerTaskEntry``).

    A task is a *row*, a small dense int that the caller chooses. Deadlines are absolute milliseconds.
    """

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        if tick_ms < 1:
            raise ConfigError(f"tick_ms must be at least 1, got {tick_ms}")
        self.tick_ms = tick_ms
        self.wheel = TimingWheel(wheel_size, start_ms // tick_ms)
        self.size = 0  # armed tasks (Kafka: ``taskCounter``)
        self.armed_tick = GrowableArray(np.empty(0, np.int64))  # (rows,) int64: each row's tick, or UNARMED
        self.entries = SortedRuns()
        self.base = 0
        self._has_repeats = False  # an entry may be there twice, because its row was armed again for the same tick

    def add(self, rows: Int64s, deadlines_ms: Int64s) -> Bools:
        """Arm tasks, or move them if they are armed: ``rows`` (n,) int64, distinct, and ``deadlines_ms`` (n,) int64.

        Returns (n,) bool. False: the task is due within the current tick and not stored, and the caller runs it now.
        """
        ticks = deadlines_ms // self.tick_ms if self.tick_ms > 1 else deadlines_ms
        armed = ticks > self.wheel.clock
        if not len(rows):
            return armed
        known = int(rows.min()) < len(self.armed_tick)
        self.armed_tick.fill(int(rows.max()) + 1, UNARMED)
        armed_tick = self.armed_tick.writable
        if known:
            # A known row may have an old entry that equals its new one.
            self._has_repeats |= len(self.entries) > 0
            self.size -= int(np.count_nonzero(armed_tick[rows] != UNARMED))
        if not armed.all():
            armed_tick[rows] = UNARMED
            rows, ticks = rows[armed], ticks[armed]
        armed_tick[rows] = ticks
        self.size += len(rows)
        if len(rows):
            if not len(self.entries):
                self.base = int(ticks.min())
            entries = self._entries_of(ticks, rows)
            self.entries.add(entries)
            first, last = int(entries[0] >> ROW_BITS), int(entries[-1] >> ROW_BITS)
            is_near = first > -NEAR_TICKS and last < NEAR_TICKS - 1
            ascending = (entries >> ROW_BITS) + self.base if is_near else np.sort(ticks)
            reaches = self.wheel.reaches(int(ascending[-1]))
            cuts = [0, *ascending.searchsorted(reaches).tolist(), len(ascending)]
            for level in range(len(reaches)):
                if cuts[level] < cuts[level + 1]:
                    self.wheel.queue_ticks(level, ascending[cuts[level] : cuts[level + 1]])
        return armed

    def cancel(self, rows: Int64s) -> Bools:
        """Disarm rows, (n,) distinct, and flag those that were armed, (n,) bool. Their entries are dropped later."""
        if len(rows):
            self.armed_tick.fill(int(rows.max()) + 1, UNARMED)
        armed_tick = self.armed_tick.writable
        was_armed = armed_tick[rows] != UNARMED
        armed_tick[rows] = UNARMED
        self.size -= int(np.count_nonzero(was_armed))
        if len(self.entries) > 2 * self.size + DROP_FLOOR:
            self.make_entries(self.base)
        return was_armed

    def advance_clock(self, now_ms: int) -> Int64s:
        """Return the rows that run at ``now_ms`` by tick and row, (m,) int64 (Kafka: ``SystemTimer.advanceClock``)."""
        to = now_ms // self.tick_ms
        latest, straddling = self.wheel.poll(to)
        if abs(to - self.base) >= NEAR_TICKS - 1:
            self.make_entries(to)
        all_live = len(self.entries) == self.size  # Else cancelled and moved tasks have left entries behind
        due = self.entries.pop_until(to - self.base)
        if not all_live:
            due = due.compress(self._live(due))
        due.sort(kind="stable")  # Each run's part ascends, and a stable sort merges them
        rows = (sorted_runs.each_once(due) if self._has_repeats else due) & ROW_MASK
        if len(rows):
            if due[0] >> ROW_BITS == -NEAR_TICKS:
                rows = rows[np.argsort(self.armed_tick.values[rows], kind="stable")]
            latest = max(latest, int(self.armed_tick.values[rows[-1]]))
            self.armed_tick.writable[rows] = UNARMED
            self.size -= len(rows)
        if straddling:
            latest = max(latest, self._cascade(to, straddling))
        self.wheel.clock = latest
        return rows

    def next_due_ms(self) -> int | None:
        """Return the earliest armed tick in ms; None if nothing is armed."""
        if not self.size:
            return None
        earlier = self.armed_tick.values - np.int64(1)  # UNARMED, the smallest number, becomes the largest
        return (int(earlier.min()) + 1) * self.tick_ms

    def renumber(self, new_row: Rows) -> None:
        """Number rows again as ``new_row[old]``, in the same order; -1 drops a row."""
        self.armed_tick.fill(len(new_row), UNARMED)
        self.armed_tick.keep(new_row >= 0)
        self.entries.renumber(new_row)
        self.size = int(np.count_nonzero(self.armed_tick.values != UNARMED))

    def make_entries(self, base: int) -> None:
        rows = np.flatnonzero(self.armed_tick.values != UNARMED)
        self.base, self._has_repeats = base, False
        self.entries = SortedRuns([self._entries_of(self.armed_tick.values[rows], rows)])

    def _entries_of(self, ticks: Int64s, rows: Int64s) -> Int64s:
        return np.sort((self._prefixes(ticks) << ROW_BITS) | rows)

    def _prefixes(self, ticks: Int64s) -> Int64s:
        low, high = max(self.base - NEAR_TICKS, int(UNARMED)), min(self.base + NEAR_TICKS - 1, FOREVER)
        return np.clip(ticks, low, high) - self.base

    def _live(self, entries: Int64s) -> Bools:
        ticks = self.armed_tick.values[entries & ROW_MASK]
        return (ticks != UNARMED) & (self._prefixes(ticks) == entries >> ROW_BITS)

    def filled(self, first: int, end: int, span: int) -> Bools:
        """Flag the cells ``first .. end - 1`` of ``span`` ticks that hold a live entry, (end - first,) bool."""
        low, high = first * span - self.base, end * span - self.base
        if len(self.entries) == self.size and low > -NEAR_TICKS and high < NEAR_TICKS:
            starts = np.arange(low, high + 1, span) << ROW_BITS
            counts = np.zeros(end - first, np.int64)
            for run in self.entries.runs:
                cuts = run.searchsorted(starts)
                counts += cuts[1:] - cuts[:-1]
            return counts > 0
        low, high = min(max(low, -NEAR_TICKS), NEAR_TICKS - 1), min(max(high, 1 - NEAR_TICKS), NEAR_TICKS)
        between = self.entries.between(low, high)
        ticks = self.armed_tick.values[between[self._live(between)] & ROW_MASK]
        ticks = ticks[(ticks >= first * span) & (ticks < end * span)]
        filled = np.zeros(end - first, bool)
        filled[ticks // span - first] = True
        return filled

    def _cascade(self, to: int, straddling: int) -> int:
        """Queue the new buckets of tasks that outlive the straddling bucket, and return the last clock on their way."""
        spans, latest = self.wheel.spans, self.wheel.clock
        for level in range(straddling - 1, -1, -1):
            first = to // spans[level] + 1
            end = (to // spans[level + 1] + 1) * self.wheel.wheel_size
            filled = bits_of(self.filled(first, end, spans[level]))
            if filled:
                self.wheel.queue(level, first, filled)
                latest = max(latest, to - to % spans[level + 1])
        return latest
