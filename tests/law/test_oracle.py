"""The oracle's own tests: cases worked by hand, then properties, among them the law of SPEC's event time itself.

Hand-worked operations live from 10 to 20 (microseconds) unless they say otherwise; a fate is written as
(status, resolved_at, matched, missing_keys).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import pairwise, permutations
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.oracle import KINDS, RULES, decide, why_event_rejected
from tests.support.splits import splits, watermark_us_after
from tests.support.world_numbers import NUMBERS, STEP_US
from tests.support.worlds import BASE_US, REPEATED_HOUR_INSTANTS, World, random_world

Row = dict[str, Any]
Fate = tuple[str, int | None, int, list[str] | None]


BAD_SECONDS = (None, -0.5, float("nan"), float("inf"), float("-inf"), Decimal("-0.01"))


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


# --- one whole row --------------------------------------------------------------------------------


def test_an_outcome_carries_the_payload_and_every_column() -> None:
    operation = an_operation("ab", created=1_000_000, deadline=9_000_000, row={"order": 7})
    assert decide([operation], [an_event("b", 3_500_999)]) == [
        {
            "row": {"order": 7},
            "id": "o",
            "status": "COMPLETED",
            "resolved_at": 3_500_999,
            "wait_ms": 2_500,
            "matched": 1,
            "missing_keys": ["a"],
            "reason_kind": None,
        }
    ]


@pytest.mark.parametrize(
    ("rule", "need", "failure", "expected"),
    [
        ("quorum", 1, True, ("COMPLETED", 12, 1, ["b"])),
        ("all_keys", None, True, ("FAILED", 15, 1, ["b"])),
        ("all_keys", None, False, ("EXPIRED", 20, 1, ["b"])),
    ],
)
def test_the_example_in_the_oracles_docstring(rule: str, need: float | None, failure: bool, expected: Fate) -> None:
    events = controls("complete:a12 fail:b15") if failure else controls("complete:a12")
    assert the_fate(an_operation("ab", rule, need), events) == expected


def test_an_event_needs_no_more_than_a_key_and_a_time() -> None:
    assert the_fate(an_operation(), [{"key": "a", "time": 12}]) == ("COMPLETED", 12, 1, [])


def test_a_null_kind_is_complete() -> None:
    assert the_fate(an_operation(), [{"key": "a", "time": 12, "kind": None}]) == ("COMPLETED", 12, 1, [])


def test_the_reason_names_what_happened() -> None:
    reasons = {
        "fail:a12": "failed",
        "cancel:a12": "cancelled",
        "force:a12": None,
        "complete:a12": None,
        "complete:b12": None,
    }
    for words, reason in reasons.items():
        assert decide([an_operation()], controls(words))[0]["reason_kind"] == reason, words


# --- each criterion -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "rule", "need", "events", "expected"),
    [
        ("ab", "any_key", None, "", ("EXPIRED", 20, 0, ["a", "b"])),
        ("ab", "any_key", None, "b15 a13", ("COMPLETED", 13, 1, ["b"])),
        ("ab", "all_keys", None, "a13 a14 b15 b16", ("COMPLETED", 15, 3, [])),
        ("ab", "all_keys", None, "a13 a14", ("EXPIRED", 20, 2, ["b"])),
        ("aab", "all_keys", None, "a13 b14", ("COMPLETED", 14, 2, [])),
        ("abc", "quorum", 2, "a13 a14 c15 b16", ("COMPLETED", 15, 3, ["b"])),
        ("aab", "quorum", 2, "a13 a14", ("EXPIRED", 20, 2, ["b"])),
        ("ab", "quorum", 3, "a13 b14", ("EXPIRED", 20, 2, [])),
        ("ab", "count", 3, "a13 a14 a15 a16", ("COMPLETED", 15, 3, None)),
        ("aa", "count", 2, "a13", ("EXPIRED", 20, 1, None)),
        ("ab", "sum_at_least", 1, "a13=0.5 b14=0.25 a15=0.25 a16=9", ("COMPLETED", 15, 3, None)),
        ("ab", "sum_at_least", 1, "a13 b14=0.75", ("EXPIRED", 20, 2, None)),
        ("ab", "sum_at_least", 5, "a13=inf", ("COMPLETED", 13, 1, None)),
        ("ab", "until_deadline", None, "b15 a13 b20 a21", ("COMPLETED", 20, 3, [])),
        ("ab", "until_deadline", None, "b20", ("COMPLETED", 20, 1, ["a"])),
        ("ab", "until_deadline", None, "a9 a21", ("EXPIRED", 20, 0, ["a", "b"])),
    ],
)
def test_each_criterion_holds_at_the_first_time_it_can(
    keys: str, rule: str, need: float | None, events: str, expected: Fate
) -> None:
    assert the_fate(an_operation(keys, rule, need), values_of(events)) == expected


def test_a_sum_is_exact_in_any_order() -> None:
    # In floating point, 1e16 + 1 + 1 depends on the order and falls short of 1e16 + 2 in one of them.
    operation = an_operation("a", "sum_at_least", 1e16 + 2)
    for times in ((12, 13, 14), (13, 12, 14), (14, 12, 13)):
        values = zip(times, (1e16, 1.0, 1.0), strict=True)
        events = [an_event("a", time, value=value) for time, value in values]
        assert the_fate(operation, events) == ("COMPLETED", 14, 3, None)


@pytest.mark.parametrize("need", [0, -0.0, Decimal(0)])
def test_a_need_of_nothing_holds_when_the_operation_is_created(need: float) -> None:
    events = values_of("a8=1 a9=1 a10=1 b11=1")
    assert the_fate(an_operation("ab", "sum_at_least", need), events) == ("COMPLETED", 10, 1, None)
    assert the_fate(an_operation("ab", "sum_at_least", need), events, lookback_us=1) == ("COMPLETED", 10, 2, None)


def test_a_need_of_nothing_is_no_protection_against_a_cancellation_within_the_lookback() -> None:
    operation = an_operation("a", "sum_at_least", 0)
    assert the_fate(operation, controls("cancel:a9"), lookback_us=5) == ("CANCELLED", 9, 0, None)
    assert the_fate(operation, controls("fail:a9"), lookback_us=5) == ("COMPLETED", 10, 0, None)
    assert the_fate(operation, controls("cancel:a10"), lookback_us=5) == ("COMPLETED", 10, 0, None)


def test_rules_that_read_no_need_do_not_mind_one() -> None:
    for rule in ("any_key", "all_keys"):
        for need in (0, -1, float("nan"), 7):
            assert the_fate(an_operation("a", rule, need), values_of("a12")) == ("COMPLETED", 12, 1, [])


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


def test_the_purgatorys_criterion_rules_operations_that_bring_none() -> None:
    bare = {name: value for name, value in an_operation("ab").items() if name not in ("rule", "need", "level")}
    own = an_operation("ab", "any_key", id="own")
    fates = all_fates([bare, own], values_of("a12 b14"), criterion={"rule": "quorum", "need": 2})
    assert fates == [("COMPLETED", 14, 2, []), ("COMPLETED", 12, 1, ["b"])]


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


def test_values_that_no_sum_takes_are_not_matched_and_others_are() -> None:
    assert sums_of(Decimal(9), Decimal("-1"), None, Decimal("0.00"), Decimal("1.00")) == ("EXPIRED", 20, 3, None)
    assert sums_of(9, -1, None, 0, 1) == ("EXPIRED", 20, 3, None)
    assert sums_of(9.0, float("nan"), float("-inf"), None, -0.0, 1.0) == ("EXPIRED", 20, 3, None)


@pytest.mark.parametrize(
    ("level", "value", "reached"),
    [
        (BIG + 1, BIG, False),
        (BIG + 1, BIG + 1, True),
        (2**63 - 1, 2**63 - 2, False),
        (-(2**63) + 1, -(2**63), False),
        (-(2**63), -(2**63), True),
        (Decimal("0.80"), Decimal("0.8"), True),
        (Decimal("0.81"), Decimal("0.80"), False),
        (0.8, Decimal("0.8"), True),
        (0.1, Decimal("0.1"), True),
        (Decimal("90071992547409.94"), Decimal("90071992547409.93"), False),
        (Decimal("-0.01"), Decimal("-0.02"), False),
        (0.1, 0.1, True),
        (Decimal("0.7"), 0.7, True),
        (0.8, 0.7999999999999999, False),
        (float("inf"), 1.7e308, False),
        (float("-inf"), float("-inf"), True),
        (float("-inf"), -1.7e308, True),
        (0.5, float("nan"), False),
    ],
)
def test_levels_are_compared_exactly_in_the_type_of_the_values(level: Any, value: Any, reached: bool) -> None:
    for needed in (level, {"a": level}):
        status, _, matched, _ = the_fate(an_operation("a", "level", level=needed), [an_event("a", 12, value=value)])
        assert (status, matched) == ("COMPLETED" if reached else "EXPIRED", 1)
    assert the_fate(an_operation("a", "level", need=level), [an_event("a", 3, value=value)])[0] == status


@pytest.mark.parametrize("need", [2, 2.0, Decimal("2.00")])
def test_counts_and_quorums_take_a_need_of_any_type(need: Any) -> None:
    for rule in ("count", "quorum"):
        for values in ([Decimal("0.10")] * 3, [BIG] * 3, [1.0] * 3, [None] * 3):
            events = [an_event(key, 11 + i, value=values[i]) for i, key in enumerate("aba")]
            assert the_fate(an_operation("ab", rule, need), events)[:3] == ("COMPLETED", 12, 2)


@pytest.mark.parametrize("rule", ["count", "quorum"])
@pytest.mark.parametrize("need", [BIG + 1, 2**63 - 1, 1e300, Decimal("1e37")])
def test_a_count_or_quorum_of_a_huge_need_is_never_met(rule: str, need: Any) -> None:
    assert the_fate(an_operation("a", rule, need), values_of("a12=1 a13=1"))[:2] == ("EXPIRED", 20)


def test_of_one_event_id_at_one_time_the_smallest_value_stands_in_every_type() -> None:
    for values in ([BIG + 1, BIG], [Decimal("0.80"), Decimal("0.7")], [1.0, None]):
        events = [an_event("a", 12, value=value, event_id="x") for value in values]
        for order in (events, events[::-1]):
            assert the_fate(an_operation("a", "sum_at_least", values[0]), order) == ("EXPIRED", 20, 1, None)


# --- levels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "level", "events", "expected"),
    [
        ("a", 1, "a12=0.5 a13=1 a14=2", ("COMPLETED", 13, 2, [])),
        ("a", 1, "a12=0.5 a13=0.75", ("EXPIRED", 20, 2, ["a"])),  # a maximum, not a sum
        ("ab", {"a": 1, "b": 2}, "a12=1 b13=1 b14=2 a15=0", ("COMPLETED", 14, 3, [])),
        ("ab", {"a": 1, "b": 2}, "a12=2 b13=1", ("EXPIRED", 20, 2, ["b"])),
        ("a", 1, "a3=1", ("COMPLETED", 10, 0, [])),  # reached long before: at created, never earlier
        ("a", 1, "a3=1 a10=0 a11=0", ("COMPLETED", 10, 1, [])),
        ("ab", 1, "a3=5 b15=1", ("COMPLETED", 15, 1, [])),  # one from history, one that still comes
        ("a", 0, "", ("EXPIRED", 20, 0, ["a"])),  # no event, no level, not even of nothing
        ("a", -1, "a3=-1", ("COMPLETED", 10, 0, [])),
        ("a", 0, "a12", ("EXPIRED", 20, 1, ["a"])),  # an event without a value reaches nothing
        ("a", 1, "a12=nan a13=1", ("COMPLETED", 13, 2, [])),
        ("a", 1, "a21=1", ("EXPIRED", 20, 0, ["a"])),
    ],
)
def test_a_level_is_reached_by_the_running_maximum(keys: str, level: Any, events: str, expected: Fate) -> None:
    assert the_fate(an_operation(keys, "level", level=level), values_of(events)) == expected


def test_a_level_for_all_keys_may_stand_in_need() -> None:
    operation = an_operation("ab", "level", need=1)
    assert the_fate(operation, values_of("a12=1 b13=1")) == ("COMPLETED", 13, 2, [])


def test_a_level_reached_within_the_lookback_counts_its_event_but_resolves_at_created() -> None:
    operation = an_operation("a", "level", level=1)
    assert the_fate(operation, values_of("a6=0 a8=1"), lookback_us=3) == ("COMPLETED", 10, 1, [])


def test_history_of_a_level_knows_no_failures_from_before_the_lookback() -> None:
    operation = an_operation("a", "level", level=1)
    assert the_fate(operation, values_of("a5=1") + controls("fail:a4")) == ("COMPLETED", 10, 0, [])


def test_a_redelivered_event_raises_a_level_but_is_matched_once() -> None:
    operation = an_operation("ab", "level", level=1)
    events = [
        an_event("a", 12, value=1, event_id="x"),
        an_event("a", 13, value=1, event_id="x"),
        an_event("b", 14, value=1, event_id="y"),
    ]
    assert the_fate(operation, events) == ("COMPLETED", 14, 2, [])


# --- boundaries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "lookback", "expected"),
    [
        (9, 0, ("EXPIRED", 20, 0, ["a"])),
        (10, 0, ("COMPLETED", 10, 1, [])),
        (20, 0, ("COMPLETED", 20, 1, [])),
        (21, 0, ("EXPIRED", 20, 0, ["a"])),
        (6, 3, ("EXPIRED", 20, 0, ["a"])),
        (7, 3, ("COMPLETED", 7, 1, [])),  # resolved before created: the law says the event's time
        (21, 3, ("EXPIRED", 20, 0, ["a"])),
    ],
)
def test_an_event_counts_from_created_less_lookback_to_the_deadline_itself(
    time: int, lookback: int, expected: Fate
) -> None:
    assert the_fate(an_operation(), [an_event("a", time)], lookback_us=lookback) == expected


def test_an_operation_may_live_for_one_instant() -> None:
    operation = an_operation(deadline=10)
    assert the_fate(operation, values_of("a10")) == ("COMPLETED", 10, 1, [])
    assert the_fate(operation, values_of("a11")) == ("EXPIRED", 10, 0, ["a"])


def test_an_event_before_created_waits_a_negative_time_rounded_down() -> None:
    (outcome,) = decide([an_operation(created=10_000, deadline=20_000)], [an_event("a", 8_999)], lookback_us=9_000)
    assert (outcome["resolved_at"], outcome["wait_ms"]) == (8_999, -2)


@pytest.mark.parametrize(
    ("events", "watermark", "decided"),
    [
        ("a13", 12, False),
        ("a13", 13, True),
        ("", 19, False),
        ("", 20, True),
        ("a25", 20, True),
    ],
)
def test_an_outcome_is_out_when_the_watermark_reaches_resolved_at(events: str, watermark: int, decided: bool) -> None:
    assert len(decide([an_operation()], values_of(events), watermark_us=watermark)) == decided


def test_an_outcome_from_before_its_creation_is_held_until_then() -> None:
    for watermark, rows in ((8, 0), (9, 0), (10, 1)):
        assert len(decide([an_operation()], values_of("a8"), lookback_us=5, watermark_us=watermark)) == rows


def test_an_extended_operation_is_pending_until_its_new_deadline() -> None:
    for watermark, rows in ((20, 0), (22, 0), (23, 1)):
        assert len(decide([an_operation()], controls("extend:a18=5"), watermark_us=watermark)) == rows


# --- control events -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "rule", "need", "events", "expected"),
    [
        # any_key survives while one key may still come
        ("ab", "any_key", None, "fail:a12", ("EXPIRED", 20, 0, ["a", "b"])),
        ("ab", "any_key", None, "fail:a12 fail:b13", ("FAILED", 13, 0, ["a", "b"])),
        ("ab", "any_key", None, "fail:a12 complete:a13 complete:b14", ("COMPLETED", 14, 1, ["a"])),
        # all_keys fails with the first key that had not completed
        ("ab", "all_keys", None, "complete:a11 fail:a12 complete:b13", ("COMPLETED", 13, 2, [])),
        ("ab", "all_keys", None, "complete:a11 fail:b12 complete:b13", ("FAILED", 12, 1, ["b"])),
        # a quorum of 2 of 3 survives one failure
        ("abc", "quorum", 2, "fail:a12 complete:b13 complete:c14", ("COMPLETED", 14, 2, ["a"])),
        ("abc", "quorum", 2, "fail:a12 complete:b13 fail:c14", ("FAILED", 14, 1, ["a", "c"])),
        ("abc", "quorum", 2, "complete:a11 fail:a12 fail:b13 complete:c14", ("COMPLETED", 14, 2, ["b"])),
        # one that never could be met fails with the first failure, even of a key that had completed
        ("ab", "quorum", 3, "complete:a11 fail:a12", ("FAILED", 12, 1, ["b"])),
        # count and sum live as long as one key does
        ("ab", "count", 2, "complete:a11 fail:a12 complete:a13 complete:b14", ("COMPLETED", 14, 2, None)),
        ("ab", "count", 3, "complete:a11 fail:a12 complete:b13 fail:b14", ("FAILED", 14, 2, None)),
        ("ab", "sum_at_least", 2, "complete:a11=1.5 fail:a12 complete:b13=0.5", ("COMPLETED", 13, 2, None)),
        ("ab", "sum_at_least", 2, "complete:a11=1.5 fail:a12 fail:b13", ("FAILED", 13, 1, None)),
    ],
)
def test_a_failure_settles_its_key_and_fails_the_operation_once_hope_is_gone(
    keys: str, rule: str, need: float | None, events: str, expected: Fate
) -> None:
    assert the_fate(an_operation(keys, rule, need), controls(events)) == expected


def test_a_level_fails_with_a_key_below_it_and_outlives_a_key_that_had_reached_it() -> None:
    operation = an_operation("ab", "level", level=1)
    assert the_fate(operation, controls("complete:a11=0.5 fail:a12")) == ("FAILED", 12, 1, ["a", "b"])
    assert the_fate(operation, controls("complete:a5=1 fail:a12 complete:b13=1")) == ("COMPLETED", 13, 1, [])
    assert the_fate(operation, controls("complete:a5=1 fail:b12 complete:b12=0.5")) == ("FAILED", 12, 1, ["b"])


def test_what_completes_on_a_failed_key_later_is_not_matched() -> None:
    operation = an_operation("ab", "count", 9)
    events = controls("complete:a12 fail:a12 complete:a12 complete:a13 complete:b14")
    assert the_fate(operation, events) == ("EXPIRED", 20, 3, None)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("force:a13", ("COMPLETED", 13, 0, ["a", "b"])),
        ("complete:a12 complete:a13 force:b13 complete:b14", ("COMPLETED", 13, 2, ["b"])),
        ("cancel:b13", ("CANCELLED", 13, 0, ["a", "b"])),
        ("complete:a13 cancel:b13", ("CANCELLED", 13, 1, ["b"])),
        ("cancel:b13 force:a14", ("CANCELLED", 13, 0, ["a", "b"])),
        ("force:b13 cancel:a12", ("CANCELLED", 12, 0, ["a", "b"])),
        ("cancel:c13 force:c14 fail:c15", ("EXPIRED", 20, 0, ["a", "b"])),
        ("cancel:a9 force:b21", ("EXPIRED", 20, 0, ["a", "b"])),
        ("cancel:a20", ("CANCELLED", 20, 0, ["a", "b"])),
    ],
)
def test_force_and_cancel_settle_an_operation_on_one_of_its_keys(events: str, expected: Fate) -> None:
    assert the_fate(an_operation("ab", "all_keys"), controls(events)) == expected


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ("complete:a13 complete:b13 fail:a13 fail:b13 cancel:a13", "COMPLETED"),
        ("force:a13 fail:b13 cancel:a13", "COMPLETED"),
        ("fail:b13 cancel:a13", "FAILED"),
        ("cancel:a13 extend:a13=9", "CANCELLED"),
        ("cancel:a13 fail:b14", "CANCELLED"),
        ("fail:a12 complete:a13 complete:b13", "FAILED"),
        ("fail:a20 complete:a20 complete:b20", "COMPLETED"),
    ],
)
def test_at_a_tie_completed_wins_then_failed_then_cancelled(events: str, status: str) -> None:
    for order in (controls(events), controls(events)[::-1]):
        assert the_fate(an_operation("ab", "all_keys"), order)[0] == status


def test_a_failure_at_the_deadline_beats_expiry() -> None:
    assert the_fate(an_operation(), controls("fail:a20")) == ("FAILED", 20, 0, ["a"])


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("extend:a15=8", ("EXPIRED", 23, 0, ["a"])),
        ("extend:a15=3", ("EXPIRED", 20, 0, ["a"])),  # a deadline never moves back
        ("extend:a15=8 complete:a23", ("COMPLETED", 23, 1, [])),
        ("extend:a15=8 complete:a24", ("EXPIRED", 23, 0, ["a"])),
        ("extend:a20=1", ("EXPIRED", 21, 0, ["a"])),  # at the deadline is not past it
        ("extend:a21=9", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a15=8 extend:a23=4", ("EXPIRED", 27, 0, ["a"])),  # not past the deadline as it then stands
        ("extend:a15=8 extend:a24=4", ("EXPIRED", 23, 0, ["a"])),
        ("extend:a15=6 extend:a15=9 extend:a15=7", ("EXPIRED", 24, 0, ["a"])),  # the largest of one instant
        ("extend:a15=9 extend:a16=6", ("EXPIRED", 24, 0, ["a"])),
        ("extend:a15=-3", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a15", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a15=nan", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a15=inf", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a9=30", ("EXPIRED", 20, 0, ["a"])),
        ("extend:a15=9 cancel:a22", ("CANCELLED", 22, 0, ["a"])),
    ],
)
def test_extend_moves_the_deadline_to_its_time_plus_value(events: str, expected: Fate) -> None:
    assert the_fate(an_operation(), controls(events)) == expected


def test_the_value_of_an_extension_is_in_seconds() -> None:
    operation = an_operation(created=10_000_000, deadline=20_000_000)
    fate = the_fate(operation, [an_event("a", 19_000_000, "extend", value=2.5)])
    assert fate == ("EXPIRED", 21_500_000, 0, ["a"])


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


def test_the_value_of_an_extension_is_exact_in_decimals_and_whole_numbers() -> None:
    for value in (1.1, Decimal("1.1")):
        assert the_fate(an_operation(), [an_event("a", 15, "extend", value=value)])[1] == 1_100_015
    seconds = Decimal("8000000000000.000001")  # more digits than a double has
    assert the_fate(an_operation(), [an_event("a", 15, "extend", value=seconds)])[1] == 8_000_000_000_000_000_016


def test_a_long_chain_of_extensions_holds_until_one_comes_too_late() -> None:
    chain = [an_event("a", 20 + 7 * step, "extend", value=7 / 1_000_000) for step in range(100)]
    assert the_fate(an_operation(), chain)[1] == 20 + 7 * 100
    for order in (chain, chain[::-1]):
        assert the_fate(an_operation(), [event for event in order if event["time"] != 20 + 7 * 60])[1] == 20 + 7 * 60


def test_an_event_with_an_operation_id_speaks_to_that_operation_alone() -> None:
    for kind, status in (("complete", "COMPLETED"), ("fail", "FAILED"), ("cancel", "CANCELLED")):
        operations = [an_operation(id="one"), an_operation(id="two")]
        outcomes = decide(operations, [an_event("a", 12, kind, operation_id="two")])
        assert {one["id"]: one["status"] for one in outcomes} == {"one": "EXPIRED", "two": status}


def test_an_operation_id_on_a_key_that_the_operation_does_not_watch_finds_nothing() -> None:
    assert the_fate(an_operation(), [an_event("b", 12, "cancel", operation_id="o")])[0] == "EXPIRED"


# --- event ids ------------------------------------------------------------------------------------


def test_an_event_delivered_again_counts_once_and_at_its_earliest_time() -> None:
    twice = [an_event("a", time, value=1, event_id="x") for time in (15, 12)]
    other = [an_event("a", 17, value=1, event_id="y")]
    assert the_fate(an_operation("a", "count", 2), twice + other) == ("COMPLETED", 17, 2, None)
    assert the_fate(an_operation("a", "count", 2), twice) == ("EXPIRED", 20, 1, None)
    assert the_fate(an_operation("a", "sum_at_least", 2), twice + other) == ("COMPLETED", 17, 2, None)
    assert the_fate(an_operation("a", "any_key"), twice) == ("COMPLETED", 12, 1, [])


def test_events_without_an_id_are_all_different() -> None:
    assert the_fate(an_operation("a", "count", 2), values_of("a12 a12")) == ("COMPLETED", 12, 2, None)


def test_an_event_id_is_known_only_within_the_operations_own_time() -> None:
    events = [an_event("a", 9, event_id="x"), an_event("a", 12, event_id="x")]
    assert the_fate(an_operation("a", "count", 1), events) == ("COMPLETED", 12, 1, None)


def test_one_event_id_on_two_keys_satisfies_both_and_counts_once() -> None:
    events = [an_event("b", 12, value=2, event_id="x"), an_event("a", 13, value=2, event_id="x")]
    for order in (events, events[::-1]):
        assert the_fate(an_operation("ab", "all_keys"), order) == ("COMPLETED", 13, 1, [])
        assert the_fate(an_operation("ab", "quorum", 2), order) == ("COMPLETED", 13, 1, [])
        assert the_fate(an_operation("ab", "count", 2), order) == ("EXPIRED", 20, 1, None)
        assert the_fate(an_operation("ab", "sum_at_least", 3), order) == ("EXPIRED", 20, 1, None)


def test_of_one_event_id_at_one_time_the_smallest_value_stands() -> None:
    events = [an_event("a", 12, value=value, event_id="x") for value in (2.0, 1.0, 3.0)]
    for order in (events, events[::-1]):
        assert the_fate(an_operation("a", "sum_at_least", 2), order) == ("EXPIRED", 20, 1, None)
        assert the_fate(an_operation("a", "sum_at_least", 1), order) == ("COMPLETED", 12, 1, None)


def test_an_event_that_came_too_late_for_a_failed_key_counts_where_it_comes_again() -> None:
    events = [*controls("fail:a12"), an_event("a", 13, event_id="x"), an_event("b", 14, event_id="x")]
    assert the_fate(an_operation("ab", "count", 1), events) == ("COMPLETED", 14, 1, None)


# --- duplicates and rejected rows -----------------------------------------------------------------


def test_a_second_row_of_an_id_is_a_duplicate_until_the_first_ones_deadline() -> None:
    operations = [
        an_operation(row="again at the deadline", created=20, deadline=90),
        an_operation(row="beyond", created=21, deadline=30),
        an_operation(row="first"),
        an_operation(row="a longer one", deadline=80),
        an_operation(row="of the new one", created=30, deadline=31),
        an_operation(row="another id", id="p"),
    ]
    outcomes = decide(operations, values_of("a12 a25"))
    assert {one["row"]: (one["status"], one["resolved_at"], one["matched"]) for one in outcomes} == {
        "first": ("COMPLETED", 12, 1),
        "a longer one": ("DUPLICATE", 10, 0),
        "again at the deadline": ("DUPLICATE", 20, 0),
        "beyond": ("COMPLETED", 25, 1),
        "of the new one": ("DUPLICATE", 30, 0),
        "another id": ("COMPLETED", 12, 1),
    }
    duplicate = next(one for one in outcomes if one["status"] == "DUPLICATE")
    assert (duplicate["wait_ms"], duplicate["missing_keys"], duplicate["reason_kind"]) == (0, None, "duplicate")


def test_of_two_rows_with_the_same_times_the_one_whose_payload_sorts_first_stands() -> None:
    operations = [an_operation(row="b"), an_operation(row="a")]
    for order in (operations, operations[::-1]):
        assert {one["row"]: one["status"] for one in decide(order, [])} == {"a": "EXPIRED", "b": "DUPLICATE"}


def test_an_exact_copy_is_a_duplicate() -> None:
    fates = all_fates([an_operation(), an_operation()], values_of("a12"))
    assert sorted(fate[0] for fate in fates) == ["COMPLETED", "DUPLICATE"]


def again_at(created: int, events: str, rule: str = "any_key", need: Any = None, **options: Any) -> str:
    """Status of a second row of the id, created then and waiting for 50; the first lives from 10 to 20."""
    first = an_operation("a", rule, need, row="first")
    second = an_operation("a", rule, need, row="again", created=created, deadline=created + 50)
    outcomes = {one["row"]: one["status"] for one in decide([second, first], controls(events), **options)}
    assert outcomes["first"] != "DUPLICATE"
    return str(outcomes["again"])


@pytest.mark.parametrize(
    ("events", "last_us"),  # the last time at which the id is a duplicate
    [
        ("", 20),
        ("extend:a15=15", 30),
        ("extend:a15=3", 20),  # a deadline never moves back
        ("extend:a20=15", 35),  # at the deadline is not past it
        ("extend:a21=15", 20),
        ("extend:a15=10 extend:a25=10 extend:a35=10", 45),  # each just reaches the next
        ("extend:a15=10 extend:a26=10", 25),
        ("extend:a15=10 extend:a15=12 extend:a26=10", 36),
        # what the operation received while it was pending, and nothing later
        ("extend:a15=15 complete:a16", 30),
        ("complete:a15 extend:a16=15", 20),
        ("extend:a15=15 complete:a25 extend:a26=90", 30),
        ("cancel:a15 extend:a16=15", 20),
        ("fail:a15 extend:a16=15", 20),
        ("force:a15 extend:a16=15", 20),
        # at the very time at which it is resolved it is pending still
        ("complete:a15 extend:a15=15", 30),
        ("cancel:a15 extend:a15=15", 30),
        ("extend:a15=10 complete:a25 extend:a25=15", 40),
        # before it was created, on another key: not received
        ("extend:a9=30", 20),
        ("extend:b15=30", 20),
        ("extend:a15", 20),
        ("extend:a15=nan", 20),
        ("extend:a15=inf", 20),
        ("extend:a15=-30", 20),
    ],
)
def test_an_id_is_a_duplicate_until_the_deadline_as_extensions_left_it(events: str, last_us: int) -> None:
    assert again_at(last_us, events) == "DUPLICATE"
    assert again_at(last_us + 1, events) != "DUPLICATE"


def test_an_id_whose_deadline_was_extended_without_end_never_stands_again() -> None:
    assert again_at(2**62, "extend:a15=1e300") == "DUPLICATE"


def test_an_extension_within_the_lookback_lengthens_the_memory_of_an_id_too() -> None:
    assert again_at(29, "extend:a9=20", lookback_us=1) == "DUPLICATE"
    assert again_at(30, "extend:a9=20", lookback_us=1) == "EXPIRED"


def test_an_operation_that_needs_nothing_is_pending_at_its_creation_alone() -> None:
    assert again_at(25, "extend:a10=15", "sum_at_least", 0) == "DUPLICATE"
    assert again_at(25, "extend:a11=15", "sum_at_least", 0) == "COMPLETED"


def test_an_extension_of_one_operation_lengthens_the_memory_of_its_id_alone() -> None:
    rows = [an_operation(id=name, row=f"{name}{at}", created=at, deadline=at + 10) for at in (10, 25) for name in "op"]
    outcomes = decide(rows, [an_event("a", 15, "extend", value=15 / 1_000_000, operation_id="p")])
    assert {one["row"]: (one["status"], one["resolved_at"]) for one in outcomes} == {
        "o10": ("EXPIRED", 20),
        "p10": ("EXPIRED", 30),
        "o25": ("EXPIRED", 35),
        "p25": ("DUPLICATE", 25),
    }


def test_one_id_completes_once_in_one_span_and_again_in_the_next() -> None:
    rows = [an_operation(row=str(at), created=at, deadline=at + 10) for at in (10, 25, 31, 42)]
    events = controls("extend:a15=15 complete:a28 complete:a33 extend:a33=2 complete:a50")
    assert {one["row"]: (one["status"], one["resolved_at"]) for one in decide(rows, events)} == {
        "10": ("COMPLETED", 28),
        "25": ("DUPLICATE", 25),
        "31": ("COMPLETED", 33),
        "42": ("COMPLETED", 50),
    }


def test_a_duplicate_or_rejected_row_lengthens_nothing() -> None:
    rows = [an_operation(row=str(at), created=at, deadline=at + 10) for at in (10, 20, 25)]
    rows.append(an_operation(row="rejected", created=12, deadline=11))
    statuses = {one["row"]: one["status"] for one in decide(rows, controls("extend:a22=90"))}
    assert statuses == {"10": "EXPIRED", "20": "DUPLICATE", "25": "EXPIRED", "rejected": "REJECTED"}


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


def test_a_duplicate_is_out_when_the_watermark_reaches_its_creation() -> None:
    operations = [an_operation(), an_operation(created=15)]
    assert [fate[0] for fate in all_fates(operations, [], watermark_us=14)] == []
    assert [fate[0] for fate in all_fates(operations, [], watermark_us=15)] == ["DUPLICATE"]


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"id": None}, "null_id"),
        ({"keys": None}, "null_keys"),
        ({"keys": []}, "null_keys"),
        ({"keys": ["a", None]}, "null_key"),
        ({"created": None}, "null_created"),
        ({"deadline": None}, "null_deadline"),
        ({"deadline": 9}, "deadline_before_created"),
        ({"rule": None}, "unknown_rule"),
        ({"rule": "most_keys"}, "unknown_rule"),
        ({"rule": "count"}, "bad_need"),
        ({"rule": "quorum", "need": float("nan")}, "bad_need"),
        ({"rule": "sum_at_least", "need": -0.5}, "bad_need"),
        ({"rule": "sum_at_least", "need": float("nan")}, "bad_need"),
        ({"rule": "level"}, "bad_need"),
        ({"rule": "level", "level": {"b": 1}}, "bad_need"),
        ({"rule": "level", "level": {"a": float("nan")}}, "bad_need"),
        ({"rule": "level", "level": {}, "need": 1}, "bad_need"),
        ({"rule": "sum_at_least", "need": Decimal("-0.01")}, "bad_need"),
        ({"rule": "sum_at_least", "need": -1}, "bad_need"),
        ({"rule": "sum_at_least", "need": float("-inf")}, "bad_need"),
        ({"rule": "sum_at_least", "need": float("inf")}, "bad_need"),
        *(
            ({"rule": rule, "need": need}, "bad_need")
            for rule in ("count", "quorum")
            for need in (0, -0.0, -1, 0.5, 1.5, Decimal("2.5"), Decimal(0), float("inf"), float("-inf"))
        ),
    ],
)
def test_a_spoiled_operation_is_rejected_at_once_and_stands_in_nobodys_way(fault: Row, why: str) -> None:
    spoiled = {**an_operation(row="spoiled"), **fault}
    outcomes = decide([spoiled, an_operation(row="sound")], values_of("a12"), watermark_us=0)
    assert [(one["row"], one["status"], one["reason_kind"]) for one in outcomes] == [("spoiled", "REJECTED", why)]
    rejected, sound = decide([spoiled, an_operation(row="sound")], values_of("a12"))
    assert sound["status"] == "COMPLETED"
    columns = ("resolved_at", "wait_ms", "matched", "missing_keys")
    assert [rejected[name] for name in columns] == [None, None, 0, None]


@pytest.mark.parametrize(("need", "sound"), [(2.0**-44, False), (2.0**-43, True), (2.0**62, True), (1e19, False)])
def test_sums_of_doubles_have_a_range_of_needs(need: float, sound: bool) -> None:
    operation = an_operation("a", "sum_at_least", need)
    [outcome] = decide([operation], [], doubles=True)
    assert outcome["status"] == ("EXPIRED" if sound else "REJECTED")
    assert decide([operation], [])[0]["status"] == "EXPIRED", "only doubles have it"


@pytest.mark.parametrize(
    ("event", "rule", "why"),
    [
        (an_event(None, 12), None, "null_key"),
        (an_event("a", None), None, "null_time"),
        (an_event("a", 12, "finish"), None, "unknown_kind"),
        (an_event("a", 12, value=-0.5), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=float("nan")), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=float("-inf")), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=Decimal("-0.01")), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=-(2**63)), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=float("inf")), "sum_at_least", None),
        (an_event("a", 12, value=-0.0), "sum_at_least", None),
        (an_event("a", 12, value=Decimal("-0.00")), "sum_at_least", None),
        (an_event("a", 12, None, value=-0.5), "sum_at_least", "bad_value"),
        (an_event("a", 12, value=-0.5), "count", None),
        *((an_event("a", 12, "extend", value=value), None, "bad_extension") for value in BAD_SECONDS),
        (an_event("a", 12, "extend", value=0), "sum_at_least", None),
        (an_event("a", 2**63 - 1), None, "no_time"),
        (an_event("a", -(2**63)), None, "no_time"),
        *((an_event(None, 12, kind, operation_id="o"), None, "operation_alone") for kind in KINDS[1:]),
        (an_event(None, 12, operation_id="o"), None, "null_key"),
        (an_event("a", 12, value=None), "sum_at_least", None),
        (an_event("a", 12, value=0.0), "sum_at_least", None),
    ],
)
def test_a_spoiled_event_is_told_from_a_sound_one(event: Row, rule: str | None, why: str | None) -> None:
    assert why_event_rejected(event, rule) == why


def test_a_spoiled_event_completes_nothing() -> None:
    spoiled = [an_event(None, 12), an_event("a", None), an_event("a", 12, "finish")]
    assert the_fate(an_operation(), spoiled) == ("EXPIRED", 20, 0, ["a"])


def test_a_value_that_no_sum_can_take_is_set_aside_by_sums_alone() -> None:
    operations = [an_operation("a", "sum_at_least", 1, id="sum"), an_operation("a", "count", 2, id="count")]
    fates = all_fates(operations, values_of("a12=-5 a13=nan a14=1"))
    assert fates == [("COMPLETED", 14, 1, None), ("COMPLETED", 13, 2, None)]


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


def test_a_control_event_that_loses_a_tie_was_heard_all_the_same() -> None:
    assert orphans_of([an_operation()], controls("complete:a12 cancel:a12 extend:a12=9")) == []


def test_a_control_event_to_an_unknown_id_or_a_duplicate_row_is_an_orphan() -> None:
    unknown = [an_event("a", 12, "cancel", operation_id="nobody")]
    assert orphans_of([an_operation()], unknown) == [("cancel", 12)]
    beyond = [an_operation(), an_operation(created=15, deadline=40)]
    assert orphans_of(beyond, controls("cancel:a30")) == [("cancel", 30)]


def test_an_orphan_is_known_when_no_operation_to_come_could_hear_it() -> None:
    for watermark, expected in ((14, []), (15, [("cancel", 12)])):
        assert orphans_of([], controls("cancel:a12"), watermark_us=watermark, lookback_us=3) == expected


def test_an_orphans_row_is_the_event_itself() -> None:
    event = an_event("a", 12, "cancel", operation_id="nobody")
    (outcome,) = decide([], [event], orphans="control")
    assert outcome == {
        "row": event,
        "id": "nobody",
        "status": "ORPHAN",
        "resolved_at": 12,
        "wait_ms": None,
        "matched": 0,
        "missing_keys": None,
        "reason_kind": "orphan",
    }


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
@settings(max_examples=200, deadline=None)
def test_the_outcomes_do_not_depend_on_the_order_of_the_rows(
    world: World, lookback_us: int, orphans: bool, seed: int
) -> None:
    rng = random.Random(seed)
    operations, events = rng.sample(world.operations, k=len(world.operations)), list(world.events)
    rng.shuffle(events)
    before = decide(world.operations, world.events, lookback_us=lookback_us, orphans=orphans)
    after = decide(operations, events, lookback_us=lookback_us, orphans=orphans)
    assert multiset(before) == multiset(after)


@given(worlds(), LOOKBACKS_US, st.sampled_from(KINDS), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_an_event_on_an_unrelated_key_changes_nothing(world: World, lookback_us: int, kind: str, steps: int) -> None:
    value = next((event["value"] for event in world.events if event["value"] is not None), None)
    stranger = an_event("z", BASE_US + steps * STEP_US, kind, value=value)
    before = decide(world.operations, world.events, lookback_us=lookback_us)
    after = decide(world.operations, [*world.events, stranger], lookback_us=lookback_us)
    assert multiset(before) == multiset(after)


@given(worlds(), LOOKBACKS_US)
@settings(max_examples=200, deadline=None)
def test_every_operation_has_one_outcome(world: World, lookback_us: int) -> None:
    outcomes = decide(world.operations, world.events, lookback_us=lookback_us)
    assert Counter(one["row"] for one in outcomes) == Counter(one["row"] for one in world.operations)


@given(worlds(), LOOKBACKS_US, st.integers(-1, 20))
@settings(max_examples=200, deadline=None)
def test_a_watermark_leaves_out_what_is_pending_and_changes_nothing_else(
    world: World, lookback_us: int, steps: int
) -> None:
    watermark_us = BASE_US + steps * STEP_US
    everything = decide(world.operations, world.events, lookback_us=lookback_us)
    emitted = decide(world.operations, world.events, lookback_us=lookback_us, watermark_us=watermark_us)
    pending = multiset(everything) - multiset(emitted)
    assert multiset(emitted) + pending == multiset(everything)
    assert all(one["resolved_at"] is None or one["resolved_at"] <= watermark_us for one in emitted)


@given(worlds(), LOOKBACKS_US, DELAYS_US, DELAYS_US, st.integers(1, 7), SEEDS)
@settings(max_examples=400, deadline=None)
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
@settings(max_examples=300, deadline=None)
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
@settings(max_examples=200, deadline=None)
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


def test_a_seed_gives_one_world_and_one_split() -> None:
    def drawn() -> tuple[World, Any]:
        rng = random.Random(7)
        world = random_world(rng)
        return world, splits(rng, *world, 4, operations_delay_us=STEP_US)

    assert drawn() == drawn()
    assert random_world(random.Random(8)) != drawn()[0]


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


@pytest.mark.parametrize(("numbers", "of"), [("double", float), ("bigint", int), ("decimal", Decimal)])
def test_worlds_have_values_needs_and_levels_of_one_type_and_reach_them_exactly(numbers: str, of: type) -> None:
    operations, events = random_world(
        random.Random(5), n_operations=200, n_events=600, n_keys=8, numbers=numbers, spoiled=True
    )
    drawn = [event["value"] for event in events] + [op["need"] for op in operations]
    drawn += [op["level"] for op in operations if not isinstance(op["level"], dict)]
    drawn += [level for op in operations if isinstance(op["level"], dict) for level in op["level"].values()]
    kinds = {type(number) for number in drawn if number is not None}
    assert kinds == ({float, int} if numbers == "double" else {of})
    assert all(-(2**63) <= number < 2**63 for number in drawn if isinstance(number, int))
    assert all(number.as_tuple().exponent == -2 for number in drawn if isinstance(number, Decimal))


def as_doubles(world: World) -> World:
    """The world as one sees it who compares through double."""

    def double(number: Any) -> Any:
        if isinstance(number, dict):
            return {key: double(level) for key, level in number.items()}
        return None if number is None else float(number)

    operations = [{**op, "need": double(op["need"]), "level": double(op["level"])} for op in world.operations]
    return World(operations, [{**event, "value": double(event["value"])} for event in world.events])


@pytest.mark.parametrize("numbers", ["bigint", "decimal"])
def test_worlds_of_exact_numbers_tell_who_compares_through_double(numbers: str) -> None:
    differ = 0
    for seed in range(100):
        world = random_world(
            random.Random(seed), n_operations=12, n_events=36, rules=("sum_at_least", "level"), numbers=numbers
        )
        differ += multiset(decide(*world)) != multiset(decide(*as_doubles(world)))
    assert differ >= 20, differ


def test_two_by_two_the_instants_of_repeated_hours_are_one_local_time() -> None:
    zones = ("Europe/Berlin", "Australia/Lord_Howe")
    for zone, instants in zip(zones, batched(REPEATED_HOUR_INSTANTS, 7), strict=True):
        local = [str(datetime.fromtimestamp(us // 1_000_000, ZoneInfo(zone)).replace(tzinfo=None)) for us in instants]
        assert local[:3] == local[3:6]
        assert len(set(instants)) == 7 and len(set(local)) == 4


def batched(instants: Sequence[int], size: int) -> list[Sequence[int]]:
    return [instants[at : at + size] for at in range(0, len(instants), size)]


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


def test_the_keys_of_an_operation_and_the_kinds_drawn_can_be_limited() -> None:
    world = random_world(random.Random(1), n_operations=50, n_events=50, max_keys=1, kinds=("fail",), rules=("count",))
    assert {len(op["keys"]) for op in world.operations} == {1}
    assert {op["rule"] for op in world.operations} == {"count"}
    assert {event["kind"] for event in world.events} == {"fail"}
    with pytest.raises(ValueError, match="n_keys=9 is not within 1 to 8"):
        random_world(random.Random(1), n_keys=9)
    with pytest.raises(ValueError, match="numbers='float' is none of double, tenths, bigint, decimal"):
        random_world(random.Random(1), numbers="float")


@given(worlds(), DELAYS_US, DELAYS_US, st.integers(1, 9), SEEDS)
@settings(max_examples=300, deadline=None)
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


def test_splits_come_early_and_late_in_order_and_mixed() -> None:
    rng = random.Random(3)
    world = random_world(rng, n_operations=20, n_events=40)
    advanced, unordered, empty = 0, 0, 0
    for _ in range(100):
        batches = splits(rng, *world, 6, operations_delay_us=STEP_US, events_delay_us=2 * STEP_US)
        advanced += batches[4].watermark_ms > 0
        times = [event["time"] for batch in batches for event in batch.events]
        unordered += any(after < before - STEP_US for before, after in pairwise(times))
        empty += any(not batch.operations and not batch.events for batch in batches[:6])
    assert min(advanced, unordered, empty) >= 10, (advanced, unordered, empty)


def test_the_example_of_the_watermark_by_hand() -> None:
    latest_us: dict[str, int] = {}
    delays_us = {"created": 5_000, "time": 5_000}
    first = [("created", {"created": 10_000}), ("created", {"created": 20_000}), ("time", {"time": 18_000})]
    stands_us = watermark_us_after(first, latest_us, delays_us, 0)
    assert stands_us == 13_000
    stands_us = watermark_us_after([("created", {"created": 14_000})], latest_us, delays_us, stands_us)
    assert stands_us == 13_000
    assert watermark_us_after([("time", {"time": 30_000})], latest_us, delays_us, stands_us) == 15_000


def test_the_watermark_stands_at_zero_until_both_sides_have_had_data() -> None:
    latest_us: dict[str, int] = {}
    delays_us = {"created": 0, "time": 0}
    assert watermark_us_after([("time", {"time": 18_999})], latest_us, delays_us, 0) == 0
    assert watermark_us_after([("created", {"created": None})], latest_us, delays_us, 0) == 0
    assert watermark_us_after([("created", {"created": 70_000})], latest_us, delays_us, 0) == 18_000


def test_a_row_that_can_never_be_on_time_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="a row at 0 us can never be on time"):
        splits(random.Random(1), [], [an_event("a", 0)], 2)
    with pytest.raises(ValueError, match="n_batches=0 must be at least 1"):
        splits(random.Random(1), [], [], 0)
    with pytest.raises(ValueError, match="events_delay_us=-1"):
        splits(random.Random(1), [], [], 1, events_delay_us=-1)


@given(worlds(), LOOKBACKS_US)
@settings(max_examples=100, deadline=None)
def test_the_last_batch_sees_a_watermark_beyond_every_outcome(world: World, lookback_us: int) -> None:
    last = splits(random.Random(0), *world, 1, lookback_us=lookback_us)[-1]
    everything = decide(*world, lookback_us=lookback_us, orphans="control")
    assume(everything)
    assert all((one["resolved_at"] or 0) + lookback_us < last.watermark_ms * 1000 for one in everything)
