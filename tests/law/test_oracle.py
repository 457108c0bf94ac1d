"""The oracle's own tests: cases worked by hand, then properties, among them the law of SPEC's event time itself.

Hand-worked operations live from 10 to 20 (microseconds) unless they say otherwise; a fate is written as
(status, resolved_at, matched, missing_keys).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracle import KINDS, RULES, decide
from tests.support.splits import splits, watermark_us_after
from tests.support.world_numbers import NUMBERS, STEP_US
from tests.support.worlds import World, random_world

Row = dict[str, Any]
Fate = tuple[str, int | None, int, list[str] | None]


def an_operation(keys: str = "a", rule: str | None = "any_key", need: float | None = None, **others: Any) -> Row:
    sound = {"id": "o", "keys": list(keys), "created": 10, "deadline": 20, "rule": rule, "need": need}
    return {**sound, "level": None, "row": "payload", **others}


def an_event(key: str | None, time: int | None, kind: str = "complete", **others: Any) -> Row:
    return {"key": key, "time": time, "kind": kind, "value": None, "event_id": None, "operation_id": None, **others}


def values_of(pairs: str, kind: str = "complete") -> list[Row]:
    """`a12=0.5 b13` -> a's event of value 0.5 at 12, b's without one at 13."""
    events = []
    for word in pairs.split():
        place, _, value = word.partition("=")
        events.append(an_event(place[0], int(place[1:]), kind, value=float(value) if value else None))
    return events


def controls(words: str) -> list[Row]:
    """`fail:a12 extend:b13=5` -> a's fail at 12, b's extend by 5 microseconds at 13."""
    events = []
    for word in words.split():
        kind, _, pair = word.partition(":")
        (event,) = values_of(pair, kind)
        if kind == "extend" and event["value"] is not None:
            event["value"] /= 1_000_000
        events.append(event)
    return events


def all_fates(operations: Iterable[Row], events: Iterable[Row], **options: Any) -> list[Fate]:
    outcomes = decide(operations, events, **options)
    return [(one["status"], one["resolved_at"], one["matched"], one["missing_keys"]) for one in outcomes]


def the_fate(operation: Row, events: Iterable[Row], **options: Any) -> Fate:
    (fate,) = all_fates([operation], events, **options)
    return fate


def multiset(rows: Iterable[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


# --- each criterion -------------------------------------------------------------------------------


def test_many_rules_live_side_by_side() -> None:
    operations = [
        an_operation("ab", "any_key", id="any"),
        an_operation("ab", "all_keys", id="all"),
        an_operation("ab", "count", 3, id="count"),
        an_operation("ab", "sum_at_least", 2, id="sum"),
        an_operation("ab", "level", id="level", level={"a": 1, "b": 0.5}),
    ]
    outcomes = decide(operations, values_of("a11=1 b12=0.25 b13=0.5 a14=0.5"))
    assert {one["id"]: (one["status"], one["resolved_at"]) for one in outcomes} == {
        "any": ("COMPLETED", 11),
        "all": ("COMPLETED", 12),
        "count": ("COMPLETED", 13),
        "sum": ("COMPLETED", 14),
        "level": ("COMPLETED", 13),
    }


# --- numbers --------------------------------------------------------------------------------------


def sums_of(need: Any, *values: Any) -> Fate:
    """Fate of a sum that needs so much and gets the values at 11, 12 and so on."""
    events = [an_event("a", time, value=value) for time, value in enumerate(values, start=11)]
    return the_fate(an_operation("a", "sum_at_least", need), events)


BIG = 2**53


@pytest.mark.parametrize(
    ("need", "values", "completed_at"),
    [
        # decimals, in decimals: as doubles 0.7 + 0.1 stays below 0.8, and 0.1 + 0.2 goes beyond 0.3
        (Decimal("0.80"), [Decimal("0.70"), Decimal("0.10")], 12),
        (Decimal("0.3"), [Decimal("0.1"), Decimal("0.2")], 12),
        (Decimal("0.9"), [Decimal("0.2"), Decimal("0.7")], 12),
        (Decimal("0.800000000000000001"), [Decimal("0.70"), Decimal("0.10")], None),
        (Decimal("90071992547409.94"), [Decimal("90071992547409.93"), Decimal("0.01")], 12),
        (Decimal("90071992547409.94"), [Decimal("90071992547409.93"), Decimal("0.00")], None),
        (Decimal("1e20") + 1, [Decimal("1e20"), Decimal("1")], 12),
        (Decimal("99999999999999999999999999999999999999"), [Decimal("99999999999999999999999999999999999998")], None),
        (Decimal("99999999999999999999999999999999999999"), [Decimal("99999999999999999999999999999999999999")], 11),
        # a float beside decimals is what it is written as
        (0.8, [Decimal("0.70"), Decimal("0.10")], 12),
        (0.1, [Decimal("0.1")], 11),
        (1, [Decimal("0.5"), Decimal("0.5")], 12),
        (BIG + 1, [Decimal(BIG)], None),
        # and beside floats every need is a float
        (Decimal("0.7"), [0.7], 11),
        (BIG + 1, [float(BIG)], 11),
        (BIG + 3, [float(BIG)], None),
        # whole numbers
        (BIG + 1, [BIG], None),
        (BIG + 1, [BIG, 1], 12),
        (BIG + 1, [BIG + 1], 11),
        (2**63 - 1, [2**63 - 2], None),
        (2**63 - 1, [2**63 - 2, 1], 12),
        (2**63 - 1, [2**62, 2**62], 12),  # a sum may leave int64
        (2.5, [2], None),
        (float(2**62), [2**62], None),  # written as 4.611686018427388e+18, which is 96 more
        (float(2**62), [2**62, 96], 12),
        (2.5, [2, 1], 12),
        (0.0, [], 10),
        # doubles: the sum of what they are, exactly
        (1.0, [0.1] * 9, None),
        (1.0, [0.1] * 10, 20),
        (0.8, [0.7, 0.1], None),  # 0.79999999999999996 and 0.80000000000000004
        (1e16 + 2, [1e16, 1.0], None),
        (1e308, [9e307, 9e307], 12),
        (1.7e308, [1.0, float("inf")], 12),
        (5e-324, [0.0, 5e-324], 12),
        # what no sum takes is set aside, and a null adds nothing
        (1.0, [float("nan"), -5.0, float("-inf"), None, 1.0], 15),
        (Decimal("1"), [Decimal("-5"), None, Decimal("1")], 13),
        (1, [-(2**63), None, 1], 13),
    ],
)
def test_sums_are_compared_exactly_in_the_type_of_the_values(
    need: Any, values: list[Any], completed_at: int | None
) -> None:
    expected = ("EXPIRED", 20) if completed_at is None else ("COMPLETED", completed_at)
    assert sums_of(need, *values)[:2] == expected


# --- control events -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "until"),
    [
        (3, 3_000_015),
        (2**53 + 1, 2**63 - 1),
        (-(2**63), 20),
        (2**63 - 1, 2**63 - 1),
        (Decimal("0.000009"), 24),
        (Decimal("-0.5"), 20),
        (Decimal("99999999999999999999999999999999999999"), 2**63 - 1),
        (1e-5, 25),
        (1e300, 2**63 - 1),
        (-1e300, 20),
        (5e-324, 20),
        (9e12, 9_000_000_000_000_000_015),
        (9_223_372_036_854.778, 2**63 - 1),
        (float("inf"), 20),
        (float("-inf"), 20),
        (float("nan"), 20),
        (None, 20),
    ],
)
def test_an_extension_may_have_any_value_and_ends_with_int64(value: Any, until: int) -> None:
    assert the_fate(an_operation(), [an_event("a", 15, "extend", value=value)]) == ("EXPIRED", until, 0, ["a"])


# --- duplicates and rejected rows -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "stands"),
    [
        ([(11, 30, "a"), (10, 40, "z")], "z"),  # created first
        ([(10, 40, "a"), (10, 30, "z")], "z"),  # then the earlier deadline
        ([(10, 30, "z"), (10, 30, "a")], "a"),  # then the payload
        ([(10, 30, "b"), (10, 30, "a"), (10, 30, "c")], "a"),
    ],
)
def test_which_row_of_an_id_stands_does_not_depend_on_arrival(rows: list[tuple[int, int, str]], stands: str) -> None:
    operations = [an_operation(created=created, deadline=end, row=row) for created, end, row in rows]
    for order in permutations(operations):
        statuses = {one["row"]: one["status"] for one in decide(order, [])}
        assert [row for row, status in statuses.items() if status != "DUPLICATE"] == [stands]


# --- orphans --------------------------------------------------------------------------------------


def orphans_of(operations: Sequence[Row], events: Sequence[Row], **options: Any) -> list[tuple[str, int]]:
    outcomes = decide(operations, events, orphans="control", **options)
    return [(one["row"]["kind"], one["resolved_at"]) for one in outcomes if one["status"] == "ORPHAN"]


def test_a_control_event_that_finds_no_pending_operation_is_an_orphan() -> None:
    operations = [an_operation("ab", "all_keys")]
    events = controls("extend:c12=1 fail:a9 complete:c13 fail:a14 fail:b15 cancel:a16 force:b30")
    # Too early, of a key that nobody watches, after the operation had failed (at 14), after everything.
    assert sorted(orphans_of(operations, events), key=lambda one: one[1]) == [
        ("fail", 9),
        ("extend", 12),
        ("fail", 15),
        ("cancel", 16),
        ("force", 30),
    ]
    assert all(one["status"] != "ORPHAN" for one in decide(operations, events))


# --- properties -----------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**32 - 1)
LOOKBACKS_US = st.sampled_from((0, 1, STEP_US, 4 * STEP_US))
DELAYS_US = st.sampled_from((0, 1, 1_500, STEP_US, 5 * STEP_US))


@st.composite
def worlds(draw: st.DrawFn, /, **options: Any) -> World:
    """Worlds of all rules or of one, of all kinds of events or of complete ones alone, sound or spoiled."""
    rules = draw(st.sampled_from([RULES, *((rule,) for rule in RULES)]))
    kinds = draw(st.sampled_from((KINDS, ("complete",))))
    sizes = {"n_operations": draw(st.integers(0, 10)), "n_events": draw(st.integers(0, 30))}
    drawn = {"rules": rules, "kinds": kinds, **sizes, "n_keys": draw(st.integers(1, 4))}
    drawn.update(spoiled=draw(st.booleans()), numbers=draw(st.sampled_from(sorted(NUMBERS))))
    return random_world(random.Random(draw(SEEDS)), **{**drawn, **options})


@given(worlds(), LOOKBACKS_US, st.booleans(), SEEDS)
@settings(max_examples=60, deadline=None)
def test_the_outcomes_do_not_depend_on_the_order_of_the_rows(
    world: World, lookback_us: int, orphans: bool, seed: int
) -> None:
    rng = random.Random(seed)
    operations, events = rng.sample(world.operations, k=len(world.operations)), list(world.events)
    rng.shuffle(events)
    before = decide(world.operations, world.events, lookback_us=lookback_us, orphans=orphans)
    after = decide(operations, events, lookback_us=lookback_us, orphans=orphans)
    assert multiset(before) == multiset(after)


@given(worlds(), LOOKBACKS_US, DELAYS_US, DELAYS_US, st.integers(1, 7), SEEDS)
@settings(max_examples=100, deadline=None)
def test_what_has_been_emitted_on_the_way_is_never_taken_back(
    world: World, lookback_us: int, ops_delay_us: int, events_delay_us: int, n_batches: int, seed: int
) -> None:
    """The law, of the oracle itself: rows that come later but on time change no outcome already out."""
    delays: dict[str, Any] = {"operations_delay_us": ops_delay_us, "events_delay_us": events_delay_us}
    batches = splits(random.Random(seed), *world, n_batches, lookback_us=lookback_us, **delays)
    everything = multiset(decide(*world, lookback_us=lookback_us, orphans="control"))
    operations: list[Row] = []
    events: list[Row] = []
    emitted: Counter[str] = Counter()
    for batch, after in zip(batches, [*batches[1:], batches[-1]], strict=True):
        operations += batch.operations
        events += batch.events
        clock: Row = {"watermark_us": after.watermark_ms * 1000, "lookback_us": lookback_us}
        now = multiset(decide(operations, events, orphans="control", **clock))
        assert emitted <= now <= everything
        emitted = now
    assert emitted == everything


def first_time_it_holds(op: Row, events: Sequence[Row], lookback_us: int) -> int | None:
    """Semantics 3.4, word for word: the smallest t at which the criterion is met over the events with time <= t."""
    start, deadline = op["created"] - lookback_us, op["deadline"]
    relevant = [e for e in events if e["key"] in op["keys"] and start <= e["time"] <= deadline]
    for t in sorted({e["time"] for e in relevant} | {op["created"], deadline}):
        so_far = [e for e in relevant if e["time"] <= t]
        keys_so_far = {e["key"] for e in so_far}
        holds = {
            "any_key": bool(so_far),
            "until_deadline": t == deadline and bool(so_far),
            "all_keys": keys_so_far >= set(op["keys"]),
            "quorum": len(keys_so_far) >= (op["need"] or 0),
            "count": len(so_far) >= (op["need"] or 0),
            "sum_at_least": sum(e["value"] or 0.0 for e in so_far) >= (op["need"] or 0),
        }
        if holds[op["rule"]]:
            return int(t)
    return None


@given(worlds(kinds=("complete",), duplicates=False, spoiled=False, numbers="double"), LOOKBACKS_US)
@settings(max_examples=60, deadline=None)
def test_complete_events_alone_resolve_at_the_smallest_time_at_which_the_criterion_holds(
    world: World, lookback_us: int
) -> None:
    plain = [op for op in world.operations if op["rule"] != "level" and op["need"] != 0]
    events = [{**event, "event_id": None, "operation_id": None} for event in world.events]
    outcomes = {one["id"]: one for one in decide(plain, events, lookback_us=lookback_us)}
    for op in plain:
        t = first_time_it_holds(op, events, lookback_us)
        expected = ("EXPIRED", op["deadline"]) if t is None else ("COMPLETED", t)
        assert (outcomes[op["id"]]["status"], outcomes[op["id"]]["resolved_at"]) == expected


@given(worlds(rules=("level",), kinds=("complete",), duplicates=False, spoiled=False))
@settings(max_examples=60, deadline=None)
def test_levels_alone_resolve_when_the_last_key_has_reached_its_own(world: World) -> None:
    events = [{**event, "operation_id": None} for event in world.events]
    outcomes = {one["id"]: one for one in decide(world.operations, events)}
    for op in world.operations:
        reached: list[int] = []
        for key in set(op["keys"]):
            level = op["level"][key] if isinstance(op["level"], dict) else op["level"]
            valued = [e for e in events if e["key"] == key and e["value"] is not None]
            reached += [min((e["time"] for e in valued if e["value"] >= level), default=2**63)]
        t = max(op["created"], *reached)
        expected = ("COMPLETED", t) if t <= op["deadline"] else ("EXPIRED", op["deadline"])
        assert (outcomes[op["id"]]["status"], outcomes[op["id"]]["resolved_at"]) == expected


# --- worlds and splits ----------------------------------------------------------------------------


def seen_again(op: Row, operations: list[Row], outcomes: dict[str, Row]) -> Iterable[str]:
    """Where a row of an id lies around the deadlines of the row that stood last before it."""
    others = [one for one in operations if one["id"] == op["id"] and one["row"] != op["row"]]
    stood = [one for one in others if outcomes[one["row"]]["status"] != "DUPLICATE" and one["created"] < op["created"]]
    if not stood:
        return
    first = max(stood, key=lambda one: int(one["created"]))
    status, end = outcomes[op["row"]]["status"], outcomes[first["row"]]["resolved_at"]
    if status == "DUPLICATE" and op["created"] > first["deadline"]:
        yield "duplicate beyond a first deadline"
        if op["created"] == end:
            yield "duplicate at an extended deadline"
        if op["created"] > end:
            yield "duplicate of one resolved before, beyond its first deadline"
    if status != "DUPLICATE" and end > first["deadline"]:
        yield "stands beyond an extended deadline"
        if op["created"] == end + 1:
            yield "stands just beyond an extended deadline"


@pytest.mark.parametrize("numbers", NUMBERS)
def test_worlds_have_ids_that_come_again_around_first_and_extended_deadlines(numbers: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        world = random_world(random.Random(seed), n_operations=12, n_events=24, numbers=numbers)
        rows = {op["row"]: op for op in world.operations}
        outcomes = {one["row"]: one for one in decide(rows.values(), world.events)}
        for op in rows.values():
            seen.update(seen_again(op, list(rows.values()), outcomes))
    assert len(seen) == 5 and min(seen.values()) >= 5, seen


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


@given(worlds(), DELAYS_US, DELAYS_US, st.integers(1, 9), SEEDS)
@settings(max_examples=60, deadline=None)
def test_a_split_delivers_every_row_once_and_on_time(
    world: World, ops_delay_us: int, events_delay_us: int, n_batches: int, seed: int
) -> None:
    delays: dict[str, Any] = {"operations_delay_us": ops_delay_us, "events_delay_us": events_delay_us}
    batches = splits(random.Random(seed), *world, n_batches, **delays)
    assert len(batches) == n_batches + 3
    assert multiset(row for batch in batches for row in batch.operations) == multiset(world.operations)
    assert multiset(row for batch in batches for row in batch.events) == multiset(world.events)
    created: list[int] = []
    times: list[int] = []
    watermark_us = 0
    for number, (operations, events, watermark_ms) in enumerate(batches):
        if number <= n_batches:  # after that the clock is pushed on by hand
            if created and times:
                lowest = min(max(created) - ops_delay_us, max(times) - events_delay_us)
                watermark_us = max(watermark_us, lowest - lowest % 1000)
            assert watermark_ms * 1000 == watermark_us
        here = [op["created"] for op in operations if op["created"] is not None]
        assert all(time > watermark_us for time in here)
        created += here
        here = [event["time"] for event in events if event["time"] is not None]
        assert all(time > watermark_us for time in here)
        times += here
    ends = [batch.watermark_ms for batch in batches[n_batches:]]
    assert ends == sorted(ends)
    assert not any(batch.operations or batch.events for batch in batches[n_batches:])


def test_the_example_of_the_watermark_by_hand() -> None:
    latest_us: dict[str, int] = {}
    delays_us = {"created": 5_000, "time": 5_000}
    first = [("created", {"created": 10_000}), ("created", {"created": 20_000}), ("time", {"time": 18_000})]
    stands_us = watermark_us_after(first, latest_us, delays_us, 0)
    assert stands_us == 13_000
    stands_us = watermark_us_after([("created", {"created": 14_000})], latest_us, delays_us, stands_us)
    assert stands_us == 13_000
    assert watermark_us_after([("time", {"time": 30_000})], latest_us, delays_us, stands_us) == 15_000
