"""The law of runs: the watermark, and so what is decided, follows from all rows read, whichever run read them.

`Clock` is Spark's: it keeps the watermark over runs, and forgets at each start what the inputs had brought.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.spark.checkpoint.start_check import latest, newest_of
from tests.support.engine_driver import Shards, multiset
from tests.support.law_worlds import COLUMNS, draw, spec_of
from tests.support.moves import moved
from tests.support.now_and_then import examples
from tests.support.oracle import KINDS, decide
from tests.support.worlds import STEP_US, splits, watermark_us_after

KILLS = ("after offsets", "before the commit", "after the commit")
FIELDS = ("created", "time")
SEEN: Counter[str] = Counter()
Rows = list[dict[str, Any]]


class Planned(NamedTuple):
    """A micro-batch in Spark's log of offsets."""

    operations: Rows
    events: Rows
    markers_us: tuple[int, ...]
    """The newest time of each input, if the run's marker rows are in it."""


class Clock:
    """Spark's watermark over two inputs."""

    def __init__(self, delays_us: tuple[int, int]) -> None:
        self.delays_us, self.watermark_ms = delays_us, 0
        self.start()

    def start(self) -> None:
        """A run begins. An input without a time in it counts as 0."""
        self.newest_us: list[int | None] = [None, None]

    def see(self, planned: Planned) -> None:
        """A micro-batch has been evaluated and committed."""
        sides = [row["created"] for row in planned.operations], [row["time"] for row in planned.events]
        for i, (side, marker) in enumerate(zip(sides, planned.markers_us or (None, None), strict=True)):
            times = [time_us for time_us in (*side, marker, self.newest_us[i]) if time_us is not None]
            self.newest_us[i] = max(times, default=None)
        parts = (
            0 if time_us is None else (time_us - delay) // 1000
            for time_us, delay in zip(self.newest_us, self.delays_us, strict=True)
        )
        self.watermark_ms = max(self.watermark_ms, min(parts))


class Query:
    """A query on a checkpoint, and its table."""

    def __init__(self, rng: random.Random, shards: Shards, clock: Clock) -> None:
        self.rng, self.shards, self.clock = rng, shards, clock
        self.planned: Planned | None = None
        self.table: Rows = []
        self.read: tuple[Rows, Rows] = ([], [])
        """What was committed."""

    def run(self, batches: list[tuple[Rows, Rows]], kill: str, at: int) -> int:
        """Run micro-batches to the end, or to a kill in the ``at``-th. Returns how many were planned."""
        self.clock.start()
        times = [newest for blob in self.shards.blobs if blob is not None for newest in newest_of(ShardState(blob))]
        left, number, marked = list(batches), 0, False
        while self.planned is not None or left or not marked:
            if self.planned is None:
                rows = left.pop(0) if left else ([], [])
                self.planned, marked = Planned(*rows, () if marked else latest(times)), True
            if self.micro_batch(kill if number == at else ""):
                return len(batches) - len(left)
            number += 1
            assert not marked or self.clock.watermark_ms == self.watermark_ms, "not a function of the rows read"
        before = -1
        while before < self.clock.watermark_ms:
            before = self.clock.watermark_ms
            self.planned = Planned([], [], ())
            self.micro_batch("")
        return len(batches)

    def micro_batch(self, kill: str) -> bool:
        """Run what is planned; True if the run is killed."""
        planned, before = self.planned, (list(self.shards.blobs), list(self.shards.due_ms))
        assert planned is not None
        if kill == "after offsets":
            return True
        rows = [self.rng.sample(side, len(side)) for side in planned[:2]]
        outcomes = self.shards.step(*rows, self.clock.watermark_ms)
        if kill == "before the commit":
            self.shards.blobs, self.shards.due_ms = before
            return True
        self.table += outcomes
        for side, more in zip(self.read, planned[:2], strict=True):
            side += more
        self.planned = None
        self.clock.see(planned)
        return bool(kill)

    @property
    def watermark_ms(self) -> int:
        """The watermark as semantics 3.11 has it."""
        rows = named(0, self.read[0]) + named(1, self.read[1])
        return watermark_us_after(rows, {}, dict(zip(FIELDS, self.clock.delays_us, strict=True)), 0) // 1000


@pytest.mark.parametrize("rule", [*RULES, "mixed"])
@given(seed=st.integers(0, 1 << 32), several=st.booleans())
@examples(4, 40)
def test_scheduled_runs_decide_what_the_oracle_says_of_the_rows_read_so_far(
    rule: str, seed: int, several: bool
) -> None:
    rng, world, criterion = draw(seed, rule, several, kinds=KINDS, worlds=4, extremes=False, spoiled=False)
    spec = spec_of(criterion, final=True)
    delays_us = rng.choice((0, 3 * STEP_US)), rng.choice((0, 3 * STEP_US))
    query = Query(rng, Shards(spec, rng.choice((1, 3)), several), Clock(delays_us))
    split = splits(rng, *world, 20, operations_delay_us=delays_us[0], events_delay_us=delays_us[1])
    whole = [(each.operations, each.events) for each in split[:-3]]
    batches = list(in_turn(rng, whole, delays_us))
    while batches:
        share = rng.choice((0, 1, 1, 2, 4))
        kill = rng.choice(("", "", *KILLS))
        planned = query.run(batches[:share], kill, rng.randrange(share + 1))
        batches = batches[planned:]
        SEEN["runs"] += 1
        if query.planned is not None or kill == "after the commit":
            SEEN["killed"] += 1
            continue
        expected = decide(
            *query.read,
            doubles=True,
            whole_operations=several,
            criterion=criterion,
            watermark_us=query.watermark_ms * 1000,
        )
        assert multiset(query.table, *COLUMNS) == multiset(expected, *COLUMNS)
        SEEN["compared"] += 1
        if rng.random() < 0.2:
            query.shards = moved(query.shards, spec, rng.choice((1, 2, 5)))
            SEEN["moved"] += 1


def in_turn(
    rng: random.Random, batches: list[tuple[Rows, Rows]], delays_us: tuple[int, int]
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the rows of both inputs together, or one after the other if all are on time then."""
    latest_us: dict[str, int] = {}
    delays = dict(zip(FIELDS, delays_us, strict=True))
    after_us = 0
    for rows in batches:
        first = rng.randrange(2)
        then_us = watermark_us_after(named(first, rows[first]), dict(latest_us), delays, after_us)
        others = [row[FIELDS[1 - first]] for row in rows[1 - first]]
        parts: list[tuple[Rows, Rows]] = [(rows[0], []), ([], rows[1])]
        is_late = any(time_us is not None and time_us <= then_us for time_us in others)
        yield from [rows] if is_late or rng.random() < 0.3 else parts[:: 1 - 2 * first]
        after_us = watermark_us_after(named(0, rows[0]) + named(1, rows[1]), latest_us, delays, after_us)


def named(side: int, rows: Rows) -> list[tuple[str, dict[str, Any]]]:
    """Return rows with the name of their time."""
    return [(FIELDS[side], row) for row in rows]
