"""The law: under ``emit="final"`` outcomes are a function of the rows received on time, as the oracle has it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.criteria import RULES, Criterion
from spark_purgatory.core.engine_spec import EngineSpec
from spark_purgatory.testing.oracle import decide
from spark_purgatory.testing.worlds import NEEDS, STEP_US, World, random_world, splits
from tests.engine_driver import END_MS, Shards, multiset

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")


def draw(seed: int, rule: str, several: bool, duplicates: bool = True) -> tuple[random.Random, World, dict[str, Any]]:
    """A world of complete events under one rule, and that rule as the oracle takes it."""
    rng = random.Random(seed)
    size = rng.choice((1, 4, 12))
    world = random_world(
        rng,
        n_operations=size,
        n_events=3 * size,
        n_keys=rng.choice((1, 2, 4)),
        max_keys=3 if several else 1,
        rules=(rule,),
        kinds=("complete",),
        duplicates=duplicates,
    )
    need = rng.choice(NEEDS.get(rule, (0.5, 1.0, 2.0)))
    for event in world.events:
        event["event_id"] = None
    for operation in world.operations:
        operation.update(need=need, level=None)
    return rng, world, {"rule": rule, "need": need}


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 1 << 32), several=st.booleans(), shards=st.sampled_from((1, 3, 16)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_any_split_any_number_of_shards_gives_what_the_oracle_says(
    rule: str, seed: int, several: bool, shards: int
) -> None:
    rng, world, criterion = draw(seed, rule, several)
    lookback_us = rng.choice((0, 0, 2 * STEP_US))
    expected = multiset(decide(*world, criterion=criterion, lookback_us=lookback_us), *COLUMNS)
    spec = EngineSpec(Criterion(rule, criterion["need"]), final=True, lookback_us=lookback_us)
    batches = splits(
        rng,
        *world,
        rng.choice((1, 3, 9)),
        operations_delay_us=rng.choice((0, 3 * STEP_US)),
        events_delay_us=rng.choice((0, 3 * STEP_US)),
        lookback_us=lookback_us,
    )
    engine = Shards(spec, shards, several, hash_bits=rng.choice((64, 64, 3)))
    assert multiset(engine.run(batches), *COLUMNS) == expected


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 1 << 32), several=st.booleans(), watermark_steps=st.integers(1, 30))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_batch_query_gives_what_the_stream_has_given_once_its_watermark_stands_there(
    rule: str, seed: int, several: bool, watermark_steps: int
) -> None:
    _, world, criterion = draw(seed, rule, several)
    watermark_us = 10_000_000 + watermark_steps * STEP_US
    expected = decide(*world, criterion=criterion, watermark_us=watermark_us)
    engine = Shards(EngineSpec(Criterion(rule, criterion["need"]), final=True), 3, several)
    outcomes = engine.run([(*world, 0), ([], [], watermark_us // 1000)])
    assert multiset(outcomes, *COLUMNS) == multiset(expected, *COLUMNS)
    rest = engine.run([([], [], END_MS)])
    assert multiset(outcomes + rest, *COLUMNS) == multiset(decide(*world, criterion=criterion), *COLUMNS)


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 1 << 32), several=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_early_outcomes_have_the_statuses_of_final_ones(rule: str, seed: int, several: bool) -> None:
    rng, world, criterion = draw(seed, rule, several, duplicates=False)
    expected = multiset(decide(*world, criterion=criterion), "row", "status")
    engine = Shards(EngineSpec(Criterion(rule, criterion["need"])), 3, several)
    outcomes = engine.run(splits(rng, *world, rng.choice((1, 3, 9))))
    assert multiset(outcomes, "row", "status") == expected
