r"""Numbers of events and needs, compared and added up exactly in their own type: doubles, or whole units.

A query has one *number type*, which its checkpoint remembers. Under ``double`` a column is float64, and NaN is none.
Under a decimal type, ``decimal(18,2)`` or ``bigint``, it counts *units*, 10**-scale each; 0.70 is 70 units of scale 2.
A need with more digits than the values have is rounded up to units. This changes no comparison: sums and maxima of
values are whole units.

A column of units is int64 where all of it fits, and the lowest int64 is none. Else a number is 16 bytes, big-endian,
plus 2**127: bytes then order as the numbers do, and the lowest is none. Which of the two is decided batch by batch, so
that decimals of 38 digits cost only what their values need. The first two and the last of 16 bytes::

    none    00 00 .. 00
    -1      7f ff .. ff
    0       80 00 .. 00
    1       80 00 .. 01
    never   ff ff .. ff     a need beyond 38 digits, above every value
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
Numbers = npt.NDArray[Any]
"""A column of doubles (float64) or of units (int64, or `WIDE`)."""

DOUBLE = "double"
LARGEST_SCALE = 38
WIDE = np.dtype("S16")
"""numpy compares bytes of one length as unsigned, the first first; the zeros that it drops at an end are put back."""
NO_UNITS = np.iinfo(np.int64).min
BIAS = 1 << 127
MOST_UNITS = 10**LARGEST_SCALE
"""Beyond the digits of a decimal."""
NO_WIDE, ALWAYS_REACHED, ZERO, UNREACHED = (
    np.array(value.to_bytes(16, "big"), WIDE) for value in (0, 1, BIAS, 2 * BIAS - 1)
)
"""Values of 16 bytes: none; what every value reaches; 0; what no value and no sum reaches. Arrays without a dimension:
numpy's scalars are as short as their last zeros leave them.
"""
LONGEST_SECONDS = 2.0**43
"""Extensions as long as this, 280,000 years, reach the end of time."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def scale_of(number: str) -> int | None:
    """Digits behind the point of a number type's units, None for doubles. Raises ConfigError for what is no type."""
    if number == DOUBLE:
        return None
    if number == "bigint":
        return 0
    match = _DECIMAL.fullmatch(number)
    if match is None or int(match[2]) > int(match[1]) or int(match[1]) > LARGEST_SCALE:
        raise ConfigError(f"number={number!r} is no number type: use double, bigint or decimal(precision,scale)")
    return int(match[2])


def units_up(value: float | Decimal, scale: int) -> int:
    """A number in units, rounded up; a float means the decimal that it is written as: 0.8 is 0.8."""
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    return ceil(Fraction(exact) * 10**scale)


def constant(units: int, n: int) -> Numbers:
    """A column of n equal units, of at most `MOST_UNITS`."""
    if NO_UNITS < units < -NO_UNITS:
        return np.full(n, units, np.int64)
    return np.full(n, (units + BIAS).to_bytes(16, "big"), WIDE)


def is_double(values: Numbers) -> bool:
    """True if a column is of doubles."""
    return values.dtype == np.float64


def is_wide(values: Numbers) -> bool:
    """True if a column is of units of 16 bytes."""
    return values.dtype == WIDE


def read_numbers(column: pa.Array) -> Numbers:
    """A column of an Arrow table, (n,): doubles of a floating-point one, units of integers and decimals."""
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
    """Needs in units, (n,), from needs in units and, where they do not fit those, as doubles; NaN is none."""
    units, beyond = read_numbers(up), np.asarray(up.is_null()) & ~np.isnan(raw)
    if beyond.any():
        units = np.where(beyond, np.where(raw > 0, UNREACHED, ALWAYS_REACHED), widened(units))
    return units


def _words(column: pa.Array, n_words: int) -> Int64s:
    """The words of fixed-width integers, (n, n_words) int64, the lowest first; under a null they are undefined."""
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, n_words)
    return words[column.offset : column.offset + len(column)]


def wide_of(low: Int64s, high: Int64s) -> Numbers:
    """Units of 128 bits from their words."""
    words = np.empty((len(low), 2), ">u8")
    words[:, 0] = high.view(np.uint64) ^ np.uint64(1 << 63)
    words[:, 1] = low.view(np.uint64)
    return words.view(WIDE).ravel()


def widened(units: Numbers) -> Numbers:
    """A column of units with 16 bytes each."""
    if is_wide(units):
        return units
    wide = wide_of(units, units >> 63)
    wide[units == NO_UNITS] = NO_WIDE
    return wide


def joined(parts: list[Numbers]) -> Numbers:
    """Columns one after the other."""
    if any(map(is_wide, parts)):
        parts = [widened(part) for part in parts]
    return np.concatenate(parts)


def append(column: GrowableArray[Any], values: Numbers) -> GrowableArray[Any]:
    """The column with values behind it, of the width that both need."""
    if is_wide(column.values) != is_wide(values):
        column, values = GrowableArray(widened(column.values)), widened(values)
    column.append(values)
    return column


def larger(left: Numbers, right: Numbers) -> Numbers:
    """The larger of each two, (n,), both of one width."""
    return np.where(left < right, right, left) if is_wide(left) else np.maximum(left, right)


def lowest(values: Numbers) -> Any:
    """A value below every number of the column's type."""
    return -np.inf if is_double(values) else NO_WIDE if is_wide(values) else NO_UNITS


def is_negative(values: Numbers) -> Bools:
    """Which are below 0, (n,) bool."""
    if is_double(values):
        return values < 0
    return (values < ZERO) & (values != NO_WIDE) if is_wide(values) else (values < 0) & (values != NO_UNITS)


def or_zero(values: Numbers) -> Numbers:
    """The column with 0 where there is none."""
    if is_double(values):
        return np.nan_to_num(values, nan=0.0)
    return np.where(values == lowest(values), ZERO if is_wide(values) else 0, values)


def addends(values: Numbers) -> Numbers:
    """What each adds to a sum: 0 where there is none, or where it is negative."""
    return np.where(values < ZERO, ZERO, values) if is_wide(values) else np.maximum(or_zero(values), 0)


def as_decimals(units: Numbers, scale: int) -> pa.Array:
    """Units as decimals, (n,), null where there is none, or one of over 38 digits; `read_numbers` reads them back."""
    wide = np.ascontiguousarray(widened(units))
    words = wide.view(">u8").reshape(-1, 2)
    pairs = np.empty((len(wide), 2), np.uint64)
    pairs[:, 0], pairs[:, 1] = words[:, 1], words[:, 0].astype(np.uint64) ^ np.uint64(1 << 63)
    some = np.packbits((wide > constant(-MOST_UNITS, 1)) & (wide < constant(MOST_UNITS, 1)), bitorder="little")
    kind = pa.decimal128(LARGEST_SCALE, scale)
    return pa.Array.from_buffers(kind, len(wide), [pa.py_buffer(some), pa.py_buffer(pairs)])


def counts_as_decimals(counts: Floats, scale: int) -> pa.Array:
    """Whole numbers as `as_decimals` has units, (n,), null where 38 digits do not hold them."""
    distinct, places = np.unique(counts, return_inverse=True)
    held = [Decimal(int(each)) if each < 10.0 ** (LARGEST_SCALE - scale) else None for each in distinct.tolist()]
    return pa.array(held, pa.decimal128(LARGEST_SCALE, scale)).take(pa.array(places))


def comparable(needs: Numbers, values: Numbers) -> tuple[Numbers, Bools | None]:
    """Needs in the width of a column of values, and which of them no value of that width reaches; None: no other."""
    if is_wide(needs) == is_wide(values):
        return needs, None
    if is_wide(values):
        return widened(needs), None
    words = np.ascontiguousarray(needs).view(">u8").reshape(-1, 2)
    high = (words[:, 0].astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
    low = words[:, 1].astype(np.uint64).view(np.int64)
    above, below = (high > 0) | ((high == 0) & (low < 0)), (high < -1) | ((high == -1) & (low >= 0))
    # Of 64 bits the lowest is none: every value is at least the next.
    return np.where(below, NO_UNITS + 1, np.maximum(low, NO_UNITS + 1)), above


def stored(values: Numbers) -> Numbers:
    """The column as a state keeps it: bytes that are no text."""
    return np.ascontiguousarray(values).view("V16") if is_wide(values) else values


def restored(values: Numbers) -> Numbers:
    """The column that `stored` was given."""
    return values.view(WIDE) if values.dtype.kind == "V" else values


def no_seconds(column: pa.Array) -> Bools:
    """Which are no durations in seconds: null, negative, infinite or not a number; (n,) bool."""
    zero = pa.scalar(Decimal(0) if pa.types.is_decimal(column.type) else 0, column.type)
    bad = pc.or_kleene(pc.is_null(column, nan_is_null=True), pc.less(column, zero))
    if pa.types.is_floating(column.type):
        bad = pc.or_kleene(bad, pc.invert(pc.is_finite(column)))
    return bad.fill_null(True).to_numpy(zero_copy_only=False)


def seconds_us(column: pa.Array) -> Int64s:
    """Seconds as whole microseconds, (n,) int64, at least 0: 0 for null, MAX_TIME_US for too many."""
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
