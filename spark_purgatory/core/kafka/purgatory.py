"""Kafka's DelayedOperationPurgatory, for arrays of operations.

Every operation completes exactly once: by a criterion that holds when it is tried (`try_complete_else_watch`,
`check_and_complete`), by `force_complete`, or by its time-out in `advance_clock`; the first of these wins. The caller
defines the criterion: ``try_complete(rows) -> (n,) bool``. Nothing completes by itself when its
criterion comes true: only a check of one of its watch keys looks.

Operations are *rows*, numbered in the order of registration. Their state is a byte, and a transition is an entry of
``TRANSITIONS``. What Kafka does one call at a time happens here in the order of the arrays given, with the same result,
because criteria may not change within a call. Left out for that reason: the second evaluation after watching, which in
Kafka closes a race with other threads.

Costs: registering n operations with k keys O(k log k); a check O(keys given + operations found), and sorts both;
completing, cancelling O(n); `advance_clock` O(due); a purge O(completed since the last). `compact` renumbers rows,
O(all rows), when the caller likes.

The boundary: the timer runs a task at ``deadline < clock + tick``, up to a tick early, as Kafka's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import (
    EMPTY,
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
from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.errors import BugError, EmptyWatchKeysError

COMPACT_FLOOR = 1024
"""Ended rows below which compacting is not worth a pass."""
WAITING, ENDED = 0, 1
TRANSITIONS = {(WAITING, "complete"): ENDED, (WAITING, "expire"): ENDED}
"""(state, event) -> state; whatever is not here changes nothing and is answered with False."""


class RowsHook(Protocol):
    """Called with the rows, (n,) int64, that an event happened to."""

    def __call__(self, rows: Int64s, /) -> None:
        """Handle them."""


def _ignore(rows: Int64s, /) -> None:
    """The hook that does nothing."""


class DelayedOperationPurgatory:
    """Operations waiting on keys and deadlines (Kafka: ``DelayedOperationPurgatory``, ``DelayedOperation``)."""

    def __init__(
        self,
        timer: SystemTimer,
        *,
        try_complete: Callable[[Int64s], Bools],
        on_complete: RowsHook = _ignore,
        on_expiration: RowsHook = _ignore,
        purge_interval: int = 1000,
        timer_enabled: bool = True,
        compact_share: int = 2,
    ) -> None:
        self.timer = timer
        self.watchers = Watchers()
        self.state = GrowableArray(np.empty(0, np.uint8))
        self.purge_interval = purge_interval
        self.timer_enabled = timer_enabled
        self.compact_share = compact_share
        """Ended rows are worth compacting once they are this part of those that wait: memory against time."""
        self.estimated_total = 0
        """Operations watched since the last purge and those delayed then (Kafka: ``estimatedTotalOperations``)."""
        self.ended = 0
        """Rows that completed or expired and still have a number."""
        self._try_complete = try_complete
        self._on_complete = on_complete
        self._on_expiration = on_expiration
        self._ended_since_purge: list[Int64s] = []

    @property
    def next_row(self) -> int:
        """The number that the next operation registered will get."""
        return len(self.state)

    @property
    def watched(self) -> int:
        """Lengths of all watch lists added up; an operation counts once for each key, ended ones until purged."""
        return self.watchers.watched

    @property
    def num_delayed(self) -> int:
        """Operations in the timer."""
        return self.timer.size

    @property
    def is_worth_compacting(self) -> bool:
        """Whether enough rows have ended that forgetting them pays for a pass over all."""
        return self.ended > (self.next_row - self.ended) // self.compact_share + COMPACT_FLOOR

    def waiting(self) -> Int64s:
        """Rows that have not ended, ascending; costs all rows."""
        return np.flatnonzero(self.state.values == WAITING)

    def try_complete_else_watch(
        self,
        keys: pa.Array,
        offsets: Int64s,
        deadlines_ms: Int64s | Callable[[Int64s], Int64s],
        key_hashes: Int64s | None = None,
    ) -> tuple[Int64s, Bools]:
        """Register operations; those whose criterion holds already complete and are watched nowhere.

        Operation i watches ``keys[offsets[i]:offsets[i + 1]]`` (a key may come twice) until ``deadlines_ms[i]``; a
        function there is called with the rows left after they were tried, and returns their deadlines. Returns rows
        (n,) int64 and (n,) bool, True where trying completed it. One that the timer runs at once is completed and
        expired, but answered with False, as in Kafka. Raises EmptyWatchKeysError, with nothing changed.
        """
        empty = offsets[1:] == offsets[:-1]
        if empty.any():
            raise EmptyWatchKeysError(
                f"operation {empty.argmax()} of {len(offsets) - 1} has no watch keys: give at least one"
            )
        rows = self.watchers.append(keys, hash_keys(keys) if key_hashes is None else key_hashes, offsets)
        self.state.append(np.full(len(rows), WAITING, np.uint8))
        completed = self._try_complete(rows)
        self._end(rows[completed], "complete")
        left = rows[~completed]
        self.watchers.watch(left)
        self.estimated_total += len(left)
        if self.timer_enabled and len(left):
            deadlines = deadlines_ms(left) if callable(deadlines_ms) else deadlines_ms[~completed]
            added = self.timer.add(left, deadlines)
            if not added.all_armed:
                self._expire(left[~added.armed])
        return rows, completed

    def check_and_complete(self, keys: pa.Array, key_hashes: Int64s | None = None) -> Int64s:
        """Try the operations watching each key, keys in order; returns how many each completed, (k,) int64."""
        hashes = hash_keys(keys) if key_hashes is None else key_hashes
        needle, entries = self.watchers.find(keys, hashes)
        rows = self.watchers.rows_of(entries)
        waiting = self.state.values[rows] == WAITING
        candidates = each_once(rows.compress(waiting))
        completed = candidates[self._try_complete(candidates)] if len(candidates) else candidates
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

    def cancel_for_key(self, key: object) -> Int64s:
        """Drop a key's list and return all its rows in order, ended and repeated ones too (Kafka: ``cancelForKey``).

        They leave the timer but do not complete: another key's check or a force still may.
        """
        keys = pa.array([key], type=self.watchers.keys.chunks[0].type if self.watchers.keys.chunks else None)
        _, entries = self.watchers.find(keys, hash_keys(keys))
        rows = self.watchers.rows_of(entries)
        self.watchers.drop(entries)
        self.timer.cancel(each_once(rows))
        return rows

    def advance_clock(self, now_ms: int) -> Int64s:
        """Expire what is due, then purge if enough ended; returns the rows expired, (m,) int64, by deadline tick."""
        due = self.timer.advance_clock(now_ms)
        self._expire(due)
        if self.estimated_total - self.num_delayed > self.purge_interval:
            self.purge()
        return due

    def purge(self) -> None:
        """Drop all ended operations from all lists."""
        self.estimated_total = self.num_delayed
        if self._ended_since_purge:
            self.watchers.forget(np.concatenate(self._ended_since_purge))
        self._ended_since_purge = []

    def is_to_purge(self, rows: Int64s) -> None:
        """The next purge drops the entries of these ended rows, (n,) distinct: those of a restored state."""
        self._ended_since_purge = [rows] if len(rows) else []

    def rearm(self, rows: Int64s, deadlines_ms: Int64s) -> None:
        """Move waiting rows, (n,) distinct, to other deadlines.

        Kafka's operations keep the deadline they were made with; event time needs this where a completion lies ahead
        of the watermark or an event extends the wait. A deadline already due runs on the next `advance_clock`.
        """
        self.timer.add(rows, np.maximum(deadlines_ms, (self.timer.wheel.clock + 1) * self.timer.tick_ms))

    def compact(self) -> Rows:
        """Forget ended rows and number the waiting ones anew; returns ``new_row[old_row]``, -1 where forgotten."""
        # Renumbering drops ended rows from all lists: a purge that costs nothing.
        self.estimated_total, self._ended_since_purge = self.num_delayed, []
        waiting = self.state.values == WAITING
        new_row = new_numbers(waiting)
        self.watchers.renumber(new_row)
        self.timer.renumber(new_row)
        self.state.keep(waiting)
        self.ended = 0
        return new_row

    def validate(self) -> None:
        """Recompute every derived count from the primary columns; raises BugError where one differs."""
        watchers, state = self.watchers, self.state.values
        entries = np.arange(len(watchers.listed))
        listed = watchers.is_listed(entries)
        facts = {
            "watched": (watchers.watched, int(listed.sum())),
            "ended": (self.ended, int(np.count_nonzero(state != WAITING))),
            "of other rows": (0, int(np.count_nonzero(watchers.rows_of(entries) != watchers.row_of))),
            "indexed": (0, len(np.setdiff1d(entries[listed], self._indexed()))),
        }
        armed = np.flatnonzero(self.timer.armed_tick.values != UNARMED)
        facts["armed"] = (self.timer.size, len(armed))
        facts["armed after the end"] = (0, int(np.count_nonzero(state[armed] != WAITING)))
        wrong = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
        if wrong:
            raise BugError(f"purgatory counts (kept, recomputed): {wrong}")

    def _indexed(self) -> Int64s:
        runs = self.watchers.index.runs
        return np.concatenate(runs) & ((1 << 28) - 1) if runs else EMPTY

    def _expire(self, rows: Int64s) -> None:
        rows = rows.compress(self.state.values[rows] == WAITING)
        self._end(rows, "expire")
        if len(rows):
            self._on_expiration(rows)

    def _end(self, rows: Int64s, event: str) -> None:
        if not len(rows):
            return
        self.state.writable[rows] = TRANSITIONS[WAITING, event]
        self.ended += len(rows)
        if event != "expire":
            self.timer.cancel(rows)
        self._ended_since_purge.append(rows)
        self._on_complete(rows)
