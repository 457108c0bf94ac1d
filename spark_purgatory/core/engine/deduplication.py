"""The row of an id that is accepted, and its DUPLICATEs (semantics 2.4).

Rows of one id are compared by created time, deadline and content (`value_ranks`). Under ``early`` only the rows of one
step are compared: the first is accepted, and rows of later steps are its DUPLICATEs. Under ``final`` the steps must not
matter. So rows of one id that meet before their created time has passed are *undecided*: they are registered and wait,
with timers at their created time. When the watermark reaches it, no earlier row can come, and the row is decided. A row
that meets no other row of its id is accepted at once.

A row that arrives late is compared with the accepted rows at once, as under ``early``.

The deadline of an accepted row includes the ``extend`` events that its operation received while it was pending. Once
the watermark reaches another row's created time, it is certain if the deadline is before that time: a later extension
counts only if the deadline was beyond it already.
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
from spark_purgatory.core.engine.seen_ids import IdRows, SeenIds, has_repeats, identity_codes
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.engine_spec import EngineSpec


class Deduplication:
    """The ids of accepted rows, and the undecided rows."""

    def __init__(self, spec: EngineSpec, rows: OperationTable, purgatory: DelayedOperationPurgatory) -> None:
        self.ids = SeenIds(spec.identity_width)
        self.undecided, self.undecided_hash = EMPTY, EMPTY  # (u,) int64: undecided rows, and hashes of their ids
        self._final, self._width, self._has_slots = spec.final, spec.identity_width, spec.control_events
        self._rows, self._purgatory = rows, purgatory

    def find_duplicates(self, operations: OperationArrivals, watermark_us: int, extended: bool) -> tuple[Bools, Bools]:
        """Flag operations that are DUPLICATEs at once, and those that wait for an earlier row of their id; (n,) bool.

        If deadlines may be ``extended``, the earlier row's deadline is known only once that row is resolved.
        """
        compared = np.arange(len(operations))
        if self._final:
            compared = np.flatnonzero(operations.created_us <= watermark_us)
        duplicate, waiting = np.zeros(len(operations), bool), np.zeros(len(operations), bool)
        if len(compared):
            late = operations.take(compared)
            asked = IdRows(
                identity=self.identity(late.ids, late.keys),
                hashes=late.id_hash,
                created_us=late.created_us,
                deadline_us=late.deadline_us,
                contents=lambda at: value_ranks(late.payload.take(pa.array(at))),
            )
            if extended:
                duplicate[compared], waiting[compared] = self.ids.duplicates_and_later(asked, watermark_us)
            else:
                duplicate[compared] = self.ids.duplicates(asked, watermark_us)
        return duplicate, waiting

    def register(self, operations: OperationArrivals, watermark_us: int) -> tuple[Int64s, Int64s]:
        """Accept the ids of operations, which become the next rows, or make them undecided.

        Returns the older rows that become undecided too, and the slot of each operation's id, (n,), -1 if undecided.
        """
        identity = self.identity(operations.ids, operations.keys)
        undecided = np.zeros(len(operations), bool)
        now_undecided = EMPTY
        if self._final:
            known = self.ids.known(identity, operations.id_hash, watermark_us)
            undecided = known | self._repeated(identity, operations.id_hash)
            undecided &= operations.created_us > watermark_us
            if known.any():
                now_undecided = self._waiting_undecided(operations.take(np.flatnonzero(known)), watermark_us)
        plain = np.flatnonzero(~undecided)
        if len(plain) < len(operations):
            new = np.flatnonzero(undecided)
            self.make_undecided(self._purgatory.next_row + new, operations.id_hash[new])
            identity = [column.take(pa.array(plain)) for column in identity]
        slots = np.full(len(operations), -1)
        slots[plain] = self.ids.add(identity, operations.id_hash[plain], operations.deadline_us[plain])
        return now_undecided, slots

    def decide(self, watermark_us: int, extend: Callable[[Int64s], Int64s] | None) -> tuple[Int64s, Int64s]:
        """Decide the undecided rows whose created time has passed; returns duplicates and accepted rows.

        ``extend`` returns the deadlines of rows, (n,), with their extensions; None: there are no extensions.
        """
        due = self._rows.created_us[self.undecided] <= watermark_us
        rows, hashes = self.undecided[due], self.undecided_hash[due]
        if not len(rows):
            return EMPTY, EMPTY
        self.undecided, self.undecided_hash = self.undecided[~due], self.undecided_hash[~due]
        identity, deadline_us = self.identity_of(rows), self._rows.deadline_us[rows]
        until_us = deadline_us if extend is None else extend(rows)
        asked = IdRows(
            identity=identity,
            hashes=hashes,
            created_us=self._rows.created_us[rows],
            deadline_us=deadline_us,
            contents=lambda at: value_ranks(self._rows.payload.take(rows[at])),
        )
        duplicate = self.ids.duplicates(asked, MIN_TIME_US, until_us)
        stand = np.flatnonzero(~duplicate)
        slots = self.ids.add([column.take(pa.array(stand)) for column in identity], hashes[stand], until_us[stand])
        if self._has_slots:
            self._rows.columns["id_slot"].writable[rows[stand]] = slots
        return rows[duplicate], rows[stand]

    def extend(self, rows: Int64s, deadline_us: Int64s) -> None:
        """Keep the ids of accepted rows, (n,) distinct, until their deadlines with extensions, (n,)."""
        if self._has_slots:
            self.ids.move(self._rows.id_slot[rows], deadline_us)

    def forget(self, watermark_us: int) -> None:
        """Forget ids whose deadline has passed."""
        new_slot = self.ids.forget(watermark_us)
        if new_slot is not None and self._has_slots:
            slots = self._rows.id_slot
            self._rows.columns["id_slot"] = GrowableArray(np.where(slots >= 0, new_slot[slots], -1).astype(np.int64))

    def find_slots(self) -> None:
        """Find the slots of waiting rows' ids after a query without control events."""
        slots = np.full(self._purgatory.next_row, -1)
        rows = np.setdiff1d(self._purgatory.waiting(), self.undecided)
        if self._rows.ids.chunks:
            slots[rows] = self.ids.slots_of(self.identity_of(rows), self._rows.deadline_us[rows])
        self._rows.columns["id_slot"] = GrowableArray(slots)

    def identity(self, ids: pa.Array, keys: pa.Array) -> list[pa.Array]:
        """Return the columns that identify an operation: its id, or its id and its watch key."""
        if self._width == 1:
            return [ids]
        # A key that equals the id, as is common, is stored as null, which takes no bytes.
        return [ids, pc.if_else(pc.equal(ids, keys), None, keys) if ids.type == keys.type else keys]

    def renumber(self, new_row: Rows) -> None:
        """Number the undecided rows again as ``new_row[row]``."""
        self.undecided = new_row[self.undecided].astype(np.int64)

    def identity_of(self, rows: Int64s) -> list[pa.Array]:
        """Return the columns that identify rows, (n,)."""
        watchers = self._purgatory.watchers
        return self.identity(self._rows.ids.take(rows), watchers.keys.take(watchers.first_entries(rows)))

    def make_undecided(self, rows: Int64s, hashes: Int64s) -> None:
        """Make rows, (n,), undecided; with the hashes of their ids."""
        self.undecided = np.concatenate((self.undecided, rows))
        self.undecided_hash = np.concatenate((self.undecided_hash, hashes))

    def _repeated(self, identity: list[pa.Array], hashes: Int64s) -> Bools:
        """Flag the rows of a batch that share their identity with another one, or with an undecided row; (n,) bool."""
        all_hashes = np.concatenate((hashes, self.undecided_hash))
        if not has_repeats(all_hashes[hash_order(all_hashes)]):
            return np.zeros(len(hashes), bool)
        if len(self.undecided):
            pairs = zip(identity, self.identity_of(self.undecided), strict=True)
            identity = [pa.concat_arrays(pair) for pair in pairs]
        codes = identity_codes(identity)
        return (np.bincount(codes)[codes] > 1)[: len(hashes)]

    def _waiting_undecided(self, known: OperationArrivals, watermark_us: int) -> Int64s:
        """Make waiting rows with the identity of arriving operations undecided, and return them."""
        named = [as_bools(pc.is_in(chunk, value_set=known.ids)) for chunk in self._rows.ids.chunks]
        open_rows = (self._purgatory.state.values == WAITING) & (self._rows.created_us > watermark_us)
        open_rows &= np.concatenate([*named, np.zeros(0, bool)])
        open_rows[self.undecided] = False
        rows = np.flatnonzero(open_rows)
        if not len(rows):
            return EMPTY
        mine, theirs = self.identity_of(rows), self.identity(known.ids, known.keys)
        codes = identity_codes([pa.concat_arrays(pair) for pair in zip(mine, theirs, strict=True)])
        which = np.full(int(codes.max()) + 1, -1)
        which[codes[len(rows) :]] = np.arange(len(known))
        met = np.flatnonzero(which[codes[: len(rows)]] >= 0)
        rows, hashes = rows[met], known.id_hash[which[codes[met]]]
        if self._has_slots:
            self.ids.move(self._rows.id_slot[rows], np.full(len(rows), MIN_TIME_US))
            self._rows.columns["id_slot"].writable[rows] = -1
        else:
            self.ids.remove(self.identity_of(rows), hashes, self._rows.deadline_us[rows])
        self.make_undecided(rows, hashes)
        return rows
