"""The law: under ``emit="final"`` outcomes are a function of the rows received on time, as the oracle has it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.criteria import RULES, ByRow, Criterion
from spark_purgatory.core.engine_spec import EngineSpec
from spark_purgatory.testing.oracle import KINDS, decide
from spark_purgatory.testing.worlds import NEEDS, STEP_US, World, random_world, splits
from tests.engine_driver import END_MS, Shards, microseconds, multiset

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")
SEEDS = st.integers(0, 1 << 32)
COMPLETE_ONLY = ("complete",)


def draw(
    seed: int, rule: str, several: bool, duplicates: bool = True, kinds: tuple[str, ...] = COMPLETE_ONLY
) -> tuple[random.Random, World, dict[str, Any]]:
    """A world under one rule, and that rule as the oracle takes it; "mixed" lets every operation bring its own."""
    rng = random.Random(seed)
    size = rng.choice((1, 4, 12))
    mixed = rule == "mixed"
    world = random_world(
        rng,
        n_operations=size,
        n_events=3 * size,
        n_keys=rng.choice((1, 2, 4)),
        max_keys=3 if several else 1,
        rules=RULES if mixed else (rule,),
        kinds=kinds,
        duplicates=duplicates,
        spoiled=mixed and several and rng.random() < 0.5,
    )
    if mixed:
        return rng, world, {}
    need = rng.choice(NEEDS.get(rule, (0.5, 1.0, 2.0)))
    for operation in world.operations:
        operation.update(need=need, level=None)
    return rng, world, {"rule": rule, "need": need}


def spec_of(criterion: dict[str, Any], **others: Any) -> EngineSpec:
    """An engine that reads all there is."""
    rule = Criterion(criterion["rule"], criterion["need"]) if criterion else ByRow("rule", "need", "levels")
    return EngineSpec(rule, operation_ids=True, event_ids=True, **others)


def split_orphans(outcomes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Counter[tuple[int, str]]]:
    """Outcomes of operations, and ORPHANs as (time, reason)."""
    orphans: Counter[tuple[int, str]] = Counter()
    for outcome in (outcome for outcome in outcomes if outcome["status"] == "ORPHAN"):
        event, at, reason = outcome.get("row"), outcome["resolved_at"], outcome.get("reason")
        if isinstance(event, dict):
            named = "" if event["operation_id"] is None else f" for operation {event['operation_id']}"
            reason = f"{event['kind']} on key {event['key']}{named} found no operation pending"
        orphans[at if isinstance(at, int) else microseconds(at), str(reason)] += 1
    return [outcome for outcome in outcomes if outcome["status"] != "ORPHAN"], orphans


@pytest.mark.parametrize("rule", [*RULES, "mixed", "mixed, controlled"])
@given(seed=SEEDS, several=st.booleans(), shards=st.sampled_from((1, 3, 16)), controlled=st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_any_split_any_number_of_shards_gives_what_the_oracle_says(
    rule: str, seed: int, several: bool, shards: int, controlled: bool
) -> None:
    rule, _, always = rule.partition(", ")
    rng, world, criterion = draw(seed, rule, several, kinds=KINDS if controlled or always else COMPLETE_ONLY)
    lookback_us = rng.choice((0, 0, 2 * STEP_US))
    orphans = not several or shards == 1
    expected, unheard = split_orphans(decide(*world, criterion=criterion, lookback_us=lookback_us, orphans=orphans))
    spec = spec_of(criterion, final=True, lookback_us=lookback_us, orphans=orphans)
    batches = splits(
        rng,
        *world,
        rng.choice((1, 3, 9)),
        operations_delay_us=rng.choice((0, 3 * STEP_US)),
        events_delay_us=rng.choice((0, 3 * STEP_US)),
        lookback_us=lookback_us,
    )
    engine = Shards(spec, shards, several, hash_bits=rng.choice((64, 64, 3)))
    outcomes, left_over = split_orphans(engine.run(batches))
    assert multiset(outcomes, *COLUMNS) == multiset(expected, *COLUMNS)
    assert left_over == unheard


@pytest.mark.parametrize("rule", [*RULES, "mixed"])
@given(seed=SEEDS, several=st.booleans(), watermark_steps=st.integers(1, 30))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_batch_query_gives_what_the_stream_has_given_once_its_watermark_stands_there(
    rule: str, seed: int, several: bool, watermark_steps: int
) -> None:
    _, world, criterion = draw(seed, rule, several, kinds=KINDS)
    watermark_us = 10_000_000 + watermark_steps * STEP_US
    expected = decide(*world, criterion=criterion, watermark_us=watermark_us)
    engine = Shards(spec_of(criterion, final=True), 3, several)
    outcomes = engine.run([(*world, 0), ([], [], watermark_us // 1000)])
    assert multiset(outcomes, *COLUMNS) == multiset(expected, *COLUMNS)
    rest = engine.run([([], [], END_MS)])
    assert multiset(outcomes + rest, *COLUMNS) == multiset(decide(*world, criterion=criterion), *COLUMNS)


@pytest.mark.parametrize("rule", [*RULES, "mixed"])
@given(seed=SEEDS, several=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_early_outcomes_have_the_statuses_of_final_ones(rule: str, seed: int, several: bool) -> None:
    rng, world, criterion = draw(seed, rule, several, duplicates=False)
    expected = multiset(decide(*world, criterion=criterion), "row", "status")
    engine = Shards(spec_of(criterion), 3, several)
    outcomes = engine.run(splits(rng, *world, rng.choice((1, 3, 9))))
    assert multiset(outcomes, "row", "status") == expected
