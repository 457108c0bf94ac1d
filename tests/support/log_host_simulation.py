"""What Spark does with the processors of `LogHost`, without Spark, and beside it engines that are never saved.

A `Simulation` runs micro-batches. Each is a task for each partition, given to any worker; a task makes one call for
each shard with rows and one for each timer at or below the watermark, on a copy of the state. The micro-batch is
committed as a whole when every task has a result; before that, what `Chances` say goes wrong: at each failpoint the
task fails, its worker or the engine's holder is killed, or another attempt of the same task runs in the middle of
this one; results are thrown away and tasks repeated; and between micro-batches the query restarts, with old workers
alive or gone, with other limits, or from another checkpoint: an older one, or one that such a restart had left behind.

After every micro-batch its outcomes and counters are compared with those of plain engines, which took the same steps
without any saving, and so is the state that a shard's committed bytes load to. A `Difference` says where.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import gauges_of, save, tally_of
from spark_purgatory.core.state.shard_head import ShardHead, read_head
from spark_purgatory.core.state.step_log import load
from spark_purgatory.schema import REJECTION_COUNTERS
from spark_purgatory.spark.host import warm_engines
from spark_purgatory.spark.host.calls import added, counts_of
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, from_blob, to_blob
from spark_purgatory.spark.host.log_host import FAILPOINTS, LogHost, LogHostOptions
from spark_purgatory.spark.host.warm_engines import WarmEngines
from spark_purgatory.spark.host.warm_messages import Answer, Request
from tests.conformance.kafka_purgatory import validate
from tests.support.engine_driver import NAMES, events_table, multiset, operations_table, outcome_rows
from tests.support.spark_state import Handle, ShardState
from tests.support.splits import Batch

COMPARED = (*NAMES[:2], *NAMES[2:])
ENGINE_BYTES = 1000
"""What each engine counts against ``max_warm_bytes`` at least: small ones take next to nothing."""
MOST_FAILURES = 6
"""Of the tasks of one micro-batch; then nothing more goes wrong in it."""

TASK_FAILS, WORKER_DIES, HOLDER_DIES, SPECULATION = "task fails", "worker dies", "holder dies", "speculation"
AT_FAILPOINTS = (TASK_FAILS, WORKER_DIES, HOLDER_DIES, SPECULATION)
ALL_GONE, OLD_WORKERS, OTHER_LIMITS, OTHER_CHECKPOINT = "all gone", "old workers", "other limits", "other checkpoint"
RESTARTS = (ALL_GONE, OLD_WORKERS, OTHER_LIMITS, OTHER_CHECKPOINT)
MOST_CHECKPOINTS = 5
"""Times that a query goes back to another checkpoint."""


class Difference(AssertionError):
    """The host and the plain engines disagree."""


class Lost(Exception):
    """A task's attempt ends without a result."""


@dataclass(frozen=True)
class Chances:
    """How often what happens."""

    snapshot: float | None = 0.3
    """That a step saves the engine; None: as the head has it."""
    at_failpoint: float = 0.02
    """That one of ``actions`` happens at a failpoint, at each of ``failpoints``."""
    actions: tuple[str, ...] = AT_FAILPOINTS
    failpoints: tuple[str, ...] = FAILPOINTS
    held_step: float = 0.02
    """That a step fails in the holder once the engine has made it."""
    thrown_away: float = 0.1
    """That a task's result is thrown away, and the task repeated."""
    restart: float = 0.2
    """That the query restarts before a micro-batch, or within one, whose results are thrown away."""
    restarts: tuple[str, ...] = RESTARTS
    cold: float = 0.0
    """That no worker holds anything at the beginning of a micro-batch."""
    loads: float = 0.15
    """That a shard's committed state is loaded and compared, after each of its steps."""
    looks: bool = True
    """Whether what is committed is compared at all, or outcomes and counters alone."""


NOTHING = Chances(at_failpoint=0, held_step=0, thrown_away=0, restart=0)


class Worker(WarmEngines):
    """A Python worker's engines."""

    simulation: Simulation

    def step(self, request: Request) -> Answer | None:
        """As it is; counted."""
        answer = super().step(request)
        self.simulation.seen["missed" if answer is None else "warm"] += 1
        return answer

    def keep(self, request: Request, engine: EventTimePurgatory, size: int) -> bool:
        """As it is, with a size that counts."""
        self.simulation.seen["cold"] += 1
        return super().keep(request, engine, max(size, ENGINE_BYTES))

    @property
    def is_alive(self) -> bool:
        """Whether the process still is."""
        return not self._closed


class Host(LogHost):
    """The processor of one task's attempt."""

    simulation: Simulation
    worker: Worker

    def reached(self, failpoint: str) -> None:
        """Let happen what happens there."""
        self.simulation.reached(failpoint, self.worker)

    @property
    def warm(self) -> Worker:
        """The engines of the worker that has the task."""
        return self.worker


@dataclass
class PlainShard:
    """An engine that is never saved."""

    spec: EngineSpec
    engine: EventTimePurgatory
    due_ms: int | None = None

    def step(self, arrived: Arrived, watermark_ms: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """(outcomes, what was counted) of a step, by the rows themselves."""
        before = counts_of(self.engine.outcomes.tally)
        operations, events = arrived
        batches = self.engine.step(
            read_operations(pa.concat_tables(operations), self.spec) if operations else None,
            read_events(pa.concat_tables(events), self.spec.criterion, self.spec.whole_operations) if events else None,
            watermark_ms,
        )
        self.due_ms = self.engine.next_due_ms()
        return [row for batch in batches for row in outcome_rows(batch)], added(self.engine.outcomes.tally, before)


class Arrived(NamedTuple):
    """A shard's rows in a micro-batch, as several map tasks packed them."""

    operations: list[pa.Table]
    events: list[pa.Table]


class Taken(NamedTuple):
    """A committed micro-batch."""

    batch: Batch
    arrived: dict[int, Arrived]
    outcomes: list[dict[str, Any]]


class Checkpoint(NamedTuple):
    """What a query can go on from."""

    taken: list[Taken]
    committed: dict[int, ShardState]
    left: list[Batch]


Results = dict[int, list[Row]]


@dataclass
class Simulation:
    """A query, its workers, its checkpoint, and the plain engines beside it."""

    spec: EngineSpec
    rng: random.Random
    folder: Path
    shards: int = 1
    several: bool = False
    chances: Chances = field(default_factory=Chances)
    max_warm_bytes: int = 1 << 30
    n_workers: int = 3
    host_class: type[Host] = Host
    worker_class: type[Worker] = Worker
    seen: Counter[str] = field(default_factory=Counter)
    """What happened, by name."""
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.committed: dict[int, ShardState] = {}
        self.plain: dict[int, PlainShard] = {}
        self.taken: list[Taken] = []
        self.checkpoints: list[Checkpoint] = []
        """All that there ever were."""
        self.started: list[Worker] = []
        self.idle: deque[Worker] = deque(self._worker() for _ in range(self.n_workers))
        self.failures = 0
        self.running: Attempt | None = None

    # --- workers ---------------------------------------------------------------------------------------

    def _worker(self) -> Worker:
        worker = self.worker_class(self.folder, f"{os.getpid()}-{len(self.started)}")
        worker.simulation = self
        self.started.append(worker)
        return worker

    def _next_worker(self) -> Worker:
        """An idle worker: Spark's queue is FIFO, and tasks end in any order."""
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.idle)
        worker = self.idle.popleft() if self.idle else self._worker()
        return worker if worker.is_alive else self._worker()

    def close(self) -> None:
        """End all workers."""
        for worker in self.started:
            worker.close()

    # --- micro-batches ---------------------------------------------------------------------------------

    def run(self, batches: Sequence[Batch]) -> list[dict[str, Any]]:
        """All micro-batches; returns the outcomes that were committed."""
        left = deque(batches)
        while left:
            if self.rng.random() < self.chances.restart:
                self._restart(left)
            if self.rng.random() < self.chances.cold:
                self.end_workers()
            self._micro_batch(left.popleft())
            self.checkpoints.append(Checkpoint(list(self.taken), self.committed, list(left)))
        return [outcome for taken in self.taken for outcome in taken.outcomes]

    def _micro_batch(self, batch: Batch) -> None:
        self.failures = 0
        arrived = self._arrived(batch)
        parts = self.rng.choice((1, 2)) if self.shards > 1 else 1
        results: Results = {}
        after = dict(self.committed)
        tasks = [[shard for shard in range(self.shards) if shard % parts == part] for part in range(parts)]
        while tasks:
            attempt = self._task(Task(tasks[0], arrived, batch.watermark_ms))
            if self._happens(self.chances.thrown_away, "thrown away"):
                continue
            after |= attempt.states
            results |= attempt.results
            tasks.pop(0)
            if tasks and self._happens(self.chances.restart / 4, "restart within"):
                # The other tasks never ended: nothing is committed, and the next run makes the micro-batch anew.
                self.end_workers() if self.rng.random() < 0.5 else None
                return self._micro_batch(batch)
        self.committed = after
        self.taken.append(Taken(batch, arrived, self._compared(arrived, batch.watermark_ms, results)))

    def _happens(self, chance: float, name: str) -> bool:
        """Whether something goes wrong, if not too much has already."""
        if self.failures >= MOST_FAILURES or self.rng.random() >= chance:
            return False
        self.failures += 1
        self.seen[name] += 1
        return True

    def _task(self, task: Task) -> Attempt:
        """A task's attempt that has a result, after those that have none."""
        while True:
            worker = self._next_worker()
            attempt = Attempt(self, task, worker)
            outer, self.running = self.running, attempt
            try:
                attempt.run()
            except (Lost, MemoryError):
                self.seen["attempt lost"] += 1
            else:
                rivals = [attempt, *attempt.speculative]
                return self.rng.choice(rivals)
            finally:
                self.running = outer
                self.idle.append(worker)

    def reached(self, failpoint: str, worker: Worker) -> None:
        """A host is at a failpoint."""
        self.seen[failpoint] += 1
        attempt = self.running
        assert attempt is not None
        if failpoint not in self.chances.failpoints or attempt.is_speculative:
            return
        if not self._happens(self.chances.at_failpoint, "at a failpoint"):
            return
        action = self.rng.choice(self.chances.actions)
        self.seen[f"{action} {failpoint}"] += 1
        if action == SPECULATION:
            rival = Attempt(self, attempt.task, self._next_worker(), is_speculative=True)
            self.running = rival
            try:
                rival.run()
                attempt.speculative.append(rival)
            except MemoryError:
                pass
            finally:
                self.running = attempt
                self.idle.append(rival.worker)
        elif action == HOLDER_DIES:
            others = [each for each in self.started if each.is_alive and each is not worker and len(each)]
            for each in others:
                each.close()
            self.idle = deque(each if each.is_alive else self._worker() for each in self.idle)
        else:
            if action == WORKER_DIES:
                worker.close()
            raise Lost(f"{action} {failpoint}")

    def held_step(self, *given: Any) -> Answer:
        """A step in the holder, after which its memory may be full."""
        answer = warm_engines_step(*given)
        if self._happens(self.chances.held_step, "held step fails"):
            raise MemoryError
        return answer

    # --- restarts --------------------------------------------------------------------------------------

    def end_workers(self) -> None:
        """End all workers, and start others."""
        for worker in self.started:
            worker.close()
        self.idle = deque(self._worker() for _ in range(self.n_workers))

    def _restart(self, left: deque[Batch]) -> None:
        how = self.rng.choice(self.chances.restarts)
        self.seen[f"restart, {how}"] += 1
        if how == ALL_GONE:
            self.end_workers()
        elif how == OTHER_LIMITS:
            self.spec = replace(self.spec, max_pending=self.rng.choice((20_000, 30_000, 40_000)))
            if self.rng.random() < 0.5:
                self.end_workers()
        elif self.checkpoints and self.seen["another checkpoint"] < MOST_CHECKPOINTS:
            self.seen["another checkpoint"] += 1
            self._go_on_from(self.rng.choice(self.checkpoints), left)

    def _go_on_from(self, checkpoint: Checkpoint, left: deque[Batch]) -> None:
        """What came later comes again, perhaps in fewer micro-batches."""
        self.taken, self.committed = list(checkpoint.taken), checkpoint.committed
        self.plain = {}
        for taken in self.taken:
            for shard in range(self.shards):
                self._plain_step(shard, taken.arrived.get(shard), taken.batch.watermark_ms)
        left.clear()
        for at, batch in enumerate(checkpoint.left):
            if left and at < len(checkpoint.left) - 1 and self.rng.random() < 0.3:
                last = left.pop()
                batch = Batch([*last.operations, *batch.operations], [*last.events, *batch.events], last.watermark_ms)
            left.append(batch)

    # --- plain engines ---------------------------------------------------------------------------------

    def _arrived(self, batch: Batch) -> dict[int, Arrived]:
        """Each shard's rows, in one to three blobs a side."""
        arrived: dict[int, Arrived] = {}
        for shard in range(self.shards):
            operations = [row for row in batch.operations if self._shard_of(self._route(row)) == shard]
            events = [row for row in batch.events if self.several or self._shard_of(row["key"]) == shard]
            tables = Arrived(
                [
                    operations_table(each, self.several, 64, self.spec.by_row, self.spec.number)
                    for each in self._parts(operations)
                ],
                [events_table(each, spec=self.spec) for each in self._parts(events)],
            )
            if operations or events:
                arrived[shard] = tables
        return arrived

    def _parts(self, rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        cuts = sorted(self.rng.randint(0, len(rows)) for _ in range(self.rng.choice((0, 0, 1, 2))))
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if end > start:
                yield rows[start:end]

    def _route(self, operation: dict[str, Any]) -> str | None:
        key: str | None = operation["id"] if self.several else (operation["keys"] or [None])[0]
        return key

    def _shard_of(self, key: str | None) -> int:
        return sum((key or "").encode()) % self.shards

    def _plain_step(
        self, shard: int, arrived: Arrived | None, watermark_ms: int
    ) -> tuple[list[dict[str, Any]], dict[str, int]] | None:
        """What a shard's plain engine does in a micro-batch; None: nothing comes, and nothing is due."""
        plain = self.plain.setdefault(shard, PlainShard(self.spec, EventTimePurgatory(self.spec)))
        is_due = plain.due_ms is not None and plain.due_ms <= watermark_ms
        if arrived is None and not is_due:
            return None
        return plain.step(arrived or Arrived([], []), watermark_ms)

    def _compared(self, arrived: dict[int, Arrived], watermark_ms: int, results: Results) -> list[dict[str, Any]]:
        """The micro-batch's outcomes, if they, the counters and the states are those of the plain engines."""
        outcomes = []
        for shard in range(self.shards):
            where = f"micro-batch {len(self.taken)}, watermark {watermark_ms}, shard {shard}"
            rows, expected = results.get(shard, []), self._plain_step(shard, arrived.get(shard), watermark_ms)
            _check(len(rows), 0 if expected is None else 1, f"{where}: calls")
            if expected is None:
                continue
            found = [] if rows[0]["blob"] is None else outcome_rows(from_blob(rows[0]["blob"]))
            _check(_comparable(found), _comparable(expected[0]), f"{where}: outcomes")
            row = rows[0].asDict()
            reasons = dict(zip(REJECTION_COUNTERS, row["rejections"] or [0] * len(REJECTION_COUNTERS), strict=True))
            counted = {name: {**row, **reasons}[name] for name in expected[1] if name != "state_bytes_written"}
            expected[1].pop("state_bytes_written", None)
            _check(counted, expected[1], f"{where}: counters")
            if self.chances.looks:
                self._compare_state(shard, watermark_ms, where)
            outcomes += found
        return outcomes

    def _compare_state(self, shard: int, watermark_ms: int, where: str) -> None:
        state, plain = self.committed[shard], self.plain[shard]
        head = read_head(state.values["head"])
        due_ms = plain.due_ms
        timers = set() if due_ms is None else {max(due_ms, watermark_ms + 1)}
        _check(state.timers, timers, f"{where}: timers")
        _check(head.timer_ms, next(iter(timers), None), f"{where}: timer of the head")
        _check(dict(head.tally), tally_of(plain.engine), f"{where}: tally of the head")
        _check(sorted(state.maps.get("log", {})), list(range(head.first_entry, head.next_entry)), f"{where}: entries")
        sizes = (sum(map(len, state.maps.get("log", {}).values())), len(state.values["snapshot"]))
        _check((head.log_bytes, head.snapshot_bytes), sizes, f"{where}: bytes of log and snapshot")
        if self.rng.random() < self.chances.loads:
            self.seen["loaded"] += 1
            entries = [entry for _, entry in sorted(state.maps.get("log", {}).items())]
            loaded = load(self.spec, self.shards, head, state.values["snapshot"], entries)
            validate(loaded.purgatory)
            never_saved = copy.deepcopy(plain.engine)
            _check(save(loaded, 1) == save(never_saved, 1), True, f"{where}: the state that is loaded")
            gauges, expected = dict(head.gauges), gauges_of(never_saved)
            # An engine that goes on has ended operations in its watch lists, until it is saved or purges them.
            expected["watched"] = max(expected["watched"] or 0, gauges["watched"] or 0)
            _check(gauges, expected, f"{where}: gauges of the head")


def _check(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise Difference(f"{what}: {found!r} with the host, {expected!r} without saving")


def _comparable(outcomes: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    # ORPHANs lack an operation's columns, or have nulls there where they left beside an operation's outcome.
    return multiset([{**dict.fromkeys(COMPARED), **outcome} for outcome in outcomes], *COMPARED)


class Task(NamedTuple):
    """A partition of a micro-batch."""

    shards: list[int]
    arrived: dict[int, Arrived]
    watermark_ms: int


@dataclass
class Attempt:
    """A task on a worker, on a copy of the committed state."""

    simulation: Simulation
    task: Task
    worker: Worker
    is_speculative: bool = False
    results: Results = field(default_factory=dict)
    states: dict[int, ShardState] = field(default_factory=dict)
    speculative: list[Attempt] = field(default_factory=list)
    """Further attempts of the task that ended while this one ran."""

    def run(self) -> None:
        """All calls of the partition: shards with rows, then timers; fired ones are deleted afterwards."""
        simulation, (shards, arrived, watermark_ms) = self.simulation, self.task
        self.states = {shard: simulation.committed[shard].copy() for shard in shards if shard in simulation.committed}
        handle = Handle(self.states)
        host = self._host()
        host.init(handle)  # type: ignore[arg-type]
        values = TimerValues(1, watermark_ms)
        for shard in shards:
            if shard in arrived:
                handle.key = shard
                self._answered(shard, host.handleInputRows((shard,), iter(_sent(arrived[shard])), values))
        due = [(at, shard) for shard, state in self.states.items() for at in state.timers if at <= watermark_ms]
        for at, shard in sorted(due):
            handle.key = shard
            self._answered(shard, host.handleExpiredTimer((shard,), values, ExpiredTimerInfo(at)))
            handle.deleteTimer(at)
        handle.key = None
        host.close()

    def _host(self) -> Host:
        simulation = self.simulation
        options = LogHostOptions(simulation.shards, simulation.max_warm_bytes)
        host = simulation.host_class(simulation.spec, options)
        host.simulation, host.worker = simulation, self.worker
        return host

    def _answered(self, shard: int, rows: Iterator[Row]) -> None:
        self.results.setdefault(shard, []).extend(rows)


def _sent(arrived: Arrived) -> list[Row]:
    """A shard's rows of the exchange."""
    sides = ((OPERATIONS, arrived.operations), (EVENTS, arrived.events))
    return [Row(side=side, blob=bytes(to_blob(table))) for side, tables in sides for table in tables]


warm_engines_step = warm_engines.step_engine


@contextmanager
def simulated(spec: EngineSpec, rng: random.Random, **given: Any) -> Iterator[Simulation]:
    """A simulation, whose workers and folder end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="sp-"))
    simulation = Simulation(spec, rng, folder, **given)
    try:
        with ExitStack() as patches:
            patches.enter_context(patch.object(warm_engines, "step_engine", simulation.held_step))
            if simulation.chances.snapshot is not None:

                def wants_snapshot(_: ShardHead, entry_bytes: int) -> bool:
                    return simulation.rng.random() < (simulation.chances.snapshot or 0)

                patches.enter_context(patch.object(ShardHead, "wants_snapshot", wants_snapshot))
            yield simulation
    finally:
        simulation.close()
        shutil.rmtree(folder, ignore_errors=True)
