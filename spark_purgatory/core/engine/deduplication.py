"""The row of an id that is accepted, and its DUPLICATEs (semantics 2.4 has the rules, 3.5 what may depend on steps).

Under ``early`` only the rows of one step are compared; a late row is under ``final`` too. Other rows of one id that
meet before their created time has passed are *undecided* under ``final``: they are registered and wait, with timers at
their created time. When the watermark reaches it, no earlier row can come, and the row is decided. A row that meets no
other row of its id is accepted at once.

**Seen ids.** The ids of accepted rows are kept until their deadline, with the ``extend`` events that the operation
received while it was pending (`move`). Worked example, rows of one id as [created, deadline]::

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
import pyarrow.compute as pc

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
    PREFIX_MASK,
    Bools,
    GrowableArray,
    Int64s,
    Rows,
    SortedRuns,
    hash_order,
)
from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.arrays.value_column import ValueColumn, as_bools, value_ranks
from spark_purgatory.core.engine.operation_table import OperationTable
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.spec.arrivals import OperationArrivals
from spark_purgatory.core.spec.engine_spec import EngineSpec

FORGET_SHARE, FORGET_FLOOR = 8, 1024  # ids are dropped once the expired ones exceed live ids / 8 + 1024


@dataclass(frozen=True)
class IdRows:
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

        ``until_us`` has the deadlines with extensions, if there are any.
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
        """Flag rows that repeat a live id, and those to compare again once their id's first row has its deadline."""
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
        row, _ = self._find_live(identity, hashes, sorted_runs.hash_order(hashes), watermark_us)
        known = np.zeros(len(hashes), bool)
        known[row] = True
        return known

    def remove(self, identity: list[pa.Array], hashes: Int64s, deadline_us: Int64s) -> None:
        row, slots = self._find_live(identity, hashes, sorted_runs.hash_order(hashes), MIN_TIME_US)
        gone = self.deadline_us.values[slots] == deadline_us[row]
        self.deadline_us.writable[slots[gone]] = MIN_TIME_US

    def add(self, identity: list[pa.Array], hashes: Int64s, deadline_us: Int64s) -> Int64s:
        slots = np.arange(len(self), len(self) + len(hashes))
        self.index.add(np.sort((hashes & PREFIX_MASK) | slots))
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
        """Find slots by identity and deadline, (n,), or -1: a query without control events keeps no slots."""
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
    ascending = np.sort(hashes[suspects])
    return bool((ascending[1:] == ascending[:-1]).any())


def identity_codes(identity: list[pa.Array]) -> Int64s:
    """Return a small number for each row, (n,) int64, equal if all columns are equal; null equals null."""
    codes, *others = (column.dictionary_encode().indices.fill_null(-1).to_numpy() + 1 for column in identity)
    for other in others:
        codes = np.unique(codes.astype(np.int64) * (len(other) + 1) + other, return_inverse=True)[1]
    return codes


class Deduplication:
    def __init__(self, spec: EngineSpec, rows: OperationTable, purgatory: DelayedOperationPurgatory) -> None:
        self.ids = SeenIds(spec.identity_width)
        self.undecided, self.undecided_hash = EMPTY, EMPTY  # (u,) int64: undecided rows, and hashes of their ids
        self._final, self._width, self._has_slots = spec.final, spec.identity_width, spec.control_events
        self._rows, self._purgatory = rows, purgatory

    def find_duplicates(self, operations: OperationArrivals, watermark_us: int, extended: bool) -> tuple[Bools, Bools]:
        """Flag DUPLICATEs and, if deadlines may be ``extended``, rows that wait for an earlier row of their id."""
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
        """Accept ids or make rows undecided; returns older rows that become so too, and the slots, -1 if undecided."""
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
        """Return the undecided rows that are now duplicates, and those accepted; ``extend`` gives later deadlines."""
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
        new_slot = self.ids.forget(watermark_us)
        if new_slot is not None and self._has_slots:
            slots = self._rows.id_slot
            self._rows.columns["id_slot"] = GrowableArray(np.where(slots >= 0, new_slot[slots], -1).astype(np.int64))

    def find_slots(self) -> None:
        """Find the slots of waiting rows' ids after a query without control events."""
        slots = np.full(self._purgatory.next_row, -1)
        rows = np.setdiff1d(self._purgatory.waiting(), self.undecided)
        if len(self._rows.ids):
            slots[rows] = self.ids.slots_of(self.identity_of(rows), self._rows.deadline_us[rows])
        self._rows.columns["id_slot"] = GrowableArray(slots)

    def identity(self, ids: pa.Array, keys: pa.Array) -> list[pa.Array]:
        if self._width == 1:
            return [ids]
        # A key that equals the id, as is common, is stored as null, which takes no bytes.
        return [ids, pc.if_else(pc.equal(ids, keys), None, keys) if ids.type == keys.type else keys]

    def renumber(self, new_row: Rows) -> None:
        self.undecided = new_row[self.undecided].astype(np.int64)

    def identity_of(self, rows: Int64s) -> list[pa.Array]:
        watchers = self._purgatory.watchers
        return self.identity(self._rows.ids.take(rows), watchers.keys.take(watchers.first_entries(rows)))

    def make_undecided(self, rows: Int64s, hashes: Int64s) -> None:
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
        if not len(self._rows.ids):
            return EMPTY
        open_rows = as_bools(pc.is_in(self._rows.ids.values, value_set=known.ids))
        open_rows &= (self._purgatory.state.values == WAITING) & (self._rows.created_us > watermark_us)
        open_rows[self.undecided] = False
        rows = np.flatnonzero(open_rows)
        if not len(rows):
            return EMPTY
        waiting, arriving = self.identity_of(rows), self.identity(known.ids, known.keys)
        codes = identity_codes([pa.concat_arrays(pair) for pair in zip(waiting, arriving, strict=True)])
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
