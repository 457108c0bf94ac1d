"""Exact sums of doubles, against fractions."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.arrays.numbers import LARGEST, LIMB_BITS, LIMBS, ExactSums
from tests.support.now_and_then import examples

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


# --- by hand --------------------------------------------------------------------------------------


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


# --- against fractions ----------------------------------------------------------------------------

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
