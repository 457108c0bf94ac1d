"""Settings of a Python worker for large blobs and many short tasks.

``SPARK_PURGATORY_TUNE_WORKERS=0`` in the environment of the executors switches them off
(``spark.executorEnv.SPARK_PURGATORY_TUNE_WORKERS``), for workers that share their process with other code.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from functools import cache, lru_cache

import pyarrow as pa

SWITCH = "SPARK_PURGATORY_TUNE_WORKERS"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # Numbers of ``malloc.h``
KEPT_BYTES = 256 << 20  # Freed memory that a worker keeps for its next task
MOST_OLD_GLIBC_TAKES = 32 << 20
"""An older glibc refuses a larger M_MMAP_THRESHOLD. No glibc raises it from 128 KiB by itself after it was set once."""
TRIM_SECONDS = 60.0  # In this time a worker gives freed memory back once: to take 250 MB again costs it 0.35 s


def prepare_worker() -> None:
    """Tune the process at the start of each function that Spark runs in a worker; repeated calls cost almost nothing.

    PySpark collects garbage in a worker after every task, which takes 30 ms and more for the objects of all modules,
    eight times in a micro-batch. So these objects are frozen, and again when more modules are imported.

    Blobs of some megabytes would be returned to the system each time they are freed, and each page of the next blob
    would be a page fault: 0.7 ns a byte, ten times the cost of writing it. Only glibc has a setting against this, so
    pyarrow takes its memory from glibc too, unless ARROW_DEFAULT_MEMORY_POOL names another pool.
    """
    if os.environ.get(SWITCH) == "0":
        return
    _freeze(len(sys.modules))
    _keep_freed_memory()


@cache
def _freeze(modules: int) -> None:  # noqa: ARG001
    """Once for each number of imported modules."""
    gc.freeze()


@cache
def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and any(mallopt(M_MMAP_THRESHOLD, most) for most in (KEPT_BYTES, MOST_OLD_GLIBC_TAKES)):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
            pa.set_memory_pool(pa.system_memory_pool())


def end_task() -> None:
    """Give freed memory back to the system now and then, at the end of each function that Spark runs in a worker.

    A query's first micro-batch often brings a hundred times the rows of later ones, and without this a worker with
    300 MB of engines has 700 MB.
    """
    if os.environ.get(SWITCH) != "0":
        _give_back(int(time.monotonic() // TRIM_SECONDS))


@lru_cache(maxsize=1)
def _give_back(period: int) -> None:  # noqa: ARG001
    """Once for each period of `TRIM_SECONDS`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
