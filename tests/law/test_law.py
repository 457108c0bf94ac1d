"""The law: under ``emit="final"`` outcomes are a function of the rows received on time, as the oracle has it."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.spec.codes import RULES, EventRejection
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec, Orphans
from tests.support.engine_driver import END_MS, Shards, multiset
from tests.support.law_worlds import (
    COLUMNS,
    delayed,
    draw,
    draw_on_time,
    reasons,
    renamed,
    spec_of,
    split_orphans,
)
from tests.support.now_and_then import examples
from tests.support.oracle import KINDS, decide, why_event_rejected
from tests.support.worlds import STEP_US, TYPES, Batch, World, random_world, splits

SEEDS = st.integers(0, 1 << 32)
WORLDS = st.sampled_from((1, 8, 24))
SHARDS = st.sampled_from((1, 3, 16))
NUMBER_TYPES = st.sampled_from(tuple(TYPES))
WATERMARK_STEPS = st.integers(1, 30)
SEEN: Counter[str] = Counter()
"""Worlds compared, by the test that did."""


def compare_with_oracle(
    rule: str, seed: int, several: bool, shards: int, controlled: bool, worlds: int, numbers: str
) -> None:
    """Stream worlds through shards in some order and split, every row on time."""
    drawn = draw_on_time(rule, seed, several, shards == 1, controlled, worlds, numbers)
    rng, world = drawn.rng, drawn.world
    engine = Shards(drawn.spec, shards, several, hash_bits=rng.choice((64, 64, 3)), restarts=rng)
    outcomes, left_over = split_orphans(engine.run(drawn.batches))
    assert multiset(outcomes, *COLUMNS) == multiset(drawn.expected, *COLUMNS)
    assert reasons(outcomes, several) == reasons(drawn.expected, several)
    assert left_over == drawn.unheard
    if numbers == "double" and (not several or shards == 1):
        adds_up = "sum_at_least" if rule in ("mixed", "sum_at_least") else None
        bad = sum(why_event_rejected(event, adds_up, several) == "bad_value" for event in world.events)
        assert sum(tally.event_rejections[EventRejection.BAD_VALUE] for tally in engine.tallies()) == bad
    SEEN["final"] += worlds


@pytest.mark.parametrize("rule", [*RULES, "mixed", "mixed, controlled"])
@given(seed=SEEDS, several=st.booleans(), shards=SHARDS, controlled=st.booleans(), worlds=WORLDS, numbers=NUMBER_TYPES)
@examples(6, 20)
def test_any_order_any_split_any_number_of_shards_gives_what_the_oracle_says(
    rule: str, seed: int, several: bool, shards: int, controlled: bool, worlds: int, numbers: str
) -> None:
    rule, _, always = rule.partition(", ")
    compare_with_oracle(rule, seed, several, shards, controlled or bool(always), worlds, numbers)


def untouched(batches: list[Batch]) -> set[str]:
    """Names of operation rows that came on time, as did all of their id, and all events on their keys."""
    operations = [(row, row["created"] <= batch.watermark_ms * 1000) for batch in batches for row in batch.operations]
    late_keys = {e["key"] for batch in batches for e in batch.events if e["time"] <= batch.watermark_ms * 1000}
    late_ids = {row["id"] for row, is_late in operations if is_late} | {
        e["operation_id"]
        for batch in batches
        for e in batch.events
        if e["key"] is None and e["time"] <= batch.watermark_ms * 1000
    }
    return {row["row"] for row, _ in operations if row["id"] not in late_ids and not late_keys & set(row["keys"])}


def compare_where_nothing_was_late(seed: int, several: bool, shards: int, worlds: int) -> None:
    """Stream worlds with late rows: each has one outcome, and whom no late row concerns has the oracle's."""
    rng, world, _ = draw(seed, "mixed", several, kinds=KINDS, worlds=worlds, spoiled=False)
    batches = delayed(rng, splits(rng, *world, rng.choice((3, 9))), rng.choice((0.05, 0.3)))
    orphans: Orphans = "all" if not several or shards == 1 else "none"
    engine = Shards(spec_of({}, final=True, orphans=orphans), shards, several, restarts=rng)
    outcomes, left_over = split_orphans(engine.run([*batches, ([], [], END_MS)]))
    assert multiset(outcomes, "row") == multiset(world.operations, "row")
    sound = untouched(batches)
    expected, unheard = split_orphans(decide(*world, doubles=True, whole_operations=several, orphans=orphans))
    told = [[outcome for outcome in side if outcome["row"] in sound] for side in (outcomes, expected)]
    assert multiset(told[0], *COLUMNS) == multiset(told[1], *COLUMNS)
    if orphans != "none":
        check_orphans(world, left_over, engine)
        keys = untouched_keys(world, batches)
        of_sound = [
            Counter({one: n for one, n in side.items() if key_of(one) in keys}) for side in (left_over, unheard)
        ]
        assert of_sound[0] == of_sound[1]
    SEEN["late"] += worlds


def key_of(orphan: tuple[int | None, str]) -> str:
    """The key in an ORPHAN's reason."""
    return orphan[1].partition(" on key ")[2].split(" ")[0]


def untouched_keys(world: World, batches: list[Batch]) -> set[str]:
    """Keys on which no event was late, and whose operations no late row concerns."""
    late = {e["key"] for batch in batches for e in batch.events if e["time"] <= batch.watermark_ms * 1000}
    sound = untouched(batches)
    touched = {key for row in world.operations if row["row"] not in sound for key in row["keys"]}
    return {event["key"] for event in world.events} - late - touched


def check_orphans(world: World, orphans: Counter[tuple[int | None, str]], engine: Shards) -> None:
    """No event has two ORPHAN rows, and those without one counted."""
    told = Counter({(at, *reason.split(" ")[:4:3]): 0 for at, reason in orphans})
    for (at, reason), n in orphans.items():
        told[(at, *reason.split(" ")[:4:3])] += n
    assert not told - Counter((event["time"], event["kind"], event["key"] or "null") for event in world.events)
    tallies = engine.tallies()
    assert sum(tally.events_received for tally in tallies) == len(world.events)
    assert sum(tally.events_counted for tally in tallies) + sum(orphans.values()) == len(world.events)


@given(seed=SEEDS, several=st.booleans(), shards=SHARDS, worlds=WORLDS)
@examples(3, 9)
def test_late_rows_have_one_outcome_each_and_change_nobodys_whom_they_do_not_concern(
    seed: int, several: bool, shards: int, worlds: int
) -> None:
    compare_where_nothing_was_late(seed, several, shards, worlds)


def compare_batch_with_oracle(rule: str, seed: int, several: bool, watermark_steps: int, worlds: int) -> None:
    """A batch query up to a watermark, in one call and step by step, and then up to the end of time."""
    _, world, criterion = draw(seed, rule, several, kinds=KINDS, worlds=worlds)
    watermark_us = 10_000_000 + watermark_steps * STEP_US
    expected, unheard = split_orphans(
        decide(
            *world,
            doubles=True,
            whole_operations=several,
            criterion=criterion,
            watermark_us=watermark_us,
            orphans="all",
        )
    )
    engine = Shards(spec_of(criterion, final=True, orphans="all"), 1 if several else 3, several)
    in_one_call, not_heard = split_orphans(engine.in_one_call(*world, watermark_us // 1000))
    assert (multiset(in_one_call, *COLUMNS), not_heard) == (multiset(expected, *COLUMNS), unheard)
    outcomes, left_over = split_orphans(engine.run([(*world, 0), ([], [], watermark_us // 1000)]))
    assert (multiset(outcomes, *COLUMNS), left_over) == (multiset(expected, *COLUMNS), unheard)
    rest, left_over = split_orphans(engine.run([([], [], END_MS)]))
    everything, all_unheard = split_orphans(
        decide(*world, doubles=True, whole_operations=several, criterion=criterion, orphans="all")
    )
    assert multiset(outcomes + rest, *COLUMNS) == multiset(everything, *COLUMNS)
    assert unheard + left_over == all_unheard
    SEEN["batch"] += worlds


@pytest.mark.parametrize("rule", [*RULES, "mixed"])
@given(seed=SEEDS, several=st.booleans(), watermark_steps=WATERMARK_STEPS, worlds=WORLDS)
@examples(3, 9)
def test_a_batch_query_gives_what_the_stream_has_given_once_its_watermark_stands_there(
    rule: str, seed: int, several: bool, watermark_steps: int, worlds: int
) -> None:
    compare_batch_with_oracle(rule, seed, several, watermark_steps, worlds)


@pytest.mark.slow
@given(seed=SEEDS, several=st.booleans(), shards=SHARDS, worlds=WORLDS, numbers=NUMBER_TYPES, steps=WATERMARK_STEPS)
@examples(800, 800)
def test_a_long_series_of_mixed_rules_late_rows_and_batch_queries_gives_what_the_oracle_says(
    seed: int, several: bool, shards: int, worlds: int, numbers: str, steps: int
) -> None:
    compare_with_oracle("mixed", seed, several, shards, True, worlds, numbers)
    compare_where_nothing_was_late(seed, several, shards, worlds)
    compare_batch_with_oracle("mixed", seed, several, steps, worlds)


SMALL_OPERATIONS = [("p", "a", 2, 8), ("q", "b", 3, 6), ("r", "ab", 1, 9), ("r", "ab", 2, 5)]
SMALL_EVENTS = [("a", 4, "complete"), ("b", 4, "complete"), ("a", 5, "complete")]
SMALL_CONTROLS = [("a", 4, "fail"), ("a", 3, "cancel"), ("b", 4, "force"), ("b", 6, "extend")]
SMALL_NEEDS = {"quorum": 2, "count": 2, "sum_at_least": 2.0, "level": 1.0}
STEPS_MS = (0, 0, 2)
"""Where the watermark stands before each of three micro-batches; rows behind it do not come then."""


def small_world(rule: str, control: int, duplicates: bool) -> World:
    """Three operations, two keys and four events, one of them a control event, at ties on purpose."""
    chosen = SMALL_OPERATIONS[:2] + SMALL_OPERATIONS[2:3] if not duplicates else SMALL_OPERATIONS[1:]
    operations = [
        {
            "id": name,
            "keys": list(keys),
            "created": created * 1000,
            "deadline": deadline * 1000,
            "rule": rule,
            "need": SMALL_NEEDS.get(rule),
            "level": None,
            "row": f"{name}{created}",
        }
        for name, keys, created, deadline in chosen
    ]
    events = [
        {"key": key, "time": time * 1000, "kind": kind, "value": 0.002 if kind == "extend" else 1.0}
        for key, time, kind in [*SMALL_EVENTS, SMALL_CONTROLS[control]]
    ]
    return World(operations, events)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("control", range(4), ids=lambda at: SMALL_CONTROLS[at][2])
def test_a_small_world_comes_out_alike_in_every_order_and_split(rule: str, control: int) -> None:
    world = small_world(rule, control, duplicates=control % 2 == 1)
    rows = [("created", row) for row in world.operations] + [("time", row) for row in world.events]
    open_to = [[step for step, ms in enumerate(STEPS_MS) if row[field] > ms * 1000] for field, row in rows]
    batches = [([], [], ms) for ms in STEPS_MS]
    for copy, places in enumerate(product(*open_to)):
        for (field, row), step in zip(rows, places, strict=True):
            batches[step][field == "time"].append(renamed(row, f"{copy}/"))
    expected = multiset(decide(*world, doubles=True), *COLUMNS)
    spec = EngineSpec(ByRow("rule", "need", "levels"), final=True)
    outcomes = Shards(spec, several=True).run([*batches, ([], [], 4), ([], [], END_MS)])
    copies: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        copy, _, name = outcome["row"].partition("/")
        missing = outcome["missing_keys"] and [key.partition("/")[2] for key in outcome["missing_keys"]]
        plain = {**outcome, "row": name, "id": outcome["id"].partition("/")[2], "missing_keys": missing}
        copies.setdefault(copy, []).append(plain)
    assert len(copies) == math.prod(map(len, open_to))
    for copy, decided in copies.items():
        assert multiset(decided, *COLUMNS) == expected, f"copy {copy}"
    SEEN["small"] += len(copies)


def test_worlds_are_crowded_enough_to_meet_every_case() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        operations, events = random_world(random.Random(seed), n_operations=12, n_events=40, spoiled=True)
        lookback_us = seed % 2 * STEP_US
        outcomes = decide(operations, events, lookback_us=lookback_us, orphans="control")
        seen.update(one["status"] for one in outcomes)
        seen.update(f"rule {op['rule']}" for op in operations)
        seen.update(f"kind {event['kind']}" for event in events)
        seen["key twice in one operation"] += sum(
            len(set(op["keys"] or ())) < len(op["keys"] or ()) for op in operations
        )
        times = Counter(event["time"] for event in events)
        seen["tie of events"] += sum(n > 1 for n in times.values())
        seen["redelivered"] += len(events) - len({e["event_id"] or n for n, e in enumerate(events)})
        seen["at the deadline"] += sum(times[op["deadline"]] for op in operations if op["deadline"])
        seen["just past it"] += sum(times[op["deadline"] + 1] for op in operations if op["deadline"])
        seen["before created"] += sum(one["status"] == "COMPLETED" and one["wait_ms"] < 0 for one in outcomes)
        seen["extended"] += sum(
            one["resolved_at"] > op["deadline"]
            for op in operations
            for one in outcomes
            if one["row"] == op["row"] and one["resolved_at"] and op["deadline"]
        )
    statuses = ("COMPLETED", "EXPIRED", "FAILED", "CANCELLED", "DUPLICATE", "REJECTED", "ORPHAN")
    rare = [name for name in (*statuses, *seen) if seen[name] < 40]
    assert not rare, seen
