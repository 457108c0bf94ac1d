"""Kafka's DelayedOperationPurgatory, for arrays of operations.

An operation completes exactly once: by a criterion that is met when it is tried (`try_complete_else_watch`,
`check_and_complete`), by `force_complete`, or by its timeout in `advance_clock`, whichever comes first. Each call gets
the caller's `DelayedOperations`. An operation does not complete by itself when its criterion comes true: a check of one
of its watch keys must try it.

Operations are *rows*, numbered in the order of registration. A row waits, and then has ended for good. Kafka takes one
call at a time. Here the rows of an array are taken in order with the same result, because
criteria may not change within a call. Kafka's second evaluation after watching, which closes a race with other threads,
is therefore left out. The timer runs a task at ``deadline < clock + tick``, up to a tick early, as Kafka's does.

Costs: registering n operations with k keys O(k log k); a check sorts the keys given and the operations found;
completing O(n); `advance_clock` O(due); a purge O(completed since the last); `compact` O(all rows).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays import sorted_runs
from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
    MAX_ROWS,
    PREFIX_MASK,
    ROW_BITS,
    ROW_MASK,
    Bools,
    GrowableArray,
    Int64s,
    Rows,
)
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.errors import EmptyWatchKeysError, LimitError


class Watchers:
    """Watch lists: the operations that wait on each key (Kafka: ``DelayedOperationPurgatory.Watchers``).

    A *watch entry* is a pair of operation and key, numbered in the order of registration. A key's *list* has its
    entries in that order. The index keeps them as ``36 bits of the key's hash << 28 | entry``, so a list is a range of
    each sorted run. Dropping an entry clears its ``listed`` flag; `renumber` drops it from the index.

    ``watched`` is the sum of the lengths of all lists, as in Kafka. It includes entries of operations that ended
    elsewhere until a check of their key, a cancel or a purge drops them. A purge only reads operations that ended since
    the last one.
    """

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
        self.index.add(np.sort(self.hashes.values[entries] | entries))
        self.listed.writable[entries] = True
        self.watched += len(entries)

    def entries_of(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the entries of rows, and each one's position in ``rows``; both (m,) int64, read only."""
        if self._first_entry is None:
            return rows, np.arange(len(rows))
        first = self._first_entry.values
        return sorted_runs.expand(first[rows], first[rows + 1] - first[rows])

    def first_entries(self, rows: Int64s) -> Int64s:
        return rows if self._first_entry is None else self._first_entry.values[rows]

    def entries_among(self, rows: Bools) -> Bools:
        """Flag the entries of flagged rows, (rows,) -> (entries,) bool, read only."""
        return rows if self._row_of is None else rows[self._row_of.values]

    def rows_of(self, entries: Int64s) -> Int64s:
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


COMPACT_FLOOR = 1024  # ended rows below which compacting does not pay
WAITING, ENDED = 0, 1


class DelayedOperations(Protocol):
    """The caller's part of the operations (Kafka: ``DelayedOperation``)."""

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Flag the waiting rows, (n,), that complete now; also return all deadlines in ms, or None if none moved."""

    def on_expiration(self, rows: Int64s, /) -> None:
        """Handle rows, (n,), that have expired."""


class DelayedOperationPurgatory:
    """Operations waiting on keys and deadlines (Kafka: ``DelayedOperationPurgatory``, ``DelayedOperation``)."""

    def __init__(self, timer: SystemTimer, *, purge_interval: int = 1000, compact_share: int = 2) -> None:
        self.timer = timer
        self.watchers = Watchers()
        self.state = GrowableArray(np.empty(0, np.uint8))
        self.purge_interval = purge_interval
        self.compact_share = compact_share  # compacting pays once ended rows are this part of the waiting ones
        self.estimated_total = 0  # delayed at the last purge, or watched since (Kafka: ``estimatedTotalOperations``)
        self.ended = 0  # rows that completed or expired and still have a number
        self._ended_since_purge: list[Int64s] = []

    @property
    def next_row(self) -> int:
        return len(self.state)

    @property
    def is_worth_compacting(self) -> bool:
        """True if so many rows have ended that forgetting them pays for a pass over all."""
        return self.ended > (self.next_row - self.ended) // self.compact_share + COMPACT_FLOOR

    def waiting(self) -> Int64s:
        """Return the rows that have not ended, ascending; it reads all rows."""
        return np.flatnonzero(self.state.values == WAITING)

    def try_complete_else_watch(
        self, operations: DelayedOperations, keys: pa.Array, offsets: Int64s, deadlines_ms: Int64s, key_hashes: Int64s
    ) -> tuple[Int64s, Bools]:
        """Register operations. An operation whose criterion is met completes at once and is not watched.

        Operation i watches ``keys[offsets[i]:offsets[i + 1]]`` (a key may come twice) until ``deadlines_ms[i]``, or
        until the deadline that `DelayedOperations.try_complete` gives. Returns rows (n,) int64, and flags of those that
        trying completed. A row that the timer runs at once expires, and its flag is False, as in Kafka. Raises
        EmptyWatchKeysError, with nothing changed.
        """
        empty = offsets[1:] == offsets[:-1]
        if empty.any():
            raise EmptyWatchKeysError(
                f"operation {empty.argmax()} of {len(offsets) - 1} has no watch keys: give at least one"
            )
        rows = self._append(keys, key_hashes, offsets)
        completed, moved_ms = operations.try_complete(rows)
        self._end(rows[completed], "complete")
        left = rows[~completed]
        self._watch(left)
        if len(left):
            self._arm(operations, left, (deadlines_ms if moved_ms is None else moved_ms)[~completed])
        return rows, completed

    def readmit(self, keys: pa.Array, key_hashes: Int64s, offsets: Int64s) -> Int64s:
        """Watch operations without trying them, and return their rows, (n,); `rearm` arms them."""
        rows = self._append(keys, key_hashes, offsets)
        self._watch(rows)
        return rows

    def _append(self, keys: pa.Array, key_hashes: Int64s, offsets: Int64s) -> Int64s:
        rows = self.watchers.append(keys, key_hashes, offsets)
        self.state.append(np.full(len(rows), WAITING, np.uint8))
        return rows

    def _watch(self, rows: Int64s) -> None:
        self.watchers.watch(rows)
        self.estimated_total += len(rows)

    def _arm(self, operations: DelayedOperations, rows: Int64s, deadlines_ms: Int64s) -> None:
        self._expire(operations, rows[~self.timer.add(rows, deadlines_ms)])

    def check_and_complete(self, operations: DelayedOperations, keys: pa.Array, key_hashes: Int64s) -> Int64s:
        """Try the operations that watch each key, in order; returns the number that each key completed, (k,) int64."""
        needle, entries = self.watchers.find(keys, key_hashes)
        rows = self.watchers.rows_of(entries)
        waiting = self.state.values[rows] == WAITING
        candidates = sorted_runs.each_once(rows.compress(waiting))
        completed = candidates
        if len(candidates):
            completes, moved_ms = operations.try_complete(candidates)
            completed = candidates[completes]
            if moved_ms is not None:
                self.rearm(candidates[~completes], moved_ms[~completes])
        # The state marks the entries of completed rows, often several of a row; `_end` does the other steps.
        self.state.writable[completed] = ENDED
        gone = (self.state.values[rows] != WAITING).nonzero()[0]
        self.watchers.drop(sorted_runs.each_once(entries[gone]))
        if not len(completed):
            return np.zeros(len(keys), np.int64)
        now = gone.compress(waiting[gone])
        # Kafka walks by key and then by list, and the first entry of a row that it meets counts.
        first = sorted_runs.first_of_each(rows[now])
        met = np.sort(np.minimum.reduceat((needle[now] << ROW_BITS) | entries[now], first))
        self._end(self.watchers.rows_of(met & ROW_MASK), "complete")
        return np.bincount(met >> ROW_BITS, minlength=len(keys))

    def force_complete(self, rows: Int64s) -> Bools:
        """Complete rows, (n,) distinct, without trying them; flags those that this call completed."""
        can = self.state.values[rows] == WAITING
        self._end(rows[can], "complete")
        return can

    def advance_clock(self, operations: DelayedOperations, now_ms: int) -> Int64s:
        """Expire rows that are due, then purge if enough have ended; returns the due rows, (m,) int64, by tick."""
        due = self.timer.advance_clock(now_ms)
        self._expire(operations, due)
        if self.estimated_total - self.timer.size > self.purge_interval:
            self.purge()
        return due

    def purge(self) -> None:
        self.estimated_total = self.timer.size
        if self._ended_since_purge:
            self.watchers.forget(np.concatenate(self._ended_since_purge))
        self._ended_since_purge = []

    def rearm(self, rows: Int64s, deadlines_ms: Int64s) -> None:
        """Move waiting rows, (n,) distinct, to other deadlines; one that is due runs on the next `advance_clock`.

        Kafka's operations keep their deadline. Event time moves it if a completion lies ahead of the watermark or an
        event extends the wait.
        """
        tick_ms, armed_tick = self.timer.tick_ms, self.timer.armed_tick
        armed_tick.fill(self.next_row, UNARMED)
        moved = deadlines_ms // tick_ms != armed_tick.values[rows]
        self.timer.add(rows[moved], np.maximum(deadlines_ms[moved], (self.timer.wheel.clock + 1) * tick_ms))

    def compact(self) -> Rows:
        """Forget ended rows and number the waiting ones again; returns ``new_row[old_row]``, -1 for forgotten rows."""
        # Renumbering drops ended rows from all lists, so it includes a purge.
        self.estimated_total, self._ended_since_purge = self.timer.size, []
        waiting = self.state.values == WAITING
        new_row = sorted_runs.new_numbers(waiting)
        self.watchers.renumber(new_row)
        self.timer.renumber(new_row)
        self.state.keep(waiting)
        self.ended = 0
        return new_row

    def _expire(self, operations: DelayedOperations, rows: Int64s) -> None:
        rows = rows.compress(self.state.values[rows] == WAITING)
        self._end(rows, "expire")
        if len(rows):
            operations.on_expiration(rows)

    def _end(self, rows: Int64s, event: str) -> None:
        if not len(rows):
            return
        self.state.writable[rows] = ENDED
        self.ended += len(rows)
        if event != "expire":
            self.timer.cancel(rows)
        self._ended_since_purge.append(rows)
