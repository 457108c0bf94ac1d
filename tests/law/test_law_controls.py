"""The law where it is hardest: deadlines move, ids come again around them, and numbers are compared exactly.

Each stream carries many worlds that share nothing else, so that thousands of them are compared in little time; a
difference names the world's seed and number. `SEQUENCES` counts worlds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from time import perf_counter
from typing import Any

import pytest

from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import Orphans
from tests.support.engine_driver import Shards, multiset
from tests.support.law_worlds import COLUMNS, ORPHANS, draw, kinds_of, spec_of, split_orphans
from tests.support.now_and_then import each_commit
from tests.support.oracle import KINDS, decide
from tests.support.splits import splits
from tests.support.world_numbers import TYPES
from tests.support.worlds import STEP_US, World

WORLDS = 40
"""In one stream."""
BESIDE: dict[str, tuple[type, ...]] = {
    "double": (Decimal,),
    "tenths": (Decimal,),
    "bigint": (float, Decimal),
    "decimal": (float,),
}
"""Other types that needs and levels may have beside values of this one."""
SEQUENCES: Counter[str] = Counter()
SEEN: Counter[str] = Counter()
"""Statuses that the oracle gave."""
KINDS_SEEN: Counter[str] = Counter()
"""Worlds with something of each kind that few worlds have."""


@pytest.fixture(scope="module", autouse=True)
def told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell how many sequences were compared."""
    began = perf_counter()
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{sum(SEQUENCES.values()):,} sequences, {dict(SEQUENCES)}, in {perf_counter() - began:.0f} s")
        print(f"statuses: {dict(SEEN)}, worlds with {dict(KINDS_SEEN)}")


def compare(seed: int, numbers: str = "double") -> None:
    """Stream worlds in a random order and split through shards that restart, with or without lookback and orphans."""
    rng = random.Random(seed)
    several = rng.random() < 0.5
    shards = rng.choice((1, 1, 3))
    rule = rng.choice((*RULES, *["mixed"] * len(RULES)))
    kinds = rng.choice((KINDS, ("complete", "extend"), ("complete", "fail", "extend")))
    _, world, criterion = draw(seed, rule, several, kinds=kinds, worlds=WORLDS, numbers=numbers)
    if rng.random() < 0.3:
        of = rng.choice(BESIDE[numbers])
        world, criterion = needs_as(world, of), {**criterion, "need": of(criterion["need"])} if criterion else {}
    lookback_us = rng.choice((0, 0, STEP_US, 4 * STEP_US))
    orphans: Orphans = ORPHANS[seed % 2] if not several or shards == 1 else "none"
    batches = splits(
        rng,
        *world,
        rng.choice((2, 5, 9)),
        operations_delay_us=rng.choice((0, 3 * STEP_US)),
        events_delay_us=rng.choice((0, 3 * STEP_US)),
        lookback_us=lookback_us,
    )
    spec = spec_of(criterion, final=True, lookback_us=lookback_us, orphans=orphans, number=TYPES[numbers])
    engine = Shards(spec, shards, several, hash_bits=rng.choice((64, 64, 8)), restarts=rng)
    outcomes, left_over = split_orphans(engine.run(batches))
    doubles = TYPES[numbers] == "double"
    expected, unheard = split_orphans(
        decide(
            *world,
            criterion=criterion,
            lookback_us=lookback_us,
            orphans=orphans,
            doubles=doubles,
            whole_operations=several,
        )
    )
    SEQUENCES[numbers] += WORLDS
    KINDS_SEEN.update(kinds_of(world, several))
    SEEN.update(one["status"] for one in expected)
    got, want = multiset(outcomes, *COLUMNS), multiset(expected, *COLUMNS)
    where = f"{seed=} {numbers=} {rule=} {several=} {lookback_us=}"
    assert (got - want, want - got) == (Counter(), Counter()), f"{where}: engine's alone, oracle's alone"
    assert left_over == unheard, where


def needs_as(world: World, of: type) -> World:
    """The world with its needs and levels as numbers of another type than its values have."""

    def other(number: Any) -> Any:
        if isinstance(number, dict):
            return {key: other(level) for key, level in number.items()}
        return None if number is None else of(number)

    return World(
        [{**op, "need": other(op["need"]), "level": other(op["level"])} for op in world.operations], world.events
    )


@pytest.mark.parametrize("numbers", TYPES)
@pytest.mark.parametrize("seed", each_commit(range(8), lambda seed: seed < 2))
def test_moving_deadlines_ids_seen_again_and_exact_numbers_give_what_the_oracle_says(seed: int, numbers: str) -> None:
    compare(seed, numbers)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", TYPES)
@pytest.mark.parametrize("seed", range(1000, 1075))
def test_a_long_series_of_them_gives_what_the_oracle_says(seed: int, numbers: str) -> None:
    compare(seed, numbers)


@pytest.mark.parametrize("numbers", TYPES)
@pytest.mark.parametrize("rule", RULES)
def test_an_operation_that_names_a_key_twice_reads_needs_of_its_own_in_every_type(numbers: str, rule: str) -> None:
    need = {"double": 1.0, "tenths": 0.1, "bigint": 1, "decimal": Decimal("1.00")}[numbers]
    twice = {"id": "o", "keys": ["a", "b", "a"], "created": 10_000, "deadline": 20_000}
    operations = [{**twice, "rule": rule, "need": need, "level": None, "row": "o"}]
    events = [{"key": key, "time": 12_000, "value": need} for key in "ab"]
    spec = spec_of({}, final=True, number=TYPES[numbers])
    outcomes = Shards(spec, several=True).run([(operations, events, 0), ([], [], 30)])
    assert multiset(outcomes, *COLUMNS) == multiset(decide(operations, events), *COLUMNS)
