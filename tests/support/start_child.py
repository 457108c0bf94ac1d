"""Starts in a process of their own: ``python -m tests.support.start_child bare|quiet|anew classic|connect FOLDER``.

``bare``: a session without Delta; what it is told goes to ``seen.json``. ``quiet``: Spark's own log level, and a line
on stderr before each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError

STEP = "=== step: "
WAIT_SECONDS = 120


def session(kind: str, folder: Path, delta: bool) -> SparkSession:
    from delta import configure_spark_with_delta_pip

    builder = SparkSession.builder.remote("local[2]") if kind == "connect" else SparkSession.builder.master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    if delta:
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        builder = configure_spark_with_delta_pip(builder.config("spark.databricks.delta.snapshotPartitions", "2"))
    return builder.getOrCreate()


def land(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    numbers = range(number * 10, number * 10 + 10)
    pq.write_table(
        pa.table({"n": list(numbers), "part": [n % 2 for n in numbers]}), folder / "in" / f"{number}.parquet"
    )


def rows(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("n bigint, part bigint").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / "in"))


def bare(spark: SparkSession, folder: Path) -> None:
    """What a query is told by path and by name."""
    land(folder, 0)
    seen = []
    for sink in (RecordAccumulator(path=str(folder / "table")), RecordAccumulator(table="outcomes")):
        began_s = time.monotonic()
        try:
            sink.write_stream(rows(spark, folder), checkpoint=str(folder / "checkpoint"))
        except ConfigError as error:
            seen.append({"said": str(error), "seconds": time.monotonic() - began_s})
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


def step(name: str) -> None:
    """Spark's log is written by another process, or thread."""
    time.sleep(0.5)
    os.write(2, f"{STEP}{name}\n".encode())


def quiet(spark: SparkSession, folder: Path) -> None:
    """First start, staged view, drain, restart, availableNow; by path and by name."""
    spark.range(1).write.format("delta").save(str(folder / "warm"))
    commits = folder / "checkpoint" / "commits"

    def until(number: int) -> None:
        deadline_s = time.monotonic() + WAIT_SECONDS
        while not (commits / str(number)).exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def accumulator() -> RecordAccumulator:
        return RecordAccumulator(
            path=str(folder / "table"), partition_by=["part"], linger="1 hour", delivery_timeout="1 hour"
        )

    land(folder, 0)
    step("first start")
    sink = accumulator()
    trigger = {"processingTime": "4 seconds"}
    sink.write_stream(rows(spark, folder), checkpoint=str(folder / "checkpoint"), trigger=trigger)
    until(1)
    step("staged view")
    assert sink.read(spark, staged=True).count() == 10
    step("drain")
    sink.close()
    step("restart")
    land(folder, 1)
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    sink = accumulator()
    sink.write_stream(rows(spark, folder), checkpoint=str(folder / "checkpoint"), trigger=trigger)
    until(last + 2)
    step("drain of a restart")
    sink.close()
    for number in (2, 3):
        step(f"availableNow {number}")
        land(folder, number)
        for sink, checkpoint in ((accumulator(), "checkpoint"), (RecordAccumulator(table="named"), "other")):
            query = sink.write_stream(
                rows(spark, folder), checkpoint=str(folder / checkpoint), trigger={"availableNow": True}
            )
            query.awaitTermination()
            assert sink.read(spark).count() == 10 * (number + 1)
    step("end")


def anew(spark: SparkSession, folder: Path) -> None:
    """How many files a read finds that another process of the session has done before, with a file less."""
    from pyspark.sql.connect.plan import LogicalPlan

    def found() -> int:
        LogicalPlan._nextPlanId = 1_000_000
        return len(spark.read.text(str(folder / "in")).inputFiles())

    seen = []
    for number in range(2):
        land(folder, number)
        seen.append(found())
    query = RecordAccumulator(path=str(folder / "table")).write_stream(
        rows(spark, folder), checkpoint=str(folder / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    seen.append(found())
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    role, kind, place = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    {"bare": bare, "quiet": quiet, "anew": anew}[role](session(kind, place, delta=role != "bare"), place)
