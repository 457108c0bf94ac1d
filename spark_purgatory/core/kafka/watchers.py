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
        self.row_of = GrowableArray(np.empty(0, np.int32))
        """(entries,) int32: each entry's operation."""
        self.first_entry = GrowableArray(np.zeros(1, np.int64))
        """(rows + 1,) int64: entries of row r are first_entry[r] .. first_entry[r + 1] - 1."""
        self.listed = GrowableArray(np.empty(0, bool))
        """(entries,) bool: still on its key's list."""
        self.watched = 0

    @property
    def rows(self) -> int:
        """Rows known, listed or not."""
        return len(self.first_entry) - 1

    @property
    def one_key_each(self) -> bool:
        """Whether every operation has one key, so that its entry has its number; none has less than one."""
        return len(self.row_of) == self.rows

    def append(self, keys: pa.Array, hashes: Int64s, offsets: Int64s) -> Int64s:
        """Number new operations and their keys, on no list yet; returns their rows, (n,) int64.

        Operation i has ``keys[offsets[i]:offsets[i + 1]]``; ``hashes`` goes with ``keys``.
        """
        count, entries = len(offsets) - 1, len(self.row_of)
        rows = np.arange(self.rows, self.rows + count)
        if entries + len(keys) >= MAX_ROWS:
            raise LimitError(
                f"a purgatory holds at most {MAX_ROWS:,} watch entries and {entries + len(keys):,} were asked for: "
                "use more shards"
            )
        self.keys.append(keys)
        self.hashes.append(hashes & PREFIX_MASK)
        self.row_of.append(rows.astype(np.int32).repeat(offsets[1:] - offsets[:-1]))
        self.first_entry.append(offsets[1:] + (entries - int(offsets[0])))
        self.listed.append(np.zeros(len(keys), bool))
        return rows

    def watch(self, rows: Int64s) -> None:
        """Put rows, (n,) int64 ascending, on the lists of all their keys (Kafka: ``watchForOperation``)."""
        if not len(rows):
            return
        first = self.first_entry.values
        if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
            entries = np.arange(first[rows[0]], first[rows[-1] + 1])
        else:
            entries, _ = self.entries_of(rows)
        self.index.add(ordered(self.hashes.values[entries] | entries))
        self.listed.writable[entries] = True
        self.watched += len(entries)

    def entries_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Entries of rows, and the position in ``rows`` that each belongs to; both (m,) int64, to read only."""
        if self.one_key_each:
            return rows, np.arange(len(rows))
        return expand(self.first_entry.values[rows], self._counts(rows))

    def rows_of(self, entries: Int64s) -> Int64s:
        """The row of each entry, (m,) int64, to read only."""
        # numpy turns 32-bit numbers into 64-bit ones whenever they index: here once.
        return entries if self.one_key_each else self.row_of.values[entries].astype(np.int64)

    def _counts(self, rows: Int64s) -> Int64s:
        first = self.first_entry.values
        return first[rows + 1] - first[rows]

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
        kept_rows = np.flatnonzero(new_row >= 0)
        counts = self._counts(kept_rows)
        kept = (new_row >= 0)[self.row_of.values]
        listed = kept & self.listed.values
        new_entry = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        new_entry[~listed] = -1
        self.index.renumber(new_entry)
        entries = np.flatnonzero(kept)
        self.keys.keep(entries)
        self.hashes = GrowableArray(self.hashes.values[entries])
        self.listed = GrowableArray(self.listed.values[entries])
        self.row_of = GrowableArray(np.repeat(np.arange(len(kept_rows), dtype=np.int32), counts))
        self.first_entry = GrowableArray(np.concatenate(([0], np.cumsum(counts))).astype(np.int64))
        self.watched = int(np.count_nonzero(listed))

    def is_listed(self, entries: Int64s) -> Bools:
        """Whether each entry, (m,), is on its key's list."""
        return self.listed.values[entries]
