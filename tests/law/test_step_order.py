"""A step is a function of the set of its rows (semantics 3.5): not of their order, nor of the batches they come in.

Two queries take the same micro-batches, each row of each step in an order and in Arrow batches of its own. After every
step both must have given the same outcomes, whole rows with their evidence and reasons, and counted the same; and what
they keep must be the same, read as tables. Now and then one goes on from the other's state, as the next
attempt of a task does where Spark kept the state of one attempt and the rows of another.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.export import events_tables, ids_table, operations_table
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.spark.host.exchange import to_blob
from tests.support import engine_driver
from tests.support.engine_driver import Rows, Shards, multiset
from tests.support.law_worlds import COLUMNS, COMPLETE_ONLY, ORPHANS, carrying, delayed, draw, noted, spec_of
from tests.support.law_worlds import told as told_of
from tests.support.now_and_then import EVERY_CASE, each_commit
from tests.support.oracle import KINDS, Evidence
from tests.support.oracle_early import EarlyOracle
from tests.support.worlds import STEP_US, TYPES, Batch, World, splits

SEEN: Counter[str] = Counter()
"""What the worlds that were compared had in them."""


class Shuffled(Shards):
    """Shards whose rows come in an order and in Arrow batches of their own."""

    def __init__(self, spec: EngineSpec, rng: random.Random, **layout: Any) -> None:
        super().__init__(spec, restarts=rng, **layout)
        self.rng = rng

    def sent(self, operations: Rows, events: Rows, watermark_ms: int) -> Step:
        ops, evs = (self.rng.sample(rows, len(rows)) for rows in (operations, events))
        made = engine_driver.operations_table(ops, self.several, self.hash_bits, self.spec.by_row, self.spec.number)
        # A column that no row fills is there all the same, as in a query.
        tables = made if ops else None, engine_driver.events_table(evs, self.hash_bits, self.spec) if evs else None
        return Step(watermark_ms, *(self.cut(table) for table in tables))

    def cut(self, table: pa.Table | None) -> list[bytes]:
        """The rows in some Arrow batches, as a task receives them."""
        if table is None:
            return []
        cuts = sorted(self.rng.randint(0, len(table)) for _ in range(self.rng.choice((0, 1, 3))))
        parts = zip([0, *cuts], [*cuts, len(table)], strict=True)
        return [to_blob(table.slice(start, end - start)).to_pybytes() for start, end in parts]


def kept(engine: EventTimePurgatory) -> Counter[Any]:
    """What an engine keeps, as the rows of its export. No value and -inf are one: neither raises a level."""
    tables = [operations_table(engine, ["id", "row"]), ids_table(engine), *events_tables(engine)]
    rows = [row for table in tables if table is not None for row in table.to_pylist()]
    return Counter(repr({**row, "value": None} if row.get("value") == -math.inf else row) for row in rows)


def differing(first: Counter[Any], second: Counter[Any]) -> tuple[Counter[Any], Counter[Any]]:
    """What each has alone."""
    return first - second, second - first


NOTHING: tuple[Counter[Any], Counter[Any]] = Counter(), Counter()


def compare(seed: int) -> None:
    """Two queries over one random world, each with an order of its own within each step."""
    rng = random.Random(f"step order {seed}")
    several, shards, rule = rng.random() < 0.5, rng.choice((1, 1, 3)), rng.choice((*RULES, *["mixed"] * len(RULES)))
    kinds = rng.choice((KINDS, KINDS, COMPLETE_ONLY, ("complete", "extend")))
    of = rng.choice(("double", "double", *TYPES))
    _, world, criterion = draw(seed, rule, several, kinds=kinds, worlds=rng.choice((1, 4)), numbers=of)
    lookback_us, late = rng.choice((0, 0, 2 * STEP_US)), rng.random() < 0.4
    orphans = rng.choice((False, *ORPHANS)) if not several or shards == 1 else False
    spec = spec_of(
        criterion, final=rng.random() < 0.3, lookback_us=lookback_us, orphans=orphans, number=TYPES[of],
        tick_ms=rng.choice((1, 1, 7)),
    )  # fmt: skip
    if of == "double" and rng.random() < 0.6:
        world = noted(rng, world)
        spec = carrying(spec, rng.choice((1, 2, 100)), rng.random() < 0.5)
    if rng.random() < 0.3:
        world = World(world.operations, [{**event, "event_id": None} for event in world.events])
        spec = replace(spec, event_ids=False)
    batches = splits(rng, *redrawn(rng, world), rng.choice((1, 2, 4)), lookback_us=lookback_us)
    if late:
        batches = delayed(rng, batches, 0.4)
    run(rng, spec, batches, shards=shards, several=several, hash_bits=rng.choice((64, 64, 3)), where=f"{seed=}")
    SEEN["worlds"] += 1
    SEEN.update(final=spec.final, late=late, evidence=spec.evidence is not None, orphans=bool(orphans))


def redrawn(rng: random.Random, world: World) -> World:
    """The world with rows that differ in little: events of one id with another time or value, rows in their name."""
    events, operations = list(world.events), list(world.operations)
    for event in world.events:
        if rng.random() < 0.15:
            events.append(
                {**event, "value": rng.choice(world.events)["value"] if event["kind"] == "complete" else event["value"]}
            )
    for operation in world.operations:
        if rng.random() < 0.3:
            operations.append({**operation, "row": operation["row"] + rng.choice(("", "'", "''"))})
    return World(operations, events)


def run(rng: random.Random, spec: EngineSpec, batches: list[Batch], where: str, **layout: Any) -> None:
    first, second = (Shuffled(spec, random.Random(rng.random()), **layout) for _ in range(2))
    for number, batch in enumerate(batches):
        found, other = (Counter(repr(row) for row in query.step(*batch)) for query in (first, second))
        assert differing(found, other) == NOTHING, f"{where}, step {number}: outcomes"
        SEEN["duplicates"] += sum(n for row, n in found.items() if "'DUPLICATE'" in row)
        for shard in range(first.shards):
            one, two = first.engine(shard), second.engine(shard)
            assert one.outcomes.tally == two.outcomes.tally, f"{where}, step {number}: counters of shard {shard}"
            assert first.due_ms[shard] == second.due_ms[shard], f"{where}, step {number}: when shard {shard} is due"
            assert differing(kept(one), kept(two)) == NOTHING, f"{where}, step {number}: what shard {shard} keeps"
            if rng.random() < 0.2:
                second.running[shard] = restore(second.spec, save(one, first.shards), second.shards)


def compare_with_oracle(seed: int) -> None:
    """A random world under ``emit="early"``, some of its rows late, and the oracle beside it in every step."""
    rng = random.Random(f"early {seed}")
    several, rule = rng.random() < 0.5, rng.choice((*RULES, *["mixed"] * len(RULES)))
    kinds, of = rng.choice((KINDS, KINDS, COMPLETE_ONLY, ("complete", "extend"))), rng.choice(("double", *TYPES))
    _, world, criterion = draw(seed, rule, several, kinds=kinds, worlds=rng.choice((1, 4)), numbers=of)
    world, lookback_us = noted(rng, redrawn(rng, world)), rng.choice((0, 0, 2 * STEP_US))
    batches = splits(rng, *world, rng.choice((1, 2, 4, 9)), lookback_us=lookback_us)
    if rng.random() < 0.5:
        batches = delayed(rng, batches, 0.4)
    spec, evidence = spec_of(criterion, lookback_us=lookback_us, number=TYPES[of]), None
    if of == "double":
        evidence = Evidence(("note",), rng.choice((1, 2, 100)), rng.random() < 0.5)
        spec = carrying(spec, evidence.most, evidence.largest)
    oracle = EarlyOracle(
        criterion,
        lookback_us,
        TYPES[of] == "double",
        several,
        {type(event["value"]) for event in world.events},
        evidence,
    )
    engine = Shuffled(spec, rng, shards=rng.choice((1, 3)), several=several, hash_bits=rng.choice((64, 3)))
    for number, batch in enumerate(batches):
        found, expected = engine.step(*batch), oracle.step(*batch)
        where = f"{seed=}, step {number}: engine's alone, oracle's alone"
        columns = (*COLUMNS, "late")
        assert differing(multiset(found, *columns), multiset(expected, *columns)) == NOTHING, where
        assert evidence is None or differing(told_of(found), told_of(expected)) == NOTHING, where
    SEEN["worlds beside the oracle"] += 1


@pytest.mark.parametrize("block", each_commit(range(20), lambda block: block < 1))
def test_outcomes_counters_and_state_do_not_depend_on_the_order_within_a_step(block: int) -> None:
    for seed in range(50 * block, 50 * block + (50 if EVERY_CASE else 30)):
        compare(seed)


@pytest.mark.parametrize("block", each_commit(range(20), lambda block: block < 2))
def test_early_outcomes_are_those_of_the_oracle_micro_batch_by_micro_batch(block: int) -> None:
    for seed in range(50 * block, 50 * (block + 1)):
        compare_with_oracle(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_a_long_series_of_steps_does_not_depend_on_the_order_within_them(block: int) -> None:
    for seed in range(1_000_000 + 50 * block, 1_000_000 + 50 * (block + 1)):
        compare(seed)
        compare_with_oracle(seed)
