"""Sorted runs: the one container behind the wheel, the watch lists and the id index.

An entry is one int64, ``prefix << 28 | row``: the upper 36 bits order it, the lower 28 name a row. A *run* is a sorted
array of entries. A batch becomes a new run at the end; when the run before it is not at least ``MERGE_RATIO`` times
larger, the two are merged, so that there are O(log n) runs and an entry is moved O(log n) times in its life (a
log-structured merge tree without the disk). Nothing is sorted again when state is loaded: runs lie in it as they are.

Worked example, prefixes above rows (a test asserts it)::

    add [3|0 5|1 5|2 9|3]     runs [3|0 5|1 5|2 9|3]
    add [5|4]                 runs [3|0 5|1 5|2 9|3] [5|4]              4 >= 2 * 1: left apart
    find prefixes [5, 7]      needle 0 -> rows 1, 2, 4; needle 1 -> none
    add [7|5]                 runs [3|0 5|1 5|2 5|4 7|5 9|3]            merged: 1 < 2 * 1, then 4 <= 2 * 2
    pop_until(5)              returns [3|0 5|1 5|2 5|4]; runs [7|5 9|3]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROW_BITS = 28
"""Rows of one shard: 2**28 = 268 million, at 60 bytes each already 16 GB of state; the prefix keeps 36 bits."""
ROW_MASK = (1 << ROW_BITS) - 1
MAX_ROWS = 1 << ROW_BITS
MERGE_RATIO = 2
"""A run is merged into the one before it unless that is more than twice as long: log2(n) runs at most."""

PREFIX_MASK = ~ROW_MASK
"""What of a 64-bit hash orders an index."""

EMPTY: Int64s = np.empty(0, np.int64)


def expand(starts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Positions ``starts[i] .. starts[i] + counts[i] - 1`` of every i, flat, and the i each belongs to."""
    total = int(counts.sum())
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return np.arange(total) - np.repeat(first - starts, counts), owner


class SortedRuns:
    """A multiset of int64 entries in sorted runs, oldest and longest first."""

    def __init__(self, runs: Iterable[Int64s] = ()) -> None:
        self.runs: list[Int64s] = [run for run in runs if len(run)]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def add(self, entries: Int64s) -> None:
        """Add a sorted batch, (n,) int64. Amortised O(n log n); nothing older is looked at unless a merge is due."""
        if not len(entries):
            return
        first, size = len(self.runs), len(entries)
        while first and len(self.runs[first - 1]) <= MERGE_RATIO * size:
            first -= 1
            size += len(self.runs[first])
        if first < len(self.runs):
            entries = np.concatenate((*self.runs[first:], entries))
            # A stable sort of sorted pieces is a merge: 2 to 5 ns an entry.
            entries.sort(kind="stable")
        self.runs[first:] = [entries]

    def find(self, needles: Int64s) -> tuple[Int64s, Int64s]:
        """Rows whose entry has the same prefix as a needle.

        ``needles``: (n,) int64, sorted; only their upper 36 bits count. Returns (which needle, row), both (m,), in
        runs' order: sort by needle where order matters (`by_needle`).
        """
        low, high = needles & ~ROW_MASK, needles | ROW_MASK
        found: list[Int64s] = []
        rows: list[Int64s] = []
        for run in self.runs:
            start = run.searchsorted(low)
            inside = np.flatnonzero(start < len(run))
            hit = inside[run[start[inside]] <= high[inside]]
            if not len(hit):
                continue
            start = start[hit]
            after = np.minimum(start + 1, len(run) - 1)
            several = np.flatnonzero((run[after] <= high[hit]) & (after > start))
            if len(several):
                counts = np.ones(len(hit), np.int64)
                counts[several] = run.searchsorted(high[hit[several]], side="right") - start[several]
                start, owner = expand(start, counts)
                hit = hit[owner]
            found.append(hit)
            rows.append(run[start] & ROW_MASK)
        if len(found) == 1:
            return found[0], rows[0]
        return (np.concatenate(found), np.concatenate(rows)) if found else (EMPTY, EMPTY)

    def pop_until(self, prefix: int) -> Int64s:
        """Remove and return every entry whose prefix is at most ``prefix``, (m,) int64, in runs' order."""
        bound = (prefix << ROW_BITS) | ROW_MASK
        popped: list[Int64s] = []
        kept: list[Int64s] = []
        for run in self.runs:
            cut = int(run.searchsorted(bound, side="right"))
            if cut:
                popped.append(run[:cut])
            if cut < len(run):
                kept.append(run[cut:] if cut else run)
        self.runs = kept
        return np.concatenate(popped) if popped else EMPTY

    def between(self, first_prefix: int, end_prefix: int) -> Int64s:
        """Entries with ``first_prefix <= prefix < end_prefix``, (m,) int64, in runs' order."""
        bounds = (first_prefix << ROW_BITS, end_prefix << ROW_BITS)
        parts = []
        for run in self.runs:
            start, end = run.searchsorted(bounds)
            if start < end:
                parts.append(run[start:end])
        return np.concatenate(parts) if parts else EMPTY

    def renumber(self, new_row: Int64s) -> None:
        """Give every row its new number, ``new_row[row]``, and drop entries whose new number is -1.

        Renumbering must keep the order of rows, so that runs stay sorted.
        """
        renumbered = []
        for run in self.runs:
            rows = new_row[run & ROW_MASK]
            keep = rows >= 0
            renumbered.append((run[keep] & ~ROW_MASK) | rows[keep])
        self.runs = []
        for run in renumbered:
            self.add(run)


def distinct(values: Int64s) -> Int64s:
    """The distinct values, ascending; a sort and a difference, which beats ``np.unique`` tenfold here."""
    ascending = np.sort(values)
    return ascending[np.concatenate(([True], ascending[1:] != ascending[:-1]))] if len(ascending) else ascending


def first_of_each(values: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct values (below 2**35), ascending, and the first position of each; as ``np.unique``, faster."""
    packed = np.sort((values << ROW_BITS) | np.arange(len(values)))
    ascending = packed >> ROW_BITS
    first = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1]))) if len(packed) else EMPTY
    return ascending[first], packed[first] & ROW_MASK


def by_needle(found: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Order the pairs of `SortedRuns.find` by needle, then by row."""
    packed = np.sort((found << ROW_BITS) | rows)
    return packed >> ROW_BITS, packed & ROW_MASK


Kind = TypeVar("Kind", bound=np.generic)


class Column(Generic[Kind]):
    """A numpy column that grows: appending costs what is appended, a restored view is copied on the first write."""

    def __init__(self, values: npt.NDArray[Kind]) -> None:
        self._buffer = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> npt.NDArray[Kind]:
        """The column, (n,); to read only."""
        return self._buffer[: self._length]

    @property
    def writable(self) -> npt.NDArray[Kind]:
        """The column, (n,), to write into."""
        if not self._buffer.flags.writeable:
            self._buffer = self._buffer.copy()
        return self._buffer[: self._length]

    def append(self, values: npt.NDArray[Kind]) -> None:
        """Append (n,) values of the column's type."""
        end = self._length + len(values)
        if end > len(self._buffer) or not self._buffer.flags.writeable:
            self._reserve(end)
        self._buffer[self._length : end] = values
        self._length = end

    def fill(self, length: int, value: object) -> None:
        """Append ``value`` until the column has at least ``length`` rows."""
        if length > self._length:
            if length > len(self._buffer) or not self._buffer.flags.writeable:
                self._reserve(length)
            self._buffer[self._length : length] = value
            self._length = length

    def _reserve(self, length: int) -> None:
        # Twice as long: the first touch of a page costs more than copying it, and what is not touched costs nothing.
        grown = np.empty(max(2 * length, 64), self._buffer.dtype)
        grown[: self._length] = self.values
        self._buffer = grown
