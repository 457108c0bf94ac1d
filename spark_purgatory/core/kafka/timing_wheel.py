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

**Entries.** A prefix of 36 bits names ticks within 2**34 of a base: at 1 ms, 198 days before and after it. Other
entries, such as deadlines of the year 9999 among deadlines of today, are *outliers* in two plain arrays. When they are
the majority, a new base is chosen. Entries of cancelled and moved tasks stay until they are due or dropped together.
The caller tells which entries are live, ``live(ticks, rows) -> (n,) bool``, or gives None if all are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
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
REBASE_FLOOR = 1024  # outliers below which a new base does not pay

Live = Callable[[Int64s, Int64s], Bools]


class TimerEntries:
    """Pairs of tick and row by tick."""

    def __init__(self) -> None:
        self.base = 0
        self.near = SortedRuns()
        self.outlier_ticks, self.outlier_rows = EMPTY, EMPTY
        self.has_repeats = False  # an entry may be there twice, because its row was armed again for the same tick

    def __len__(self) -> int:
        return len(self.near) + len(self.outlier_ticks)

    def add(self, ticks: Int64s, rows: Int64s) -> Int64s:
        """Add pairs, (n,) each, n > 0; returns the ticks ascending."""
        if not len(self):
            self.base = int(ticks.min())
        far = EMPTY
        if int(ticks.max()) - self.base >= NEAR_TICKS or int(ticks.min()) - self.base < -NEAR_TICKS:
            near = (ticks < self.base + NEAR_TICKS) & (ticks >= self.base - NEAR_TICKS)
            far = ticks[~near]
            self.outlier_ticks = np.concatenate((self.outlier_ticks, far))
            self.outlier_rows = np.concatenate((self.outlier_rows, rows[~near]))
            ticks, rows = ticks[near], rows[near]
        entries = sorted_runs.ordered(((ticks - self.base) << ROW_BITS) | rows)
        self.near.add(entries)
        ascending = (entries >> ROW_BITS) + self.base
        return np.sort(np.concatenate((ascending, far)), kind="stable") if len(far) else ascending

    def pop_until(self, to: int, live: Live | None) -> tuple[Int64s, Int64s]:
        """Remove all pairs with tick <= ``to``, and return the live ones by tick and row, each once."""
        due = self.near.pop_until(min(max(to - self.base, -NEAR_TICKS - 1), NEAR_TICKS))
        if live:
            due = due.compress(live(*self._pairs(due)))
        due.sort(kind="stable")  # Each run's part ascends, and a stable sort merges them
        if self.has_repeats:
            due = sorted_runs.each_once(due)
        ticks, rows = self._pairs(due)
        if len(self.outlier_ticks):
            live = live or (lambda ticks, _: np.ones(len(ticks), bool))
            ticks, rows = self._pop_outliers(to, live, ticks, rows)
            if len(self.outlier_ticks) > REBASE_FLOOR + len(self.near):
                self._rebase(live)
        return ticks, rows

    def filled(self, first: int, end: int, span: int, live: Live | None) -> Bools:
        """Flag the cells ``first .. end - 1`` of ``span`` ticks that hold a live entry, (end - first,) bool."""
        low, high = first * span - self.base, end * span - self.base
        if live is None and not len(self.outlier_ticks) and low >= -NEAR_TICKS and high <= NEAR_TICKS:
            starts = np.arange(low, high + 1, span) << ROW_BITS
            counts = np.zeros(end - first, np.int64)
            for run in self.near.runs:
                cuts = run.searchsorted(starts)
                counts += cuts[1:] - cuts[:-1]
            return counts > 0
        ticks, rows = self._between(first * span, end * span)
        if live:
            ticks = ticks[live(ticks, rows)]
        filled = np.zeros(end - first, bool)
        filled[ticks // span - first] = True
        return filled

    def _between(self, first: int, end: int) -> tuple[Int64s, Int64s]:
        """Return the pairs with first <= tick < end, also dead ones."""
        low, high = max(first - self.base, -NEAR_TICKS), min(end - self.base, NEAR_TICKS)
        ticks, rows = self._pairs(self.near.between(low, high) if low < high else EMPTY)
        far = (self.outlier_ticks >= first) & (self.outlier_ticks < end)
        if far.any():
            ticks = np.concatenate((ticks, self.outlier_ticks[far]))
            rows = np.concatenate((rows, self.outlier_rows[far]))
        return ticks, rows

    def earliest(self, live: Live) -> int:
        """Return the smallest live tick and drop dead entries before it. At least one entry must be live."""
        found = []
        for i, run in enumerate(self.near.runs):
            start, step = 0, 64
            while start < len(run):
                here = np.flatnonzero(live(*self._pairs(run[start : start + step])))
                if len(here):
                    start += int(here[0])
                    found.append(int(run[start] >> ROW_BITS) + self.base)
                    break
                start, step = start + step, step * 2
            self.near.runs[i] = sorted_runs.trimmed(run, slice(start, None))
        self.near.runs = [run for run in self.near.runs if len(run)]
        far = self.outlier_ticks[live(self.outlier_ticks, self.outlier_rows)]
        return min([*found, int(far.min())] if len(far) else found)

    def drop_dead(self, live: Live) -> None:
        """Drop entries of cancelled and moved tasks, in amortised constant time per cancel."""
        runs = [run[live(*self._pairs(run))] for run in self.near.runs]
        if self.has_repeats and runs:
            merged = np.concatenate(runs)
            merged.sort(kind="stable")
            runs = [sorted_runs.each_once(merged)]
        self.near = SortedRuns()
        for run in runs:
            self.near.add(run)
        alive = live(self.outlier_ticks, self.outlier_rows)
        self.outlier_rows, first = np.unique(self.outlier_rows[alive], return_index=True)
        self.outlier_ticks = self.outlier_ticks[alive][first]
        self.has_repeats = False

    def renumber(self, new_row: Rows) -> None:
        """Number rows again as ``new_row[old]``, in the same order; -1 drops a row and its entries."""
        self.near.renumber(new_row)
        rows = new_row[self.outlier_rows].astype(np.int64)
        self.outlier_ticks, self.outlier_rows = self.outlier_ticks[rows >= 0], rows[rows >= 0]

    def _pairs(self, entries: Int64s) -> tuple[Int64s, Int64s]:
        return (entries >> ROW_BITS) + self.base, entries & ROW_MASK

    def _pop_outliers(self, to: int, live: Live, ticks: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        due = self.outlier_ticks <= to
        taken = due & live(self.outlier_ticks, self.outlier_rows)
        far_rows, first = np.unique(self.outlier_rows[taken], return_index=True)
        far_ticks = self.outlier_ticks[taken][first]
        self.outlier_ticks, self.outlier_rows = self.outlier_ticks[~due], self.outlier_rows[~due]
        if not len(far_rows):
            return ticks, rows
        ticks, rows = np.concatenate((ticks, far_ticks)), np.concatenate((rows, far_rows))
        order = np.lexsort((rows, ticks))
        return ticks[order], rows[order]

    def _rebase(self, live: Live) -> None:
        """Choose a new base in the middle of the armed ticks, so that outliers are few again."""
        self.drop_dead(live)
        ticks, rows = self._pairs(np.concatenate(self.near.runs) if self.near.runs else EMPTY)
        ticks, rows = np.concatenate((ticks, self.outlier_ticks)), np.concatenate((rows, self.outlier_rows))
        if not len(ticks):
            return
        self.base = int(np.partition(ticks, len(ticks) // 2)[len(ticks) // 2])
        near = np.abs(ticks - self.base) < NEAR_TICKS
        self.near = SortedRuns([sorted_runs.ordered(((ticks[near] - self.base) << ROW_BITS) | rows[near])])
        self.outlier_ticks, self.outlier_rows = ticks[~near], rows[~near]


REACH_LIMIT = 1 << 62  # a level that reaches this far takes everything: int64 milliseconds end at 2**63
FOREVER = int(np.iinfo(np.int64).max)
UNARMED = np.int64(np.iinfo(np.int64).min)
DROP_FLOOR = 1024  # entries of cancelled tasks below which dropping them does not pay


class TimingWheel:
    """Levels, their clocks and the queued buckets (Kafka: ``TimingWheel`` and the ``DelayQueue`` of its buckets)."""

    def __init__(self, wheel_size: int, clock: int) -> None:
        if wheel_size < 2:
            raise ConfigError(f"wheel_size must be at least 2, got {wheel_size}: a level must reach past the one below")
        self.wheel_size = wheel_size
        self.clock = clock
        self.spans: list[int] = [1]
        self.rings: list[int] = [0]  # by level; bit c is set if the bucket numbered c modulo ``wheel_size`` is queued

    @property
    def queued(self) -> list[Bools]:
        """The rings as flags, (wheel_size,) bool per level."""
        size = (self.wheel_size + 7) // 8
        packed = [np.frombuffer(ring.to_bytes(size, "little"), np.uint8) for ring in self.rings]
        return [np.unpackbits(ring, count=self.wheel_size, bitorder="little").astype(bool) for ring in packed]

    @queued.setter
    def queued(self, flags: list[Bools]) -> None:
        self.rings = [bits_of(ring) for ring in flags]

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
        """Turn the ring so that bit ``by`` is bit 0."""
        by %= self.wheel_size
        return ((ring >> by) | (ring << (self.wheel_size - by))) & self._full


def bits_of(flags: Bools) -> int:
    """Return an int whose bit i is ``flags[i]``."""
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
        self.entries = TimerEntries()
        self.armed_tick = GrowableArray(np.empty(0, np.int64))  # (rows,) int64: each row's tick, or UNARMED

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
            self.entries.has_repeats |= len(self.entries) > 0
            self.size -= int(np.count_nonzero(armed_tick[rows] != UNARMED))
        if not armed.all():
            armed_tick[rows] = UNARMED
            rows, ticks = rows[armed], ticks[armed]
        armed_tick[rows] = ticks
        self.size += len(rows)
        if len(rows):
            ascending = self.entries.add(ticks, rows)
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
            self.entries.drop_dead(self._live)
        return was_armed

    def advance_clock(self, now_ms: int) -> Int64s:
        """Return the rows that run at ``now_ms`` by tick and row, (m,) int64 (Kafka: ``SystemTimer.advanceClock``)."""
        to = now_ms // self.tick_ms
        latest, straddling = self.wheel.poll(to)
        # Cancelled and moved tasks leave entries behind. If there are as many entries as tasks, all are live.
        live = None if len(self.entries) == self.size else self._live
        ticks, rows = self.entries.pop_until(to, live)
        if len(rows):
            latest = max(latest, int(ticks[-1]))
            self.armed_tick.writable[rows] = UNARMED
            self.size -= len(rows)
        if straddling:
            latest = max(latest, self._cascade(to, straddling, live))
        self.wheel.clock = latest
        return rows

    def next_due_ms(self) -> int | None:
        """Return the earliest armed tick in ms; None if nothing is armed."""
        return self.entries.earliest(self._live) * self.tick_ms if self.size else None

    def renumber(self, new_row: Rows) -> None:
        """Number rows again as ``new_row[old]``, in the same order; -1 drops a row."""
        self.armed_tick.fill(len(new_row), UNARMED)
        self.armed_tick.keep(new_row >= 0)
        self.entries.renumber(new_row)
        self.size = int(np.count_nonzero(self.armed_tick.values != UNARMED))

    def _live(self, ticks: Int64s, rows: Int64s) -> Bools:
        return self.armed_tick.values[rows] == ticks

    def _cascade(self, to: int, straddling: int, live: Live | None) -> int:
        """Queue the new buckets of tasks that outlive the straddling bucket, and return the last clock on their way."""
        spans, latest = self.wheel.spans, self.wheel.clock
        for level in range(straddling - 1, -1, -1):
            first = to // spans[level] + 1
            end = (to // spans[level + 1] + 1) * self.wheel.wheel_size
            filled = bits_of(self.entries.filled(first, end, spans[level], live))
            if filled:
                self.wheel.queue(level, first, filled)
                latest = max(latest, to - to % spans[level + 1])
        return latest
