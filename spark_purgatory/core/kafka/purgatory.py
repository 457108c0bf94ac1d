"""Kafka's DelayedOperationPurgatory, for arrays of operations.

An operation completes exactly once: by a criterion that is met when it is tried (`try_complete_else_watch`,
`check_and_complete`), by `force_complete`, or by its timeout in `advance_clock`, whichever comes first. Each call gets
the caller's `DelayedOperations`. An operation does not complete by itself when its criterion comes true: a check of one
of its watch keys must try it.

Operations are *rows*, numbered in the order of registration. A row's state is a byte, and ``TRANSITIONS`` lists its
changes. Kafka takes one call at a time. Here the rows of an array are taken in order with the same result, because
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
from spark_purgatory.core.arrays.sorted_runs import ROW_BITS, ROW_MASK, Bools, GrowableArray, Int64s, Rows
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.errors import EmptyWatchKeysError

COMPACT_FLOOR = 1024  # ended rows below which compacting does not pay
WAITING, ENDED = 0, 1
# (state, event) -> state; any other pair changes nothing and is answered with False.
TRANSITIONS = {(WAITING, "complete"): ENDED, (WAITING, "expire"): ENDED}


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
        """The number of the next operation to be registered."""
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
        met = sorted_runs.ordered(np.minimum.reduceat((needle[now] << ROW_BITS) | entries[now], first))
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
        self.state.writable[rows] = TRANSITIONS[WAITING, event]
        self.ended += len(rows)
        if event != "expire":
            self.timer.cancel(rows)
        self._ended_since_purge.append(rows)
