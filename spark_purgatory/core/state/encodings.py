"""Columns in as few bytes as their values need, and back exactly.

What compression sees of a shard's state is mostly noise: hashes, times, positions. Said before it is compressed: an
ascending column is its differences, another its distances from the smallest value, each in the narrowest type that
holds them. Worked example (a test asserts it)::

    [7, 9, 9, 300]        ascending: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     from 990 on: 10, 0, 20 in one byte each

Many values of several bytes each are laid out as *planes*: the first bytes of all, then the second bytes of all. The
upper bytes of numbers that are far from filling their type, and the leading letters of ids that count up, are then long
stretches of nearly the same; the lower ones are noise, which compression passes over. What repeats as a whole stays
whole: values of which a sample shows few (codes, currencies), and floating-point numbers, which people write (cents).
Worked example, were three values many::

    0x0102 0x0103 0x0104  ->  02 03 04, 01 01 01
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Recipe = tuple[str, str, int, str]
"""dtype; dtype as stored; first or smallest value; DELTA, FRAME_OF_REFERENCE or PLAIN."""

PLAIN, DELTA, FRAME_OF_REFERENCE = "", "differences", "distances"
PLANES_FLOOR = 512
"""Values below which handling planes one by one takes longer than the rest of a save."""
WIDEST = 64
"""Bytes of a value beyond which it is laid out as it is: texts longer than a hash in hexadecimal."""
SAMPLE, DISTINCT = 64, 56
"""Values looked at, spread over the column, and how many of them must differ for planes."""
BLOCK = 1 << 13
"""Values whose planes are handled at a time, so that they stay in a core's cache."""
NARROW = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4"))
SPAN_LIMIT = 1 << 62
"""Values further apart than this could not be subtracted."""


def narrowest(most: int) -> np.dtype[Any]:
    """The narrowest type for values ``0 .. most``."""
    return next((kind for kind in NARROW if most <= np.iinfo(kind).max), np.dtype(np.int64))


def pack(values: Values) -> tuple[Recipe, Values]:
    """How a column, (n,), is stored, and what is stored."""
    kind = values.dtype.str
    plain: tuple[Recipe, Values] = (kind, kind, 0, PLAIN), np.ascontiguousarray(values)
    if values.dtype != np.int64 or not len(values):
        return plain
    smallest, largest = int(values.min()), int(values.max())
    if largest - smallest > SPAN_LIMIT:
        return plain
    if int(values[0]) == smallest and int(values[-1]) == largest:
        differences = np.diff(values)
        if not len(differences) or int(differences.min()) >= 0:
            narrow = narrowest(int(differences.max(initial=0)))
            return (kind, narrow.str, smallest, DELTA), differences.astype(narrow)
    narrow = narrowest(largest - smallest)
    return (kind, narrow.str, smallest, FRAME_OF_REFERENCE), (values - smallest).astype(narrow)


def planes_of(values: Values) -> int:
    """In how many planes values, (n,), are to be laid out: one for each of their bytes; or 1, as they are."""
    kind = values.dtype
    if kind.kind not in "iuV" or not 1 < kind.itemsize <= WIDEST or len(values) < PLANES_FLOOR:
        return 1
    sample = values[:: len(values) // SAMPLE][:SAMPLE]
    return kind.itemsize if len(set(sample.tolist())) >= DISTINCT else 1


def lay_out(values: Values, planes: int, into: Values) -> None:
    """Write (n,) values' bytes to ``into``, (n * itemsize,) uint8."""
    if planes == 1:
        into[:] = values.view(np.uint8)
        return
    wide = values.view(np.uint8).reshape(-1, planes)
    _move(wide, into.reshape(wide.shape[::-1]).T)


def picked_up(stored: bytes | memoryview, planes: int = 1) -> bytes | memoryview:
    """The bytes of the values that `lay_out` wrote."""
    if planes == 1:
        return stored
    wide = np.empty((len(stored) // planes, planes), np.uint8)
    _move(np.frombuffer(stored, np.uint8).reshape(wide.shape[::-1]).T, wide)
    return wide.data.cast("B")


def _move(source: Values, target: Values) -> None:
    """Copy (n, width) bytes, of which one side lies row by row and the other column by column."""
    for start in range(0, len(source), BLOCK):
        rows = slice(start, start + BLOCK)
        for plane in range(source.shape[1]):
            target[rows, plane] = source[rows, plane]


def unpack(recipe: Recipe, stored: bytes | memoryview) -> Values:
    """The column that `pack` was given, from the bytes of what was stored."""
    kind, narrow, base, how = recipe
    values = np.frombuffer(stored, narrow)
    if how == FRAME_OF_REFERENCE:
        moved = values.astype(kind)
        moved += base
        return moved
    if how == PLAIN:
        return values
    summed = np.empty(len(values) + 1, kind)
    summed[0] = base
    np.cumsum(values, out=summed[1:])
    summed[1:] += base
    return summed
