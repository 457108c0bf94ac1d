"""The purgatory with what Kafka's has besides, and ours does not need: for traces, and for tests of Kafka's rules."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import EMPTY, ROW_MASK, Bools, Int64s, each_once
from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import UNARMED, SystemTimer
from spark_purgatory.errors import BugError

Rows = Callable[[Int64s], None]


def _ignore(rows: Int64s) -> None:
    """The hook that does nothing."""


def clocks_ms(timer: SystemTimer) -> list[int]:
    """Clock of every existing level in ms, lowest first."""
    wheel = timer.wheel
    return [(wheel.clock - wheel.clock % span) * timer.tick_ms for span in wheel.spans]


def level_of(timer: SystemTimer, deadlines_ms: Int64s) -> Int64s:
    """Level that each task is put into now, 1 the lowest; 0 where it is not armed."""
    ticks = deadlines_ms // timer.tick_ms
    reaches = timer.wheel.reaches(int(ticks.max()))
    return np.where(ticks > timer.wheel.clock, reaches.searchsorted(ticks, side="right") + 1, 0)


def bucket_ms(timer: SystemTimer, deadlines_ms: Int64s) -> Int64s:
    """Start of each task's bucket in ms; -1 where it is not armed."""
    ticks, level = deadlines_ms // timer.tick_ms, level_of(timer, deadlines_ms)
    span = timer.wheel.wheel_size ** np.maximum(level - 1, 0)
    return np.where(level > 0, (ticks - ticks % span) * timer.tick_ms, -1)


class KafkaPurgatory(DelayedOperationPurgatory):
    """Hooks are given once, with ``onComplete``; the timer may be off; a key's operations can be cancelled."""

    def __init__(
        self,
        timer: SystemTimer,
        *,
        try_complete: Callable[[Int64s], Bools],
        on_complete: Rows = _ignore,
        on_expiration: Rows = _ignore,
        purge_interval: int = 1000,
        timer_enabled: bool = True,
    ) -> None:
        super().__init__(timer, purge_interval=purge_interval)
        self._hooks = (try_complete, on_complete, on_expiration)
        self._timer_enabled = timer_enabled

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Ask the hook; deadlines do not move."""
        return self._hooks[0](rows), None

    def on_expiration(self, rows: Int64s, /) -> None:
        self._hooks[2](rows)

    def watch(
        self, keys: pa.Array, offsets: Int64s, deadlines_ms: Int64s, key_hashes: Int64s | None = None
    ) -> tuple[Int64s, Bools]:
        """`try_complete_else_watch` with the hooks."""
        hashes = hash_keys(keys) if key_hashes is None else key_hashes
        return self.try_complete_else_watch(self, keys, offsets, deadlines_ms, hashes)

    def check(self, keys: pa.Array, key_hashes: Int64s | None = None) -> Int64s:
        """`check_and_complete` with the hooks."""
        return self.check_and_complete(self, keys, hash_keys(keys) if key_hashes is None else key_hashes)

    def advance(self, now_ms: int) -> Int64s:
        """`advance_clock` with the hooks."""
        return self.advance_clock(self, now_ms)

    def cancel_for_key(self, key: object) -> Int64s:
        """Drop a key's list and return all its rows in order, ended and repeated ones too (Kafka: ``cancelForKey``).

        They leave the timer but do not complete: another key's check or a force still may.
        """
        keys = pa.array([key], type=self.watchers.keys.values.type if len(self.watchers.keys) else None)
        _, entries = self.watchers.find(keys, hash_keys(keys))
        rows = self.watchers.rows_of(entries)
        self.watchers.drop(entries)
        self.timer.cancel(each_once(rows))
        return rows

    def _arm(self, operations: object, rows: Int64s, deadlines_ms: Int64s) -> None:
        if self._timer_enabled:
            super()._arm(self, rows, deadlines_ms)

    def _end(self, rows: Int64s, event: str) -> None:
        super()._end(rows, event)
        if len(rows):
            self._hooks[1](rows)


def validate(purgatory: DelayedOperationPurgatory) -> None:
    """Recompute every derived count from the primary columns; raises BugError where one differs."""
    watchers, state = purgatory.watchers, purgatory.state.values
    entries = np.arange(len(watchers.listed))
    owners = np.repeat(np.arange(watchers.rows), np.diff(watchers.first_entry))
    listed = watchers.listed.values[entries]
    runs = watchers.index.runs
    indexed = np.concatenate(runs) & ROW_MASK if runs else EMPTY
    armed = np.flatnonzero(purgatory.timer.armed_tick.values != UNARMED)
    facts = {
        "watched": (watchers.watched, int(listed.sum())),
        "ended": (purgatory.ended, int(np.count_nonzero(state != WAITING))),
        "of other rows": (0, int(np.count_nonzero(watchers.rows_of(entries) != owners))),
        "indexed": (0, len(np.setdiff1d(entries[listed], indexed))),
        "armed": (purgatory.timer.size, len(armed)),
        "armed after the end": (0, int(np.count_nonzero(state[armed] != WAITING))),
    }
    wrong = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
    if wrong:
        raise BugError(f"purgatory counts (kept, recomputed): {wrong}")
