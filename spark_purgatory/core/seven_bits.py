"""Bytes as ASCII, seven bits a byte: 8 bytes for every 7.

Why: PySpark hands binary state from the JVM to Python as a pickled Latin-1 string, encoded to UTF-8 byte by byte. Bytes
below 128 take a fast path on both sides and stay one byte; the others cost three times as much, measured in a
whole query. Seven bytes are read as one 56-bit number, whose halves are moved apart three times:

    56 bits -> 2 x 28 in 32 -> 4 x 14 in 16 -> 8 x 7 in 8
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

GROUP, CODED = 7, 8
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
    """Bytes that ``size`` bytes take when coded."""
    return -(-size // GROUP) * CODED


def encode(data: Bytes) -> Bytes:
    """Code (n,) bytes as `coded_size(n)` bytes below 128."""
    groups = -(-len(data) // GROUP)
    padded = np.zeros(groups * GROUP + 1, np.uint8)
    padded[: len(data)] = data
    # Every group of seven as a little-endian number; the eighth byte read is the next group's, and masked away.
    words = np.ndarray((groups,), "<u8", padded.data, 0, (GROUP,)) & _LOW_56
    for low, high, shift in _STEPS:
        moved = words & high
        moved <<= shift
        words &= low
        words |= moved
    return words.view(np.uint8)


def decode(coded: Bytes, size: int) -> Bytes:
    """The ``size`` bytes that `encode` was given; ``coded`` must have `coded_size(size)` bytes."""
    words = coded.view("<u8").copy()
    for low, high, shift in reversed(_STEPS):
        moved = words & (high << shift)
        moved >>= shift
        words &= low
        words |= moved
    return words.view(np.uint8).reshape(-1, CODED)[:, :GROUP].reshape(-1)[:size]
