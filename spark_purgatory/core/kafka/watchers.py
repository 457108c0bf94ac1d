"""Watch lists: which operations wait on which key (Kafka: ``DelayedOperationPurgatory.Watchers``).

Terms. A *row* is an operation. A *watch entry* is one (operation, key) pair, numbered in the order of registration. A
key's *list* is its entries in that order; the index keeps them as ``36 bits of the key's hash << 28 | entry``, so a
list is a range of each sorted run, already in order. Dropping an entry clears its ``listed`` flag and leaves the index
alone; `renumber` drops it for good.

``watched`` is Kafka's: the lengths of all lists added up, entries of operations that ended elsewhere included, until a
check of their key, a cancel or a purge drops them. A purge looks at the operations that ended since the last one, and
costs those.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
    MAX_ROWS,
    PREFIX_MASK,
    Bools,
    GrowableArray,
    Int64s,
    Rows,
    SortedRuns,
    by_first,
    expand,
    hash_order,
    new_numbers,
    ordered,
)
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.errors import LimitError


class Watchers:
    """All watch lists of one purgatory."""

    def __init__(self) -> None:
        self.index = SortedRuns()
        self.keys = ValueColumn()
        self.hashes = GrowableArray(EMPTY)
        """(entries,) int64: the upper 36 bits of each entry's key hash."""
        self._row_of: GrowableArray[np.int32] | None = None
        """(entries,) int32: each entry's operation; None while every operation has one key."""
        self._first_entry: GrowableArray[np.int64] | None = None
        """(rows + 1,) int64: entries of row r are first_entry[r] .. first_entry[r + 1] - 1; None likewise."""
        self.listed = GrowableArray(np.empty(0, bool))
        """(entries,) bool: still on its key's list."""
        self.watched = 0

    @property
    def rows(self) -> int:
        """Rows known, listed or not."""
        return len(self.listed) if self._first_entry is None else len(self._first_entry) - 1

    @property
    def first_entry(self) -> Int64s:
        """(rows + 1,) int64: entries of row r are first_entry[r] .. first_entry[r + 1] - 1; to read only."""
        return np.arange(self.rows + 1) if self._first_entry is None else self._first_entry.values

    def set_first_entry(self, first_entry: Int64s) -> None:
        """Say which entries each row has, (rows + 1,)."""
        self._first_entry = self._row_of = None
        if len(first_entry) <= int(first_entry[-1]):
            rows = np.arange(len(first_entry) - 1, dtype=np.int32)
            self._first_entry = GrowableArray(first_entry)
            self._row_of = GrowableArray(rows.repeat(first_entry[1:] - first_entry[:-1]))

    def append(self, keys: pa.Array, hashes: Int64s, offsets: Int64s) -> Int64s:
        """Number new operations and their keys, on no list yet; returns their rows, (n,) int64.

        Operation i has ``keys[offsets[i]:offsets[i + 1]]``; ``hashes`` goes with ``keys``.
        """
        count, entries = len(offsets) - 1, len(self.listed)
        rows = np.arange(self.rows, self.rows + count)
        if entries + len(keys) >= MAX_ROWS:
            raise LimitError(
                f"a purgatory holds at most {MAX_ROWS:,} watch entries and {entries + len(keys):,} were asked for: "
                "use more shards"
            )
        self.keys.append(keys)
        self.hashes.append(hashes & PREFIX_MASK)
        if self._first_entry is None and len(keys) != count:
            self._first_entry = GrowableArray(self.first_entry)
            self._row_of = GrowableArray(np.arange(entries, dtype=np.int32))
        if self._first_entry is not None and self._row_of is not None:
            self._row_of.append(rows.astype(np.int32).repeat(offsets[1:] - offsets[:-1]))
            self._first_entry.append(offsets[1:] + (entries - int(offsets[0])))
        self.listed.append(np.zeros(len(keys), bool))
        return rows

    def watch(self, rows: Int64s) -> None:
        """Put rows, (n,) int64 ascending, on the lists of all their keys (Kafka: ``watchForOperation``)."""
        if not len(rows):
            return
        entries, _ = self.entries_of(rows)
        self.index.add(ordered(self.hashes.values[entries] | entries))
        self.listed.writable[entries] = True
        self.watched += len(entries)

    def entries_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Entries of rows, and the position in ``rows`` that each belongs to; both (m,) int64, to read only."""
        if self._first_entry is None:
            return rows, np.arange(len(rows))
        first = self._first_entry.values
        return expand(first[rows], first[rows + 1] - first[rows])

    def first_entries(self, rows: Int64s) -> Int64s:
        """The first entry of each row, (n,) int64, to read only."""
        return rows if self._first_entry is None else self._first_entry.values[rows]

    def entries_among(self, rows: Bools) -> Bools:
        """Which entries are of rows with their flag set, (entries,) of (rows,), to read only."""
        return rows if self._row_of is None else rows[self._row_of.values]

    def rows_of(self, entries: Int64s) -> Int64s:
        """The row of each entry, (m,) int64, to read only."""
        # numpy turns 32-bit numbers into 64-bit ones whenever they index: here once.
        return entries if self._row_of is None else self._row_of.values[entries].astype(np.int64)

    def find(self, keys: pa.Array, hashes: Int64s) -> tuple[Int64s, Int64s]:
        """Listed entries of each key: (which key, entry), both (m,), by entry and then by key."""
        order = hash_order(hashes)
        found, entries = self.index.find(hashes[order])
        # Columns are read from start to end, and a row's entries are adjacent.
        entries, needle = by_first(entries, order[found])
        here = (self.listed.values[entries] & self.keys.equal(entries, keys, needle)).nonzero()[0]
        return needle[here], entries[here]

    def drop(self, entries: Int64s) -> None:
        """Take listed entries, (m,) distinct, off their lists."""
        self.listed.writable[entries] = False
        self.watched -= len(entries)

    def forget(self, rows: Int64s) -> None:
        """Take rows, (n,) distinct, off all their lists; costs the rows, not the lists."""
        entries, _ = self.entries_of(rows)
        self.drop(entries[self.listed.values[entries]])

    def renumber(self, new_row: Rows) -> None:
        """Keep only rows with ``new_row[row] >= 0`` and give them that number; the order of rows is kept."""
        kept_rows = new_row >= 0
        kept = self.entries_among(kept_rows)
        dropped = kept & ~self.listed.values
        if self._row_of is None and not dropped.any():
            self.index.renumber(new_row)
        else:
            new_entry = new_numbers(kept)
            new_entry[dropped] = -1
            self.index.renumber(new_entry)
        self.keys.keep(kept)
        self.hashes.keep(kept)
        self.listed.keep(kept)
        if self._first_entry is not None:
            counts = np.diff(self._first_entry.values)[kept_rows]
            self.set_first_entry(np.append(0, np.cumsum(counts)))
        self.watched = int(np.count_nonzero(self.listed.values))
