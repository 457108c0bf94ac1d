"""Sorted runs: the one container behind the wheel, the watch lists and the id index.

An entry is one int64, ``prefix << 28 | row``: the upper 36 bits order it, the lower 28 name a row. A *run* is a sorted
array of entries. A batch becomes a new run at the end; when the run before it is not at least ``MERGE_RATIO`` times
larger, the two are merged, so that there are O(log n) runs and an entry is moved O(log n) times in its life (a
log-structured merge tree without the disk). Nothing is sorted again when state is loaded: runs lie in it as they are.
Needles are sought by binary search; a run that many were sought in gets a `Directory`, where each leading bits begin,
derived and never saved.

Worked example, prefixes above rows (a test asserts it)::

    add [3|0 5|1 5|2 9|3]     runs [3|0 5|1 5|2 9|3]
    add [5|4]                 runs [3|0 5|1 5|2 9|3] [5|4]              4 >= 2 * 1: left apart
    find prefixes [5, 7]      needle 0 -> rows 1, 2, 4; needle 1 -> none
    add [7|5]                 runs [3|0 5|1 5|2 5|4 7|5 9|3]            merged: 1 < 2 * 1, then 4 <= 2 * 2
    pop_until(5)              returns [3|0 5|1 5|2 5|4]; runs [7|5 9|3]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
"""Numbers of rows or entries: below 2**28."""
Bools = npt.NDArray[np.bool_]

ROW_BITS = 28
"""Rows of one shard: 2**28 = 268 million, at 60 bytes each already 16 GB of state; the prefix keeps 36 bits."""
ROW_MASK = (1 << ROW_BITS) - 1
MAX_ROWS = 1 << ROW_BITS
MERGE_RATIO = 2
"""A run is merged into the one before it unless that is more than twice as long: log2(n) runs at most."""
DIRECTORY_FLOOR = 256
"""Entries of a run below which binary search is as fast as anything."""
NEEDLES_PAY = 48
"""A table of starts is made for a run once one needle was sought for so many of its entries."""
WIDE = 32
"""Entries with the same leading bits among which binary search beats looking at all: one busy key, or a poor hash."""

GROWTH_FLOOR, GROWTH = 1 << 16, 8
"""Values from which on a column that is full grows by this part of itself."""
BLOCK = 1 << 15
"""Values that are moved at a time."""
SLACK = 3
"""A run may be a view of memory that is by this part of the run longer than it."""
RADIX_FLOOR = 1024
"""Values below which sorting them by their leading bits first is not worth it."""
RADIX_BITS = 16
"""What numpy sorts by counting, not comparing: 4 ns a value, where its sort of int64 takes 6 to 50, by processor."""

PREFIX_MASK = ~ROW_MASK
"""What of a 64-bit hash orders an index."""

Kind = TypeVar("Kind", bound=np.generic)

EMPTY: Int64s = np.empty(0, np.int64)


def expand(starts: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Positions ``starts[i] .. starts[i] + counts[i] - 1`` of every i, flat, and the i each belongs to."""
    owner = np.arange(len(counts)).repeat(counts)
    first = counts.cumsum() - counts
    return np.arange(len(owner)) + (starts - first)[owner], owner


def parts_of(costs: Int64s, most: int) -> Iterator[slice]:
    """Consecutive parts of what has these costs, (n,): the costs of each add up to at most ``most``, or it is one."""
    until, start = costs.cumsum(), 0
    while start < len(costs):
        before = int(until[start - 1]) if start else 0
        end = max(start + 1, int(until.searchsorted(before + most, side="right")))
        yield slice(start, end)
        start = end


class Directory:
    """Finds needles in one run: by binary search, and once many were sought by where each leading bits begin."""

    def __init__(self, run: Int64s) -> None:
        self.run = run
        self._left = len(run) // NEEDLES_PAY
        """Needles to seek before a table of starts pays: 5 ns an entry against 100 to 400 ns a needle."""
        self._shift = 64 - max(len(run).bit_length() - 1, 1)
        self._starts: npt.NDArray[np.int32] | None = None
        """(2 ** (64 - shift) + 1,) int32: where entries with these leading bits begin, one or two on average."""

    def find(self, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
        """(which needle, row) of every entry within ``low[i] .. high[i]``, (n,) each, which ascend."""
        self._left -= len(low)
        if self._left > 0 or len(self.run) < DIRECTORY_FLOOR:
            start, end = self._searched(low, high)
            at, needle = expand(start, end - start)
            return needle, self.run[at] & ROW_MASK
        if self._starts is None:
            buckets = 1 << (64 - self._shift)
            self._starts = np.zeros(buckets + 1, np.int32)
            sizes = np.bincount((self.run >> self._shift) + buckets // 2, minlength=buckets)
            np.cumsum(sizes, out=self._starts[1:])
        bucket = (low >> self._shift) + (len(self._starts) // 2)
        start, end = self._starts[bucket], self._starts[bucket + 1]
        counts = end - start
        if counts.max(initial=0) > WIDE:
            wide = (counts > WIDE).nonzero()[0]
            start[wide], end[wide] = self._searched(low[wide], high[wide])
            counts = end - start
        at, needle = expand(start, counts)
        entries = self.run[at]
        same = ((entries & PREFIX_MASK) == low[needle]).nonzero()[0]
        return needle[same], entries[same] & ROW_MASK

    def _searched(self, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
        start = self.run.searchsorted(low)
        end = start.copy()
        hit = (self.run.take(start, mode="clip") <= high).nonzero()[0]
        end[hit] = self.run.searchsorted(high[hit], side="right")
        return start, end


class SortedRuns:
    """A multiset of int64 entries in sorted runs, oldest and longest first."""

    def __init__(self, runs: Iterable[Int64s] = ()) -> None:
        self.runs: list[Int64s] = [run for run in runs if len(run)]
        self.directories: list[Directory] = []
        """The directories of the runs that there were when needles were last sought."""

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
            # A directory would keep the run that it is of.
            self.directories = self.directories[:first]
            # A stable sort of sorted pieces is a merge: 2 to 5 ns an entry.
            entries.sort(kind="stable")
        self.runs[first:] = [entries]

    def find(self, needles: Int64s) -> tuple[Int64s, Int64s]:
        """Rows whose entry has the same prefix as a needle.

        ``needles``: (n,) int64, ascending in their upper 36 bits; the others do not count. Returns (which
        needle, row), both (m,), in runs' order: sort by needle where order matters (`by_first`).
        """
        low, high = needles & PREFIX_MASK, needles | ROW_MASK
        known = {id(directory.run): directory for directory in self.directories}
        self.directories = [known.get(id(run)) or Directory(run) for run in self.runs]
        found = [directory.find(low, high) for directory in self.directories]
        if len(found) == 1:
            return found[0]
        if not found:
            return EMPTY, EMPTY
        return np.concatenate([needle for needle, _ in found]), np.concatenate([rows for _, rows in found])

    def pop_until(self, prefix: int) -> Int64s:
        """Remove and return every entry whose prefix is at most ``prefix``, (m,) int64, in runs' order."""
        bound = (prefix << ROW_BITS) | ROW_MASK
        popped, kept = [EMPTY], list[Int64s]()
        for run in self.runs:
            cut = int(run.searchsorted(bound, side="right"))
            popped.append(run[:cut])
            if cut < len(run):
                kept.append(trimmed(run, slice(cut, None)) if cut else run)
        self.runs, self.directories = kept, []
        return np.concatenate(popped)

    def between(self, first_prefix: int, end_prefix: int) -> Int64s:
        """Entries with ``first_prefix <= prefix < end_prefix``, (m,) int64, in runs' order."""
        bounds = (first_prefix << ROW_BITS, end_prefix << ROW_BITS)
        return np.concatenate([EMPTY, *(run[slice(*run.searchsorted(bounds))] for run in self.runs)])

    def renumber(self, new_row: Rows) -> None:
        """Give every row its new number, ``new_row[row]``, and drop entries whose new number is -1.

        Renumbering must keep the order of rows, so that runs stay sorted.
        """
        old, self.runs, self.directories = self.runs[::-1], [], []
        while old:
            run = old.pop()
            if not run.flags.writeable:
                run = run.copy()
            end = 0
            for start in range(0, len(run), BLOCK):
                block = run[start : start + BLOCK]
                rows = new_row[block & ROW_MASK]
                keep = (rows >= 0).nonzero()[0]
                run[end : end + len(keep)] = (block[keep] & PREFIX_MASK) | rows[keep]
                end += len(keep)
            self.add(trimmed(run, slice(0, end)))


def trimmed(run: Int64s, part: slice) -> Int64s:
    """A part of a run: a view, or a copy where too much memory would be kept for it."""
    memory = run if run.base is None else run.base
    rest = run[part]
    return rest.copy() if len(rest) + len(rest) // SLACK < len(memory) else rest


def ordered(values: Int64s) -> Int64s:
    """The values, (n,) int64, ascending, as ``np.sort``, in a third to a half of its time.

    Where they are spread over their range: they are put in order of their leading bits, and the merge sort after it
    finds little left to do.
    """
    if len(values) < RADIX_FLOOR:
        return np.sort(values)
    if bool((values[1:] >= values[:-1]).all()):
        return values.copy()
    leading = leading_bits(values)
    order = np.argsort(leading, kind="stable")
    quarter = len(values) // 4
    if leading[order[quarter]] == leading[order[-quarter]]:
        # Most values share their leading bits: a few values are far from all others.
        return np.sort(values)
    ascending = values[order]
    ascending.sort(kind="stable")
    return ascending


def leading_bits(values: Int64s) -> npt.NDArray[np.uint16]:
    """The upper 16 bits of each value's distance from the least, as few of them as the greatest distance has."""
    lowest, highest = int(values.min()), int(values.max())
    # The distance may not fit the type's sign: modulo 2**64 it is right.
    distance = values.view(np.uint64) - np.uint64(lowest % 2**64)
    return (distance >> np.uint64(max((highest - lowest).bit_length() - RADIX_BITS, 0))).astype(np.uint16)


def hash_order(hashes: Int64s) -> Int64s:
    """Positions, (n,), n at most 2**28, in the order of the upper 36 bits of the hashes, then in that of the array."""
    return ordered((hashes & PREFIX_MASK) | np.arange(len(hashes))) & ROW_MASK


def each_once(ascending: npt.NDArray[Kind]) -> npt.NDArray[Kind]:
    """The distinct values of an ascending array."""
    return ascending[first_of_each(ascending)]


def first_of_each(ascending: npt.NDArray[Kind]) -> Int64s:
    """Position of the first of each distinct value of an ascending array, (d,)."""
    return is_first(ascending).nonzero()[0]


def is_first(ascending: npt.NDArray[Kind]) -> Bools:
    """Where an array in which equal values are adjacent has another value than before, (n,) bool."""
    firsts = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=firsts[1:])
    return firsts


def by_first(first: Int64s, second: Int64s) -> tuple[Int64s, Int64s]:
    """Pairs in the order of the first, within -2**35 .. 2**35 - 1, then of the second, within 0 .. 2**28 - 1."""
    packed = ordered((first << ROW_BITS) | second)
    return packed >> ROW_BITS, packed & ROW_MASK


def count_of(kept: Int64s | Bools) -> int:
    """The number of flags, (n,) bool, that are set; or the number of positions, (m,) int64."""
    return int(np.count_nonzero(kept)) if kept.dtype == np.bool_ else len(kept)


def blocks_of(kept: Int64s | Bools) -> Iterator[tuple[int, Int64s]]:
    """(how many came before, positions) of flags that are set, or of positions, a block at a time.

    Flags take a byte each, and the positions of a million rows eight million.
    """
    if kept.dtype != np.bool_:
        positions = kept.astype(np.int64, copy=False)
        for start in range(0, len(positions), BLOCK):
            yield start, positions[start : start + BLOCK]
        return
    before = 0
    for start in range(0, len(kept), BLOCK):
        block = kept[start : start + BLOCK].nonzero()[0]
        block += start
        yield before, block
        before += len(block)


def new_numbers(kept: Bools) -> Rows:
    """The number that each row gets, (n,) int32, where only those of the flags are left; -1 of the others."""
    numbers = np.full(len(kept), -1, np.int32)
    numbers[kept] = np.arange(np.count_nonzero(kept), dtype=np.int32)
    return numbers


class GrowableArray(Generic[Kind]):
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

    def own(self) -> None:
        """Copy the column if it is a view, which keeps all that it is one of."""
        if not self._buffer.flags.owndata:
            self._buffer = self._buffer.copy()

    def append(self, values: npt.NDArray[Kind]) -> None:
        """Append (n,) values of the column's type."""
        end = self._length + len(values)
        self._reserve(end)
        self._buffer[self._length : end] = values
        self._length = end

    def fill(self, length: int, value: Kind) -> None:
        """Append ``value`` until the column has at least ``length`` rows."""
        if length > self._length:
            self._reserve(length)
            self._buffer[self._length : length] = value
            self._length = length

    def keep(self, kept: Int64s | Bools) -> None:
        """Keep only the values at ``kept``, flags or positions that ascend.

        In place, so that the column grows into its memory again; a column that has become much shorter is copied.
        """
        count = count_of(kept)
        if not self._buffer.flags.writeable or len(self._buffer) > max(2 * count, GROWTH_FLOOR):
            self._buffer = self.values[kept]
        else:
            for start, block in blocks_of(kept):
                # They move towards the start: what is written over has been moved.
                self._buffer[start : start + len(block)] = self._buffer[block]
        self._length = count

    def truncate(self, length: int) -> None:
        """Keep only the first ``length`` values."""
        self._length = length
        if len(self._buffer) > max(2 * length, GROWTH_FLOOR):
            self._buffer = self.values.copy()

    def _reserve(self, length: int) -> None:
        if length <= len(self._buffer) and self._buffer.flags.writeable:
            return
        # Small columns double. Of large ones what is reserved and not used would be worth megabytes.
        spare = length if length < GROWTH_FLOOR else length // GROWTH
        grown = np.empty(max(length + spare, 64), self._buffer.dtype)
        grown[: self._length] = self.values
        self._buffer = grown
