"""A Python worker made fit for large blobs and many short tasks."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache

import pyarrow as pa

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of ``malloc.h``."""
KEPT_BYTES = 256 << 20
"""Freed memory that a worker keeps for its next task."""
MOST_OLD_GLIBC_TAKES = 32 << 20
"""An older glibc refuses a larger M_MMAP_THRESHOLD; and no glibc raises it from 128 KiB by itself once one was set."""


def prepare_worker() -> None:
    """At the start of each of our functions, which one ever runs in the process; costs next to nothing when repeated.

    PySpark has a worker collect its garbage after every task: 30 ms and more to walk the objects of all modules, eight
    times a micro-batch. What was imported so far is taken out of the collector's sight, and again when more was: a
    worker that packs first meets pandas only when it is given a state function.

    Blobs of some megabytes would be given back to the system each time they are freed, and every page of the next one
    be faulted in anew: 0.7 ns a byte, ten times what writing it costs. glibc alone has this switch, so pyarrow's memory
    comes from there too, unless ARROW_DEFAULT_MEMORY_POOL says from where: its own allocator gives pages back.
    """
    _freeze(len(sys.modules))
    _keep_freed_memory()


@cache
def _freeze(modules: int) -> None:
    """Once for each number of modules there are."""
    gc.freeze()


@cache
def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, most) for most in (KEPT_BYTES, MOST_OLD_GLIBC_TAKES)):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
            pa.set_memory_pool(pa.system_memory_pool())
