"""One stream of the law: a random world in files, the purgatory that resolves it, and what the oracle says of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from spark_purgatory import Completions, Operations, Purgatory
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.criteria import Criterion
from tests.support.engine_driver import multiset
from tests.support.law_worlds import draw
from tests.support.oracle import decide
from tests.support.streams import Host, Landing
from tests.support.worlds import STEP_US, World, splits

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")
CLOSING = {"id": "closing", "keys": ["closing"], "row": "closing"}
"""Created beyond all deadlines: its time lets everything else be decided."""


@dataclass(frozen=True)
class LawStream:
    """What one seed draws."""

    world: World
    criterion: dict[str, Any]
    several: bool
    delays_us: dict[str, int]
    shards: int
    batches: int

    def purgatory(self, host: str, **options: Any) -> Purgatory:
        """On that host; ``options`` are more of `Purgatory`."""
        return Purgatory(
            operations=Operations(
                id="id",
                keys="keys" if self.several else "key",
                created="created",
                deadline="deadline",
                watermark=timedelta(microseconds=self.delays_us["created"]),
            ),
            completions=Completions(
                key="key", time="time", value="value", watermark=timedelta(microseconds=self.delays_us["time"])
            ),
            criterion=Criterion(self.criterion["rule"], self.criterion["need"]),
            emit="final",
            shards=self.shards,
            host=cast("Host", host),
            **options,
        )

    def landed(self, folder: Path) -> Landing:
        return Landing(folder).add(*([with_file_columns(row) for row in side] for side in self.world))

    def landed_in_batches(self, folder: Path, seed: int, batches: int) -> Landing:
        """The same, a file a side and micro-batch, in an order in which every row is on time; once in a folder."""
        landing = Landing(folder)
        if landing.is_landed:
            return landing
        cut = splits(
            random.Random(seed),
            *self.world,
            batches,
            operations_delay_us=self.delays_us["created"],
            events_delay_us=self.delays_us["time"],
        )
        for batch in cut[:-3]:
            landing.add(*([with_file_columns(row) for row in side] for side in (batch.operations, batch.events)))
        return landing

    def expected(self, watermark_us: int | None) -> Counter[Any]:
        """What the oracle decides by that watermark; None: all of it."""
        return multiset(
            decide(*self.world, doubles=True, criterion=self.criterion, watermark_us=watermark_us), *COLUMNS
        )


def law_stream(seed: int, worlds: int = 1) -> LawStream:
    """The stream of a seed; several ``worlds`` share it and nothing else."""
    rule = RULES[seed % len(RULES)]
    several = seed % 2 == 1
    rng, world, criterion = draw(seed * 7919 + 12, rule, several, worlds=worlds, spoiled=False, extremes=False)
    if rule in ("quorum", "count"):
        # A number that holds before any event, or that the one key cannot reach, is refused; rows may bring it.
        criterion["need"] = 1 if rule == "quorum" and not several else max(criterion["need"], 1)
        for row in world.operations:
            row["need"] = criterion["need"]
    for event in world.events:
        event.update(event_id=None, operation_id=None)  # the files have no such columns
    delays_us = {"created": rng.choice((0, 3 * STEP_US)), "time": rng.choice((0, 3 * STEP_US))}
    rows = [("created", row) for row in world.operations] + [("time", row) for row in world.events]
    end_us = max(row["deadline"] if field == "created" else row["time"] for field, row in rows) + 3 * STEP_US
    world.operations.append({**CLOSING, "created": end_us, "deadline": end_us, **criterion})
    world.events.append({"key": "closing-other", "time": end_us})
    return LawStream(
        world,
        criterion,
        several,
        delays_us,
        shards=rng.choice((1, 3, 5)),
        batches=rng.choice((2, 4)),
    )


def with_file_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the columns that the files have."""
    kept = ("id", "keys", "created", "deadline", "row", "key", "time", "value")
    return {name: row[name] for name in kept if name in row}
