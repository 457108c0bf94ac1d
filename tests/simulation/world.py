"""What a seed draws: a scenario (rows, query, sink, storage) and the steps of its history.

Each step has a seed of its own, so that a step does the same where others are left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from spark_purgatory.core.spec.codes import RULES
from tests.simulation.tasks import Query, Rows
from tests.support.law_worlds import a_need, delayed, of_one_rule, spec_of
from tests.support.oracle import KINDS
from tests.support.worlds import STEP_US, Batch, World, random_world, splits

SCENARIOS = 32
COLUMNS = pa.schema([("id", pa.string()), ("row", pa.string())])
"""Of operations, as outcomes have them."""
END_MS = 10_000_000
"""A watermark beyond every deadline."""
LONG = {"linger": "1 hour", "delivery_timeout": "2 hours"}
SINKS: Mapping[str, dict[str, Any]] = {
    "nothing lingers": {"linger": "0 seconds"},
    "files fill": {"batch_size": "0.5 KiB", **LONG},
    "all linger": LONG,
    "memory runs out": {
        "batch_size": "0.2 KiB",
        "buffer_memory": "0.4 KiB",
        "max_request_size": "0.2 KiB",
        "linger": "1 minute",
    },
}
BESIDE = ("", "at once", "late")

NEAR_COMMITS = (
    "after stage", "before intend", "after intend", "before commit", "after commit", "before read back",
    "after read back", "before clean up", "after clean up", "before return", "before commits", "after commits",
)  # fmt: skip
POINTS = (*NEAR_COMMITS, "before offsets", "after offsets", "before stage", "in stage", "after tasks")
DISK_POINTS = tuple(f"{when} {what}" for when in ("before", "after") for what in ("write", "sync", "rename", "remove"))


class Step(NamedTuple):
    """What happens next, and with which seed."""

    what: str
    seed: int
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join([self.what, *(f"{name}: {value}" for name, value in self.given.items() if value)])


@dataclass(frozen=True)
class Scenario:
    """All that a history happens to."""

    name: str
    query: Query
    criterion: Mapping[str, Any]
    batches: tuple[Batch, ...]
    format: int = 2
    """Of the checkpoint."""
    storage: str = "disk"
    """Where the staging log is: "disk" or "store"."""
    sink: Mapping[str, Any] = field(default_factory=dict)
    beside: str = ""
    late: bool = False
    """Some rows come behind the watermark."""
    timeouts: tuple[int, ...] = (1,)
    """By how much a run may multiply the time-outs."""

    def rows(self, start: int, end: int, timeout: int) -> Rows:
        """The rows of a micro-batch, as a run with that time-out evaluates them."""
        operations = [row for batch in self.batches[start:end] for row in batch.operations]
        events = [row for batch in self.batches[start:end] for row in batch.events]
        watermark_ms = self.batches[start].watermark_ms if start < len(self.batches) else END_MS
        name = f"{self.name} {start} {end} {timeout}"
        return Rows([_waiting(row, timeout) for row in operations], events, watermark_ms, name)

    def __str__(self) -> str:
        rows = f"{sum(len(b.operations) for b in self.batches)} operations"
        late = ", some late" if self.late else ""
        of = self.query
        return (
            f"scenario {self.name}: {rows}{late}, {self.criterion or 'rules by row'}, emit "
            f"{'final' if of.spec.final else 'early'}, {of.host}, {of.shards} shards in {of.partitions} partitions, "
            f"checkpoint format {self.format}, staging on a {self.storage}, sink {dict(self.sink)}, drains beside "
            f"{self.beside!r}"
        )


def _waiting(row: dict[str, Any], timeout: int) -> dict[str, Any]:
    created, deadline = row["created"], row["deadline"]
    if timeout == 1 or created is None or deadline is None:
        return row
    return {**row, "deadline": created + timeout * (deadline - created)}


@cache
def scenario(number: int) -> Scenario:
    """One of a few, so that what engines do with the same bytes need not be worked out anew."""
    rng = random.Random(f"scenario {number}")
    several, final = rng.random() < 0.4, rng.random() < 0.5
    rule = (*RULES, "mixed")[number % (len(RULES) + 1)]
    world, criterion = _world(rng, rule, several)
    lookback_us = rng.choice((0, 0, 2 * STEP_US))
    late = not final and rng.random() < 0.4
    batches = splits(rng, *world, rng.choice((2, 3)), lookback_us=lookback_us)
    if late:
        batches = delayed(rng, batches, 0.4)
    batches[-1] = batches[-1]._replace(watermark_ms=END_MS)
    spec = spec_of(
        criterion,
        final=final,
        lookback_us=lookback_us,
        identity_width=1 if several else 2,
        whole_operations=several,
        columns=COLUMNS,
    )
    shards = rng.choice((1, 1, 2))
    host = "log" if number % 4 == 3 else "blob"
    query = Query(spec, host, shards, several, rng.choice((1, shards)))
    format = 1 if rng.random() < 0.3 else 2
    return Scenario(
        name=str(number),
        query=query,
        criterion=criterion,
        batches=tuple(batches),
        format=format,
        storage=rng.choice(("disk", "disk", "store")),
        late=late,
        timeouts=(1,) if format == 1 else (1, 2),
    )


def _world(rng: random.Random, rule: str, several: bool) -> tuple[World, dict[str, Any]]:
    world = random_world(
        rng,
        n_operations=rng.choice((2, 3, 5)),
        n_events=6,
        n_keys=2,
        max_keys=2 if several else 1,
        rules=RULES if rule == "mixed" else (rule,),
        kinds=rng.choice((KINDS, ("complete",))),
        spoiled=rng.random() < 0.3,
        keyless=several,
    )
    if rule == "mixed":
        return world, {}
    criterion = a_need(rng, rule)
    return of_one_rule(world, criterion), criterion


def history(seed: int) -> tuple[Scenario, list[Step]]:
    rng = random.Random(f"history {seed}")
    drawn = scenario(rng.randrange(SCENARIOS))
    drawn = replace(drawn, sink=SINKS[rng.choice(sorted(SINKS))], beside=rng.choice(BESIDE))
    steps = []
    for _ in range(rng.randint(3, 8)):
        what = rng.choices(sorted(DRAWN), [DRAWN[name][0] for name in sorted(DRAWN)])[0]
        given = DRAWN[what][1](rng, drawn)
        if given is not None:
            steps.append(Step(what, rng.randrange(1 << 30), given))
    return drawn, steps


def _micro_batch(rng: random.Random, drawn: Scenario) -> dict[str, Any]:
    given: dict[str, Any] = {"files": rng.choice((1, 1, 2))}
    chance = rng.random()
    if chance < 0.45:
        given["crash"] = rng.choice(NEAR_COMMITS if rng.random() < 0.7 else (*POINTS, *DISK_POINTS))
    elif chance < 0.56:
        given["power loss"] = rng.choice((*POINTS, *DISK_POINTS))
    elif chance < 0.64:
        given["another run"] = rng.choice(POINTS)
    elif chance < 0.71:
        given["storage"] = ("",) * rng.randrange(12) + (rng.choice(("full", "lost answer")),)
    elif chance < 0.88:
        given["commits"] = tuple(rng.choices(("absent", "arrived", "", "refused", "lasting"), (6, 6, 3, 1, 1), k=2))
    if "crash" in given and rng.random() < 0.3:
        given["commits"] = (rng.choice(("absent", "arrived")),)
    if drawn.beside == "late" and rng.random() < 0.2:
        given["late commit"] = rng.choice(NEAR_COMMITS)
    if given.keys() & {"crash", "power loss", "another run", "late commit"}:
        given["at"] = rng.choice((1, 1, 1, 2, 3))
    return given


def _restart(rng: random.Random, drawn: Scenario) -> dict[str, Any]:
    steps = drawn.query.host == "log" and drawn.format == 2 and rng.random() < 0.2
    return {
        "drain": rng.random() < 0.3,
        "timeout": rng.choice(drawn.timeouts),
        "workers": rng.choice(("old", "gone")),
        "columns": rng.choice(("s", "s", "t")),
        "steps": int(steps),
        "sink": rng.choice(("", "", *sorted(SINKS))),
    }


def _move(rng: random.Random, drawn: Scenario) -> dict[str, Any]:
    shards = rng.choice((1, 2, 3))
    return {"shards": shards, "partitions": rng.choice((1, shards)), "host": rng.choice(("", "blob", "log"))}


DRAWN: Mapping[str, tuple[float, Any]] = {
    "micro-batch": (10, _micro_batch),
    "restart": (3, _restart),
    "move": (1, _move),
    "flush": (0.5, lambda rng, drawn: {}),
    "late commit arrives": (0.7, lambda rng, drawn: {}),
    "late state": (0.5, lambda rng, drawn: {} if drawn.format == 1 else None),
    "last commit lost": (0.3, lambda rng, drawn: {"commits": 1}),
    "neighbour": (0.4, lambda rng, drawn: {"what": rng.choice(("append", "optimize"))}),
    "history cut": (0.3, lambda rng, drawn: {"kept": rng.choice((1, 2))}),
    "restore": (0.15, lambda rng, drawn: {"back": rng.choice((1, 2, 3))}),
    "list lags": (0.15, lambda rng, drawn: {"by": rng.choice((1, 2))} if drawn.storage == "store" else None),
}
"""How often each step is drawn, and with what; None: not in this scenario."""
