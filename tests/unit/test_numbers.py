"""Values and needs are compared and added up exactly in their own type: against Python's integers and Decimals."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.exact_sums import ExactSums
from spark_purgatory.core.arrays.numbers import (
    UNREACHED,
    addends,
    comparable,
    constant,
    is_negative,
    is_wide,
    joined,
    or_zero,
    read_needs,
    read_numbers,
    restored,
    scale_of,
    seconds_us,
    stored,
    units_up,
    widened,
)
from spark_purgatory.core.arrays.sorted_runs import GrowableArray
from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.events.event_log import EventSegment
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.errors import BugError, ConfigError, StateMismatchError
from spark_purgatory.job.job_config import CriterionSection
from tests.support.engine_driver import END_MS, Shards, events_table, final, multiset, operations_table
from tests.support.operations import Row, ev, op, the_outcome

D = Decimal
ONES = 10**38 - 1
"""The most units that a decimal has."""
EDGES = [0, 1, -1, 70, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63) + 1, -(2**63), 2**63, 2**64, 10**19, ONES, -ONES]
UNITS = st.one_of(st.none(), st.sampled_from(EDGES), st.integers(-100, 100), st.integers(-ONES, ONES))
both = pytest.mark.parametrize("final_", [False, True], ids=["early", "final"])


def column(units: Sequence[int | None], scale: int = 0) -> pa.Array:
    return pa.array([None if u is None else D(u).scaleb(-scale, None) for u in units], pa.decimal128(38, scale))


def unwrapped(values: Any) -> list[int | None]:
    """Units as Python has them."""
    if is_wide(values):
        wide = [int.from_bytes(v.ljust(16, b"\0"), "big") - 2**127 for v in values.tolist()]
        return [None if v == -(2**127) else v for v in wide]
    return [None if v == -(2**63) else v for v in values.tolist()]


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    """Decimals of all digits, whatever the context."""
    with localcontext(prec=100):
        yield


# --- a column of units ----------------------------------------------------------------------------


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
    assert unwrapped(restored(stored(read))) == units and stored(read).dtype.kind in "iV"
    assert unwrapped(joined([read, read[:1], widened(read)])) == units + units[:1] + units
    grown = numbers.append(GrowableArray(np.array([5])), read)
    assert unwrapped(grown.values) == [5, *units]
    assert is_negative(read).tolist() == [u is not None and u < 0 for u in units]
    assert unwrapped(or_zero(read)) == [u or 0 for u in units]
    assert unwrapped(addends(read)) == [max(u or 0, 0) for u in units]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=8))
@example([-(2**63), None])
def test_bigints_are_read_exactly_the_lowest_too(units: list[int | None]) -> None:
    assert unwrapped(read_numbers(pa.array(units, pa.int64()))) == units
    assert unwrapped(read_numbers(pa.array([0, *units], pa.int64())[1:])) == units


def test_slices_and_narrow_decimals_are_read_where_they_begin() -> None:
    cents = pa.array([D("0.10"), None, D("-3.00"), D("0.07")], pa.decimal128(5, 2))
    assert unwrapped(read_numbers(cents[1:])) == [None, -300, 7]
    assert unwrapped(read_numbers(pa.array([1, None], pa.int8()))) == [1, None]


def test_floats_are_read_as_the_doubles_they_are() -> None:
    tenth = np.float32(0.1)
    read = read_numbers(pa.array([tenth, None], pa.float32()))
    assert read.dtype == np.float64 and read[0] == 0.10000000149011612 and np.isnan(read[1])


@settings(deadline=None)
@given(st.lists(UNITS, min_size=1, max_size=6), st.lists(st.sampled_from(EDGES), min_size=1, max_size=3))
def test_a_level_is_reached_as_integers_say(units: list[int | None], needs: list[int]) -> None:
    n = len(units)
    segment = EventSegment.build(pa.array(["k"] * n), np.zeros(n, np.int64), np.arange(n), read_numbers(column(units)))
    running = segment.running_max
    largest = [max((u for u in units[: i + 1] if u is not None), default=None) for i in range(n)]
    assert unwrapped(running) == largest
    for need in needs:
        compared, beyond = comparable(read_numbers(column([need])), running)
        reached = [bool(value >= compared[0]) and not (beyond is not None and beyond[0]) for value in running]
        assert reached == [m is not None and m >= need for m in largest]


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


def test_a_sum_of_more_than_128_bits_does_not_overflow_and_reaches_no_need_beyond_a_decimal() -> None:
    prefix, sums = ExactSums.prefixes(constant(ONES, 1000)), ExactSums.zeros(2)
    sums.add_at(np.arange(2), prefix, np.zeros(2, np.int64), np.array([1, 1000]))
    assert sums.at_least(constant(ONES, 2)).tolist() == [True, True]
    assert sums.at_least(np.full(2, UNREACHED)).tolist() == [False, False]


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


def test_a_need_beyond_the_digits_is_never_reached_and_one_below_always_is() -> None:
    read = read_needs(column([5, None, None, None]), np.array([5.0, 1e300, -1e300, np.nan]))
    assert unwrapped(read) == [5, 2**127 - 1, -(2**127) + 1, None]
    assert not is_wide(read_needs(column([5, None]), np.array([5.0, np.nan])))


def test_number_types_are_known_by_name() -> None:
    assert [scale_of(n) for n in ("double", "bigint", "decimal(18,2)", "decimal(38,38)")] == [None, 0, 2, 38]
    for wrong in ("float", "decimal(39,2)", "decimal(2,3)", "decimal", "decimal(10, 2)"):
        with pytest.raises(ConfigError, match="is not a number type: use double, bigint or decimal"):
            scale_of(wrong)


# --- seconds of extensions ------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(-ONES, ONES), st.integers(0, 10**20)), max_size=5), st.integers(0, 38))
def test_seconds_are_whole_microseconds_half_to_even(units: list[int | None], scale: int) -> None:
    longest = 2**43 * 10**6
    expected = [max(round(Fraction(u or 0, 10**scale) * 10**6), 0) for u in units]
    expected = [us if us < longest else MAX_TIME_US for us in expected]
    assert seconds_us(column(units, scale)).tolist() == expected


def test_seconds_of_bigints_floats_and_nothing() -> None:
    assert seconds_us(pa.array([7, None, -1, 2**62], pa.int64())).tolist() == [7_000_000, 0, 0, MAX_TIME_US]
    doubles = [0.005, None, float("nan"), float("inf"), -1.0, 2.0**43, 0.1]
    assert seconds_us(pa.array(doubles, pa.float64())).tolist() == [5000, 0, 0, 0, 0, MAX_TIME_US, 100_000]


# --- the engine -----------------------------------------------------------------------------------

CENTS = EngineSpec(criteria.sum_at_least(D("0.80")), number="decimal(10,2)")


def the_status(spec: EngineSpec, *values: Any, **others: Any) -> str:
    events = [ev(time=11_000 + i, value=v) for i, v in enumerate(values)]
    (outcome,) = Shards(spec, several=True).run([([op(**others)], events, 0), ([], [], END_MS)])
    return str(outcome["status"])


@both
def test_seven_tenths_and_one_tenth_are_eight_tenths(final_: bool) -> None:
    spec = replace(CENTS, final=final_)
    assert the_status(spec, D("0.70"), D("0.10")) == "COMPLETED"
    assert the_status(spec, D("0.70"), D("0.09")) == "EXPIRED"
    for need in (0.8, D("0.8"), D("0.791")):
        spec = replace(spec, criterion=criteria.sum_at_least(need))
        assert the_status(spec, D("0.70"), D("0.10")) == "COMPLETED"
        assert the_status(spec, D("0.70"), D("0.09")) == "EXPIRED"
    assert the_status(replace(CENTS, number="double"), 0.70, 0.10) == "EXPIRED", "of doubles"


@both
@pytest.mark.parametrize("rule", ["sum_at_least", "level"])
def test_a_bigint_beyond_doubles_is_reached_by_itself_alone(final_: bool, rule: str) -> None:
    spec = EngineSpec(Criterion(rule, 2**53 + 1), final=final_, number="bigint")
    assert the_status(spec, 2**53) == "EXPIRED"
    assert the_status(spec, 2**53 + 1) == "COMPLETED"
    rows = replace(spec, criterion=criteria.by_row(rule="rule", need="need", levels="levels"))
    for value, status in ((2**53, "EXPIRED"), (2**53 + 1, "COMPLETED")):
        assert the_status(rows, value, rule=rule, need=2**53 + 1, level=None) == status


@pytest.mark.parametrize("level", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_the_ends_of_bigint_are_levels_like_others(level: int) -> None:
    spec = EngineSpec(criteria.level(level), number="bigint")
    assert the_status(spec, level) == "COMPLETED"
    assert the_status(spec, None) == "EXPIRED", "no value reaches nothing"
    if level > -(2**63):
        assert the_status(spec, level - 1, None) == "EXPIRED"
    # Of one key both widths lie in the log.
    shards = Shards(spec)
    batch = ([op(deadline=90_000)], [ev(value=-(2**63)), ev("b", value=1)], 0)
    outcomes = shards.run([batch, ([], [ev(time=16_000, value=level)], 0), ([], [], END_MS)])
    assert [o["status"] for o in outcomes] == ["COMPLETED"]


def test_a_negative_value_is_rejected_under_a_sum_and_none_counts_but_adds_nothing() -> None:
    assert read_events(events_table([ev(value=D("-0.01"))], spec=CENTS), CENTS.criterion).rejection.tolist() == [3]
    outcome = the_outcome(CENTS, op(), [ev(value=D("0.80")), ev(time=14_000, value=None)])
    assert outcome[:3] == ("COMPLETED", 15_000, 2)
    by_row = replace(CENTS, criterion=criteria.by_row(need="need"))
    events = [ev(time=12_000, value=D("-1.00")), ev(time=13_000, value=D("0.80"))]
    assert the_outcome(by_row, op(rule="sum_at_least", need=D("0.8"), level=None), events)[:3] == (
        "COMPLETED",
        13_000,
        1,
    )
    assert the_outcome(by_row, op(rule="count", need=2, level=None), events)[:3] == ("COMPLETED", 13_000, 2)
    assert the_outcome(by_row, op(rule="level", need=D("-1.001"), level=None), events)[:3] == ("COMPLETED", 12_000, 1)


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


@pytest.mark.parametrize("several", [False, True])
def test_decimals_of_38_digits_are_added_up_and_compared(several: bool) -> None:
    number, most = "decimal(38,18)", D("99999999999999999999.999999999999999999")
    tiny = D("0.000000000000000001")
    spec = EngineSpec(criteria.by_row(need="need", levels="levels"), number=number, event_ids=True)
    rows = [
        op("sum", rule="sum_at_least", need=most, level=None),
        op("level", rule="level", need=None, level={"a": most}),
        op("short", rule="sum_at_least", need=D("30.000000000000000001"), level=None),
    ]
    events = [
        ev(time=11_000, value=D("30")),
        ev(time=12_000, value=tiny, event_id="x"),
        ev(time=12_500, value=tiny, event_id="x"),
        ev(time=13_000, value=most - tiny),
        ev(time=14_000, value=most),
    ]
    batches = [(rows, events[:2], 0), ([], events[2:4], 0), ([], events[4:], 0), ([], [], END_MS)]
    outcomes = Shards(final(spec), several=several).run(batches)
    assert multiset(outcomes, "id", "resolved_at") == {("sum", 13_000): 1, ("level", 14_000): 1, ("short", 12_000): 1}


def test_events_heard_twice_add_their_smallest_value_once_whatever_their_width() -> None:
    spec = EngineSpec(criteria.sum_at_least(10**20), number="decimal(38,0)", event_ids=True)
    wide = [ev("a", 12_000, value=D(10) ** 20, event_id="x"), ev("b", 13_000, value=D(10) ** 20, event_id="x")]
    mixed = [ev("a", 12_000, value=D(1), event_id="x"), *wide]
    for events, status in ((wide[:1], "COMPLETED"), (mixed, "EXPIRED"), (mixed[::-1], "EXPIRED")):
        assert the_outcome(spec, op(keys="ab"), events)[0] == status
    shards = Shards(spec, several=True)
    shards.step([op(keys="ab", deadline=90_000)], mixed[:1], 0)
    assert [o["status"] for o in shards.run([([], mixed[1:], 0), ([], [], END_MS)])] == ["EXPIRED"]


# --- any world ------------------------------------------------------------------------------------

SCALES = {"bigint": 0, "decimal(18,2)": 2, "decimal(38,0)": 0, "decimal(38,18)": 18}


@given(
    seed=st.integers(0, 1 << 32), number=st.sampled_from(sorted(SCALES)), by_row=st.booleans(), several=st.booleans()
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_order_and_split_resolves_as_exact_arithmetic_says(
    seed: int, number: str, by_row: bool, several: bool
) -> None:
    rng = random.Random(seed)
    scale, digits = SCALES[number], 18 if number in ("bigint", "decimal(18,2)") else 38
    base = rng.choice([1, 10**9, 10 ** (digits - 2), 2**53, 2**62 // 10 if digits == 18 else 2**63])

    def some(low: int = 0) -> int:
        return (
            min(max(base + rng.randint(-3, 3), low), 10**digits - 1) * rng.choice([1, 1, 1, 2]) // rng.choice([1, 2, 3])
        )

    def number_of(units: int) -> Any:
        return units if number == "bigint" else D(units).scaleb(-scale)

    rule = rng.choice(["sum_at_least", "level"])
    need = number_of(some())
    rows = [
        op(f"o{i}", rng.choice(["a", "b", "ab"] if several else ["a", "b"]), deadline=60_000, rule=rule, level=None)
        for i in range(6)
    ]
    for row in rows:
        row["need"] = number_of(some()) if by_row else need
        if rng.random() < 0.2 and by_row:
            row["need"] = float(row["need"])
    events = [ev(rng.choice("ab"), 11_000 + 1000 * i, value=rng.choice([None, number_of(some())])) for i in range(12)]
    criterion = criteria.by_row(need="need") if by_row else Criterion(rule, need)
    expected = {}
    for row in rows:
        heard, reached_at = [], None
        exact = Fraction(D(repr(row["need"])) if isinstance(row["need"], float) else row["need"])
        for event in events:
            if event["key"] not in row["keys"]:
                continue
            heard.append((event["key"], Fraction(event["value"] or 0) if event["value"] is not None else None))
            if rule == "sum_at_least":
                holds = sum(v or 0 for _, v in heard) >= exact
            else:
                holds = all(any(k == key and v is not None and v >= exact for k, v in heard) for key in row["keys"])
            if holds:
                reached_at = event["time"]
                break
        if rule == "sum_at_least" and exact <= 0:
            reached_at = row["created"]
        expected[row["id"], "EXPIRED" if reached_at is None else "COMPLETED", reached_at or 60_000] = 1
    arrivals: list[tuple[list[Row], list[Row], int]] = [([], [], 0) for _ in range(4)]
    for row in rows:
        rng.choice(arrivals)[0].append(row)
    for event in events:
        rng.choice(arrivals)[1].append(event)
    shards = Shards(EngineSpec(criterion, number=number, final=True), several=several, restarts=rng)
    outcomes = shards.run([*arrivals, ([], [], END_MS)])
    assert multiset(outcomes, "id", "status", "resolved_at") == expected


# --- control events -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["double", "bigint", "decimal(20,9)", "decimal(38,38)", "decimal(10,2)"])
def test_extensions_bring_seconds_in_the_values_type(number: str) -> None:
    seconds = {
        "double": 0.25,
        "bigint": 1,
        "decimal(20,9)": D("0.250000400"),
        "decimal(38,38)": D("0.25"),
        "decimal(10,2)": D("0.25"),
    }
    spec = EngineSpec(criteria.sum_at_least(0.5 if number != "bigint" else 5), number=number, final=True)
    extended = ev(time=15_000, kind="extend", value=seconds[number])
    until = 1_015_000 if number == "bigint" else 265_000
    for rows in ([ev("b", value=None), extended], [extended, ev("b", kind="complete", value=None)]):
        outcomes = Shards(spec).run([([op()], rows, 0), ([], [], END_MS)])
        assert multiset(outcomes, "status", "resolved_at") == {("EXPIRED", until): 1}


# --- states ---------------------------------------------------------------------------------------


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


def test_a_state_says_of_which_type_its_numbers_are() -> None:
    assert EngineSpec(criteria.sum_at_least(1)).fingerprint()["scale"] is None
    spec = EngineSpec(criteria.sum_at_least(D("0.80")), number="decimal(10,2)")
    assert spec.fingerprint()["need"] == "0.80" and spec.fingerprint()["scale"] == 2
    most = EngineSpec(criteria.level(D(ONES).scaleb(-18)), number="decimal(38,18)")
    assert most.fingerprint()["need"] == "99999999999999999999.999999999999999999"


@pytest.mark.parametrize(
    "criterion", [criteria.sum_at_least(1), criteria.level(1), BY_ROW], ids=["sum", "level", "by row"]
)
@pytest.mark.parametrize("number", ["bigint", "decimal(10,2)", "decimal(38,37)"])
def test_a_state_of_units_is_saved_again_to_the_byte(criterion: Any, number: str) -> None:
    spec = EngineSpec(criterion, number=number)
    blob = saved(spec)
    assert save(restore(spec, blob, 1), 1) == blob


# --- at the door ----------------------------------------------------------------------------------


@pytest.mark.parametrize("need", [2**63, D("1e30"), D("1e-20")])
def test_the_range_of_sums_of_doubles_is_theirs_alone(need: Any) -> None:
    criterion = criteria.sum_at_least(need)
    EngineSpec(criterion, number="decimal(38,6)")
    with pytest.raises(
        ConfigError, match=r"criterion sum_at_least needs 0 or a number between .* give an int or a Decimal"
    ):
        EngineSpec(criterion)


def test_a_need_of_more_digits_than_decimals_have_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"needs 1E\+30, and completions.value \(decimal\(38,18\)\) has 18 decimal places"
    ):
        EngineSpec(criteria.level(D("1e30")), number="decimal(38,18)")


@pytest.mark.parametrize("need", [D("NaN"), D("Infinity"), 10**400, D("1e400"), "1", True, D("sNaN")])
def test_what_is_no_finite_number_is_no_need(need: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs a finite number, .* name a column of numbers with criteria.by_row"):
        criteria.level(need)


def test_a_job_file_brings_whole_numbers_as_they_are() -> None:
    assert CriterionSection.model_validate({"level": 2**53 + 1}).need == 2**53 + 1
    assert CriterionSection.model_validate({"sum_at_least": 0.8}).need == 0.8


def test_values_of_another_type_than_the_querys_are_a_bug() -> None:
    engine = EventTimePurgatory(CENTS)
    with pytest.raises(BugError, match=r"number type is decimal\(10,2\)"):
        engine.step(None, read_events(events_table([ev(value=1.0)]), CENTS.criterion), 0)
