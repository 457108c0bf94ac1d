"""One run of a stream that kills itself: ``python -m tests.support.crash_child FOLDER [options]``.

``--kill "before intent"`` kills at that failpoint the first time it is reached, ``--by-name`` writes to a table by
name, in a metastore that outlives the process.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.delta_session import DELTA_SETTINGS

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


def session(folder: Path, by_name: bool = False) -> SparkSession:
    """A session in a process of its own, which logs all that a log may hold."""
    builder = builder_with(SparkSession.builder.master("local[2]"), folder)
    if by_name:
        builder = builder.config("spark.sql.catalogImplementation", "hive")
        builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        metastore = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        builder = builder.config("spark.hadoop.javax.jdo.option.ConnectionURL", metastore)
        builder = builder.config("spark.hadoop.datanucleus.schema.autoCreateAll", "true")
        builder = builder.config("spark.hadoop.hive.metastore.schema.verification", "false")
    spark = builder.config("spark.log.level", "INFO").getOrCreate()
    (folder / "jars.txt").write_text(str(spark.conf.get("spark.jars")), encoding="utf-8")
    return spark


def accumulator(folder: Path, by_name: bool = False) -> RecordAccumulator:
    """Files of 16 KiB: a drain every few micro-batches."""
    path, table = (None, "killed") if by_name else (str(folder / "table"), None)
    return RecordAccumulator(path=path, table=table, partition_by=["part"], batch_size=BATCH_BYTES, linger="10 minutes")


def run(spark: SparkSession, folder: Path, by_name: bool = False) -> None:
    reader = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(folder / "in"))
    query = accumulator(folder, by_name).write_stream(
        rows, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()


def numbers(spark: SparkSession, folder: Path, by_name: bool = False) -> dict[int, int]:
    """How often each row is in the table."""
    rows = accumulator(folder, by_name).read(spark).groupBy("n").count().collect()
    return {row["n"]: row["count"] for row in rows}


def kill_at(name: str) -> Callable[[str], None]:
    """A hook that ends this process, as a power cut would."""

    def hook(reached: str) -> None:
        if reached == name:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    return hook


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill")
    parser.add_argument("--by-name", action="store_true")
    arguments = parser.parse_args()
    if arguments.kill:
        actions.hook = kill_at(arguments.kill)
    spark = session(arguments.folder, arguments.by_name)
    run(spark, arguments.folder, arguments.by_name)
    found = numbers(spark, arguments.folder, arguments.by_name)
    (arguments.folder / "numbers.txt").write_text(
        "\n".join(f"{n} {count}" for n, count in sorted(found.items())), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
