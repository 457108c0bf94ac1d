r"""Numbers of events and needs, compared and added up exactly in their own type: doubles or units.

A query has one *number type*, which its checkpoint keeps. Under ``double`` a column is float64, and NaN is no value.
Under ``bigint`` or a decimal type such as ``decimal(18,2)``, it counts *units* of 10**-scale: 0.70 is 70 units of
scale 2. A need with more digits than the values is rounded up to units. This changes no comparison, because sums and
maxima of values are whole units.

Each batch decides how its column of units is stored. If all units fit, the column is int64, and the lowest int64 is no
value. Else a number takes 16 bytes, big-endian, plus 2**127, so that bytes have the order of the numbers::

    none    00 00 .. 00
    -1      7f ff .. ff
    0       80 00 .. 00
    1       80 00 .. 01
    never   ff ff .. ff     a need beyond 38 digits, above every value

Sums are exact in any order, in fixed point in 32-bit limbs: the order of arrival must not change a sum, and float
addition is not associative. A non-negative double is cut at 2**-96 (values down to 2**-43 keep all their digits) and
spread over limbs of 32 bits. Each limb is summed in int64, which 2**31 addends cannot overflow. Values above 2**62
count as 2**62. Units are whole already: their 128 bits take the last four limbs, and the first limb takes the carry.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Bools, GrowableArray, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.errors import ConfigError

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]  # doubles (float64) or units (int64, or `WIDE`)

DOUBLE = "double"
LARGEST_SCALE = 38
WIDE = np.dtype("S16")  # numpy compares bytes of one length as unsigned and restores the zeros that it drops at the end
NO_UNITS = np.iinfo(np.int64).min
BIAS = 1 << 127
MOST_UNITS = 10**LARGEST_SCALE  # beyond the digits of a decimal
# No value; a need that every value reaches; 0; a need that no value and no sum reaches. They are arrays without a
# dimension, because numpy's scalars drop their last zeros.
NO_WIDE, ALWAYS_REACHED, ZERO, UNREACHED = (
    np.array(value.to_bytes(16, "big"), WIDE) for value in (0, 1, BIAS, 2 * BIAS - 1)
)
LONGEST_SECONDS = 2.0**43  # extensions of 280,000 years or more reach the end of time

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def scale_of(number: str) -> int | None:
    """Return the digits behind the point of a number type's units; None for doubles. Raises ConfigError."""
    if number == DOUBLE:
        return None
    if number == "bigint":
        return 0
    match = _DECIMAL.fullmatch(number)
    if match is None or int(match[2]) > int(match[1]) or int(match[1]) > LARGEST_SCALE:
        raise ConfigError(f"number={number!r} is not a number type: use double, bigint or decimal(precision,scale)")
    return int(match[2])


def units_up(value: float | Decimal, scale: int) -> int:
    """Return a number in units, rounded up. A float counts as the decimal that it is written as: 0.8 is 0.8."""
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    return ceil(Fraction(exact) * 10**scale)


def constant(units: int, n: int) -> Numbers:
    """Return a column of n equal units, at most `MOST_UNITS`."""
    if NO_UNITS < units < -NO_UNITS:
        return np.full(n, units, np.int64)
    return np.full(n, (units + BIAS).to_bytes(16, "big"), WIDE)


def is_double(values: Numbers) -> bool:
    return values.dtype == np.float64


def is_wide(values: Numbers) -> bool:
    return values.dtype == WIDE


def read_numbers(column: pa.Array) -> Numbers:
    """Read an Arrow column, (n,): floating-point numbers as doubles, integers and decimals as units."""
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    none = np.asarray(column.is_null()) if column.null_count else None
    if pa.types.is_decimal(column.type):
        words = _words(column.cast(pa.decimal128(LARGEST_SCALE, column.type.scale)), 2)
        low, high = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])
        fits = (high == low >> 63) & (low != NO_UNITS)
    else:
        low = (column if none is None else column.fill_null(0)).cast(pa.int64()).to_numpy()
        high, fits = low >> 63, low != NO_UNITS
    fits = fits if none is None else fits | none
    units: Numbers = low if fits.all() else wide_of(low, high)
    if none is not None:
        units = np.where(none, NO_WIDE if is_wide(units) else NO_UNITS, units)
    return units


def read_needs(up: pa.Array, raw: Floats) -> Numbers:
    """Read needs, (n,), from units and, if they do not fit units, from doubles; NaN is no need."""
    units, beyond = read_numbers(up), np.asarray(up.is_null()) & ~np.isnan(raw)
    if beyond.any():
        units = np.where(beyond, np.where(raw > 0, UNREACHED, ALWAYS_REACHED), widened(units))
    return units


def _words(column: pa.Array, n_words: int) -> Int64s:
    """Return the words of fixed-width integers, (n, n_words) int64, the lowest first; undefined under a null."""
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, n_words)
    return words[column.offset : column.offset + len(column)]


def wide_of(low: Int64s, high: Int64s) -> Numbers:
    words = np.empty((len(low), 2), ">u8")
    words[:, 0] = high.view(np.uint64) ^ np.uint64(1 << 63)
    words[:, 1] = low.view(np.uint64)
    return words.view(WIDE).ravel()


def widened(units: Numbers) -> Numbers:
    if is_wide(units):
        return units
    wide = wide_of(units, units >> 63)
    wide[units == NO_UNITS] = NO_WIDE
    return wide


def joined(parts: list[Numbers]) -> Numbers:
    if any(map(is_wide, parts)):
        parts = [widened(part) for part in parts]
    return np.concatenate(parts)


def append(column: GrowableArray[Any], values: Numbers) -> GrowableArray[Any]:
    """Append values to a column, in the width that both need; returns the column."""
    if is_wide(column.values) != is_wide(values):
        column, values = GrowableArray(widened(column.values)), widened(values)
    column.append(values)
    return column


def larger(left: Numbers, right: Numbers) -> Numbers:
    return np.where(left < right, right, left) if is_wide(left) else np.maximum(left, right)


def lowest(values: Numbers) -> Any:
    return -np.inf if is_double(values) else NO_WIDE if is_wide(values) else NO_UNITS


def is_negative(values: Numbers) -> Bools:
    if is_double(values):
        return values < 0
    return (values < ZERO) & (values != NO_WIDE) if is_wide(values) else (values < 0) & (values != NO_UNITS)


def or_zero(values: Numbers) -> Numbers:
    if is_double(values):
        return np.nan_to_num(values, nan=0.0)
    return np.where(values == lowest(values), ZERO if is_wide(values) else 0, values)


def addends(values: Numbers) -> Numbers:
    """Return the numbers as they are added up: 0 for missing and negative ones."""
    return np.where(values < ZERO, ZERO, values) if is_wide(values) else np.maximum(or_zero(values), 0)


def as_decimals(units: Numbers, scale: int) -> pa.Array:
    """Return units as decimals, (n,), for `read_numbers`; null for missing ones and those of over 38 digits."""
    wide = np.ascontiguousarray(widened(units))
    words = wide.view(">u8").reshape(-1, 2)
    pairs = np.empty((len(wide), 2), np.uint64)
    pairs[:, 0], pairs[:, 1] = words[:, 1], words[:, 0].astype(np.uint64) ^ np.uint64(1 << 63)
    some = np.packbits((wide > constant(-MOST_UNITS, 1)) & (wide < constant(MOST_UNITS, 1)), bitorder="little")
    kind = pa.decimal128(LARGEST_SCALE, scale)
    return pa.Array.from_buffers(kind, len(wide), [pa.py_buffer(some), pa.py_buffer(pairs)])


def counts_as_decimals(counts: Floats, scale: int) -> pa.Array:
    """Return whole numbers as decimals like those of `as_decimals`, (n,); null for those of over 38 digits."""
    distinct, places = np.unique(counts, return_inverse=True)
    held = [Decimal(int(each)) if each < 10.0 ** (LARGEST_SCALE - scale) else None for each in distinct.tolist()]
    return pa.array(held, pa.decimal128(LARGEST_SCALE, scale)).take(pa.array(places))


def comparable(needs: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return both in one width: a need beyond 64 bits is compared with values of 16 bytes."""
    return (needs, values) if is_wide(needs) == is_wide(values) else (widened(needs), widened(values))


def no_seconds(column: pa.Array) -> Bools:
    """Flag values that are not seconds: null, negative, infinite or not a number; (n,) bool."""
    zero = pa.scalar(Decimal(0) if pa.types.is_decimal(column.type) else 0, column.type)
    bad = pc.or_kleene(pc.is_null(column, nan_is_null=True), pc.less(column, zero))
    if pa.types.is_floating(column.type):
        bad = pc.or_kleene(bad, pc.invert(pc.is_finite(column)))
    return bad.fill_null(True).to_numpy(zero_copy_only=False)


def seconds_us(column: pa.Array) -> Int64s:
    """Return seconds as microseconds, (n,) int64: 0 for null and negative ones, MAX_TIME_US for too many."""
    if pa.types.is_floating(column.type):
        given = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        seconds = np.clip(np.where(np.isfinite(given), given, 0.0), -LONGEST_SECONDS, LONGEST_SECONDS)
        whole = np.floor(seconds)
        us = whole.astype(np.int64) * 1_000_000 + np.rint((seconds - whole) * 1_000_000).astype(np.int64)
        us[seconds == LONGEST_SECONDS] = MAX_TIME_US
        return np.maximum(us, 0)
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    exact = column.cast(pa.decimal256(76, scale))
    if scale > 6:
        exact = pc.round(exact, ndigits=6, round_mode="half_to_even")
    words = _words(exact.cast(pa.decimal256(76, 6)).fill_null(0), 4)
    sign = words[:, 3] >> 63
    fits = (words[:, 0] >> 63 == sign) & (words[:, 1] == sign) & (words[:, 2] == sign) & (words[:, 3] == sign)
    us = np.where(fits, words[:, 0], MAX_TIME_US)
    us[us >= int(LONGEST_SECONDS) * 1_000_000] = MAX_TIME_US
    return np.where(sign < 0, 0, us)


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
        return ExactSums(np.zeros((LIMBS, n), np.int64))

    @staticmethod
    def prefixes(values: Numbers) -> ExactSums:
        """Return the sums of the first 0, 1, ... n of ``values``, (n,) non-negative; a missing value adds nothing."""
        limbs = np.zeros((LIMBS, len(values) + 1), np.int64)
        np.cumsum(limbs_of(or_zero(values) if is_double(values) else addends(values)), axis=1, out=limbs[:, 1:])
        return ExactSums(limbs)

    def add_at(self, at: Int64s, prefix: ExactSums, low: Int64s, high: Int64s) -> None:
        """Add the values ``low[i] .. high[i] - 1`` behind ``prefix`` to sum ``at[i]``; all (s,)."""
        for total, prefixes in zip(self.limbs, prefix.limbs, strict=True):
            np.add.at(total, at, prefixes[high] - prefixes[low])

    def rounded(self) -> Floats:
        """Return sums of doubles, (n,), rounded to doubles: for people to read, not to compare."""
        scales = 2.0 ** (LIMB_BITS * (1.0 - np.arange(LIMBS)))
        return np.asarray((self.limbs[::-1] * scales[::-1, None]).sum(axis=0))

    def units(self) -> Numbers:
        """Return sums of units, (n,), of 16 bytes each; `UNREACHED` if 16 bytes do not hold one."""
        first, *limbs = _carried(self.limbs)
        high, low = ((limbs[i] << LIMB_BITS) | limbs[i + 1] for i in (0, 2))
        return np.where((first == 0) & (high >= 0), wide_of(low, high), UNREACHED)

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
