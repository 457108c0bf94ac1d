"""Whole numbers in as few bytes as their values need, and back exactly.

What compression sees of a shard's state is mostly noise: hashes, times, positions. Said before it is compressed: an
ascending column is its differences, another its distances from the smallest value, each in the narrowest type that
holds them. Worked example (a test asserts it)::

    [7, 9, 9, 300]        ascending: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     from 990 on: 10, 0, 20 in one byte each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Recipe = tuple[str, str, int, str]
"""dtype; dtype as stored; first or smallest value; DIFFERENCES, DISTANCES or AS_THEY_ARE."""

AS_THEY_ARE, DIFFERENCES, DISTANCES = "", "differences", "distances"
NARROW = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4"))
SPAN_LIMIT = 1 << 62
"""Values further apart than this could not be subtracted."""


def narrowest(most: int) -> np.dtype[Any]:
    """The narrowest type for values ``0 .. most``."""
    return next((kind for kind in NARROW if most <= np.iinfo(kind).max), np.dtype(np.int64))


def pack(values: Values) -> tuple[Recipe, Values]:
    """How a column, (n,), is stored, and what is stored."""
    kind = values.dtype.str
    plain: tuple[Recipe, Values] = (kind, kind, 0, AS_THEY_ARE), np.ascontiguousarray(values)
    if values.dtype != np.int64 or not len(values):
        return plain
    smallest, largest = int(values.min()), int(values.max())
    if largest - smallest > SPAN_LIMIT:
        return plain
    if int(values[0]) == smallest and int(values[-1]) == largest:
        differences = np.diff(values)
        if not len(differences) or int(differences.min()) >= 0:
            narrow = narrowest(int(differences.max(initial=0)))
            return (kind, narrow.str, smallest, DIFFERENCES), differences.astype(narrow)
    narrow = narrowest(largest - smallest)
    return (kind, narrow.str, smallest, DISTANCES), (values - smallest).astype(narrow)


def unpack(recipe: Recipe, stored: bytes | memoryview) -> Values:
    """The column that `pack` was given, from the bytes of what was stored."""
    kind, narrow, base, how = recipe
    values = np.frombuffer(stored, narrow)
    if how == DISTANCES:
        moved = values.astype(kind)
        moved += base
        return moved
    if how == AS_THEY_ARE:
        return values
    summed = np.empty(len(values) + 1, kind)
    summed[0] = base
    np.cumsum(values, out=summed[1:])
    summed[1:] += base
    return summed
