"""Crashes that were recorded on Spark, played again: each run is to end in the same micro-batch, and the table to be
the same.

A recording has what Spark planned, in the order of its micro-batches, and of each run of the query its time-out, the
point at which it crashed, and how far it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.simulation import world
from tests.simulation.driver import Run, Settings
from tests.simulation.judge import Wrong
from tests.simulation.play import quiet
from tests.simulation.simulation import Plan, Simulation
from tests.simulation.tasks import Query
from tests.support.law_worlds import spec_of
from tests.support.worlds import Batch

MINUTE_US = 60_000_000
OF_SPARK = {"applyInPandasWithState": "blob", "transformWithState": "log"}
LAST = "end-"
"""Ids of the operations that come last begin so: whether they wait is not compared."""


class RecordedRun(NamedTuple):
    """A run of the query on Spark."""

    timeout: int
    crashed_at: str
    """The failpoint; "" if it came to its end."""
    planned: int
    """The last micro-batch in Spark's offset log when it was over."""
    committed: int
    time: int = 1
    """The time that the run reached the point: a start reads an open drain back, which it did not when some crashed."""


class Recording(NamedTuple):
    """What happened on Spark."""

    host: str
    emit: str
    minutes: int
    """The shortest time-out, which each run multiplies."""
    batches: Sequence[Mapping[str, Any]]
    """Of each micro-batch: ``operations`` (id, microsecond), ``events`` (key, microsecond, id), ``watermark_ms``."""
    runs: Sequence[RecordedRun]
    table: Mapping[str, int]
    """How often each "id status" is there at the end."""

    @classmethod
    def of(cls, read: Mapping[str, Any]) -> Recording:
        return cls(**{**read, "runs": [RecordedRun(*run) for run in read["runs"]]})


def _scenario(recording: Recording, name: str) -> world.Scenario:
    criterion = {"rule": "any_key", "need": 1.0}
    spec = spec_of(criterion, final=recording.emit == "final", identity_width=2)
    numbers = iter(range(1 << 30))
    batches = []
    for batch in recording.batches:
        operations = [
            {"id": key, "keys": [key], "created": at_us, "deadline": at_us + recording.minutes * MINUTE_US,
             "rule": "any_key", "need": None, "level": None, "row": f"{key} row {next(numbers)}"}
            for key, at_us in batch["operations"]
        ]  # fmt: skip
        events = [
            {"key": key, "time": at_us, "kind": None, "value": None, "event_id": event_id, "operation_id": None}
            for key, at_us, event_id in batch["events"]
        ]
        batches.append(Batch(operations, events, batch["watermark_ms"]))
    return world.Scenario(
        name=name,
        query=Query(spec, OF_SPARK[recording.host], 2, False, 2),
        criterion=criterion,
        batches=tuple(batches),
        sink=world.SINKS["nothing lingers"],
        late=recording.emit == "early",
        timeouts=(2, 3, 4),
    )


def replayed(recording: Recording, name: str) -> Counter[str]:
    """The table at the end of the same history in the simulation; Wrong if a run comes to another end than on Spark."""
    simulation = Simulation(_scenario(recording, name))
    last_us = max(at_us for batch in recording.batches for _, at_us in batch["operations"])
    beyond_ms = last_us // 1000 + 24 * 3_600_000
    with quiet(), patch.object(world, "END_MS", beyond_ms), simulation.now():
        for number, run in enumerate(recording.runs):
            _play(simulation, run, number)
            simulation.judge.look()
        simulation.judge.at_the_end(simulation.finish())
    rows = (simulation.judge.meaning[row] for row in simulation.table.ours().elements())
    named = [(str(row["row"]).partition(" row ")[0], str(row["status"])) for row in rows]
    return Counter(" ".join(each) for each in named if not each[0].startswith(LAST))


def _play(simulation: Simulation, run: RecordedRun, number: int) -> None:
    checkpoint, ended = simulation.checkpoint, ""
    simulation.run = Run(simulation, Settings(run.timeout))
    simulation.settings = simulation.run.settings
    simulation.plan = Plan("crash", run.crashed_at, run.time) if run.crashed_at else Plan()
    simulation.reached.clear()

    def a_micro_batch() -> None:
        simulation.living().micro_batch(1)

    def a_drain() -> None:
        simulation._drained(simulation.living())

    while not ended and checkpoint.next_batch <= run.planned:
        ended = simulation.guarded(a_micro_batch)
    ended = ended or simulation.guarded(a_drain)
    simulation.plan = Plan()
    here, there = (ended, checkpoint.next_batch - 1), ("Crash" if run.crashed_at else "", run.committed)
    if here != there:
        raise Wrong(f"run {number}, {run}: it ended with {here}, and on Spark with {there}")
