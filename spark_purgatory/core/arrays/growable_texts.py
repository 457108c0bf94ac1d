"""A column of texts that grows: ends and characters in two numpy columns, read through Arrow without a copy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import Bools, GrowableArray, Int64s, blocks_of


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
        """The bytes of all texts."""
        return len(self._characters)

    @property
    def values(self) -> pa.Array:
        """The texts, (n,), valid until the next append or keep."""
        buffers = [None, pa.py_buffer(self._ends.values), pa.py_buffer(self._characters.values)]
        return pa.Array.from_buffers(self.kind, len(self), buffers)

    def append(self, texts: pa.Array) -> None:
        """Append (n,) texts, n > 0."""
        ends, characters = parts_of(texts)
        self._ends.append(ends[1:] + (np.int32(self.size) - ends[0]))
        self._characters.append(characters)

    def keep(self, kept: Int64s | Bools) -> None:
        """Keep only the texts at ``kept``, flags or ascending positions, in place."""
        texts, ends, characters = self.values, self._ends.writable, self._characters.writable
        count = size = 0
        for start, positions in blocks_of(kept):
            if len(positions):
                # Texts move towards the start, so only those are overwritten that have been moved.
                block_ends, block = parts_of(texts.take(pa.array(positions)))
                characters[size : size + len(block)] = block
                ends[start + 1 : start + len(block_ends)] = block_ends[1:] + (np.int32(size) - block_ends[0])
                count, size = start + len(positions), size + len(block)
        del texts, ends, characters
        self._ends.truncate(count + 1)
        self._characters.truncate(size)


def parts_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of the first of n > 0 texts and the ends of all, (n + 1,) int32, and their characters, uint8."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    characters = np.frombuffer(b"" if data is None else data, np.uint8)
    return ends, characters[ends[0] : ends[-1]]
