"""A Python worker made fit for large blobs and many short tasks."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of ``malloc.h``."""
KEPT_BYTES = 256 << 20
"""Freed memory that a worker keeps for its next task."""


@cache
def prepare_worker() -> None:
    """Once in a process, by whichever of our functions runs first.

    PySpark has a worker collect its garbage after every task: 30 ms and more to walk the objects of all modules, six
    times a micro-batch. What was imported so far is taken out of the collector's sight.

    Blobs of some megabytes would be given back to the system each time they are freed, and every page of the next one
    be faulted in anew: 0.7 ns a byte, ten times what writing it costs. glibc alone has this switch.
    """
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
