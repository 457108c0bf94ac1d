"""More than is usual: a million operations on one key, and half of everything in one shard."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.storage import spark_access
from tests.support.lanes import BLOB, LOG
from tests.support.load import HOT, NOBODY, WAITING, Load
from tests.support.quick_spark import COMPILED

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FILES, MANY = 10, int(os.environ.get("LOAD", "1000000"))


class Peak(threading.Thread):
    """The most memory that the workers have had together, the JVM, and one worker."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended, self.workers, self.worker, self.jvm = threading.Event(), 0, 0, 0

    def run(self) -> None:
        """Look twice a second."""
        while not self.ended.wait(0.5):
            sizes: dict[str, list[int]] = {"java": [0], "worker": [0]}
            for process in psutil.Process().children(recursive=True):
                try:
                    sizes["java" if process.name() == "java" else "worker"].append(process.memory_info().rss)
                except psutil.Error:
                    continue
            self.workers, self.jvm = max(self.workers, sum(sizes["worker"])), max(self.jvm, sum(sizes["java"]))
            self.worker = max(self.worker, *sizes["worker"])

    def __enter__(self) -> Peak:
        self.began_s = time.monotonic()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.began_s
        self.ended.set()
        self.join()

    def __str__(self) -> str:
        """What a row of the page has; a worker shares pages with the process that it was forked from."""
        sizes = (f"{size >> 20} MiB" for size in (self.worker, self.workers, self.jvm))
        return "{:.0f} s; at their peak a worker {}, all workers {}, JVM {}".format(self.seconds, *sizes)


@pytest.mark.parametrize("host", [BLOB, LOG])
def test_a_million_operations_on_one_key_end_once(spark: SparkSession, tmp_path: Path, host: str) -> None:
    load, size = Load(spark, tmp_path, host), MANY // FILES
    for number in range(FILES):
        load.land(np.arange(number * size, (number + 1) * size), [HOT] * size, [NOBODY], "COMPLETED")
    with Peak() as peak, spark_access.settings(spark, COMPILED):
        load.run()
        states = sum(path.stat().st_size for path in (tmp_path / "checkpoint" / "state").rglob("*") if path.is_file())
        load.land(np.array([WAITING]), ["last"], [HOT])
        load.run()
    print(f"{host}: {load.due.total():,} operations on one key: {peak}; {states >> 20} MiB of state in the checkpoint")
    assert load.wrong() == ""


@pytest.mark.parametrize("host", [BLOB, LOG])
def test_a_shard_with_half_of_all_operations_ends_them_once(spark: SparkSession, tmp_path: Path, host: str) -> None:
    load, size = Load(spark, tmp_path, host, shards=8), 4 * MANY // FILES // 10
    for number in range(FILES):
        ids = np.arange(number * size, (number + 1) * size)
        keys = [HOT if one % 2 else f"key {one}" for one in ids]
        load.land(ids[1::2], keys[1::2], [NOBODY], "COMPLETED")
        load.land(ids[::2], keys[::2], [f"key {one}" for one in ids[::2]], "COMPLETED")
    load.land(np.array([WAITING]), ["last"], [HOT])
    with Peak() as peak, spark_access.settings(spark, COMPILED):
        load.run()
    print(f"{host}: {load.due.total():,} operations, half of them in one of 8 shards: {peak}")
    assert load.wrong() == ""
