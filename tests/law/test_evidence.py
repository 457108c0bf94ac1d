"""The law of evidence: under ``emit="final"`` the events that outcomes carry do not depend on how rows arrived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.engine import evaluation
from spark_purgatory.core.engine.resolver import Resolutions
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import Orphans
from tests.support.engine_driver import Shards
from tests.support.law_worlds import COMPLETE_ONLY, ORPHANS, carrying, draw, noted, on_time, spec_of, told
from tests.support.now_and_then import EVERY_CASE, examples
from tests.support.oracle import KINDS, Evidence, decide
from tests.support.worlds import STEP_US, World

SEEDS = st.integers(0, 1 << 32)


def compare_with_oracle(rule: str, seed: int, several: bool, shards: int, controlled: bool, worlds: int) -> None:
    """Stream a world in some order and split, every row on time."""
    rng, world, criterion = draw(seed, rule, several, kinds=KINDS if controlled else COMPLETE_ONLY, worlds=worlds)
    world, has_ids = noted(rng, world), rng.random() < 0.7
    if not has_ids:
        world = World(world.operations, [{**event, "event_id": None} for event in world.events])
    lookback_us = rng.choice((0, 0, 2 * STEP_US))
    most, largest = rng.choice((1, 2, 100)), rng.random() < 0.5
    orphans: Orphans = ORPHANS[seed % 2] if not several or shards == 1 else "none"
    expected = decide(
        *world,
        doubles=True,
        whole_operations=several,
        criterion=criterion,
        lookback_us=lookback_us,
        orphans=orphans,
        evidence=Evidence(("note",), most, largest),
    )
    batches = on_time(rng, world, lookback_us)
    spec = carrying(spec_of(criterion, final=True, lookback_us=lookback_us, orphans=orphans), most, largest)
    spec = replace(spec, event_ids=has_ids)
    engine = Shards(spec, shards, several, hash_bits=rng.choice((64, 64, 3)), restarts=rng)
    assert told(engine.run(batches)) == told(expected)


@pytest.mark.parametrize("rule", [*RULES, "mixed", "mixed, controlled"])
@given(
    seed=SEEDS,
    several=st.booleans(),
    shards=st.sampled_from((1, 3)),
    controlled=st.booleans(),
    worlds=st.sampled_from((1, 8)),
)
@examples(3, 16)
def test_evidence_does_not_depend_on_arrival_and_is_what_the_oracle_says(
    rule: str, seed: int, several: bool, shards: int, controlled: bool, worlds: int
) -> None:
    rule, _, always = rule.partition(", ")
    compare_with_oracle(rule, seed, several, shards, controlled or bool(always), worlds)


def test_operations_that_are_resolved_in_parts_carry_the_evidence_that_the_oracle_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together, sizes = Resolutions.joined, list[int]()
    monkeypatch.setattr(Resolutions, "joined", staticmethod(lambda parts: sizes.append(len(parts)) or together(parts)))
    monkeypatch.setattr(evaluation, "MAX_DELIVERIES", 1)
    for seed in range(40 if EVERY_CASE else 14):
        compare_with_oracle("mixed", seed, several=True, shards=1, controlled=seed % 2 == 0, worlds=4)
    assert len(sizes) > 3, "few operations were resolved in parts"
