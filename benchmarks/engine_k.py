"""Our engine on workload K: `DelayedOperationPurgatory` step by step, and the timer alone, in this process.

With ``saving`` nothing outlives a step but bytes: the purgatory is restored from them before it and saved after it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from benchmarks.workload_k import STEP_MS, Ended, WorkloadK
from spark_purgatory.core.arrays.sorted_runs import EMPTY, Bools, GrowableArray, Int64s
from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.purgatory import WAITING, DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.core.state.blob import Tables, read_blob, write_blob
from spark_purgatory.core.state.purgatory_snapshot import (
    purgatory_numbers,
    restore_counts,
    restore_keys,
    restore_timer,
    restore_watchers,
    save_keys,
    save_timer,
    save_watchers,
)
from spark_purgatory.core.state.table_encoding import Arrays


@dataclass(frozen=True)
class Timed:
    """A run: operations, how many a second, and how they ended."""

    operations: int
    rate: float
    ended: Ended
    cpu_s: float
    """Of the whole process, the collector and the compiler of a JVM included."""
    coding_s: float = 0.0
    """Of the time: turning named arrays into the bytes of a state and back (compression, seven bits, checksum)."""
    coding_cpu_s: float = 0.0


class EngineK:
    """The purgatory, the operations' flags, and which operation each row is."""

    def __init__(self, workload: WorkloadK, saving: bool = False) -> None:
        self.workload, self.saving = workload, saving
        self.coding_s = self.coding_cpu_s = 0.0
        self.flag = GrowableArray(np.empty(0, bool))
        """(rows,) bool: the row's event has happened."""
        self.operation_of = GrowableArray(EMPTY)
        self.row_of = np.empty(len(workload), np.int32)
        """(N,) int32: the row of every operation that waits."""
        self.step = 0
        self.counts = [0, 0]
        self.checksum = 0
        self.purgatory = self._empty()

    def _empty(self) -> DelayedOperationPurgatory:
        return DelayedOperationPurgatory(SystemTimer(), purge_interval=100_000)

    def run(self) -> Ended:
        """All steps until nothing waits."""
        workload = self.workload
        numbers = np.arange(workload.last_step + 1)
        completing = np.flatnonzero(workload.event >= 0)
        completing = completing[np.argsort(workload.event[completing], kind="stable")]
        events = np.searchsorted(workload.event[completing], numbers)
        arrivals = np.searchsorted(workload.arrive, numbers)
        for self.step in range(workload.last_step):
            self.purgatory.advance_clock(self, self.step * STEP_MS)
            now = slice(self.step, self.step + 2)
            self._events(completing[slice(*events[now])])
            self._register(*arrivals[now])
            if self.purgatory.is_worth_compacting:
                kept = np.flatnonzero(self.purgatory.compact() >= 0)
                self.operation_of = GrowableArray(self.operation_of.values[kept])
                self.flag = GrowableArray(self.flag.values[kept])
                self.row_of[self.operation_of.values] = np.arange(len(kept))
            if self.saving:
                self._save_and_restore()
        return Ended(self.counts[0] - self.counts[1], self.counts[1], self.checksum)

    def _save_and_restore(self) -> None:
        numbers, arrays, tables = save_purgatory(self.purgatory)
        started, cpu = time.perf_counter(), time.process_time()
        facts, arrays, tables = read_blob(write_blob(numbers, arrays, tables, shards=1), shards=1)
        self.coding_s += time.perf_counter() - started
        self.coding_cpu_s += time.process_time() - cpu
        self.purgatory = self._empty()
        restore_purgatory(self.purgatory, cast("dict[str, int]", facts), arrays, tables)

    def _events(self, operations: Int64s) -> None:
        if len(operations):
            self.flag.writable[self.row_of[operations]] = True
            first = pa.array(self.workload.keys[self.workload.offsets[operations]])
            self.purgatory.check_and_complete(self, first, hash_keys(first))

    def _register(self, start: int, end: int) -> None:
        if start == end:
            return
        workload = self.workload
        self.row_of[start:end] = np.arange(self.purgatory.next_row, self.purgatory.next_row + end - start)
        self.operation_of.append(np.arange(start, end))
        self.flag.append(np.zeros(end - start, bool))
        offsets = workload.offsets[start : end + 1]
        keys = pa.array(workload.keys[offsets[0] : offsets[-1]])
        deadlines = self.step * STEP_MS + workload.delay_ms[start:end]
        self.purgatory.try_complete_else_watch(self, keys, offsets - offsets[0], deadlines, hash_keys(keys))

    def try_complete(self, rows: Int64s, /) -> tuple[Bools, Int64s | None]:
        """Rows whose event has happened complete."""
        completed = self.flag.values[rows]
        self._count(rows[completed])
        return completed, None

    def on_expiration(self, rows: Int64s, /) -> None:
        """Rows have expired."""
        self._count(rows)
        self.counts[1] += len(rows)

    def _count(self, rows: Int64s) -> None:
        self.counts[0] += len(rows)
        self.checksum += int((self.operation_of.values[rows] + 1).sum()) * self.step


def save_purgatory(purgatory: DelayedOperationPurgatory) -> tuple[dict[str, int], Arrays, Tables]:
    """All of a purgatory but its settings; what has ended is on no list any more."""
    purgatory.purge()
    arrays: Arrays = {"rows.state": purgatory.state.values}
    tables: Tables = {}
    save_watchers(purgatory.watchers, purgatory.state.values == WAITING, arrays)
    save_keys("watch.keys", purgatory.watchers.keys, tables)
    save_timer(purgatory.timer, None, arrays)
    return purgatory_numbers(purgatory), arrays, tables


def restore_purgatory(
    purgatory: DelayedOperationPurgatory, numbers: dict[str, int], arrays: Arrays, tables: Tables
) -> None:
    """Make a purgatory without operations the one that `save_purgatory` saw."""
    restore_counts(purgatory, numbers, arrays)
    waiting = purgatory.state.values == WAITING
    restore_watchers(purgatory.watchers, waiting, arrays)
    purgatory.watchers.keys = restore_keys("watch.keys", tables)
    restore_timer(purgatory.timer, numbers, None, arrays)


def run_purgatory(workload: WorkloadK, saving: bool = False) -> Timed:
    """The purgatory over the whole workload."""
    engine = EngineK(workload, saving)
    started, cpu = time.perf_counter(), time.process_time()
    ended = engine.run()
    rate, cpu_s = len(workload) / (time.perf_counter() - started), time.process_time() - cpu
    return Timed(len(workload), rate, ended, cpu_s, engine.coding_s, engine.coding_cpu_s)


def run_wheel(workload: WorkloadK) -> Timed:
    """The timer alone: every operation's deadline is added in its step, and the clock moves on."""
    timer = SystemTimer()
    arrivals = np.searchsorted(workload.arrive, np.arange(workload.last_step + 1))
    expired = checksum = 0
    started, cpu = time.perf_counter(), time.process_time()
    for step in range(workload.last_step):
        due = timer.advance_clock(step * STEP_MS)
        expired += len(due)
        checksum += int((due + 1).sum()) * step
        start, end = arrivals[step : step + 2]
        if start < end:
            timer.add(np.arange(start, end), step * STEP_MS + workload.delay_ms[start:end])
    rate = len(workload) / (time.perf_counter() - started)
    return Timed(len(workload), rate, Ended(0, expired, checksum), time.process_time() - cpu)
