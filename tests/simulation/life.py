"""A long life of one query: thousands of drains and restarts, and what is left of them in files, entries and memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.simulation.driver import Settings
from tests.simulation.play import quiet
from tests.simulation.simulation import PLANNED, Plan, Simulation
from tests.simulation.storage import Disk
from tests.simulation.tasks import Query, entries_of
from tests.simulation.world import END_MS, NEAR_COMMITS, SINKS, Step, scenario
from tests.support.worlds import Batch

SECOND_US = 1_000_000
KEPT_VERSIONS = 30
"""Of the table's history."""
LINGER_S = 10
OF_LIFE = EngineSpec(Criterion("any_key"), identity_width=2, operation_ids=True, event_ids=True)
HOUR_MS = 3_600_000
SET_MS = (0, HOUR_MS, -HOUR_MS, 24 * HOUR_MS, -24 * HOUR_MS, 87_600 * HOUR_MS, -87_600 * HOUR_MS)
"""Summer time where the machine's clock has local time, a wrong day, ten years: how far from right it may be set."""


class Endless(Sequence[Batch]):
    """Micro-batches of a second each: two operations that wait for three seconds, and an event for one of them."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> Batch: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Batch, ...]: ...
    def __getitem__(self, at: int | slice) -> Batch | tuple[Batch, ...]:
        if isinstance(at, slice):
            return tuple(self[number] for number in range(*at.indices(self.length)))
        time_us = (at + 10) * SECOND_US
        operations = [
            {"id": f"{at}-{name}", "keys": [f"{at}-{name}"], "created": time_us, "deadline": time_us + 3 * SECOND_US,
             "rule": "any_key", "need": None, "level": None, "row": f"row {at}-{name}"} for name in "ab"
        ]  # fmt: skip
        event = {"key": f"{at}-a", "time": time_us + 1, "kind": None, "value": None}
        return Batch(operations, [{**event, "event_id": None, "operation_id": None}], (at + 8) * 1000)


def in_turn(length: int, rng: random.Random) -> tuple[Batch, ...]:
    """The rows of a life in files that bring both sides, one or none; the watermark follows from all rows before."""
    found, newest_us = list[Batch](), {"created": 0, "time": 0}
    for batch in Endless(length)[:length]:
        files = [(batch.operations, batch.events)]
        if rng.random() > 0.3:
            files = [(batch.operations, []), ([], batch.events)][:: rng.choice((1, -1))]
        if rng.random() < 0.3:
            files.append(([], []))
        for sides in files:
            found.append(Batch(*sides, max(0, min(newest_us.values()) // 1000 - 1000)))
            for name, rows in zip(newest_us, sides, strict=True):
                newest_us[name] = max([newest_us[name], *(row[name] for row in rows)])
    return (*found, Batch([], [], END_MS))


def scheduled(runs: int, host: str, seed: int = 0) -> tuple[Simulation, Simulation]:
    """A life of so many runs hours apart, as a scheduler starts them, and one run over the same rows."""
    rng = random.Random(f"schedule {seed}")
    steps = []
    for _ in range(runs):
        given: dict[str, Any] = {
            "files": rng.choices((0, 1, 1, 2), k=rng.randrange(3)),
            "drain": rng.choice(("", "ripe", "ripe", "all")),
        }
        if rng.random() < 0.3:
            given |= {"crash": rng.choice(NEAR_COMMITS), "at": rng.choice((1, 1, 2))}
        given["set_ms"] = rng.choice(SET_MS) if rng.random() < 0.1 else 0
        steps.append(Step("scheduled run", rng.randrange(1 << 30), given))
    query = Query(OF_LIFE, host, 1, False, 1)
    sink = {"linger": "5 hours", "delivery_timeout": "2 days", "batch_size": "0.5 KiB"}
    drawn = replace(
        scenario(0), name=f"schedule {runs} {seed}", query=query, criterion={"rule": "any_key", "need": 1.0}, format=2
    )
    drawn = replace(drawn, batches=in_turn(runs // 3, rng), storage="disk", sink=sink, late=False, timeouts=(1,))
    lives = Simulation(drawn), Simulation(drawn)
    lives[0].judge.most_entries = 200  # Each run has notes of its own, and those of 32 drains are kept.
    with quiet():
        lives[0].play(steps)
        lives[1].play(())
    return lives


class Left(NamedTuple):
    """What there is at some time."""

    entries: int
    files: int
    states: int
    log_entries: int
    epochs: int


def live(
    drains: int, restarts: int, host: str, seed: int = 0, clock_is_set: float = 0
) -> tuple[list[Left], Simulation]:
    """A life of so many drains, one a micro-batch, and so many restarts, one in two of them a crash.

    Where the clock is set, so often a micro-batch, each takes a second, and rows linger for `LINGER_S`.
    """
    rng = random.Random(f"life {seed}")
    query = Query(OF_LIFE, host, 1, False, 1)
    endless: Any = Endless(drains + 1)
    drawn = replace(scenario(0), name="life", query=query, batches=endless, format=2, storage="disk", late=False)
    lingers = {"linger": f"{LINGER_S} seconds", "delivery_timeout": "1 hour"}
    sink = lingers if clock_is_set else SINKS["nothing lingers"]
    simulation = Simulation(replace(drawn, sink=sink, beside="at once", timeouts=(1,)))
    found = []
    with quiet(), simulation.now():
        while simulation.checkpoint.next_batch < drains:
            number = simulation.checkpoint.next_batch
            if clock_is_set and rng.random() < clock_is_set:
                simulation.set_ms = rng.choice(SET_MS)
                simulation.seen["the clock is set"] += 1
            simulation.clock_ms += 1000 * bool(clock_is_set)
            if rng.random() < restarts / drains:
                simulation.seen["restart"] += 1
                if rng.random() < 0.5:
                    simulation.plan = Plan(PLANNED[0], rng.choice(NEAR_COMMITS), 1)
                    simulation.reached.clear()
                else:
                    simulation.run, simulation.settings = None, Settings()
            simulation.guarded(lambda: simulation.living().micro_batch(1))
            if number % 50 == 0 and simulation.table.id is not None:
                simulation.table.clean_up(KEPT_VERSIONS)
            if simulation.run is not None:
                found.append(_left(simulation))
    return found, simulation


def lost_or_doubled(simulation: Simulation, last: int = 3) -> int:
    """Rows of all micro-batches but the last few that the table does not have once."""
    numbers = [each.numbers for _, each in sorted(simulation.judge.micro_batches.items())]
    settled = Counter(row for rows in numbers[:-last] for row in rows)
    every = Counter(row for rows in numbers for row in rows)
    table = simulation.table.ours()
    return (settled - table).total() + (table - every).total()


def _left(simulation: Simulation) -> Left:
    run, checkpoint = simulation.run, simulation.checkpoint
    assert run is not None and isinstance(checkpoint.log, Disk)
    states = run.evaluated[max(run.evaluated)].states[0].values()
    run.evaluated = {number: each for number, each in run.evaluated.items() if number >= run.batch_id - 2}
    return Left(
        entries=len(checkpoint.log.names),
        files=len(checkpoint.files),
        states=len(checkpoint.states.files),
        log_entries=max(map(entries_of, states), default=0),
        epochs=len(run.sender.ledger.epochs),
    )
