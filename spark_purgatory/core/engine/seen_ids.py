"""Ids of accepted rows, kept until their deadline: a second row of such an id is a DUPLICATE (semantics 2.4).

An id is live while its deadline is ahead of the watermark, for pending and for resolved operations. Only ``extend``
events that an operation receives while it is pending change its entry (`move`). Worked example, rows of one id as
[created, deadline]::

    [10, 20] arrives          the id is live until 20
    extend at 15 by 50        until 65
    complete at 30            the operation is resolved, and the id stays live until 65
    [40, 45] arrives          DUPLICATE
    extend at 50 by 50        finds no pending operation: the id stays live until 65
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import EMPTY, PREFIX_MASK, Bools, GrowableArray, Int64s, Rows, SortedRuns
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.arrays.value_column import ValueColumn

FORGET_SHARE, FORGET_FLOOR = 8, 1024  # ids are dropped once the expired ones exceed live ids / 8 + 1024


@dataclass(frozen=True)
class IdRows:
    """A batch of n rows whose ids may have been seen."""

    identity: list[pa.Array]
    hashes: Int64s
    created_us: Int64s
    deadline_us: Int64s
    contents: Callable[[Int64s], Int64s]  # positions of rows, (k,), to the ranks of their content, (k,) int64

    def in_order(self, codes: Int64s, left: Int64s) -> tuple[Int64s, Bools]:
        """Sort the rows left, (m,), by `identity_codes`, created, deadline and content; flag the first of each id."""
        columns = (self.deadline_us, self.created_us, codes)
        left = left[np.lexsort([column[left] for column in columns])]
        same = np.logical_and.reduce([column[left[1:]] == column[left[:-1]] for column in columns])
        if same.any():
            # Only rows that are equal in all else are ranked by content, which costs a pass over every column.
            tied = left[np.append(same, False) | np.append(False, same)]
            ranks = np.zeros(len(codes), np.int64)
            ranks[tied] = self.contents(tied)
            left = left[np.lexsort([column[left] for column in (ranks, *columns)])]
        return left, sorted_runs.is_first(codes[left])


class SeenIds:
    """Live ids by hash. An identity is the id, or the id and its watch key."""

    def __init__(self, width: int) -> None:
        self.index = SortedRuns()
        self.columns = [ValueColumn() for _ in range(width)]
        self.deadline_us = GrowableArray(EMPTY)

    def __len__(self) -> int:
        return len(self.deadline_us)

    def duplicates(self, rows: IdRows, watermark_us: int, until_us: Int64s | None = None) -> Bools:
        """Flag the rows of a batch that repeat a live id, or the id of an accepted row of the batch; (n,) bool.

        Rows of a batch are taken by created time, deadline and content. A later row is a duplicate if its created time
        is at or before the deadline of the accepted row, and that deadline is ahead of the watermark. ``until_us`` has
        the deadlines with extensions, if there are any.
        """
        order = sorted_runs.hash_order(rows.hashes)
        repeated = self._live_before(rows, order, watermark_us)
        if has_repeats(rows.hashes[order]):
            codes = identity_codes(rows.identity)
            until_us = rows.deadline_us if until_us is None else until_us
            left, first = rows.in_order(codes, np.flatnonzero(~repeated))
            while len(left):
                # One round decides the first row left of every id, and all rows created before its deadline.
                standing = left[first][np.cumsum(first) - 1]
                within = ~first & (rows.created_us[left] <= until_us[standing]) & (until_us[standing] > watermark_us)
                repeated[left[within]] = True
                left = left[~first & ~within]
                first = sorted_runs.is_first(codes[left])
        return repeated

    def duplicates_and_later(self, rows: IdRows, watermark_us: int) -> tuple[Bools, Bools]:
        """Flag the rows of a batch that repeat a live id, and those that follow another row of their id; (n,) bool.

        If deadlines may still be extended, the first row of each id is taken, and the later ones are compared again
        once its deadline is known.
        """
        order = sorted_runs.hash_order(rows.hashes)
        repeated = self._live_before(rows, order, watermark_us)
        later = np.zeros(len(order), bool)
        if has_repeats(rows.hashes[order]):
            left, first = rows.in_order(identity_codes(rows.identity), np.flatnonzero(~repeated))
            later[left[~first]] = True
        return repeated, later

    def _live_before(self, rows: IdRows, order: Int64s, watermark_us: int) -> Bools:
        row, slots = self._find_live(rows.identity, rows.hashes, order, watermark_us)
        repeated = np.zeros(len(order), bool)
        repeated[row[rows.created_us[row] <= self.deadline_us.values[slots]]] = True
        return repeated

    def _find_live(
        self, identity: list[pa.Array], hashes: Int64s, order: Int64s, watermark_us: int
    ) -> tuple[Int64s, Int64s]:
        """Return the row of the batch and the slot of every live entry with its identity."""
        found, slots = self.index.find(hashes[order])
        row = order[found]
        live = self.deadline_us.values[slots] > watermark_us
        row, slots = row[live], slots[live]
        for column, values in zip(self.columns, identity, strict=True):
            same = column.equal(slots, values, row)
            row, slots = row[same], slots[same]
        return row, slots

    def known(self, identity: list[pa.Array], hashes: Int64s, watermark_us: int) -> Bools:
        """Flag the rows of a batch whose id is live, for any created time; (n,) bool."""
        row, _ = self._find_live(identity, hashes, sorted_runs.hash_order(hashes), watermark_us)
        known = np.zeros(len(hashes), bool)
        known[row] = True
        return known

    def remove(self, identity: list[pa.Array], hashes: Int64s, deadline_us: Int64s) -> None:
        """Forget the entries of these ids and deadlines, (n,)."""
        row, slots = self._find_live(identity, hashes, sorted_runs.hash_order(hashes), MIN_TIME_US)
        gone = self.deadline_us.values[slots] == deadline_us[row]
        self.deadline_us.writable[slots[gone]] = MIN_TIME_US

    def add(self, identity: list[pa.Array], hashes: Int64s, deadline_us: Int64s) -> Int64s:
        """Keep ids, (n,), each until its deadline; returns their slots, (n,) int64."""
        slots = np.arange(len(self), len(self) + len(hashes))
        self.index.add(sorted_runs.ordered((hashes & PREFIX_MASK) | slots))
        for column, values in zip(self.columns, identity, strict=True):
            column.append(values)
        self.deadline_us.append(deadline_us)
        return slots

    def move(self, slots: Int64s, deadline_us: Int64s) -> None:
        """Set the deadlines of the ids in these slots, (n,) distinct; a slot of -1 is ignored."""
        known = slots >= 0
        slots, deadline_us = slots[known], deadline_us[known]
        if not np.array_equal(self.deadline_us.values[slots], deadline_us):
            self.deadline_us.writable[slots] = deadline_us

    def forget(self, watermark_us: int) -> Rows | None:
        """Drop ids whose deadline has passed, if they are many; returns ``new_slot[slot]``, or None if all stay."""
        is_live = self.deadline_us.values > watermark_us
        left = int(np.count_nonzero(is_live))
        if len(self) - left <= left // FORGET_SHARE + FORGET_FLOOR:
            return None
        new_slot = sorted_runs.new_numbers(is_live)
        self.index.renumber(new_slot)
        for column in self.columns:
            column.keep(is_live)
        self.deadline_us.keep(is_live)
        return new_slot

    def slots_of(self, identity: list[pa.Array], deadline_us: Int64s) -> Int64s:
        """Find the slots of rows by identity and deadline in a pass over all ids, (n,) int64, -1 if there is none.

        It is for the state of a query without control events, which kept no slots.
        """
        if not len(self) or not len(deadline_us):
            return np.full(len(deadline_us), -1)
        every = np.arange(len(self))
        pairs = zip((column.take(every) for column in self.columns), identity, strict=True)
        times = pa.array(np.concatenate((self.deadline_us.values, deadline_us)))
        codes = identity_codes([*(pa.concat_arrays(pair) for pair in pairs), times])
        slot_of = np.full(int(codes.max()) + 1, -1)
        slot_of[codes[: len(self)]] = every
        return slot_of[codes[len(self) :]]


def has_repeats(hashes: Int64s) -> bool:
    """Return True if a hash comes twice among hashes, (n,), whose upper 36 bits ascend."""
    prefixes = hashes & PREFIX_MASK
    tied = np.flatnonzero(prefixes[1:] == prefixes[:-1])
    if not len(tied):
        return False
    suspects = np.zeros(len(hashes), bool)  # Few of those that share 36 bits are equal
    suspects[tied] = suspects[tied + 1] = True
    ascending = sorted_runs.ordered(hashes[suspects])
    return bool((ascending[1:] == ascending[:-1]).any())


def identity_codes(identity: list[pa.Array]) -> Int64s:
    """Return a small number for each row, (n,) int64, equal if all columns are equal; null equals null."""
    codes, *others = (column.dictionary_encode().indices.fill_null(-1).to_numpy() + 1 for column in identity)
    for other in others:
        codes = np.unique(codes.astype(np.int64) * (len(other) + 1) + other, return_inverse=True)[1]
    return codes
