"""Kafka's DelayedOperationPurgatory, for arrays of operations.

Every operation completes exactly once: by a criterion that is met when it is tried (`try_complete_else_watch`,
`check_and_complete`), by `force_complete`, or by its time-out in `advance_clock`; the first of these wins. The caller
gives what it knows of operations to each call, as `DelayedOperations`. Nothing completes by itself when its criterion
comes true: only a check of one of its watch keys looks.

Operations are *rows*, numbered in the order of registration. Their state is a byte, and a transition is an entry of
``TRANSITIONS``. What Kafka does one call at a time happens here in the order of the arrays given, with the same result,
because criteria may not change within a call. Left out for that reason: the second evaluation after watching, which in
Kafka closes a race with other threads.

Costs: registering n operations with k keys O(k log k); a check O(keys given + operations found), and sorts both;
completing O(n); `advance_clock` O(due); a purge O(completed since the last); `compact` O(all rows).

The boundary: the timer runs a task at ``deadline < clock + tick``, up to a tick early, as Kafka's does.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import (
    ROW_BITS,
    ROW_MASK,
    Bools,
    GrowableArray,
    Int64s,
    Rows,
    each_once,
    first_of_each,
    new_numbers,
    ordered,
)
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.errors import EmptyWatchKeysError

COMPACT_FLOOR = 1024
"""Ended rows below which compacting is not worth a pass."""
WAITING, ENDED = 0, 1
TRANSITIONS = {(WAITING, "complete"): ENDED, (WAITING, "expire"): ENDED}
"""(state, event) -> state; whatever is not here changes nothing and is answered with False."""


class DelayedOperations(Protocol):
    """What the caller knows of the operations (Kafka: ``DelayedOperation``)."""

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Which of the waiting rows, (n,), complete now, and the deadlines of all in ms; None: these have not moved."""

    def on_expiration(self, rows: Int64s, /) -> None:
        """Rows, (n,), have expired."""


class DelayedOperationPurgatory:
    """Operations waiting on keys and deadlines (Kafka: ``DelayedOperationPurgatory``, ``DelayedOperation``)."""

    def __init__(self, timer: SystemTimer, *, purge_interval: int = 1000, compact_share: int = 2) -> None:
        self.timer = timer
        self.watchers = Watchers()
        self.state = GrowableArray(np.empty(0, np.uint8))
        self.purge_interval = purge_interval
        self.compact_share = compact_share
        """Ended rows are worth compacting once they are this part of those that wait: memory against time."""
        self.estimated_total = 0
        """Operations watched since the last purge and those delayed then (Kafka: ``estimatedTotalOperations``)."""
        self.ended = 0
        """Rows that completed or expired and still have a number."""
        self._ended_since_purge: list[Int64s] = []

    @property
    def next_row(self) -> int:
        """The number that the next operation registered will get."""
        return len(self.state)

    @property
    def is_worth_compacting(self) -> bool:
        """True if enough rows have ended that forgetting them pays for a pass over all."""
        return self.ended > (self.next_row - self.ended) // self.compact_share + COMPACT_FLOOR

    def waiting(self) -> Int64s:
        """Rows that have not ended, ascending; costs all rows."""
        return np.flatnonzero(self.state.values == WAITING)

    def try_complete_else_watch(
        self, operations: DelayedOperations, keys: pa.Array, offsets: Int64s, deadlines_ms: Int64s, key_hashes: Int64s
    ) -> tuple[Int64s, Bools]:
        """Register operations; those whose criterion is met already complete and are watched nowhere.

        Operation i watches ``keys[offsets[i]:offsets[i + 1]]`` (a key may come twice) until ``deadlines_ms[i]``, or
        another deadline that it gets when it is tried. Returns rows (n,) int64 and (n,) bool, True where trying
        completed it. One that the timer runs at once is completed and expired, but answered with False, as in Kafka.
        Raises EmptyWatchKeysError, with nothing changed.
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
        """Watch operations that were tried elsewhere, without trying them; `rearm` arms them. Returns rows (n,)."""
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
        """Try the operations watching each key, keys in order; returns how many each completed, (k,) int64."""
        needle, entries = self.watchers.find(keys, key_hashes)
        rows = self.watchers.rows_of(entries)
        waiting = self.state.values[rows] == WAITING
        candidates = each_once(rows.compress(waiting))
        completed = candidates
        if len(candidates):
            completes, moved_ms = operations.try_complete(candidates)
            completed = candidates[completes]
            if moved_ms is not None:
                self.rearm(candidates[~completes], moved_ms[~completes])
        # The state marks which of the entries found, often several of a row, are theirs; `_end` does the other steps.
        self.state.writable[completed] = ENDED
        gone = (self.state.values[rows] != WAITING).nonzero()[0]
        self.watchers.drop(each_once(entries[gone]))
        if not len(completed):
            return np.zeros(len(keys), np.int64)
        now = gone.compress(waiting[gone])
        # The walk goes by key and then by list; of each row the first entry that it meets counts.
        met = ordered(np.minimum.reduceat((needle[now] << ROW_BITS) | entries[now], first_of_each(rows[now])))
        self._end(self.watchers.rows_of(met & ROW_MASK), "complete")
        return np.bincount(met >> ROW_BITS, minlength=len(keys))

    def force_complete(self, rows: Int64s) -> Bools:
        """Complete rows, (n,) distinct, whatever their criterion says; True where this call did it."""
        can = self.state.values[rows] == WAITING
        self._end(rows[can], "complete")
        return can

    def advance_clock(self, operations: DelayedOperations, now_ms: int) -> Int64s:
        """Expire what is due, then purge if enough ended; returns the rows expired, (m,) int64, by deadline tick."""
        due = self.timer.advance_clock(now_ms)
        self._expire(operations, due)
        if self.estimated_total - self.timer.size > self.purge_interval:
            self.purge()
        return due

    def purge(self) -> None:
        """Drop all ended operations from all lists."""
        self.estimated_total = self.timer.size
        if self._ended_since_purge:
            self.watchers.forget(np.concatenate(self._ended_since_purge))
        self._ended_since_purge = []

    def rearm(self, rows: Int64s, deadlines_ms: Int64s) -> None:
        """Move waiting rows, (n,) distinct, to other deadlines; the timers of rows that have theirs already stay.

        Kafka's operations keep the deadline they were made with; event time needs this where a completion lies ahead
        of the watermark or an event extends the wait. A deadline already due runs on the next `advance_clock`.
        """
        tick_ms, armed_tick = self.timer.tick_ms, self.timer.armed_tick
        armed_tick.fill(self.next_row, UNARMED)
        moved = deadlines_ms // tick_ms != armed_tick.values[rows]
        self.timer.add(rows[moved], np.maximum(deadlines_ms[moved], (self.timer.wheel.clock + 1) * tick_ms))

    def compact(self) -> Rows:
        """Forget ended rows and number the waiting ones anew; returns ``new_row[old_row]``, -1 where forgotten."""
        # Renumbering drops ended rows from all lists: a purge that costs nothing.
        self.estimated_total, self._ended_since_purge = self.timer.size, []
        waiting = self.state.values == WAITING
        new_row = new_numbers(waiting)
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
