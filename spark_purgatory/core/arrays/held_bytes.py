"""The memory that an object's numpy and Arrow arrays take; a buffer that several share counts once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from spark_purgatory.core.arrays.sorted_runs import GrowableArray


def held_bytes(owner: object) -> int:
    """Return the bytes of all arrays that an object of this package reaches, at a cost per array and not per value."""
    return sum(held_by_part(owner).values())


def held_by_part(owner: object) -> dict[str, int]:
    """Return `held_bytes` by the path of the attribute that is met first."""
    parts: dict[str, int] = {}
    seen: set[int] = set()
    for path, value in _reached(owner):
        for address, size in _memory_of(value):
            if address not in seen:
                seen.add(address)
                parts[path] = parts.get(path, 0) + size
    return parts


def own_memory(owner: object) -> None:
    """Copy each growable array that is a view, because a view keeps all the memory behind it."""
    for _, value in _reached(owner):
        if isinstance(value, GrowableArray):
            value.own()


def _reached(owner: object) -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    stack: list[tuple[str, object]] = [("", owner)]
    while stack:
        path, value = stack.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield path, value
            stack += _inside(path, value)


def _inside(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, (list, tuple)):
        yield from ((path, each) for each in value)
    elif isinstance(value, dict):
        yield from ((f"{path}.{name}", each) for name, each in value.items())
    elif type(value).__module__.startswith("spark_purgatory.") and not isinstance(value, GrowableArray):
        yield from ((f"{path}.{name}".lstrip("."), each) for name, each in getattr(value, "__dict__", {}).items())


def _memory_of(value: object) -> Iterator[tuple[int, int]]:
    """Yield the address and bytes of the memory behind an array or a view."""
    # A growable array counts with its reserve: a column that shrank and grows again has written to all of it.
    array: Any = value.values if isinstance(value, GrowableArray) else value
    if not isinstance(array, (np.ndarray, pa.Array)):
        return
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    if isinstance(array, memoryview) and array.obj is not None:
        array = array.obj
    if isinstance(array, (pa.Array, pa.Buffer)):
        for buffer in array.buffers() if isinstance(array, pa.Array) else [array]:
            if buffer is not None:
                while buffer.parent is not None:
                    buffer = buffer.parent
                yield buffer.address, buffer.size
        return
    if not isinstance(array, np.ndarray):
        array = np.frombuffer(array, np.uint8)
    yield array.__array_interface__["data"][0], array.nbytes
