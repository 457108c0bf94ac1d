"""A run of a stream into an Iceberg table, in a process that kills itself, by ``python -m``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.iceberg_target import IcebergTarget
from tests.support import iceberg_lake as world

TABLE = "db.t.killed"


def sink() -> RecordAccumulator:
    """Its rows linger for no time: each micro-batch is a drain."""
    return RecordAccumulator(table=TABLE, format="iceberg", partition_by=["part"], linger="0 seconds")


def kill_at(point: str) -> None:
    """Arm a failpoint of the sink, or one before the write to the branch, or before or after the pick."""

    def kill(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    write, pick = IcebergTarget._write, IcebergTarget._pick

    def to_branch(self: IcebergTarget, *arguments: Any) -> None:
        kill("before write")
        write(self, *arguments)

    def armed(self: IcebergTarget, spark: SparkSession, written: int | None) -> None:
        kill("before pick")
        pick(self, spark, written)
        kill("after pick")

    actions.hook = kill
    IcebergTarget._write = to_branch  # type: ignore[method-assign, assignment]
    IcebergTarget._pick = armed  # type: ignore[method-assign]


def main(folder: Path, point: str) -> None:
    """Run to the end, or to the failpoint."""
    kill_at(point)
    spark = world.session(folder)
    rows = spark.readStream.schema("n bigint, part bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = sink().write_stream(rows, checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
