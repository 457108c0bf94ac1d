"""Values and needs are compared and added up exactly in their own type: against integers, Decimals and Fractions."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import (
    LARGEST,
    LIMB_BITS,
    LIMBS,
    UNREACHED,
    ExactSums,
    addends,
    comparable,
    constant,
    is_negative,
    is_wide,
    joined,
    or_zero,
    read_numbers,
    seconds_us,
    units_up,
    widened,
)
from spark_purgatory.core.arrays.sorted_runs import GrowableArray
from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.waiting import Waiting
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.errors import BugError, ConfigError, StateMismatchError
from tests.support.engine_driver import END_MS, Shards, events_table, operations_table
from tests.support.now_and_then import examples
from tests.support.operations import ev, op

D = Decimal
ONES = 10**38 - 1
"""The most units that a decimal has."""
EDGES = [0, 1, -1, 70, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63) + 1, -(2**63), 2**63, 2**64, 10**19, ONES, -ONES]
UNITS = st.one_of(st.none(), st.sampled_from(EDGES), st.integers(-100, 100), st.integers(-ONES, ONES))


def column(units: Sequence[int | None], scale: int = 0) -> pa.Array:
    return pa.array([None if u is None else D(u).scaleb(-scale, None) for u in units], pa.decimal128(38, scale))


def unwrapped(values: Any) -> list[int | None]:
    if is_wide(values):
        wide = [int.from_bytes(v.ljust(16, b"\0"), "big") - 2**127 for v in values.tolist()]
        return [None if v == -(2**127) else v for v in wide]
    return [None if v == -(2**63) else v for v in values.tolist()]


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with localcontext(prec=100):
        yield


def test_the_worked_example_of_the_module() -> None:
    wide = widened(np.array([numbers.NO_UNITS, -1, 0, 1]))
    assert [bytes(v.ljust(16, b"\0")).hex() for v in wide.tolist()] == [
        "00" * 16,
        "7f" + "ff" * 15,
        "80" + "00" * 15,
        "80" + "00" * 14 + "01",
    ]
    assert UNREACHED == b"\xff" * 16


@settings(deadline=None)
@given(st.lists(UNITS, max_size=8))
@example([None, None])
@example([-(2**63)])
@example([None, 2**63 - 1, -(2**63) + 1])
def test_units_are_read_kept_widened_and_joined_exactly(units: list[int | None]) -> None:
    read = read_numbers(column(units))
    assert unwrapped(read) == units
    assert is_wide(read) == any(u is not None and not -(2**63) < u < 2**63 for u in units)
    assert unwrapped(widened(read)) == units
    assert unwrapped(joined([read, read[:1], widened(read)])) == units + units[:1] + units
    grown = numbers.append(GrowableArray(np.array([5])), read)
    assert unwrapped(grown.values) == [5, *units]
    assert is_negative(read).tolist() == [u is not None and u < 0 for u in units]
    assert unwrapped(or_zero(read)) == [u or 0 for u in units]
    assert unwrapped(addends(read)) == [max(u or 0, 0) for u in units]


@settings(deadline=None)
@given(st.lists(UNITS, min_size=1, max_size=6), st.lists(st.sampled_from(EDGES), min_size=1, max_size=3))
def test_a_level_is_reached_as_integers_say(units: list[int | None], needs: list[int]) -> None:
    n = len(units)
    segment = EventSegment.build(pa.array(["k"] * n), np.zeros(n, np.int64), np.arange(n), read_numbers(column(units)))
    running = segment.running_max
    largest = [max((u for u in units[: i + 1] if u is not None), default=None) for i in range(n)]
    assert unwrapped(running) == largest
    for need in needs:
        asked, values = comparable(read_numbers(column([need])), running)
        assert (values >= asked).tolist() == [m is not None and m >= need for m in largest]


@settings(deadline=None)
@given(st.lists(UNITS, max_size=8), st.integers(-2, 2), st.booleans())
def test_a_sum_reaches_what_integers_say(units: list[int | None], beside: int, wide_need: bool) -> None:
    values = read_numbers(column(units))
    total = sum(max(u or 0, 0) for u in units)
    need = min(max(total + beside, 0), ONES)
    prefix, sums = ExactSums.prefixes(values), ExactSums.zeros(1)
    sums.add_at(np.array([0]), prefix, np.array([0]), np.array([len(units)]))
    asked = constant(need, 1)
    assert sums.at_least(widened(asked) if wide_need else asked).tolist() == [total >= need]
    assert sums.at_least(np.array([UNREACHED])).tolist() == [False]


@pytest.mark.parametrize(
    ("value", "scale", "units"),
    [
        (0.8, 2, 80),
        (0.1, 1, 1),
        (0.1, 0, 1),
        (0.1 + 0.2, 2, 31),
        (-0.1 - 0.2, 2, -30),
        (D("0.801"), 2, 81),
        (D("-0.801"), 2, -80),
        (D("0.80"), 2, 80),
        (2**53 + 1, 0, 2**53 + 1),
        (1e-300, 2, 1),
        (-1e-300, 2, 0),
        (1e22, 0, 10**22),
        (D("99999999999999999999.999999999999999999"), 18, ONES),
    ],
)
def test_a_need_is_rounded_up_and_a_float_means_what_it_is_written_as(value: Any, scale: int, units: int) -> None:
    assert units_up(value, scale) == units


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-ONES, ONES), st.integers(0, 10**20)), max_size=5), st.integers(0, 38))
def test_seconds_are_whole_microseconds_half_to_even(units: list[int | None], scale: int) -> None:
    longest = 2**43 * 10**6
    expected = [max(round(Fraction(u or 0, 10**scale) * 10**6), 0) for u in units]
    expected = [us if us < longest else MAX_TIME_US for us in expected]
    assert seconds_us(column(units, scale)).tolist() == expected


CENTS = EngineSpec(criteria.sum_at_least(D("0.80")), number="decimal(10,2)")


def the_status(spec: EngineSpec, *values: Any, **others: Any) -> str:
    events = [ev(time=11_000 + i, value=v) for i, v in enumerate(values)]
    (outcome,) = Shards(spec, several=True).run([([op(**others)], events, 0), ([], [], END_MS)])
    return str(outcome["status"])


@pytest.mark.parametrize(
    ("rule", "need", "status"),
    [
        ("sum_at_least", D("-0.01"), "REJECTED"),
        ("sum_at_least", float("nan"), "REJECTED"),
        ("sum_at_least", None, "REJECTED"),
        ("level", None, "REJECTED"),
        ("sum_at_least", 0, "COMPLETED"),
        ("sum_at_least", 1e300, "EXPIRED"),
        ("sum_at_least", 1e-300, "COMPLETED"),
        ("sum_at_least", float("inf"), "REJECTED"),
        ("level", float("inf"), "EXPIRED"),
        ("level", -1e300, "COMPLETED"),
        ("level", D(10) ** 37, "EXPIRED"),
        ("quorum", 1, "COMPLETED"),
        ("count", 2, "EXPIRED"),
    ],
)
@pytest.mark.parametrize("number", ["decimal(10,2)", "decimal(38,37)", "decimal(38,38)", "bigint"])
def test_a_need_of_any_size_is_decided_and_one_that_is_none_rejected(
    number: str, rule: str, need: Any, status: str
) -> None:
    spec = EngineSpec(criteria.by_row(need="need"), number=number)
    value = 1 if number == "bigint" else D("0.5")
    assert the_status(spec, value, rule=rule, need=need, level=None) == status


def test_what_waits_for_a_sum_of_decimals_shows_how_far_it_has_come() -> None:
    shards = Shards(CENTS)
    shards.step([op(), op("p", "b")], [ev(value=D("0.25")), ev(value=D("0.30"))], 0)
    assert Waiting(shards.engine(0), None).column("progress").to_pylist() == ["0.55 of 0.8", "0 of 0.8"]


def saved(spec: EngineSpec) -> bytes:
    engine = EventTimePurgatory(spec)
    rows = [op(deadline=90_000, rule="sum_at_least", need=1, level=None)]
    engine.step(read_operations(operations_table(rows, True, 64, spec.by_row, spec.number), spec), None, 0)
    value = {"bigint": 1, "double": 0.25}.get(spec.number, D("0.25"))
    engine.step(None, read_events(events_table([ev(value=value), ev("b", value=None)], 64, spec), spec.criterion), 0)
    return save(engine, 1)


BY_ROW = criteria.by_row(need="need")


@pytest.mark.parametrize(
    "criterion", [criteria.sum_at_least(1), criteria.level(1), BY_ROW], ids=["sum", "level", "by row"]
)
def test_a_state_of_another_number_type_is_refused_by_name(criterion: Any) -> None:
    cents, double = EngineSpec(criterion, number="decimal(10,2)"), EngineSpec(criterion)
    with pytest.raises(
        StateMismatchError,
        match=r"completions\.value: .*'double'.*the query has 'decimal of scale 2'.*cast completions.value to double",
    ):
        restore(cents, saved(double), 1)
    with pytest.raises(
        StateMismatchError, match=r"completions\.value: .*'decimal of scale 2', but the query has 'double': cast compl"
    ):
        restore(double, saved(cents), 1)
    with pytest.raises(
        StateMismatchError, match=r"completions\.value: .*'decimal of scale 2', but the query has 'whole numbers'"
    ):
        restore(replace(cents, number="bigint"), saved(cents), 1)
    for same in (cents, replace(cents, number="decimal(38,2)")):
        assert restore(same, saved(cents), 1).pending == 1
    assert restore(double, saved(double), 1).pending == 1


def test_a_need_of_more_digits_than_decimals_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"needs 1E\+30, and completions.value \(decimal\(38,18\)\) has 18 decimal places"
    ):
        EngineSpec(criteria.level(D("1e30")), number="decimal(38,18)")


def test_values_of_another_type_than_the_querys_are_a_bug() -> None:
    engine = EventTimePurgatory(CENTS)
    with pytest.raises(BugError, match=r"number type is decimal\(10,2\)"):
        engine.step(None, read_events(events_table([ev(value=1.0)]), CENTS.criterion), 0)


SMALLEST = 2.0**-96
"""What lies below is cut off."""
TINIEST = 5e-324


def reaches(values: list[float], need: float) -> bool:
    """Whether the sum of all values reaches ``need``."""
    prefix, total = ExactSums.prefixes(np.array(values, float)), ExactSums.zeros(1)
    total.add_at(np.array([0]), prefix, np.array([0]), np.array([len(values)]))
    return bool(total.at_least(np.array([need]))[0])


def cut(value: float) -> Fraction:
    """A value as the sums take it: cut at 2**-96, at most 2**62."""
    fraction = min(Fraction(value), Fraction(LARGEST))
    return Fraction(int(fraction / Fraction(SMALLEST))) * Fraction(SMALLEST)


def next_up(value: float) -> float:
    return float(np.nextafter(value, np.inf))


def next_down(value: float) -> float:
    return float(np.nextafter(value, -np.inf))


@pytest.mark.parametrize("value", [1e19, 2.0**63, 1e308, float(np.finfo(float).max), np.inf])
def test_values_from_two_to_the_62_on_count_as_that(value: float) -> None:
    limbs = [ExactSums.prefixes(np.array([each, 0.5])).limbs.tolist() for each in (value, LARGEST)]
    assert limbs[0] == limbs[1]
    assert reaches([value], LARGEST)
    assert not reaches([next_down(LARGEST)], value)


def test_a_million_addends_carry_as_they_should() -> None:
    for value in (0.1, 2.0**-43 * (1 - 2.0**-53), 4_294_967_295.999):
        n = 1_000_000
        total = float(n * Fraction(value))
        expected = [n * Fraction(value) >= Fraction(need) for need in (next_down(total), total, next_up(total))]
        answers = ExactSums.prefixes(np.full(n, value))
        sums = ExactSums.zeros(3)
        sums.add_at(np.arange(3), answers, np.zeros(3, np.int64), np.full(3, n))
        got = sums.at_least(np.array([next_down(total), total, next_up(total)]))
        assert got.tolist() == expected, value


def test_the_limbs_have_room_for_every_event_of_a_shard() -> None:
    # 2**28 rows of one shard, each with every bit of a limb set, stay below 2**63.
    assert (1 << 28) * ((1 << LIMB_BITS) - 1) < 1 << 63
    assert LIMBS * LIMB_BITS == 96 + 64


ANY_VALUE = st.integers(0, 0x7FEF_FFFF_FFFF_FFFF).map(
    lambda bits: float(struct.unpack("<d", struct.pack("<q", bits))[0])
)
VALUES = st.one_of(
    st.floats(0, 10),
    st.sampled_from([0.1, 0.2, 0.3, 1e-9, 1 / 3, SMALLEST, TINIEST, 1e308, LARGEST, 2.0**32, 2.0**-32, 2.0**-64]),
    st.floats(0, 2.0**62),
    ANY_VALUE,
)


@examples(120, 800)
@given(st.lists(VALUES, max_size=12), st.one_of(VALUES, st.none()), st.integers(-2, 2))
def test_a_sum_reaches_what_fractions_say_it_reaches(values: list[float], need: float | None, beside: int) -> None:
    exact = sum(map(cut, values))
    if need is None:  # as close as a double comes to the sum itself
        need = float(exact)
        for _ in range(abs(beside)):
            need = max(next_up(need) if beside > 0 else next_down(need), 0.0)
    assert reaches(values, need) == (exact >= cut(need))
