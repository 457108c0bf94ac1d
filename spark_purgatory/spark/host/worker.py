"""Settings of a Python worker for large blobs and many short tasks.

``SPARK_PURGATORY_TUNE_WORKERS=0`` in the environment of the executors switches them off
(``spark.executorEnv.SPARK_PURGATORY_TUNE_WORKERS``), for workers that share their process with other code.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pyarrow as pa

SWITCH = "SPARK_PURGATORY_TUNE_WORKERS"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # Numbers of ``malloc.h``
KEPT_BYTES = 256 << 20  # Freed memory that a worker keeps for its next task
MOST_OLD_GLIBC_TAKES = 32 << 20
"""An older glibc refuses a larger M_MMAP_THRESHOLD. No glibc raises it from 128 KiB by itself after it was set once."""
HELD_TO_FREE = 5  # A worker that holds engines may have a fifth of their bytes, and `FREE_BYTES`, as freed memory
FREE_BYTES = 64 << 20
TASK_SPACE = 32
"""A task may need this many times its input bytes: they are read, decoded, sorted, packed and sent. So workers with
tasks of 2 MB and more keep their memory. When tasks of 10 MB gave it back and took it again, page faults were a quarter
of the workers' CPU."""
TASK_HALF_LIFE_SECONDS = 5.0  # The need of the largest task counts half as much after this time
TRIM_PART = 0.01  # The share of its time that a worker may spend on giving memory back


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
    _trimmer()


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


def give_memory_back(held_bytes: int) -> None:
    """Return freed memory to the system if there is much of it next to the bytes of the worker's engines.

    Without this a worker with 300 MB of engines has 700 MB. Each step calls it; it takes 10 us.
    """
    if os.environ.get(SWITCH) != "0":
        _trimmer().trim(held_bytes)


def end_task(task_bytes: int) -> None:
    """Return the memory that an earlier and much larger task left. ``task_bytes``: rows and state of the ending task.

    A query's first micro-batch often brings a hundred times the rows of later ones.
    """
    if os.environ.get(SWITCH) != "0":
        _trimmer().end_task(task_bytes)


class _Trimmer:
    """Calls glibc's ``malloc_trim``, for at most `TRIM_PART` of the time."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._least = _resident_bytes() if self._trim else 0
        """Bytes of the process without engines, above all of modules."""
        self._next = 0.0
        self._held_bytes = 0
        self._task_bytes = 0.0
        """The need of the next task, judged by those that have ended."""
        self._task_ended_at = time.monotonic()
        self._left = 0
        """Bytes of the process after it last gave memory back."""
        self._lock = threading.Lock()

    def end_task(self, task_bytes: int) -> None:
        if self._trim is None:
            return
        now = time.monotonic()
        left = 0.5 ** ((now - self._task_ended_at) / TASK_HALF_LIFE_SECONDS)
        self._task_bytes = max(min(task_bytes * TASK_SPACE, KEPT_BYTES), self._task_bytes * left)
        self._task_ended_at = now
        if self._task_bytes < FREE_BYTES < _resident_bytes() - self._left:
            self.trim(self._held_bytes)

    def trim(self, held_bytes: int) -> None:
        self._held_bytes = held_bytes
        if self._trim is None or time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            resident = _resident_bytes()
            self._least = min(self._least, resident)
            if resident - self._least - held_bytes > FREE_BYTES + held_bytes // HELD_TO_FREE:
                started = time.monotonic()
                self._trim(0)
                done = time.monotonic()
                self._next = done + (done - started) / TRIM_PART
                self._left = _resident_bytes()
        finally:
            self._lock.release()


@cache
def _trimmer() -> _Trimmer:
    return _Trimmer()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
