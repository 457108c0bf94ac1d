"""Entries of armed tasks, ``tick << 28 | row`` in sorted runs, and the few whose tick does not fit.

A prefix of 36 bits names ticks within 2**34 of a base: at 1 ms, 198 days before and after it. Other entries, such as
deadlines of the year 9999 among deadlines of today, are *outliers* in two plain arrays. When they are the majority, a
new base is chosen. Entries of cancelled and moved tasks stay until they are due or dropped together. The caller tells
which entries are live, ``live(ticks, rows) -> (n,) bool``, or gives None if all are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import EMPTY, ROW_BITS, ROW_MASK, Bools, Int64s, Rows, SortedRuns

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
