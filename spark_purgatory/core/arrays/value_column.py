"""Watch keys and ids: their 64-bit hashes and the full values behind them.

Indexes order by 36 bits of a hash; whatever they find is compared in full before it counts, so that a collision, chance
or forged, never joins two keys. Spark computes the hashes in the JVM (``xxhash64``); the functions here serve callers
without Spark.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays.sorted_runs import MERGE_RATIO, Bools, GrowableArray, Int64s

MOST_CHUNKS = 8
"""Chunks beyond which an append merges them: until then compacting, which copies anyway, may come first."""
MAX_CHUNK_BYTES = 1 << 30
"""Arrow's 32-bit offsets end at 2 GiB: chunks are not merged beyond half of that."""


def hash_keys(keys: pa.Array) -> Int64s:
    """A 64-bit hash of each key, (n,) int64: splitmix64 for integers, blake2b of each distinct value for the rest."""
    if pa.types.is_integer(keys.type):
        return mix64((keys if keys.type == pa.int64() else keys.cast(pa.int64())).to_numpy(zero_copy_only=False))
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    digests = b"".join(blake2b(as_bytes(value), digest_size=8).digest() for value in distinct)
    return np.frombuffer(digests, np.int64)[encoded.indices.to_numpy()]


def as_bytes(value: object) -> bytes:
    """A key's bytes: of a str its UTF-8, of bytes themselves, of anything else its text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def mix64(values: Int64s) -> Int64s:
    """The finalizer of splitmix64 (a bijection of 64 bits), (n,) int64."""
    z = values.view(np.uint64).copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return z.view(np.int64)


class ValueColumn:
    """Values by position, in Arrow chunks merged when they are many or saved; appended to, taken from, compared with.

    Integers lie in one numpy column, which grows in place.
    """

    def __init__(self, chunks: list[pa.Array] | None = None) -> None:
        self._chunks: list[pa.Array] = []
        self._integers: GrowableArray[Any] | None = None
        for chunk in chunks or []:
            self._add(chunk)
        self._starts = self._bounds()

    @property
    def chunks(self) -> list[pa.Array]:
        """The values, in order."""
        if self._integers is None:
            return self._chunks
        return [pa.array(self._integers.values)] if len(self._integers) else []

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._integers is None else len(self._integers)

    def _bounds(self) -> Int64s:
        return np.concatenate(([0], np.cumsum([len(chunk) for chunk in self._chunks]))).astype(np.int64)

    def append(self, values: pa.Array) -> None:
        """Append (n,) values of the column's type."""
        if not len(values):
            return
        self._add(values)
        if self._integers is not None:
            return
        self._starts = self._bounds()
        if len(self._chunks) > MOST_CHUNKS:
            self.merge()

    def merge(self) -> None:
        """Merge neighbouring chunks where the older one is not much longer: log2(n) are left, and those too large."""
        groups: list[list[pa.Array]] = []
        for chunk in self._chunks:
            group = [chunk]
            while groups and _merge_due(groups[-1], group):
                group = groups.pop() + group
            groups.append(group)
        if len(groups) < len(self._chunks):
            # Arrow copies a chunk even where there is nothing to put behind it.
            self._chunks = [pa.concat_arrays(group) if len(group) > 1 else group[0] for group in groups]
            self._starts = self._bounds()

    def _add(self, values: pa.Array) -> None:
        if not self._chunks and pa.types.is_integer(values.type) and not values.null_count:
            if self._integers is None:
                self._integers = GrowableArray(values.to_numpy())
            else:
                self._integers.append(values.to_numpy())
            return
        if self._integers is not None:
            self._chunks, self._integers = self.chunks, None
        self._chunks.append(values)

    def take(self, positions: Int64s) -> pa.Array:
        """Values at ``positions``, (n,) int64."""
        if self._integers is not None:
            return pa.array(self._integers.values[positions])
        if len(self.chunks) == 1:
            return self.chunks[0].take(pa.array(positions))
        order = np.argsort(positions, kind="stable")
        ascending = positions[order]
        cuts = ascending.searchsorted(self._starts)
        parts = [
            chunk.take(pa.array(ascending[cuts[i] : cuts[i + 1]] - self._starts[i]))
            for i, chunk in enumerate(self.chunks)
            if cuts[i] < cuts[i + 1]
        ]
        # An empty slice would keep, and ship, the offsets of the whole chunk.
        joined = pa.concat_arrays(parts) if parts else pa.nulls(0, self.chunks[0].type)
        if len(order) < 2 or bool((order[1:] > order[:-1]).all()):
            return joined
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return joined.take(pa.array(inverse))

    def equal(self, positions: Int64s, others: pa.Array, other_positions: Int64s) -> Bools:
        """Whether the value at ``positions[i]`` is ``others[other_positions[i]]``, (n,) bool."""
        if not len(positions):
            return np.zeros(0, bool)
        if self._integers is not None and pa.types.is_integer(others.type) and not others.null_count:
            return self._integers.values[positions] == others.to_numpy()[other_positions]
        if len(self.chunks) == 1:
            return equal_values(self.chunks[0], positions, others, other_positions)
        same = np.zeros(len(positions), bool)
        which = self._starts.searchsorted(positions, side="right") - 1
        for i, chunk in enumerate(self.chunks):
            here = np.flatnonzero(which == i)
            if len(here):
                local = positions[here] - self._starts[i]
                same[here] = equal_values(chunk, local, others, other_positions[here])
        return same

    def keep(self, kept: Int64s) -> None:
        """Keep only the values at ``kept``, (m,) int64 ascending."""
        if self._integers is not None:
            self._integers = GrowableArray(self._integers.values[kept])
        else:
            self._chunks = [self.take(kept)] if len(kept) else []
        self._starts = self._bounds()


def _merge_due(older: list[pa.Array], newer: list[pa.Array]) -> bool:
    small = sum(map(len, older)) <= MERGE_RATIO * sum(map(len, newer))
    return small and sum(chunk.nbytes for chunk in (*older, *newer)) < MAX_CHUNK_BYTES


def equal_values(left: pa.Array, left_at: Int64s, right: pa.Array, right_at: Int64s) -> Bools:
    """Whether ``left[left_at[i]] == right[right_at[i]]``, (n,) bool; null equals null."""
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return left.to_numpy()[left_at] == right.to_numpy()[right_at]
    mine, theirs = left.take(pa.array(left_at)), right.take(pa.array(right_at))
    same = pc.equal(mine, theirs)
    if same.null_count:
        same = pc.or_(pc.fill_null(same, False), pc.and_(pc.is_null(mine), pc.is_null(theirs)))
    return as_bools(same)


def as_bools(array: pa.Array) -> Bools:
    """An Arrow boolean array without nulls as (n,) bool."""
    return array.to_numpy(zero_copy_only=False)
