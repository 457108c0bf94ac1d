"""The memory that an object's numpy and Arrow arrays take; a buffer that several share counts once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def held_bytes(owner: object) -> int:
    """Return the bytes of all arrays that an object of this package reaches, at a cost per array and not per value.

    A view counts with the whole array, and a growable column with its reserve: one that shrank and grows again has
    written to all of it.
    """
    sizes: dict[int, int] = {}  # by address
    seen: set[int] = set()
    left: list[object] = [owner]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, pa.Array):
            sizes |= {buffer.address: buffer.size for buffer in value.buffers() if buffer is not None}
        elif isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            sizes[value.ctypes.data] = value.nbytes
        elif isinstance(value, (list, tuple)):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif type(value).__module__.startswith("spark_purgatory."):
            left += vars(value).values()
    return sum(sizes.values())
