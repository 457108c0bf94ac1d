"""Which row of an id stands, and which rows are its DUPLICATEs.

Under ``early`` the first to arrive stands. Under ``final`` it is the first by (created, deadline) and, where rows are
equal in both, by what is in them (`content`), whatever the order of arrival. So rows of one id that meet before their
creation has passed are *undecided*: all are registered and wait, their timers at their creation, and are settled once
the watermark reaches it, for no earlier row can come then. A row that meets none of its id is not undecided, and its id
is remembered at once. By hand, an id's rows by [created, deadline]::

    watermark 5    [15, 40] comes     it stands, for all we know
    watermark 6    [25, 30] comes     both are undecided
    watermark 7    [10, 20] comes     all three are
    watermark 10   [10, 20] settled   it stands
    watermark 15   [15, 40] settled   DUPLICATE of [10, 20]
    watermark 25   [25, 30] settled   it stands: [10, 20] is over, [15, 40] never stood

A row that arrives late is looked_at at once by the rows that stand, as under ``early``.

The deadline of a row that stands is the one after the ``extend`` events that the operation received while it was
pending. Whether it lies before another row's creation is known once the watermark has reached that creation: an
extension from later on counts only where the deadline lay beyond it already.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, GrowableArray, Int64s, Rows, hash_order
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.arrays.value_ranks import value_ranks
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.engine.seen_ids import SeenIds, has_repeats, identity_codes
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.engine_spec import EngineSpec

Extend = Callable[[Int64s], Int64s]
"""Deadlines of rows, (n,), as they stand after extensions."""


class Deduplication:
    """Ids that stand, and rows whose standing is undecided."""

    def __init__(
        self, spec: EngineSpec, ids: SeenIds, rows: OperationTable, purgatory: DelayedOperationPurgatory
    ) -> None:
        self.ids = ids
        self.undecided = EMPTY
        """Rows to be settled, (c,) int64."""
        self.undecided_hash = EMPTY
        """Hashes of their ids, (c,) int64."""
        self._final, self._width, self._has_slots = spec.final, spec.identity_width, spec.control_events
        self._rows, self._purgatory = rows, purgatory

    def find_duplicates(self, operations: OperationArrivals, watermark_us: int, extended: bool) -> tuple[Bools, Bools]:
        """Which operations are DUPLICATEs at once, and which must wait for an earlier row of their id; (n,) bool.

        They do where deadlines may be ``extended``: how long the earlier row stands shows when it is looked_at.
        """
        looked_at = np.arange(len(operations))
        if self._final:
            looked_at = np.flatnonzero(operations.created_us <= watermark_us)
        duplicate, waiting = np.zeros(len(operations), bool), np.zeros(len(operations), bool)
        if len(looked_at):
            late = operations.take(looked_at)
            identity, times = self.identity(late.ids, late.keys), (late.created_us, late.deadline_us)
            if extended:
                duplicate[looked_at], waiting[looked_at] = self.ids.duplicates_and_later(
                    identity, late.id_hash, *times, watermark_us
                )
            else:
                duplicate[looked_at] = self.ids.duplicates(identity, late.id_hash, *times, watermark_us)
        return duplicate, waiting

    def register(self, operations: OperationArrivals, watermark_us: int) -> tuple[Int64s, Int64s]:
        """Operations become the next rows: remember ids or contest them.

        Returns older rows now undecided, and the slot of each operation's entry, (n,), -1 of those undecided.
        """
        identity = self.identity(operations.ids, operations.keys)
        undecided = np.zeros(len(operations), bool)
        now_undecided = EMPTY
        if self._final:
            known = self.ids.known(identity, operations.id_hash, watermark_us)
            undecided = known | self._repeated(identity, operations.id_hash)
            undecided &= operations.created_us > watermark_us
            if known.any():
                now_undecided = self._defer_waiting(operations.take(np.flatnonzero(known)), watermark_us)
        plain = np.flatnonzero(~undecided)
        if len(plain) < len(operations):
            new = np.flatnonzero(undecided)
            self._defer(self._purgatory.next_row + new, operations.id_hash[new])
            identity = [column.take(pa.array(plain)) for column in identity]
        slots = np.full(len(operations), -1)
        slots[plain] = self.ids.add(identity, operations.id_hash[plain], operations.deadline_us[plain])
        return now_undecided, slots

    def decide(self, watermark_us: int, extend: Extend | None) -> tuple[Int64s, Int64s]:
        """Settle undecided rows whose creation has passed; returns the rows that fell and those that stand."""
        due = self._rows.created_us[self.undecided] <= watermark_us
        rows, hashes = self.undecided[due], self.undecided_hash[due]
        if not len(rows):
            return EMPTY, EMPTY
        self.undecided, self.undecided_hash = self.undecided[~due], self.undecided_hash[~due]
        order = self._by_content(rows, hashes)
        rows, hashes = rows[order], hashes[order]
        identity, deadline_us = self._identity_of(rows), self._rows.deadline_us[rows]
        # Rows equal in both times stand in the order in which they are given.
        until_us = deadline_us if extend is None else extend(rows)
        duplicate = self.ids.duplicates(
            identity, hashes, self._rows.created_us[rows], deadline_us, MIN_TIME_US, until_us
        )
        stand = np.flatnonzero(~duplicate)
        slots = self.ids.add([column.take(pa.array(stand)) for column in identity], hashes[stand], until_us[stand])
        if self._has_slots:
            self._rows.columns["id_slot"].writable[rows[stand]] = slots
        return rows[duplicate], rows[stand]

    def extend(self, rows: Int64s, deadline_us: Int64s) -> None:
        """Remember the ids of rows that stand, (n,) distinct, until their deadlines as control events left them."""
        if self._has_slots:
            self.ids.move(self._rows.id_slot[rows], deadline_us)

    def forget(self, watermark_us: int) -> None:
        """Forget ids whose deadline has passed."""
        new_slot = self.ids.forget(watermark_us)
        if new_slot is not None and self._has_slots:
            slots = self._rows.id_slot
            self._rows.columns["id_slot"] = GrowableArray(np.where(slots >= 0, new_slot[slots], -1))

    def find_slots(self) -> None:
        """Find the ids of waiting rows in a state that was written without slots, where its rows have their ids."""
        slots = np.full(self._purgatory.next_row, -1)
        rows = np.setdiff1d(self._purgatory.waiting(), self.undecided)
        if self._rows.ids.chunks:
            slots[rows] = self.ids.slots_of(self._identity_of(rows), self._rows.deadline_us[rows])
        self._rows.columns["id_slot"] = GrowableArray(slots)

    def _by_content(self, rows: Int64s, hashes: Int64s) -> Int64s:
        """An order in which rows of one id that are equal in both times stand by content, (n,) positions."""
        times = self._rows.created_us[rows], self._rows.deadline_us[rows]
        order = np.lexsort((*times, hashes))
        same = np.ones(len(rows) - 1, bool)
        for column in (*times, hashes):
            same &= column[order][1:] == column[order][:-1]
        tied = np.concatenate((order[1:][same], order[:-1][same]))
        content = np.zeros(len(rows), np.int64)
        if len(tied):
            content[tied] = value_ranks(self._rows.payload.take(rows[tied]))
        return np.argsort(content, kind="stable")

    def identity(self, ids: pa.Array, keys: pa.Array) -> list[pa.Array]:
        """What tells operations apart, column by column."""
        if self._width == 1:
            return [ids]
        # Where the key is the id, as it often is, null says so in no bytes.
        return [ids, pc.if_else(pc.equal(ids, keys), None, keys) if ids.type == keys.type else keys]

    def renumber(self, new_row: Rows) -> None:
        """Rows were renumbered: ``new_row[old]``."""
        self.undecided = new_row[self.undecided].astype(np.int64)

    def _identity_of(self, rows: Int64s) -> list[pa.Array]:
        watchers = self._purgatory.watchers
        return self.identity(self._rows.ids.take(rows), watchers.keys.take(watchers.first_entry.values[rows]))

    def _defer(self, rows: Int64s, hashes: Int64s) -> None:
        self.undecided = np.concatenate((self.undecided, rows))
        self.undecided_hash = np.concatenate((self.undecided_hash, hashes))

    def _repeated(self, identity: list[pa.Array], hashes: Int64s) -> Bools:
        """Which of a batch share their identity with another of it, or with a undecided row; (n,) bool."""
        all_hashes = np.concatenate((hashes, self.undecided_hash))
        if not has_repeats(all_hashes[hash_order(all_hashes)]):
            return np.zeros(len(hashes), bool)
        if len(self.undecided):
            pairs = zip(identity, self._identity_of(self.undecided), strict=True)
            identity = [pa.concat_arrays(pair) for pair in pairs]
        codes = identity_codes(identity)
        return (np.bincount(codes)[codes] > 1)[: len(hashes)]

    def _defer_waiting(self, known: OperationArrivals, watermark_us: int) -> Int64s:
        """Contest the waiting rows, not settled yet, that have the identity of operations just come."""
        named = [as_bools(pc.is_in(chunk, value_set=known.ids)) for chunk in self._rows.ids.chunks]
        open_rows = (self._purgatory.state.values == WAITING) & (self._rows.created_us > watermark_us)
        open_rows &= np.concatenate([*named, np.zeros(0, bool)])
        open_rows[self.undecided] = False
        rows = np.flatnonzero(open_rows)
        if not len(rows):
            return EMPTY
        mine, theirs = self._identity_of(rows), self.identity(known.ids, known.keys)
        codes = identity_codes([pa.concat_arrays(pair) for pair in zip(mine, theirs, strict=True)])
        which = np.full(int(codes.max()) + 1, -1)
        which[codes[len(rows) :]] = np.arange(len(known))
        met = np.flatnonzero(which[codes[: len(rows)]] >= 0)
        rows, hashes = rows[met], known.id_hash[which[codes[met]]]
        if self._has_slots:
            self.ids.move(self._rows.id_slot[rows], np.full(len(rows), MIN_TIME_US))
            self._rows.columns["id_slot"].writable[rows] = -1
        else:
            self.ids.remove(self._identity_of(rows), hashes, self._rows.deadline_us[rows])
        self._defer(rows, hashes)
        return rows
