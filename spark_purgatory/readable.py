"""Durations and sizes for people. The module imports nothing, because workers load it too."""

from __future__ import annotations


def readable_ms(ms: float) -> str:
    """Return milliseconds in the largest unit that leaves at least one: ``90061000`` -> ``25.0 h``."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if abs(ms) >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"


def readable_bytes(size: float) -> str:
    """Return bytes in the largest unit that leaves at least one: ``131072`` -> ``128.0 KiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"
