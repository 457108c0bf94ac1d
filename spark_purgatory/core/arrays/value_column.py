"""Watch keys and ids: their values, and their 64-bit hashes.

Indexes order by 36 bits of a hash. Every find is compared in full before it counts, so a collision by chance or by
intent never joins two keys. Spark computes hashes in the JVM (``xxhash64``); callers without Spark use `hash_keys`.

Texts that grow are ends and characters in two numpy columns (`GrowableTexts`), read through Arrow without a copy.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import MERGE_RATIO, Bools, GrowableArray, Int64s


class GrowableTexts:
    """Strings or bytes without nulls. The caller keeps them below 2 GiB."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._ends = GrowableArray(np.zeros(1, np.int32))  # (n + 1,) int32: 0, then the end of each text
        self._characters = GrowableArray(np.empty(0, np.uint8))

    @staticmethod
    def of(texts: pa.Array) -> GrowableTexts:
        """Make a column of (n,) texts, n > 0, that shares their memory until it grows."""
        column, (ends, characters) = GrowableTexts(texts.type), parts_of(texts)
        column._ends = GrowableArray(ends if not ends[0] else ends - ends[0])
        column._characters = GrowableArray(characters)
        return column

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def size(self) -> int:
        return len(self._characters)

    @property
    def values(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._ends.values), pa.py_buffer(self._characters.values)]
        return pa.Array.from_buffers(self.kind, len(self), buffers)

    def append(self, texts: pa.Array) -> None:
        ends, characters = parts_of(texts)
        self._ends.append(ends[1:] + (np.int32(self.size) - ends[0]))
        self._characters.append(characters)

    def keep(self, kept: Bools) -> None:
        ends, characters = parts_of(self.values.filter(pa.array(kept)))
        self._ends, self._characters = GrowableArray(ends), GrowableArray(characters)


def parts_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of the first of n > 0 texts and the ends of all, (n + 1,) int32, and their characters, uint8."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    characters = np.frombuffer(b"" if data is None else data, np.uint8)
    return ends, characters[ends[0] : ends[-1]]


MOST_CHUNKS = 8  # an append merges chunks beyond this number: fewer may wait for compacting, which copies anyway
MAX_CHUNK_BYTES = 1 << 30  # of a merged chunk: half of the 2 GiB at which Arrow's 32-bit offsets end


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
    """Values by position.

    Numbers without nulls are kept in one numpy column, texts without nulls in two, which grow in place. Other values
    are Arrow chunks, which are merged when they are many or saved. A chunk of texts that are all null has Arrow's null
    type, which takes no memory.
    """

    def __init__(self, chunks: list[pa.Array] | None = None) -> None:
        self._chunks: list[pa.Array] = []
        self._numbers: GrowableArray[Any] | None = None
        self._number_type: pa.DataType | None = None
        self._texts: GrowableTexts | None = None
        self._null_type: pa.DataType | None = None  # the values' type, if a chunk has the null type
        for chunk in chunks or []:
            self._add(chunk)

    @property
    def chunks(self) -> list[pa.Array]:
        """The values in order, valid until the column changes."""
        return [self._typed(chunk) for chunk in self._parts]

    @property
    def _parts(self) -> list[pa.Array]:
        if self._texts is not None:
            return [self._texts.values]
        if self._numbers is not None:
            return [pa.array(self._numbers.values, self._number_type)] if len(self._numbers) else []
        return self._chunks

    @property
    def starts(self) -> Int64s:
        """The positions at which chunks begin, and the end of the last one, (chunks + 1,)."""
        lengths = map(len, self._chunks) if self._grown is None else [len(self._grown)]
        return np.cumsum([0, *lengths])

    @property
    def _grown(self) -> GrowableArray[Any] | GrowableTexts | None:
        return self._texts if self._numbers is None else self._numbers

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) if self._grown is None else len(self._grown)

    @staticmethod
    def restored(chunks: list[pa.Array]) -> ValueColumn:
        """Make a column of saved chunks, which grows in place if it can; one chunk of texts is copied when needed."""
        column = ValueColumn()
        if len(chunks) == 1 and _is_text(chunks[0].type) and not chunks[0].null_count:
            column._texts = GrowableTexts.of(chunks[0])
        else:
            for chunk in chunks:
                column.append(chunk)
        return column

    def _typed(self, values: pa.Array) -> pa.Array:
        return values if self._null_type is None or values.type == self._null_type else values.cast(self._null_type)

    def append(self, values: pa.Array) -> None:
        if not len(values):
            return
        if not len(self) and _is_text(values.type) and not values.null_count:
            self._texts = GrowableTexts(values.type)
        if self._texts is not None and self._fits(values):
            self._texts.append(values)
            return
        self._add(values)
        if len(self._chunks) > MOST_CHUNKS:
            self.merge()

    def merge(self) -> None:
        """Merge each chunk into the one before it unless that is much longer or too large; about log2(n) are left."""
        groups: list[list[pa.Array]] = []
        for chunk in self._chunks:
            group = [chunk]
            while groups and _merge_due(groups[-1], group):
                group = groups.pop() + group
            groups.append(group)
        if len(groups) < len(self._chunks):
            # Arrow would copy a chunk even if it is alone in its group.
            self._chunks = [self._joined(group) if len(group) > 1 else group[0] for group in groups]

    def _add(self, values: pa.Array) -> None:
        is_number = pa.types.is_integer(values.type) or values.type in (pa.float32(), pa.float64())
        if not self._chunks and self._texts is None and is_number and not values.null_count:
            if self._numbers is None:
                self._numbers = GrowableArray(np.empty(0, values.type.to_pandas_dtype()))
                self._number_type = values.type
            self._numbers.append(values.to_numpy())
            return
        if self._grown is not None:
            self._chunks, self._numbers, self._texts = self.chunks, None, None
        if _is_text(values.type) and values.null_count == len(values):
            self._null_type, values = values.type, pa.nulls(len(values))
        self._chunks.append(values)

    def _fits(self, values: pa.Array) -> bool:
        texts = self._texts
        if texts is None or values.null_count:
            return False
        return texts.size + 4 * len(texts) + values.nbytes < MAX_CHUNK_BYTES

    def _joined(self, chunks: list[pa.Array]) -> pa.Array:
        is_null = [pa.types.is_null(chunk.type) for chunk in chunks]
        return pa.concat_arrays(chunks if all(is_null) else [self._typed(chunk) for chunk in chunks])

    def take(self, positions: Int64s) -> pa.Array:
        if self._numbers is not None:
            return pa.array(self._numbers.values[positions], self._number_type)
        chunks, starts = self._parts, self.starts
        if len(chunks) == 1:
            return self._typed(chunks[0].take(pa.array(positions)))
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        cuts = ascending.searchsorted(starts)
        parts = [
            chunk.take(pa.array(ascending[cuts[i] : cuts[i + 1]] - starts[i]))
            for i, chunk in enumerate(chunks)
            if cuts[i] < cuts[i + 1]
        ]
        # An empty slice would keep, and ship, the offsets of the whole chunk.
        joined = self._typed(self._joined(parts) if parts else pa.nulls(0, chunks[0].type))
        if len(order) < 2 or bool((order[1:] > order[:-1]).all()):
            return joined
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return joined.take(pa.array(inverse))

    def equal(self, positions: Int64s, others: pa.Array, other_positions: Int64s) -> Bools:
        if not len(positions):
            return np.zeros(0, bool)
        if self._numbers is not None and pa.types.is_integer(others.type) and not others.null_count:
            return self._numbers.values[positions] == others.to_numpy()[other_positions]
        chunks, starts = self._parts, self.starts
        if len(chunks) == 1:
            return equal_values(chunks[0], positions, others, other_positions)
        same = np.zeros(len(positions), bool)
        which = starts.searchsorted(positions, side="right") - 1
        for i, chunk in enumerate(chunks):
            here = np.flatnonzero(which == i)
            if len(here):
                local = positions[here] - starts[i]
                same[here] = equal_values(chunk, local, others, other_positions[here])
        return same

    def keep(self, kept: Bools) -> None:
        if not kept.any():
            self._chunks, self._numbers, self._texts = [], None, None
        elif self._grown is not None:
            self._grown.keep(kept)
        else:
            chunks = self._chunks
            for i, start in enumerate(self.starts[:-1].tolist()):
                # One chunk after the other, so that only one of them is in memory twice.
                chunks[i] = chunks[i].filter(pa.array(kept[start : start + len(chunks[i])]))
            self._chunks = [chunk for chunk in chunks if len(chunk)]
            self.merge()


def _merge_due(older: list[pa.Array], newer: list[pa.Array]) -> bool:
    small = sum(map(len, older)) <= MERGE_RATIO * sum(map(len, newer))
    return small and sum(chunk.nbytes for chunk in (*older, *newer)) < MAX_CHUNK_BYTES


def equal_values(left: pa.Array, left_at: Int64s, right: pa.Array, right_at: Int64s) -> Bools:
    """Flag each i with ``left[left_at[i]] == right[right_at[i]]``, (n,) bool; null equals null."""
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return left.to_numpy()[left_at] == right.to_numpy()[right_at]
    if pa.types.is_null(left.type):
        return as_bools(pc.is_null(right.take(pa.array(right_at))))
    values, others = left.take(pa.array(left_at)), right.take(pa.array(right_at))
    same = pc.equal(values, others)
    if same.null_count:
        same = pc.or_(pc.fill_null(same, False), pc.and_(pc.is_null(values), pc.is_null(others)))
    return as_bools(same)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary())


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
