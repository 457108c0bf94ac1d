"""Watch keys and ids: their values, and their 64-bit hashes.

Indexes order by 36 bits of a hash. Every find is compared in full before it counts, so a collision by chance or by
intent never joins two keys. Spark computes hashes in the JVM (``xxhash64``); callers without Spark use `hash_keys`.

Most Arrow arrays are a few numpy arrays (`Buffers`), in which a column grows, and as which a state keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import Bools, GrowableArray, Int64s
from spark_purgatory.errors import LimitError

MOST_CHARACTERS = (1 << 31) - 1  # of one column: Arrow's offsets have 32 bits


@dataclass(frozen=True)
class Buffers:
    """The buffers of texts, or of n values of a fixed width; a value under a null is undefined."""

    values: npt.NDArray[Any]  # (n,), or the characters of texts
    ends: npt.NDArray[np.int32] | None = None  # (n + 1,) of texts: 0, then the end of each
    valid: Bools | None = None  # (n,) None: no value is null

    @staticmethod
    def of(column: pa.Array) -> Buffers | None:
        """Return the buffers of a column, which share its memory; None if it has another type."""
        kind, buffers, ends = column.type, column.buffers(), None
        places = slice(column.offset, column.offset + len(column))
        if is_text(kind):
            offsets = np.frombuffer(buffers[1] or bytes(4), np.int32)[column.offset : places.stop + 1]
            ends = offsets - offsets[0] if offsets[0] else offsets
            values = np.frombuffer(buffers[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        elif (dtype := _dtype(kind)) is not None:
            values = np.frombuffer(buffers[1] or b"", dtype)[places]
        else:
            return None
        return Buffers(values, ends, as_bools(column.is_valid()) if column.null_count else None)

    def array(self, kind: pa.DataType) -> pa.Array:
        n = len(self.values) if self.ends is None else len(self.ends) - 1
        valid = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        ends = [] if self.ends is None else [pa.py_buffer(self.ends)]
        return pa.Array.from_buffers(kind, n, [valid, *ends, pa.py_buffer(self.values)])


def struct_array(parts: list[pa.Array], fields: list[pa.Field], n: int) -> pa.StructArray:
    """Return n structs of these parts, which may be none."""
    if not parts:
        return pa.Array.from_buffers(pa.struct([]), n, [None])
    return pa.StructArray.from_arrays(parts, fields=fields)


def is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary())


def _dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the type in numpy of values of a fixed width; None if they have none."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return np.dtype({32: "i4", 64: "i8"}.get(kind.bit_width, f"V{kind.bit_width // 8}"))
    return None


def hash_keys(keys: pa.Array) -> Int64s:
    """Return a 64-bit hash of each key, (n,) int64: splitmix64 of integers, blake2b of other values."""
    if pa.types.is_integer(keys.type):
        return mix64((keys if keys.type == pa.int64() else keys.cast(pa.int64())).to_numpy(zero_copy_only=False))
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    digests = b"".join(blake2b(as_bytes(value), digest_size=8).digest() for value in distinct)
    return np.frombuffer(digests, np.int64)[encoded.indices.to_numpy()]


def as_bytes(value: object) -> bytes:
    """Return a key's bytes: bytes as they are, other values as text in UTF-8."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def mix64(values: Int64s) -> Int64s:
    """Apply the finalizer of splitmix64 (a bijection of 64 bits), (n,) int64."""
    z = values.view(np.uint64).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z.view(np.int64)


class ValueColumn:
    """Values by position, in the numpy columns of their `Buffers`, which grow in place.

    Values of other types are one Arrow array, which is made again when it is read after an append. As long as all
    values are null, only their number is kept.
    """

    def __init__(self, values: pa.Array | None = None) -> None:
        self._kind = pa.null()
        self._nulls = 0  # values, if all are null
        self._values: GrowableArray[Any] | None = None
        self._ends: GrowableArray[np.int32] | None = None
        self._valid: GrowableArray[np.bool_] | None = None
        self._parts: list[pa.Array] = []
        if values is not None:
            self.append(values)

    def __len__(self) -> int:
        if self._values is None:
            return self._nulls + sum(map(len, self._parts))
        return len(self._values) if self._ends is None else len(self._ends) - 1

    @property
    def values(self) -> pa.Array:
        """The values in order, valid until the column changes."""
        if self._values is not None:
            ends = None if self._ends is None else self._ends.values
            valid = None if self._valid is None else self._valid.values
            return Buffers(self._values.values, ends, valid).array(self._kind)
        if not self._parts:
            return pa.nulls(self._nulls, self._kind)
        if len(self._parts) > 1:
            self._parts = [pa.concat_arrays(self._parts)]
        return self._parts[0]

    def append(self, values: pa.Array) -> None:
        """Add values. An empty column shares their memory until it grows."""
        if not len(values):
            return
        if self._nulls == len(self):
            self._kind = values.type
            if values.null_count == len(values):
                self._nulls += len(values)
                return
            if self._nulls:
                values, self._nulls = pa.concat_arrays([pa.nulls(self._nulls, values.type), values]), 0
        buffers = Buffers.of(values)
        if buffers is None:
            self._parts.append(values)
        elif self._values is None:
            self._values = GrowableArray(buffers.values)
            self._ends = None if buffers.ends is None else GrowableArray(buffers.ends)
            self._valid = None if buffers.valid is None else GrowableArray(buffers.valid)
        else:
            self._grow(buffers, self._values, len(values))

    def _grow(self, buffers: Buffers, values: GrowableArray[Any], more: int) -> None:
        if buffers.valid is not None or self._valid is not None:
            if self._valid is None:
                self._valid = GrowableArray(np.ones(len(self), bool))
            self._valid.append(np.ones(more, bool) if buffers.valid is None else buffers.valid)
        if self._ends is not None and buffers.ends is not None:
            if len(values) + len(buffers.values) > MOST_CHARACTERS:
                raise LimitError(
                    f"a column of a shard would have {len(values) + len(buffers.values):,} bytes of text, and the most "
                    f"is {MOST_CHARACTERS:,}: use more shards (spark-purgatory move)"
                )
            self._ends.append(buffers.ends[1:] + np.int32(len(values)))
        values.append(buffers.values)

    def take(self, positions: Int64s) -> pa.Array:
        if self._values is not None and self._ends is None and self._valid is None:
            return Buffers(self._values.values[positions]).array(self._kind)
        return pa.nulls(len(positions), self._kind) if self._nulls else self.values.take(pa.array(positions))

    def equal(self, positions: Int64s, others: pa.Array, other_positions: Int64s) -> Bools:
        if not len(positions):
            return np.zeros(0, bool)
        if self._nulls:
            return as_bools(pc.is_null(others.take(pa.array(other_positions))))
        return equal_values(self.values, positions, others, other_positions)

    def keep(self, kept: Bools) -> None:
        vars(self).update(vars(ValueColumn(self.values.filter(pa.array(kept)))))


def equal_values(left: pa.Array, left_at: Int64s, right: pa.Array, right_at: Int64s) -> Bools:
    """Flag each i with ``left[left_at[i]] == right[right_at[i]]``, (n,) bool; null equals null."""
    numbers = pa.types.is_integer(left.type) and pa.types.is_integer(right.type)
    if numbers and not left.null_count and not right.null_count:
        return left.to_numpy()[left_at] == right.to_numpy()[right_at]
    values, others = left.take(pa.array(left_at)), right.take(pa.array(right_at))
    same = pc.equal(values, others)
    if same.null_count:
        same = pc.or_(pc.fill_null(same, False), pc.and_(pc.is_null(values), pc.is_null(others)))
    return as_bools(same)


def as_bools(array: pa.Array) -> Bools:
    return array.to_numpy(zero_copy_only=False)


def value_ranks(column: pa.Array) -> Int64s:
    """Return the rank of each value of the column, (n,) int64; equal values have equal ranks.

    Rows that are equal in everything that matters still need an order that does not depend on their arrival. Their
    content gives it, for every Arrow type: column by column, null first, then by the bits of the value; lists element
    by element. The order has no meaning, but it is always the same.
    """
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
