"""Integers and texts in as few bytes as their values need, and back exactly.

What compression sees of a shard's state is mostly noise: hashes, times, positions. Said before it is compressed: an
ascending column is its differences, another its distances from the smallest value, each in the narrowest type that
holds them; texts are their lengths and their letters, not 32-bit positions. Worked example (a test asserts it)::

    [7, 9, 9, 300]        ascending: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     from 990 on: 10, 0, 20 in one byte each
    ["ab", null, "c"]     lengths 2, null, 1 in one byte each, and b"abc"
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Values = npt.NDArray[Any]
Recipe = list[Any]
"""JSON: [dtype, dtype as stored, first or smallest value, "differences" | "distances" | "as they are"]."""

AS_THEY_ARE, DIFFERENCES, DISTANCES = "as they are", "differences", "distances"
NARROW = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4"))
SPAN_LIMIT = 1 << 62
"""Values further apart than this could not be subtracted."""


def narrowest(most: int) -> np.dtype[Any] | None:
    """The narrowest type for values ``0 .. most``; None where none is narrower than what there is."""
    return next((kind for kind in NARROW if most <= np.iinfo(kind).max), None)


def plain(kind: str) -> Recipe:
    """Of a column stored as it is."""
    return [kind, kind, 0, AS_THEY_ARE]


def pack(values: Values) -> tuple[Recipe, Values]:
    """How a column, (n,), is stored, and what is stored."""
    if values.dtype != np.int64 or not len(values):
        return plain(values.dtype.str), values
    smallest, largest = int(values.min()), int(values.max())
    if largest - smallest > SPAN_LIMIT:
        return plain(values.dtype.str), values
    if int(values[0]) == smallest and int(values[-1]) == largest:
        differences = np.diff(values)
        if not len(differences) or int(differences.min()) >= 0:
            kind = narrowest(int(differences.max(initial=0)))
            if kind is not None:
                return [values.dtype.str, kind.str, smallest, DIFFERENCES], differences.astype(kind)
    kind = narrowest(largest - smallest)
    if kind is None:
        return plain(values.dtype.str), values
    return [values.dtype.str, kind.str, smallest, DISTANCES], (values - smallest).astype(kind)


def unpack(recipe: Recipe, buffer: pa.Buffer) -> Values:
    """The column that `pack` was given, from the bytes of what was stored."""
    kind, stored_kind, base, how = recipe
    stored = np.frombuffer(buffer, np.dtype(stored_kind))
    if how == DIFFERENCES:
        values = np.empty(len(stored) + 1, kind)
        values[0] = base
        np.cumsum(stored, out=values[1:])
        values[1:] += base
        return values
    return stored.astype(kind) + base if how == DISTANCES else stored


def pack_texts(texts: list[pa.Array]) -> tuple[list[pa.Array], list[Values]]:
    """Chunks of one column of texts, each (n,): their lengths, all of one type, and the letters of each, (m,) uint8."""
    bounds = [_offsets(text) for text in texts]
    longest = max(int(np.diff(offsets).max(initial=0)) for offsets in bounds)
    kind = narrowest(longest)
    lengths, letters = [], []
    for text, offsets in zip(texts, bounds, strict=True):
        counts = np.diff(offsets).astype(kind)
        lengths.append(pa.array(counts, mask=_nulls(text)))
        data = text.buffers()[2]
        whole = np.frombuffer(b"" if data is None else data, np.uint8)
        letters.append(whole[offsets[0] : offsets[-1]])
    return lengths, letters


def unpack_texts(lengths: pa.Array, letters: Values, kind: pa.DataType) -> pa.Array:
    """The chunk that `pack_texts` was given."""
    nulls = _nulls(lengths)
    counts = lengths.fill_null(0).to_numpy()
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(counts), [valid, pa.py_buffer(offsets), pa.py_buffer(letters)])


def _offsets(text: pa.Array) -> npt.NDArray[np.int32]:
    buffer = text.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(text) + 1, np.int32)
    return np.frombuffer(buffer, np.int32)[text.offset : text.offset + len(text) + 1]


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
