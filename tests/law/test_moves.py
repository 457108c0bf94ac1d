"""The law of moves: a query moved to other shards at any boundary gives the table of the one that was not moved."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.engine_spec import EngineSpec, Orphans
from tests.support.engine_driver import Shards, multiset
from tests.support.law_worlds import (
    COLUMNS,
    carrying,
    delayed,
    draw,
    draw_on_time,
    noted,
    on_time,
    spec_of,
    split_orphans,
    told,
)
from tests.support.moves import moved
from tests.support.now_and_then import examples
from tests.support.oracle import KINDS, decide
from tests.support.worlds import NUMBERS, TYPES, Batch, needs_of, splits

SEEDS = st.integers(0, 1 << 32)
SETTINGS = examples(1, 5)
SEEN: Counter[str] = Counter()
ALL_COLUMNS = (*COLUMNS, "late", "reason")


def run_with_moves(rng: random.Random, before: Shards, batches: list[Batch], spec: EngineSpec) -> list[dict[str, Any]]:
    """The outcomes of a stream that is moved between two micro-batches in three."""
    outcomes = []
    shards = before
    for number, (operations, events, watermark_ms) in enumerate(batches):
        if number and rng.random() < 0.67:
            waited = sum(tally.pending for tally in shards.tallies())
            shards = moved(
                shards, spec, 1 if before.shards == 1 and spec.orphans != "none" else rng.choice((1, 2, 5, 13))
            )
            assert sum(tally.pending for tally in shards.tallies()) == waited
            SEEN["moves"] += 1
        outcomes += shards.step(operations, events, watermark_ms)
    SEEN["streams"] += 1
    return outcomes


@pytest.mark.parametrize("rule", [*RULES, "mixed", "mixed, controlled"])
@given(seed=SEEDS, several=st.booleans(), controlled=st.booleans())
@SETTINGS
def test_a_moved_stream_gives_what_the_oracle_says(rule: str, seed: int, several: bool, controlled: bool) -> None:
    rule, _, always = rule.partition(", ")
    compare_with_oracle(rule, seed, several, controlled or bool(always))


@pytest.mark.slow
def test_two_thousand_moves_change_nothing() -> None:
    seed = 0
    before = SEEN["moves"]
    while SEEN["moves"] < before + 2000:
        for rule in (*RULES, "mixed"):
            compare_with_oracle(rule, seed, several=seed % 2 == 1, controlled=seed % 3 > 0)
        seed += 1


def compare_with_oracle(rule: str, seed: int, several: bool, controlled: bool) -> None:
    """Move a stream between its micro-batches."""
    shards = random.Random(seed).choice((1, 3, 8))
    drawn = draw_on_time(rule, seed, several, shards == 1, controlled, worlds=4)
    rng, spec = drawn.rng, drawn.spec
    engine = Shards(spec, shards, several, hash_bits=rng.choice((64, 64, 3)), restarts=rng)
    outcomes, left_over = split_orphans(run_with_moves(rng, engine, drawn.batches, spec))
    assert multiset(outcomes, *COLUMNS) == multiset(drawn.expected, *COLUMNS)
    assert left_over == drawn.unheard


@pytest.mark.parametrize("final", [True, False])
@given(seed=SEEDS, several=st.booleans(), numbers=st.sampled_from(tuple(TYPES)))
@SETTINGS
@example(seed=0, several=False, numbers="decimal")
def test_a_moved_stream_with_late_rows_gives_what_the_one_that_stays_gives(
    final: bool, seed: int, several: bool, numbers: str
) -> None:
    rng, world, _ = draw(seed, "mixed", several, kinds=KINDS, worlds=4, numbers=numbers)
    batches = delayed(rng, splits(rng, *world, rng.choice((3, 9))), rng.choice((0.05, 0.3)))
    orphans: Orphans = "all" if not several else "none"
    spec = spec_of({}, final=final, orphans=orphans, number=TYPES[numbers])
    shards = rng.choice((1, 3))
    stays = Shards(spec, shards, several).run(batches)
    moves = run_with_moves(rng, Shards(spec, shards, several), batches, spec)
    assert multiset(moves, *ALL_COLUMNS) == multiset(stays, *ALL_COLUMNS)


@given(seed=SEEDS, several=st.booleans(), final=st.booleans())
@SETTINGS
def test_evidence_travels(seed: int, several: bool, final: bool) -> None:
    rng, world, _ = draw(seed, "mixed", several, kinds=KINDS, worlds=4)
    batches = delayed(rng, splits(rng, *noted(rng, world), rng.choice((3, 9))), rng.choice((0.05, 0.3)))
    orphans: Orphans = "all" if not several else "none"
    spec = carrying(spec_of({}, final=final, orphans=orphans), rng.choice((1, 2, 100)))
    stays = Shards(spec, 3, several).run(batches)
    assert told(run_with_moves(rng, Shards(spec, 3, several), batches, spec)) == told(stays)


@pytest.mark.parametrize("rule", ["quorum", "count", "sum_at_least", "level"])
@given(seed=SEEDS, several=st.booleans(), final=st.booleans())
@SETTINGS
def test_a_changed_need_decides_what_waits(rule: str, seed: int, several: bool, final: bool) -> None:
    rng, world, criterion = draw(seed, rule, several, duplicates=False, worlds=4, extremes=False)
    batches = on_time(rng, world, 0)
    need = rng.choice([each for each in needs_of(rule, NUMBERS["double"]) if each is not None])
    other = spec_of({**criterion, "need": float(need)}, final=final)
    at = rng.randrange(1, len(batches)) if len(batches) > 1 else 0
    engine = Shards(spec_of(criterion, final=final), 3, several)
    before = engine.run(batches[:at])
    after = moved(engine, other, 4).run(batches[at:])
    SEEN["streams with another need"] += 1
    asked = [{**row, "need": need} for row in world.operations]
    given_need = {"rule": rule, "need": float(need)}
    expected = decide(asked, world.events, doubles=True, whole_operations=several, criterion=given_need)
    decided = {outcome["row"] for outcome in before}
    assert {outcome["row"] for outcome in after} == {each["row"] for each in expected} - decided
    if final:
        left = [each for each in expected if each["row"] not in decided]
        assert multiset(after, *COLUMNS) == multiset(left, *COLUMNS)
