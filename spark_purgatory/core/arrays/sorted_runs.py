"""Sorted runs: the container behind the wheel, the watch lists and the id index.

An entry is one int64, ``prefix << 28 | row``: the upper 36 bits order it, the lower 28 name a row. A *run* is a sorted
array of entries. A batch becomes a new run at the end and is merged into the run before it, unless that is more than
``MERGE_RATIO`` times larger. So there are O(log n) runs, and an entry is moved O(log n) times in its life (a
log-structured merge tree without the disk). A state keeps runs as they are, and nothing is sorted when it is loaded.
Needles are found by binary search; a `Directory` makes a table for runs in which many are sought.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]  # numbers of rows or entries, below 2**28
Bools = npt.NDArray[np.bool_]

ROW_BITS = 28  # a shard has at most 2**28 = 268 million rows: at 60 bytes each, 16 GB of state
ROW_MASK = (1 << ROW_BITS) - 1
MAX_ROWS = 1 << ROW_BITS
PREFIX_MASK = ~ROW_MASK  # the 36 bits of a hash that order an index
MERGE_RATIO = 2  # a run is merged into the one before it unless that is more than twice as long: at most log2(n) runs
DIRECTORY_FLOOR = 256  # entries of a run below which binary search is as fast as anything
NEEDLES_PAY = 48  # a table of starts pays once a run was searched for one needle per so many entries

GROWTH_FLOOR, GROWTH = 1 << 16, 8  # a full column of more values grows by this part of itself
SLACK = 3  # a run may be a view of memory that is longer by this part of the run

Kind = TypeVar("Kind", bound=np.generic)

EMPTY: Int64s = np.empty(0, np.int64)


def expand(starts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Return the positions ``starts[i] .. starts[i] + counts[i] - 1`` of every i, flat, and the i of each."""
    owner = np.arange(len(counts)).repeat(counts)
    first = counts.cumsum() - counts
    return np.arange(len(owner)) + (starts - first)[owner], owner


def parts_of(costs: Int64s, most: int) -> Iterator[slice]:
    """Yield consecutive parts of items with costs, (n,): each costs at most ``most``, or has one item."""
    until, start = costs.cumsum(), 0
    while start < len(costs):
        before = int(until[start - 1]) if start else 0
        end = max(start + 1, int(until.searchsorted(before + most, side="right")))
        yield slice(start, end)
        start = end


class Directory:
    """A search in one run: binary at first, and after many needles by a table of where leading bits begin."""

    def __init__(self, run: Int64s) -> None:
        self.run = run
        # Needles to seek before a table pays: it costs 5 ns an entry, and a binary search 100 to 400 ns a needle.
        self._left = len(run) // NEEDLES_PAY
        self._shift = 64 - max(len(run).bit_length() - 1, 1)
        # (2 ** (64 - shift) + 1,) int32: where entries with these leading bits begin, one or two on average.
        self._starts: npt.NDArray[np.int32] | None = None

    def find(self, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
        """Return the needle i and the row of each entry within ``low[i] .. high[i]``, (n,) each and ascending."""
        self._left -= len(low)
        if self._left > 0 or len(self.run) < DIRECTORY_FLOOR:
            start = self.run.searchsorted(low)
            end = start.copy()
            hit = (self.run.take(start, mode="clip") <= high).nonzero()[0]
            end[hit] = self.run.searchsorted(high[hit], side="right")
            at, needle = expand(start, end - start)
            return needle, self.run[at] & ROW_MASK
        if self._starts is None:
            buckets = 1 << (64 - self._shift)
            self._starts = np.zeros(buckets + 1, np.int32)
            sizes = np.bincount((self.run >> self._shift) + buckets // 2, minlength=buckets)
            np.cumsum(sizes, out=self._starts[1:])
        bucket = (low >> self._shift) + (len(self._starts) // 2)
        start = self._starts[bucket]
        at, needle = expand(start, self._starts[bucket + 1] - start)
        entries = self.run[at]
        same = ((entries & PREFIX_MASK) == low[needle]).nonzero()[0]
        return needle[same], entries[same] & ROW_MASK


class SortedRuns:
    """A multiset of int64 entries in sorted runs, oldest and longest first."""

    def __init__(self, runs: Iterable[Int64s] = ()) -> None:
        self.runs: list[Int64s] = [run for run in runs if len(run)]
        self.directories: list[Directory] = []  # of the runs at the last search

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def add(self, entries: Int64s) -> None:
        """Add a sorted batch, (n,) int64, in amortised O(n log n); older runs are read only if a merge is due."""
        if not len(entries):
            return
        first, size = len(self.runs), len(entries)
        while first and len(self.runs[first - 1]) <= MERGE_RATIO * size:
            first -= 1
            size += len(self.runs[first])
        if first < len(self.runs):
            entries = np.concatenate((*self.runs[first:], entries))
            self.directories = self.directories[:first]  # A directory would keep its run in memory
            entries.sort(kind="stable")  # A stable sort of sorted pieces is a merge: 2 to 5 ns an entry
        self.runs[first:] = [entries]

    def find(self, needles: Int64s) -> tuple[Int64s, Int64s]:
        """Find entries by the prefix of needles, which ascends: positions of needles, and rows, (m,), run by run."""
        low, high = needles & PREFIX_MASK, needles | ROW_MASK
        known = {id(directory.run): directory for directory in self.directories}
        self.directories = [known.get(id(run)) or Directory(run) for run in self.runs]
        found = [(EMPTY, EMPTY), *(directory.find(low, high) for directory in self.directories)]
        return np.concatenate([needle for needle, _ in found]), np.concatenate([rows for _, rows in found])

    def pop_until(self, prefix: int) -> Int64s:
        """Remove and return the entries whose prefix is at most ``prefix``, (m,) int64, run by run."""
        bound = (prefix << ROW_BITS) | ROW_MASK
        popped, kept = [EMPTY], list[Int64s]()
        for run in self.runs:
            cut = int(run.searchsorted(bound, side="right"))
            popped.append(run[:cut])
            if cut < len(run):
                kept.append(_left(run, cut) if cut else run)
        self.runs, self.directories = kept, []
        return np.concatenate(popped)

    def between(self, first_prefix: int, end_prefix: int) -> Int64s:
        """Return the entries with ``first_prefix <= prefix < end_prefix``, (m,) int64, run by run."""
        bounds = (first_prefix << ROW_BITS, end_prefix << ROW_BITS)
        return np.concatenate([EMPTY, *(run[slice(*run.searchsorted(bounds))] for run in self.runs)])

    def renumber(self, new_row: Rows) -> None:
        """Number rows again as ``new_row[row]``, which must keep their order; entries numbered -1 are dropped."""
        old, self.runs, self.directories = self.runs[::-1], [], []
        while old:
            run = old.pop()
            rows = new_row[run & ROW_MASK]
            kept = rows >= 0
            self.add((run[kept] & PREFIX_MASK) | rows[kept])


def _left(run: Int64s, start: int) -> Int64s:
    """Return a run without its start: a view, or a copy if a view would keep too much memory."""
    memory = run if run.base is None else run.base
    rest = run[start:]
    return rest.copy() if len(rest) + len(rest) // SLACK < len(memory) else rest


def hash_order(hashes: Int64s) -> Int64s:
    """Return positions, (n,), n at most 2**28, ordered by the upper 36 bits of the hashes, then by position."""
    return np.sort((hashes & PREFIX_MASK) | np.arange(len(hashes))) & ROW_MASK


def each_once(ascending: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    return ascending[first_of_each(ascending)]


def first_of_each(ascending: npt.NDArray[Kind]) -> Int64s:
    return is_first(ascending).nonzero()[0]


def is_first(ascending: npt.NDArray[Kind]) -> Bools:
    firsts = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=firsts[1:])
    return firsts


def by_first(first: Int64s, second: Int64s) -> tuple[Int64s, Int64s]:
    """Sort pairs by the first, within -2**35 .. 2**35 - 1, then by the second, within 0 .. 2**28 - 1."""
    packed = np.sort((first << ROW_BITS) | second)
    return packed >> ROW_BITS, packed & ROW_MASK


def new_numbers(kept: Bools) -> Rows:
    """Return the new number of each row, (n,) int32, if only flagged rows are kept; -1 for the others."""
    numbers = np.full(len(kept), -1, np.int32)
    numbers[kept] = np.arange(np.count_nonzero(kept), dtype=np.int32)
    return numbers


class GrowableArray(Generic[Kind]):
    """A numpy column that grows in amortised constant time; a restored view is copied on the first write."""

    def __init__(self, values: npt.NDArray[Kind]) -> None:
        self._buffer = values
        self._length = len(values)

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> npt.NDArray[Kind]:
        return self._buffer[: self._length]

    @property
    def writable(self) -> npt.NDArray[Kind]:
        if not self._buffer.flags.writeable:
            self._buffer = self._buffer.copy()
        return self._buffer[: self._length]

    def append(self, values: npt.NDArray[Kind]) -> None:
        end = self._length + len(values)
        self._reserve(end)
        self._buffer[self._length : end] = values
        self._length = end

    def fill(self, length: int, value: Kind) -> None:
        if length > self._length:
            self._reserve(length)
            self._buffer[self._length : length] = value
            self._length = length

    def keep(self, kept: Bools) -> None:
        self._buffer = self.values[kept]  # Never in place: a step may still read the values of before.
        self._length = len(self._buffer)

    def _reserve(self, length: int) -> None:
        if length <= len(self._buffer) and self._buffer.flags.writeable:
            return
        # Small columns double. For large ones the unused reserve would take megabytes.
        spare = length if length < GROWTH_FLOOR else length // GROWTH
        grown = np.empty(max(length + spare, 64), self._buffer.dtype)
        grown[: self._length] = self.values
        self._buffer = grown
