"""Encodings of arrays for the state: as few bytes as the values need, decoded exactly.

A compressor finds no pattern in most arrays of a state: hashes, times, positions. So they are encoded first, in the
narrowest integer type that fits: an ascending array by *delta*, another one in a *frame of reference*, as distances
from its smallest value. Worked example (a test asserts it)::

    [7, 9, 9, 300]        delta: 7, then 2, 0, 291 in two bytes each
    [1000, 990, 1010]     frame of reference 990: 10, 0, 20 in one byte each

Arrays of many values of several bytes use *byte-stream split*, like Parquet: the first bytes of all values, then the
second bytes, and so on. Upper bytes of small numbers, and leading characters of ids that count up, then compress well.
Arrays with few distinct values in a sample (codes, currencies), and floating-point numbers, which often repeat
(prices), are stored value by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Encoding = tuple[str, str, int, str]  # dtype, dtype as stored, first or smallest value, PLAIN or DELTA or ...

PLAIN, DELTA, FRAME_OF_REFERENCE = "", "differences", "distances"
SPLIT_FLOOR = 512  # values below which a split takes longer than it saves
WIDEST = 64  # bytes of a value beyond which it is not split: texts longer than a hash in hexadecimal
SAMPLE, DISTINCT = 64, 56  # values of a sample over the array, and how many of them must differ for a split
BLOCK = 1 << 13  # values that are split at a time, so that they stay in a core's cache
NARROW = tuple(np.dtype(kind) for kind in ("u1", "<u2", "<u4"))
SPAN_LIMIT = 1 << 62  # values further apart than this are not subtracted


def narrowest(most: int) -> np.dtype[Any]:
    return next((kind for kind in NARROW if most <= np.iinfo(kind).max), np.dtype(np.int64))


def pack(values: Values) -> tuple[Encoding, Values]:
    """Return the encoding and the stored values of an array, (n,)."""
    kind = values.dtype.str
    plain: tuple[Encoding, Values] = (kind, kind, 0, PLAIN), np.ascontiguousarray(values)
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


def streams_of(values: Values) -> int:
    """Return the number of byte streams for values, (n,): one for each of their bytes, or 1 for no split."""
    kind = values.dtype
    if kind.kind not in "iuV" or not 1 < kind.itemsize <= WIDEST or len(values) < SPLIT_FLOOR:
        return 1
    sample = values[:: len(values) // SAMPLE][:SAMPLE]
    return kind.itemsize if len(set(sample.tolist())) >= DISTINCT else 1


def split_bytes(values: Values, streams: int, into: Values) -> None:
    """Write the bytes of (n,) values to ``into``, (n * itemsize,) uint8, in so many streams."""
    if streams == 1:
        into[:] = values.view(np.uint8)
        return
    wide = values.view(np.uint8).reshape(-1, streams)
    _move(wide, into.reshape(wide.shape[::-1]).T)


def join_bytes(stored: bytes | memoryview, streams: int = 1) -> bytes | memoryview:
    if streams == 1:
        return stored
    wide = np.empty((len(stored) // streams, streams), np.uint8)
    _move(np.frombuffer(stored, np.uint8).reshape(wide.shape[::-1]).T, wide)
    return wide.data.cast("B")


def _move(source: Values, target: Values) -> None:
    """Copy (n, width) bytes between an array in row order and one in column order."""
    for start in range(0, len(source), BLOCK):
        rows = slice(start, start + BLOCK)
        for stream in range(source.shape[1]):
            target[rows, stream] = source[rows, stream]


def unpack(encoding: Encoding, stored: bytes | memoryview) -> Values:
    kind, narrow, base, how = encoding
    values = np.frombuffer(stored, narrow)
    if how == PLAIN:
        return values
    if how == FRAME_OF_REFERENCE:
        return values.astype(kind) + base
    summed = np.empty(len(values) + 1, kind)
    summed[0] = base
    np.cumsum(values, out=summed[1:])
    summed[1:] += base
    return summed
