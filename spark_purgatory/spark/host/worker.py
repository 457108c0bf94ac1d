"""Settings of a Python worker for large blobs and many short tasks.

``SPARK_PURGATORY_TUNE_WORKERS=0`` in the environment of the executors switches them off
(``spark.executorEnv.SPARK_PURGATORY_TUNE_WORKERS``), for workers that share their process with other code.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache

import pyarrow as pa

SWITCH = "SPARK_PURGATORY_TUNE_WORKERS"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of ``malloc.h``."""
KEPT_BYTES = 256 << 20
"""Freed memory that a worker keeps for its next task."""
MOST_OLD_GLIBC_TAKES = 32 << 20
"""An older glibc refuses a larger M_MMAP_THRESHOLD; and no glibc raises it from 128 KiB by itself once one was set."""


def prepare_worker() -> None:
    """Call it at the start of each function that Spark runs in a worker; a repeated call costs almost nothing.

    PySpark collects garbage in a worker after every task: 30 ms and more to walk the objects of all modules, eight
    times in a micro-batch. So the objects of all imported modules are frozen, and again when more modules are imported.

    Blobs of some megabytes would be returned to the system each time they are freed, and each page of the next blob
    would be a page fault: 0.7 ns a byte, ten times the cost of writing it. Only glibc has a setting against this, so
    pyarrow takes its memory from glibc too, unless ARROW_DEFAULT_MEMORY_POOL names another pool.
    """
    if os.environ.get(SWITCH) == "0":
        return
    _freeze(len(sys.modules))
    _keep_freed_memory()


@cache
def _freeze(modules: int) -> None:
    """Once for each number of imported modules."""
    gc.freeze()


@cache
def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, most) for most in (KEPT_BYTES, MOST_OLD_GLIBC_TAKES)):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
            pa.set_memory_pool(pa.system_memory_pool())
