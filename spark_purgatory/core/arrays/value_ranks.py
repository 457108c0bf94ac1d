"""An order of rows by their content, for every Arrow type.

Rows that are equal in everything that matters still need an order that does not depend on their arrival. Their content
gives it: column by column, null first, then by the bits of the value; lists element by element. The order has no
meaning, but it is always the same.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Int64s


def value_ranks(column: pa.Array) -> Int64s:
    """Return the rank of each value of the column, (n,) int64; equal values have equal ranks."""
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return np.zeros(len(column), np.int64)
    if pa.types.is_struct(kind):
        ranks = _both(np.zeros(len(column), np.int64), _validity(column))
        for field in column.flatten():
            ranks = _both(ranks, value_ranks(field))
        return ranks
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        return _both(_validity(column), _sequences(column.offsets, entries))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _both(_validity(column), _sequences(column.offsets, column.values))
    if pa.types.is_boolean(kind):
        return value_ranks(column.cast(pa.int8()))
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return _both(_validity(column), _bits(column))
    return _texts(column)


def number_ranks(column: pa.Array) -> Int64s:
    """Return ranks in the order of the column's numbers, null and NaN first, (n,) int64."""
    if pa.types.is_integer(column.type) and not column.null_count:
        return column.to_numpy().astype(np.int64)
    if not pa.types.is_floating(column.type):
        return _texts(column) if len(column) else np.zeros(0, np.int64)
    values = column.fill_null(np.nan).to_numpy(zero_copy_only=False)
    ranks, numbers = np.zeros(len(values), np.int64), ~np.isnan(values)
    ranks[numbers] = np.unique(values[numbers], return_inverse=True)[1] + 1
    return ranks


def _both(first: Int64s, second: Int64s) -> Int64s:
    """Rank by the first and then by the second."""
    return np.unique(first * (int(second.max(initial=0)) + 1) + second, return_inverse=True)[1]


def _validity(column: pa.Array) -> Int64s:
    return column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)


def _bits(column: pa.Array) -> Int64s:
    """Rank values of a fixed width; bits under a null are ignored."""
    n_bytes = column.type.bit_width // 8
    word = np.dtype(f"i{min(n_bytes, 8)}")
    n_words = n_bytes // word.itemsize
    words = np.frombuffer(column.buffers()[1], word)[column.offset * n_words :][: len(column) * n_words]
    valid, ranks = _validity(column), np.zeros(len(column), np.int64)
    for at in range(n_words):
        ranks = _both(ranks, np.unique(words[at::n_words], return_inverse=True)[1] * valid)
    return ranks


def _texts(column: pa.Array) -> Int64s:
    """Rank strings, binary values and numbers other than floats; null has rank 0."""
    encoded = column.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank)) + 1
    codes = encoded.indices.fill_null(-1).to_numpy()
    return np.concatenate((rank, [0]))[codes]


def _sequences(offsets: pa.Array, values: pa.Array) -> Int64s:
    """Rank lists by the bytes of their elements' ranks, which have the same order."""
    at = offsets.to_numpy().astype(np.int64)
    ranks = value_ranks(values).astype(">u8")
    buffers = [None, pa.py_buffer(at * ranks.itemsize), pa.py_buffer(ranks.tobytes())]
    return _texts(pa.Array.from_buffers(pa.large_binary(), len(at) - 1, buffers))
