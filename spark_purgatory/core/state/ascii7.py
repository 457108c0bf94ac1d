"""Bytes as ASCII with seven bits a byte: 8 bytes for every 7.

PySpark passes binary state from the JVM to Python as a pickled Latin-1 string, encoded to UTF-8 byte by byte. Bytes
below 128 take a fast path on both sides and stay one byte; others cost three times as much, measured in a whole query.
Seven bytes are read as one 56-bit number, which is split into two halves three times:

    56 bits -> 2 x 28 in 32 -> 4 x 14 in 16 -> 8 x 7 in 8
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

GROUP, CODED = 7, 8
BLOCK = 1 << 14  # groups that are coded at a time: 128 KiB, which fit a core's cache
_LOW_56 = np.uint64((1 << 56) - 1)
_STEPS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    )
)


def coded_size(size: int) -> int:
    """Return the size of ``size`` bytes when coded."""
    return -(-size // GROUP) * CODED


def encode(data: Bytes) -> Bytes:
    """Code (n,) bytes as `coded_size(n)` bytes below 128."""
    groups = -(-len(data) // GROUP)
    whole = max(groups - 1, 0)  # The last group has no byte after it to be read along
    words = np.empty(groups, "<u8")
    for start in range(0, whole, BLOCK):
        block = words[start : min(start + BLOCK, whole)]
        _read_groups(data[start * GROUP :], block)
        _spread(block)
    if groups:
        last = np.zeros(CODED, np.uint8)
        last[: len(data) - whole * GROUP] = data[whole * GROUP :]
        _read_groups(last, words[whole:])
        _spread(words[whole:])
    return words.view(np.uint8)


def decode(coded: Bytes, size: int) -> Bytes:
    """Return the ``size`` bytes that `encode` was given; ``coded`` must have `coded_size(size)` bytes."""
    words = coded.view("<u8")
    data = np.empty(len(words) * GROUP + 1, np.uint8)
    for start in range(0, len(words), BLOCK):
        block = words[start : start + BLOCK].copy()
        for low, high, shift in reversed(_STEPS):
            moved = block & (high << shift)
            moved >>= shift
            block &= low
            block |= moved
        # Groups ascend: the next one overwrites the eighth byte of each, a zero.
        np.ndarray(len(block), "<u8", data.data, start * GROUP, (GROUP,))[:] = block
    return data[:size]


def _read_groups(data: Bytes, words: Words) -> None:
    """Read groups of seven bytes as little-endian numbers; the eighth byte is the next group's and is masked away."""
    np.bitwise_and(np.ndarray(len(words), "<u8", data.data, 0, (GROUP,)), _LOW_56, out=words)


def _spread(words: Words) -> None:
    for low, high, shift in _STEPS:
        moved = words & high
        moved <<= shift
        words &= low
        words |= moved
