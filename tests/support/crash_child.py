"""A stream that kills itself when a failpoint is reached: ``python -m tests.support.crash_child FOLDER FAILPOINT``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.delta_target import DELTA_SETTINGS

BATCH_BYTES = 16 << 10
ROW = "n bigint, part bigint, text string"


def quick(builder: SparkSession.Builder) -> SparkSession.Builder:
    builder = (
        builder.config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in QUICK_SETTINGS.items():
        builder = builder.config(name, value)
    return builder


def builder_with(builder: SparkSession.Builder, folder: Path) -> SparkSession.Builder:
    """Settings as the tests' own, and the jars that an earlier session in this folder has noted."""
    from delta import configure_spark_with_delta_pip

    noted = folder / "jars.txt"
    builder = quick(builder).config("spark.databricks.delta.snapshotPartitions", "2")
    for name, value in DELTA_SETTINGS.items():
        builder = builder.config(name, value)
    if noted.exists():
        return builder.config("spark.jars", noted.read_text(encoding="utf-8"))
    return configure_spark_with_delta_pip(builder)


def session(folder: Path) -> SparkSession:
    """A session in a process of its own, which logs all that a log may hold."""
    builder = builder_with(SparkSession.builder.master("local[2]"), folder)
    return builder.config("spark.log.level", "INFO").getOrCreate()


def accumulator(folder: Path) -> RecordAccumulator:
    """Files of 16 KiB: a drain every few micro-batches."""
    return RecordAccumulator(
        path=str(folder / "table"), partition_by=["part"], batch_size=BATCH_BYTES, linger="10 minutes"
    )


def run(spark: SparkSession, folder: Path) -> None:
    rows = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    checkpoint, trigger = str(folder / "checkpoint"), {"availableNow": True}
    accumulator(folder).write_stream(rows, checkpoint=checkpoint, trigger=trigger).awaitTermination()


def numbers(spark: SparkSession, folder: Path) -> dict[int, int]:
    """How often each row is in the table."""
    rows = accumulator(folder).read(spark).groupBy("n").count().collect()
    return {row["n"]: row["count"] for row in rows}


def kill_at(name: str) -> Callable[[str], None]:
    """A hook that ends this process, as a power cut would."""

    def hook(reached: str) -> None:
        if reached == name:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    return hook


def main() -> None:
    folder = Path(sys.argv[1])
    actions.hook = kill_at(sys.argv[2])
    run(session(folder), folder)


if __name__ == "__main__":
    main()
