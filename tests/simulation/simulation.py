"""A history, step by step: what outlives runs, and what is done to them.

A `Simulation` is the checkpoint, the table, the workers and the run that goes on. `reach` is called at every named
point; there the plan of a step may end the run, cut the power, or let another run begin while this one stands.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import PurgatoryError, StateVersionError
from spark_purgatory.spark.sink.staging.staged_files import file_at
from tests.simulation.driver import Checkpoint, ConcurrentRun, Run, Settings, use_release
from tests.simulation.judge import Judge, Wrong
from tests.simulation.moves import moved
from tests.simulation.sink import NOW, SPARK, SimulatedSender
from tests.simulation.storage import CUT, DISKS, Disk, Store
from tests.simulation.table import Table
from tests.simulation.tasks import Executor, Lost, States, StateStore
from tests.simulation.world import NEAR_COMMITS, SINKS, Scenario, Step
from tests.support.sink_world import Crash

START_MS = 1_700_000_000_000
MOST_RESTARTS = 6
PLANNED = ("crash", "power loss", "another run", "late commit")


@dataclass
class Plan:
    """What a step lets happen at the n-th time that a point is reached."""

    what: str = ""
    point: str = ""
    at: int = 1


@dataclass
class Simulation:
    """What outlives runs, and the run that goes on."""

    scenario: Scenario
    table: Table = field(default_factory=Table)
    clock_ms: int = START_MS
    set_ms: int = 0
    """By how much somebody has set the wall clock."""
    run: Run | None = None
    under_way: Callable[[], Any] | None = None
    """A commit beside the micro-batches that has not arrived."""
    excused: Counter[str] = field(default_factory=Counter)
    """Errors that may stop the query, by what was done to it."""
    seen: Counter[str] = field(default_factory=Counter)
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.random = random.Random(0)
        self.plan, self.reached, self.is_dead = Plan(), Counter[str](), False
        self.executor = Executor()
        self.query = self.scenario.query
        """As the last move left it."""
        self.moved_at = 0
        """The micro-batch that came after the last move."""
        self.old: Checkpoint | None = None
        """From which the last move was made."""
        self.is_fresh = False
        """No run has come to its rows since the last move: the old checkpoint still has what a power loss takes."""
        self.hidden: set[str] = set()
        self.late: list[tuple[int, int, States]] = []
        """In format 1: what attempts of tasks led to, by version and partition."""
        self.tried: dict[int, str] = {}
        """The rows with which each micro-batch was evaluated first."""
        self.is_damaged = False
        """Something was lost that nobody can bring back: a reader may be refused."""
        self.next_run: Run | None = None
        self.late_commits: list[Callable[[], Any]] = []
        """Commits of runs that are gone."""
        self.sink_options = SinkOptions(path="/table", partition_by="p", **self.scenario.sink)
        log: Disk | Store = Disk(self.reach) if self.scenario.storage == "disk" else Store(self.reach)
        self.checkpoint = Checkpoint("spark_purgatory/1", log, StateStore(self.scenario.format))
        self.judge = Judge(self)

    @property
    def sink(self) -> Mapping[str, Any]:
        return SINKS[self.settings.sink] if self.settings.sink else self.scenario.sink

    @property
    def wall_ms(self) -> int:
        return self.clock_ms + self.set_ms

    # --- points ----------------------------------------------------------------------------------------

    def reach(self, point: str) -> None:
        """A run is at a point: what the plan says happens."""
        if self.is_dead:
            raise Crash("the process is gone")
        self.reached[point] += 1
        if point.startswith("host "):
            self._at_host()
            return
        if self.plan.point != point or self.reached[point] != self.plan.at:
            return
        what, self.plan = self.plan.what, Plan()
        self.seen[f"{what} {point}"] += 1
        if what in ("another run", "late commit"):
            self._another_run() if what == "another run" else self._do_late_commit_arrives()
            return
        self.is_dead = True
        if what == "power loss":
            self.lose_power()
        raise Crash(point)

    def _at_host(self) -> None:
        if self.random.random() < 0.01:
            self.seen["a task fails"] += 1
            raise Lost

    def _another_run(self) -> None:
        """A second run begins while this one stands; it makes some micro-batches, and goes on as the query's run.

        Or it ends at a point near a commit, and this one goes on. The rows of both are the same: with other rows there
        is a gap, which the promises tell.
        """
        self.excused.update(("ForeignWriterError", "StagingError", "ConcurrentRun"))
        stands, self.run = self.run, Run(self, self.settings)
        if self.random.random() < 0.3:
            self.plan = Plan("crash", self.random.choice(NEAR_COMMITS))
            self.reached.clear()
        for _ in range(self.random.choice((1, 2))):
            self.guarded(lambda: self.run.micro_batch(1) if self.run else None)
        self.plan = Plan()
        self.next_run, self.run = self.run, stands

    def lose_power(self) -> None:
        """What was not synchronised may be gone: staged files of the last micro-batches, and Spark's last commit.

        Entries of the staging log are synchronised. So only what Spark has lost explains that the query stops.
        """
        self.checkpoint.log.lose_power(self.random)
        if self.is_fresh:
            self.seen["power lost right after a move"] += 1
            self.excused.update(("StagingError", "ForeignWriterError"))
        self.executor = Executor()
        for name, (_, staged_ms) in list(self.checkpoint.files.items()):
            if staged_ms >= self.wall_ms - 2 and self.random.random() < 0.15:
                if file_at(f"/{name}").batch_id >= self.checkpoint.next_batch:
                    self.checkpoint.files[name] = CUT, staged_ms  # It does not count, so nothing reads it.
                    self.seen["staged files cut"] += 1
                    continue
                del self.checkpoint.files[name]
                self.is_damaged = True
        if self.checkpoint.next_batch > self.moved_at and self.random.random() < 0.2:
            self.lose_commit()
            self.excused["StagingError"] += 1
        if self.is_damaged:
            self.seen["staged files lost"] += 1
            self.excused["StagingError"] += 1

    def lose_commit(self) -> None:
        """Spark's last entry of its commits is gone; the files of a move have been there for longer."""
        if self.checkpoint.next_batch > self.moved_at:
            del self.checkpoint.commits[max(self.checkpoint.commits)]

    @contextmanager
    def instead(self, checkpoint: Checkpoint) -> Iterator[None]:
        own, plan, disks, self.checkpoint, self.plan = self.checkpoint, self.plan, DISKS[:], checkpoint, Plan()
        DISKS[-1:] = [checkpoint.log] if isinstance(checkpoint.log, Disk) else disks[-1:]
        try:
            yield
        finally:
            self.checkpoint, self.plan, DISKS[:] = own, plan, disks

    def listed_files(self) -> list[str]:
        return [name for name in self.checkpoint.files if name not in self.hidden]

    @property
    def lag(self) -> int:
        return self.checkpoint.log.lag if isinstance(self.checkpoint.log, Store) else 0

    def fails_to_stage(self) -> bool:
        """Whether the disk is full as rows are staged."""
        return "full while staging" in self.checkpoint.log.fails

    # --- steps -----------------------------------------------------------------------------------------

    def play(self, steps: Sequence[Step], look: Callable[[], None] = lambda: None) -> None:
        """A history, and its end; with ``look`` after each step."""
        with self.now():
            for step in steps:
                self.random = random.Random(step.seed)
                getattr(self, f"_do_{step.what.replace(' ', '_').replace('-', '_')}")(**_names(step.given))
                self.judge.look()
                look()
            self.random = random.Random(1)
            self.judge.at_the_end(self.finish())

    @contextmanager
    def now(self) -> Iterator[None]:
        """It is the simulation that is played."""
        NOW.append(self)
        is_on_disk = isinstance(self.checkpoint.log, Disk)
        DISKS.extend([self.checkpoint.log] if isinstance(self.checkpoint.log, Disk) else [])
        try:
            yield
        finally:
            NOW.pop()
            del DISKS[len(DISKS) - is_on_disk :]

    def guarded(self, act: Callable[[], Any]) -> str:
        """Let a run do something; the name of the error that ended it, "" if none did."""
        name = ""
        try:
            act()
        except Crash:
            name = "Crash"
        except (PurgatoryError, ConcurrentRun, PySparkException) as error:
            name = type(error).__name__
            self.seen[f"stopped: {name}"] += 1
            if not self.excused[name]:
                raise Wrong(f"the query stopped, and nothing was done to it that explains it: {error!r}") from error
        self.is_dead = False
        if name:
            self.end_run()
        if self.next_run is not None:
            goes_on = self.next_run.batch_id == self.checkpoint.next_batch
            self.run, self.next_run = self.next_run if goes_on else None, None
        return name

    def end_run(self) -> None:
        """What the run began beside its micro-batches may still come through."""
        self.late_commits += [] if self.under_way is None else [self.under_way]
        self.run = self.under_way = None

    def living(self) -> Run:
        """The run that goes on, or a new one."""
        self.run = self.run or Run(self, self.settings)
        return self.run

    def finish(self) -> str:
        """To the end of the source with a drain; the error that stops the query every time, "" if none does."""
        self.run, self.settings = None, Settings()
        stopped = ""
        if isinstance(self.checkpoint.log, Store):
            self.checkpoint.log.lag = 0
        for _ in range(MOST_RESTARTS):
            stopped = self.guarded(self._to_the_end)
            if not stopped:
                return ""
        return stopped

    def _to_the_end(self) -> None:
        run, end = self.living(), len(self.scenario.batches)
        # Two more micro-batches without rows: the watermark is at its end in them.
        while run.batch_id < 2 or self.checkpoint.offsets[run.batch_id - 2][1] < end:
            run.micro_batch(1)
        self._drained(run)

    def _drained(self, run: Run, everything: bool = True) -> None:
        """What `AccumulatorQuery.awaitTermination` does."""
        if not run.sender.is_true(SPARK):  # type: ignore[arg-type]
            run.sender = SimulatedSender(self, self.sink)
        run.sender.drain(SPARK, everything)  # type: ignore[arg-type]

    def _do_micro_batch(self, files: int = 1, at: int = 1, commits: Sequence[str] = (), **given: Any) -> None:
        """What is to happen in it stays so until it happens, be it micro-batches later."""
        for what in PLANNED:
            if point := given.get(what.replace(" ", "_")):
                self.plan = Plan(what, point, at)
                self.reached.clear()
        if storage := given.get("storage"):
            self.checkpoint.log.fails = list(storage)
            self.excused["StagingError"] += 1
        if commits:
            self.table.fails = list(commits)
        if {"refused", "lasting"} & set(commits):
            self.excused["StorageError"] += 1
        died = self.guarded(lambda: self.living().micro_batch(files))
        self.seen[died or "a micro-batch ends"] += 1

    def _do_restart(
        self, drain: bool, timeout: int, workers: str, columns: str = "s", steps: int = 0, sink: str = ""
    ) -> None:
        if drain and self.run is not None:
            self.guarded(lambda: self._drained(self.living()))
        if workers == "gone":
            self.executor = Executor()
        if steps != self.settings.steps:
            self.excused["StateVersionError"] += 1
        self.end_run()
        self.settings = Settings(timeout, columns, steps, sink)

    def _do_scheduled_run(self, files: Sequence[int], drain: str, set_ms: int, **given: Any) -> None:
        """A run that begins hours after the last, and ends with a drain of everything, of what is ripe, or killed."""
        self.end_run()
        self.clock_ms, self.set_ms = self.clock_ms + 3_600_000, set_ms
        for number in files:
            self._do_micro_batch(number, **given)
            if self.run is None:
                return
            given = {}
        if drain:
            self.guarded(lambda: self._drained(self.living(), everything=drain == "all"))

    def _do_move(self, shards: int, partitions: int, host: str) -> None:
        """The query is stopped, and goes on in a new checkpoint, in other shards and perhaps on the other host."""
        checkpoint, at = self.checkpoint, self.checkpoint.next_batch
        self.end_run()
        states = dict[int, Any]()
        for partition in range(self.query.partitions) if at else ():
            states |= checkpoint.states.load(at, partition, checkpoint.commits[at - 1])
        if not states:
            self.seen["no state to move"] += 1
            return
        to = self.query._replace(host=host or self.query.host, shards=shards, partitions=partitions)
        use_release(self.settings)
        try:
            made = moved(self.query, states, to)
        except StateVersionError:
            self.seen["a move by another release"] += 1
            if not self.excused["StateVersionError"]:
                raise
            return
        self.old = checkpoint
        self.checkpoint = checkpoint = checkpoint.copied()
        if isinstance(checkpoint.log, Disk):
            DISKS[-1] = checkpoint.log
        checkpoint.commits[at - 1] = {partition: checkpoint.states.name("moved") for partition in range(partitions)}
        for partition, name in checkpoint.commits[at - 1].items():
            mine = {shard: state for shard, state in made.items() if shard % partitions == partition}
            checkpoint.states.save(at, partition, name, mine)
        self.query, self.moved_at, self.late, self.is_fresh = to, at, [], True
        self.seen[f"a move to the {to.host} host"] += 1

    def _do_flush(self) -> None:
        self.living().sender.flush_requested = True

    def _do_late_commit_arrives(self) -> None:
        """What a run that is gone began beside its micro-batches comes through."""
        for commit in self.late_commits:
            self.seen["a late commit"] += 1
            with suppress(PurgatoryError, PySparkException):
                commit()
        self.late_commits = []

    def _do_late_state(self) -> None:
        """In format 1 a worker that outlived its run may write what an attempt of the last micro-batch led to."""
        found = [each for each in self.late if each[0] == self.checkpoint.next_batch]
        if found:
            self.seen["a late state"] += 1
            version, partition, states = self.random.choice(found)
            self.checkpoint.states.save(version, partition, "", states)

    def _do_last_commit_lost(self, commits: int) -> None:
        self.run = None
        self.excused["StagingError"] += 1
        self.lose_commit()

    def _do_neighbour(self, what: str) -> None:
        if self.table.id is not None:
            self.table.neighbour() if what == "append" else self.table.optimize()

    def _do_history_cut(self, kept: int) -> None:
        if self.table.id is not None:
            self.table.clean_up(kept)

    def _do_restore(self, back: int) -> None:
        if self.table.id is not None and self.table.restore(back):
            self.judge.is_undone = True
            self.excused["TableLostError"] += 1

    def _do_list_lags(self, by: int) -> None:
        assert isinstance(self.checkpoint.log, Store)
        self.checkpoint.log.lag = by
        self.excused.update(("ForeignWriterError", "StagingError", "TableLostError"))


def _names(given: Any) -> dict[str, Any]:
    return {name.replace(" ", "_"): value for name, value in given.items()}
