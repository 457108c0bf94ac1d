"""Watch lists: the operations that wait on each key (Kafka: ``DelayedOperationPurgatory.Watchers``).

Terms. A *row* is an operation. A *watch entry* is a pair of operation and key, numbered in the order of registration. A
key's *list* has its entries in that order. The index keeps them as ``36 bits of the key's hash << 28 | entry``, so a
list is a range of each sorted run. Dropping an entry clears its ``listed`` flag; `renumber` drops it from the index.

``watched`` is the sum of the lengths of all lists, as in Kafka. It includes entries of operations that ended elsewhere
until a check of their key, a cancel or a purge drops them. A purge only reads operations that ended since the last one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import EMPTY, MAX_ROWS, PREFIX_MASK, Bools, GrowableArray, Int64s, Rows
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.errors import LimitError


class Watchers:
    def __init__(self) -> None:
        self.index = sorted_runs.SortedRuns()
        self.keys = ValueColumn()
        self.hashes = GrowableArray(EMPTY)  # (entries,) int64: the upper 36 bits of each entry's key hash
        # (entries,) int32, each entry's row; and `first_entry`. Both are None while every operation has one key.
        self._row_of: GrowableArray[np.int32] | None = None
        self._first_entry: GrowableArray[np.int64] | None = None
        self.listed = GrowableArray(np.empty(0, bool))  # (entries,) bool: still on its key's list
        self.watched = 0

    @property
    def rows(self) -> int:
        """The number of rows, listed or not."""
        return len(self.listed) if self._first_entry is None else len(self._first_entry) - 1

    @property
    def first_entry(self) -> Int64s:
        """(rows + 1,) int64, read only: entries of row r are first_entry[r] .. first_entry[r + 1] - 1."""
        return np.arange(self.rows + 1) if self._first_entry is None else self._first_entry.values

    def set_first_entry(self, first_entry: Int64s) -> None:
        self._first_entry = self._row_of = None
        if len(first_entry) <= int(first_entry[-1]):
            rows = np.arange(len(first_entry) - 1, dtype=np.int32)
            self._first_entry = GrowableArray(first_entry)
            self._row_of = GrowableArray(rows.repeat(first_entry[1:] - first_entry[:-1]))

    def append(self, keys: pa.Array, hashes: Int64s, offsets: Int64s) -> Int64s:
        """Number new operations and their keys without listing them, and return their rows, (n,) int64.

        Operation i has ``keys[offsets[i]:offsets[i + 1]]``, with ``hashes`` of the same positions.
        """
        count, entries = len(offsets) - 1, len(self.listed)
        rows = np.arange(self.rows, self.rows + count)
        if entries + len(keys) >= MAX_ROWS:
            asked = entries + len(keys)
            raise LimitError(
                f"a shard would have {asked:,} watch entries, and the most is {MAX_ROWS:,}: use more shards "
                "(spark-purgatory move)"
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
        self.index.add(sorted_runs.ordered(self.hashes.values[entries] | entries))
        self.listed.writable[entries] = True
        self.watched += len(entries)

    def entries_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the entries of rows, and each one's position in ``rows``; both (m,) int64, read only."""
        if self._first_entry is None:
            return rows, np.arange(len(rows))
        first = self._first_entry.values
        return sorted_runs.expand(first[rows], first[rows + 1] - first[rows])

    def first_entries(self, rows: Int64s) -> Int64s:
        """Return the first entry of each row, (n,) int64, read only."""
        return rows if self._first_entry is None else self._first_entry.values[rows]

    def entries_among(self, rows: Bools) -> Bools:
        """Flag the entries of flagged rows, (rows,) -> (entries,) bool, read only."""
        return rows if self._row_of is None else rows[self._row_of.values]

    def rows_of(self, entries: Int64s) -> Int64s:
        """Return the row of each entry, (m,) int64, read only."""
        # numpy would convert 32-bit numbers to 64 bits each time that they index.
        return entries if self._row_of is None else self._row_of.values[entries].astype(np.int64)

    def find(self, keys: pa.Array, hashes: Int64s) -> tuple[Int64s, Int64s]:
        """Find the listed entries of each key: positions of keys, and entries, both (m,), by entry and then by key."""
        order = sorted_runs.hash_order(hashes)
        found, entries = self.index.find(hashes[order])
        # Columns are read from start to end, and a row's entries are adjacent.
        entries, needle = sorted_runs.by_first(entries, order[found])
        here = (self.listed.values[entries] & self.keys.equal(entries, keys, needle)).nonzero()[0]
        return needle[here], entries[here]

    def drop(self, entries: Int64s) -> None:
        """Remove listed entries, (m,) distinct, from their lists."""
        self.listed.writable[entries] = False
        self.watched -= len(entries)

    def forget(self, rows: Int64s) -> None:
        """Remove rows, (n,) distinct, from all their lists, in the time of the rows and not of the lists."""
        entries, _ = self.entries_of(rows)
        self.drop(entries[self.listed.values[entries]])

    def renumber(self, new_row: Rows) -> None:
        """Number rows again as ``new_row[row]``, in the same order; -1 drops a row."""
        kept_rows = new_row >= 0
        kept = self.entries_among(kept_rows)
        dropped = kept & ~self.listed.values
        if self._row_of is None and not dropped.any():
            self.index.renumber(new_row)
        else:
            new_entry = sorted_runs.new_numbers(kept)
            new_entry[dropped] = -1
            self.index.renumber(new_entry)
        self.keys.keep(kept)
        self.hashes.keep(kept)
        self.listed.keep(kept)
        if self._first_entry is not None:
            counts = np.diff(self._first_entry.values)[kept_rows]
            self.set_first_entry(np.append(0, np.cumsum(counts)))
        self.watched = int(np.count_nonzero(self.listed.values))
