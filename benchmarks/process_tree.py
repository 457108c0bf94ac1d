"""What this process and all that it started use: CPU seconds, and the memory of Spark's workers and of its driver."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

WORKER_MARK = "pyspark.daemon"
"""In the command line of the process from which Spark's Python workers are forked, and so in theirs."""
DRIVER_MARK = "org.apache.spark.deploy.SparkSubmit"
"""In the command line of the driver's JVM."""
SAMPLE_S = 0.5


def processes() -> list[psutil.Process]:
    """This process and all below it."""
    me = psutil.Process(os.getpid())
    return [me, *me.children(recursive=True)]


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it started, those included that ended and were waited for."""
    total = 0.0
    for process in processes():
        try:
            times = process.cpu_times()
        except psutil.Error:  # It ended a moment ago; its parent has its seconds by the next call.
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def worker_bytes() -> int:
    """Memory of Spark's Python workers; a page that several processes share counts a part for each (Linux: PSS)."""
    total = 0
    for process in processes()[1:]:
        try:
            if any(WORKER_MARK in part for part in process.cmdline()):
                total += shared_out_bytes(process)
        except psutil.Error:
            continue
    return total


def driver_bytes() -> int:
    """Resident memory of this process and of its driver's JVM; under a local master the tasks are in there, too."""
    total = psutil.Process(os.getpid()).memory_info().rss
    for process in processes()[1:]:
        try:
            if DRIVER_MARK in process.cmdline():
                total += process.memory_info().rss
        except psutil.Error:
            continue
    return int(total)


def shared_out_bytes(process: psutil.Process) -> int:
    """A process's memory; where the system does not share pages out, the resident one."""
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.rss))


class Peak:
    """The most that was sampled."""

    def __init__(self) -> None:
        self.worker_bytes = self.driver_bytes = 0


@contextmanager
def sampled() -> Iterator[Peak]:
    """Samples the workers' and the driver's memory in a thread until the context ends."""
    peak, over = Peak(), threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            peak.worker_bytes = max(peak.worker_bytes, worker_bytes())
            peak.driver_bytes = max(peak.driver_bytes, driver_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
