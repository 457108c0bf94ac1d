"""The driver that is killed: ``python -m tests.support.killed_child FOLDER HOST[,HOST] [--end]``.

It has a query for each host, whose table, checkpoint and file ``started`` are in a folder of the host's name; the
sources are beside these. With ``--end`` it reads what is there, and ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
)
from spark_purgatory.demo.runner import QUICK_JAVA
from spark_purgatory.spark.host.exchange import unix_sockets
from tests.support.crash_child import builder_with
from tests.support.places_world import TIMEOUT_S, World
from tests.support.quick_spark import OF_TESTS, YOUNG, forget_defaults_of_map_reduce, remember_java_classes

DELAY = "12 minutes"
"""A payment may come ten minutes of event time before the last of the file after it."""
TIMES = {"orders": "ordered_at", "payments": "paid_at"}


def session(folder: Path) -> SparkSession:
    """A session in a process of its own; an earlier one in this folder has noted its jars."""
    remember_java_classes()
    builder = builder_with(SparkSession.builder.master("local[2]"), folder)
    java = {"spark.driver.extraJavaOptions": f"{QUICK_JAVA}{YOUNG}"}
    for name, value in {**OF_TESTS, **unix_sockets(tempfile.gettempdir()), **java}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    forget_defaults_of_map_reduce(spark)
    (folder / "jars.txt").write_text(str(spark.conf.get("spark.jars")), encoding="utf-8")
    return spark


def outcomes(spark: SparkSession, folder: Path, host: Any, files: int = 1) -> DataFrame:
    """Orders and payments of a `World`, so many files of each in a micro-batch."""
    purgatory = Purgatory(
        operations=Operations(
            id="order_id", keys="order_id", created="ordered_at", timeout=f"{TIMEOUT_S} seconds", watermark=DELAY
        ),
        completions=Completions(key="order_id", time="paid_at", watermark=DELAY),
        criterion=criteria.any_key(),
        emit="final",
        shards=2,
        host=host,
    )
    orders, payments = (
        spark.readStream.schema(f"order_id string, {time} timestamp")
        .option("maxFilesPerTrigger", files)
        .json(str(folder / name))
        for name, time in TIMES.items()
    )
    return purgatory.resolve(orders, payments)


A_FILE = 500
COLUMNS = ["order_id", "status"]


@dataclass(frozen=True)
class Orders(World):
    """One a second."""

    @property
    def step_ms(self) -> int:
        return 1000


def ends_s(number: int) -> int:
    """The second of event time at which an order is paid, or is too late."""
    return number + (TIMEOUT_S if number % 4 == 3 else 37 * number % (TIMEOUT_S + 1))


def land(folder: Path, files: range) -> None:
    """Files that a query reads in their order."""
    for number in files:
        Orders(0).land(folder, range(number * A_FILE, (number + 1) * A_FILE))
        for name in ("orders", "payments"):
            path = folder / name / f"{number * A_FILE:09d}.json"
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def main() -> None:
    folder, hosts, *rest = sys.argv[1:]
    spark = session(Path(folder))
    trigger = {"availableNow": True} if rest else {"processingTime": "0 seconds"}
    queries = []
    for host in hosts.split(","):
        place = Path(folder, host)
        sink = RecordAccumulator(path=str(place / "table"), batch_size="64 KiB", linger="3 seconds")
        rows = outcomes(spark, Path(folder), host)
        (place / "started").touch()
        queries.append(sink.write_stream(rows, checkpoint=str(place / "checkpoint"), trigger=trigger))
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main()
