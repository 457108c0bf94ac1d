"""Exact sums of numbers in any order: fixed point in 32-bit limbs.

The order of arrival must not change a sum, and float addition is not associative. A non-negative double is cut at
2**-96 (values down to 2**-43 keep all their digits) and spread over limbs of 32 bits. Each limb is summed in int64,
which 2**31 addends cannot overflow. Values above 2**62 count as 2**62. Units (`numbers`) are whole already: their 128
bits take the last four limbs, and the first limb takes the carry.
"""

from __future__ import annotations

import numpy as np

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import UNREACHED, Floats, Numbers, addends, is_double, is_wide, or_zero
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s

LIMB_BITS = 32
LIMBS = 5  # three limbs of fraction (96 bits), two of whole numbers (64 bits)
LARGEST = 2.0**62


def limbs_of(values: Numbers) -> Int64s:
    """Return (n,) non-negative numbers as (LIMBS, n) int64, the most significant limb first."""
    if is_double(values):
        return _limbs_of_doubles(values)
    limbs = np.zeros((LIMBS, len(values)), np.int64)
    if is_wide(values):
        limbs[1:] = np.ascontiguousarray(values).view(">u4").reshape(-1, 4).T
        limbs[1] -= 1 << 31
    else:
        limbs[3], limbs[4] = values >> LIMB_BITS, values & ((1 << LIMB_BITS) - 1)
    return limbs


def _limbs_of_doubles(values: Floats) -> Int64s:
    rest = np.minimum(values, LARGEST)
    limbs = np.empty((LIMBS, len(values)), np.int64)
    for i in range(LIMBS):
        # Each step is exact: scaling by a power of two, floor, and a difference that needs no more digits.
        scale = 2.0 ** (LIMB_BITS * (1 - i))
        whole = np.floor(rest / scale)
        limbs[i] = whole.astype(np.int64)
        rest = rest - whole * scale
    return limbs


class ExactSums:
    """n sums, as (LIMBS, n) int64 limbs that need not be normalised."""

    def __init__(self, limbs: Int64s) -> None:
        self.limbs = limbs

    @staticmethod
    def zeros(n: int) -> ExactSums:
        """Return n empty sums."""
        return ExactSums(np.zeros((LIMBS, n), np.int64))

    @staticmethod
    def prefixes(values: Numbers) -> ExactSums:
        """Return the sums of the first 0, 1, ... n of ``values``, (n,) non-negative; a missing value adds nothing."""
        limbs = np.zeros((LIMBS, len(values) + 1), np.int64)
        np.cumsum(limbs_of(or_zero(values) if is_double(values) else addends(values)), axis=1, out=limbs[:, 1:])
        return ExactSums(limbs)

    def add_at(self, at: Int64s, prefix: ExactSums, low: Int64s, high: Int64s) -> None:
        """Add the values ``low[i] .. high[i] - 1`` behind ``prefix`` to sum ``at[i]``; all (s,)."""
        for mine, theirs in zip(self.limbs, prefix.limbs, strict=True):
            np.add.at(mine, at, theirs[high] - theirs[low])

    def rounded(self) -> Floats:
        """Return sums of doubles, (n,), rounded to doubles: for people to read, not to compare."""
        scales = 2.0 ** (LIMB_BITS * (1.0 - np.arange(LIMBS)))
        return np.asarray((self.limbs[::-1] * scales[::-1, None]).sum(axis=0))

    def units(self) -> Numbers:
        """Return sums of units, (n,), of 16 bytes each; `UNREACHED` if 16 bytes do not hold one."""
        first, *limbs = _carried(self.limbs)
        high, low = ((limbs[i] << LIMB_BITS) | limbs[i + 1] for i in (0, 2))
        return np.where((first == 0) & (high >= 0), numbers.wide_of(low, high), UNREACHED)

    def at_least(self, need: Numbers) -> Bools:
        reached = _carried(self.limbs - limbs_of(np.maximum(need, 0) if is_double(need) else addends(need)))[0] >= 0
        return reached & (need != UNREACHED) if is_wide(need) else reached


def _carried(limbs: Int64s) -> Int64s:
    """Return the same sums with all limbs but the first from 0 to 2**32."""
    limbs = limbs.copy()
    for i in range(LIMBS - 1, 0, -1):
        carry = limbs[i] >> LIMB_BITS
        limbs[i] -= carry << LIMB_BITS
        limbs[i - 1] += carry
    return limbs
