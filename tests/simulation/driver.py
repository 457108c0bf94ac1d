"""Spark's driver: offset log, micro-batches, attempts of tasks, commit log. A `Run` is a driver's life."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spark_purgatory.core.state import step_log
from spark_purgatory.spark.host import log_host
from tests.simulation.judge import Wrong
from tests.simulation.sink import Frame, SimulatedSender
from tests.simulation.storage import Disk, Store
from tests.simulation.tasks import (
    ORDERS,
    Lost,
    Query,
    Rows,
    States,
    StateStore,
    arrived,
    blob_task,
    following,
    log_task,
)

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

STEP_VERSION = step_log.STEP_VERSION


class ConcurrentRun(Exception):
    """Another run has written an entry of Spark's logs that this one was to write."""


@dataclass
class Checkpoint:
    """A query's durable folder."""

    app_id: str
    log: Disk | Store
    states: StateStore
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    commits: dict[int, dict[int, str]] = field(default_factory=dict)
    """By micro-batch: the state of each partition that counts."""
    files: dict[str, tuple[dict[str, list[int]], int]] = field(default_factory=dict)
    """Staged files: rows by table partition, `CUT` if a power loss cut the file, and when each was written."""

    def copied(self) -> Checkpoint:
        copy, states = replace(self, log=self.log.copied()), dict(self.states.files)
        copy.states = replace(self.states, files=states)
        copy.offsets, copy.commits, copy.files = dict(self.offsets), dict(self.commits), dict(self.files)
        return copy

    @property
    def next_batch(self) -> int:
        return max(self.commits, default=-1) + 1


@dataclass
class Evaluation:
    """What a micro-batch gave, as a run evaluated it."""

    rows: Rows
    numbers: list[int]
    results: list[dict[str, Any]]
    names: dict[int, str]
    """Of the states."""
    states: dict[int, States]
    first: Evaluation | None = None
    """That of the first purgatory of a chain."""


@dataclass
class Settings:
    """What may differ between runs."""

    timeout: int = 1
    columns: str = "s"
    steps: int = 0
    sink: str = ""
    """Of `SINKS`; "" that of the scenario."""


def use_release(settings: Settings) -> None:
    """Let the library be of the release that the settings say."""
    for module in (log_host, step_log):
        setattr(module, "STEP_VERSION", STEP_VERSION + settings.steps)  # noqa: B010


class Run:
    """A driver's life."""

    def __init__(self, simulation: Simulation, settings: Settings) -> None:
        self.simulation, self.settings = simulation, settings
        self.uuid = f"{simulation.random.getrandbits(128):032x}"
        self.uuid = "-".join(self.uuid[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        self.sender = SimulatedSender(simulation, simulation.sink)
        self.evaluated: dict[int, Evaluation] = {}
        self.batch_id = simulation.checkpoint.next_batch

    def micro_batch(self, files: int) -> None:
        """Plan the next micro-batch, run it, and commit it."""
        simulation, checkpoint, batch_id = self.simulation, self.simulation.checkpoint, self.batch_id
        if batch_id not in checkpoint.offsets:
            start = checkpoint.offsets[batch_id - 1][1] if batch_id else 0
            simulation.reach("before offsets")
            if batch_id in checkpoint.offsets:
                raise ConcurrentRun("offsets")
            checkpoint.offsets[batch_id] = start, min(start + files, len(simulation.scenario.batches))
        simulation.reach("after offsets")
        self.sender(Frame(self, batch_id, self.settings.columns), batch_id)  # type: ignore[arg-type]
        if batch_id not in self.evaluated:
            raise Wrong(f"micro-batch {batch_id} was not evaluated: Spark cannot commit its state")
        simulation.reach("before commits")
        if batch_id in checkpoint.commits:
            raise ConcurrentRun("commits")
        checkpoint.commits[batch_id] = self.evaluated[batch_id].names
        simulation.judge.committed(batch_id, self.evaluated[batch_id])
        simulation.reach("after commits")
        self.batch_id += 1
        simulation.clock_ms += 1

    def evaluate(self, batch_id: int) -> list[int]:
        """The rows of a micro-batch, by tasks in any order; their states are stored."""
        simulation, checkpoint, query = self.simulation, self.simulation.checkpoint, self.simulation.query
        rows = simulation.scenario.rows(*checkpoint.offsets[batch_id], self.settings.timeout)
        if simulation.tried.setdefault(batch_id, rows.name) != rows.name:
            simulation.seen["a replay with other rows"] += 1
        use_release(self.settings)
        found = self._evaluated(batch_id, query, rows)
        if query.then is not None:
            outcomes = [simulation.judge.meaning[number] for number in found.numbers]
            second = self._evaluated(batch_id, query.then, following(rows, outcomes), query.partitions)
            found = replace(second, names=found.names | second.names, first=found)
        simulation.is_fresh = False
        simulation.reach("after tasks")
        self.evaluated[batch_id] = found
        return found.numbers

    def _evaluated(self, batch_id: int, query: Query, rows: Rows, first: int = 0) -> Evaluation:
        """What one purgatory gives, whose state partitions are from the first one on."""
        simulation, checkpoint = self.simulation, self.simulation.checkpoint
        before = checkpoint.commits[batch_id - 1] if batch_id else {}
        found = Evaluation(rows, [], [], {}, {})
        for at in range(query.partitions):
            partition = first + at
            attempts = self._attempts(query, rows, at, checkpoint.states.load(batch_id, partition, before))
            for number, (_, states) in enumerate(attempts):
                name = checkpoint.states.name(f"{self.uuid} {number}")
                checkpoint.states.save(batch_id + 1, partition, name, states)
                simulation.late = [*simulation.late[-8:], (batch_id + 1, partition, states)]
            results, _ = simulation.random.choice(attempts)
            counts = simulation.random.randrange(len(attempts)) if query.host == "log" else len(attempts) - 1
            counts = len(attempts) - 1 if checkpoint.states.format == 1 else counts
            found.names[partition] = checkpoint.states.name(f"{self.uuid} {counts}")
            found.states[partition] = attempts[counts][1]
            found.results += results
        blobs = [result["blob"] for result in found.results]
        found.numbers = [number for blob in blobs for number in simulation.judge.numbers_of(blob, query.spec)]
        return found

    def _attempts(
        self, query: Query, rows: Rows, partition: int, before: States
    ) -> list[tuple[list[dict[str, Any]], States]]:
        """One to three attempts of a state partition's task that have a result, each with the rows in some order."""
        simulation, draw = self.simulation, self.simulation.random
        found: list[tuple[list[dict[str, Any]], States]] = []
        wanted = draw.choice((1, 1, 1, 2, 3))
        while len(found) < wanted:
            sent = arrived(query, rows, draw.randrange(ORDERS))
            mine = {shard: each for shard, each in sent.items() if shard % query.partitions == partition}
            states = dict(before)
            if query.host == "blob":
                found.append((blob_task(query, states, mine, rows.watermark_ms), states))
                continue
            worker = simulation.executor.worker(draw)
            try:
                results = log_task(query, states, mine, rows.watermark_ms, worker, simulation.reach)
            except Lost:
                simulation.executor.lose(worker)
            else:
                found.append((results, states))
        return found
