"""`python -m benchmarks.drains`: where a drain of 64 MB spends its CPU, next to a bare append of the same staged rows.

Each run stages 64 files of about 1 MB, eight in a micro-batch, over an existing table of four partitions, and drains
them at once. The bare append reads copies of the staged files and writes them into a Delta table that exists, without a
check and without an order. The first ``WARM`` runs do not count.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from benchmarks import sinks
from benchmarks.harness import LOCAL_CHECKPOINT, WORK
from benchmarks.process_tree import cpu_seconds
from spark_purgatory import RecordAccumulator
from spark_purgatory.spark.sink.drain import failpoints
from spark_purgatory.spark.sink.drain.spark_actions import SparkActions
from spark_purgatory.spark.sink.table.delta_target import LEAN_SETTINGS

FILES, FILES_AT_ONCE, WARM = 65, 8, 2
OF_A_DRAIN = ("Count", "Intend", "Commit", "ReadBack", "CleanUp")


def clocked(took: dict[str, tuple[float, float]], name: str, do: Callable[[], Any]) -> Any:
    """Return what ``do`` returns, and add its seconds and CPU seconds."""
    began_s, began_cpu_s = time.monotonic(), cpu_seconds()
    try:
        return do()
    finally:
        seconds, cpu_s = took[name]
        took[name] = seconds + time.monotonic() - began_s, cpu_s + cpu_seconds() - began_cpu_s


def run_once(spark: SparkSession, files: list[Path], work: Path) -> dict[str, tuple[float, float]]:
    """Return the seconds and the CPU seconds of each action of the drain, and of the bare append."""
    took: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    shutil.rmtree(work, ignore_errors=True)
    read, kept, bare, checkpoint = (work / name for name in ("read", "kept", "bare", "checkpoint"))
    read.mkdir(parents=True)
    sink = RecordAccumulator(
        path=str(work / "table"),
        partition_by=["part"],
        batch_size="256 MB",
        buffer_memory="1 GB",
        linger="1 hour",
        delivery_timeout="1 hour",
    )

    def query() -> None:
        rows = spark.readStream.schema(sinks.DDL).option("maxFilesPerTrigger", FILES_AT_ONCE).parquet(str(read))
        sink.write_stream(rows, checkpoint=str(checkpoint), trigger={"availableNow": True}).awaitTermination()

    def append() -> None:
        rows = spark.read.option("recursiveFileLookup", "true").schema(sinks.DDL).parquet(str(kept))
        rows.repartition("part").write.format("delta").mode("append").partitionBy("part").save(str(bare))

    def keep(failpoint: str) -> None:
        if failpoint == "before commit":
            shutil.copytree(checkpoint / "staging" / "rows", kept, ignore=shutil.ignore_patterns("*.crc"))

    os.link(files[0], read / files[0].name)
    query()  # The table exists
    for file in files[1:]:
        os.link(file, read / file.name)
    carry_out = SparkActions.carry_out
    SparkActions.carry_out = lambda *of: clocked(took, type(of[1]).__name__, lambda: carry_out(*of))  # type: ignore[method-assign]
    failpoints.hook = keep
    try:
        query()
    finally:
        SparkActions.carry_out, failpoints.hook = carry_out, None  # type: ignore[method-assign]
    append()
    clocked(took, "bare append", append)
    rows = spark.read.format("delta").load(str(work / "table")).selectExpr("count(*)", "count(distinct id)").first()
    assert rows is not None and tuple(rows) == (len(files) * sinks.ROWS_A_FILE,) * 2, rows
    return took


def main(rounds: Annotated[int, typer.Option(min=1, help="Runs that count.")] = 5) -> None:
    """Print the parts of a drain."""
    spark = sinks.session("2g", {**LOCAL_CHECKPOINT, **LEAN_SETTINGS})
    sinks.land(WORK / "drains" / "in", FILES)
    files = sorted((WORK / "drains" / "in").iterdir())
    runs = []
    for number in range(1 - WARM, rounds + 1):
        took = run_once(spark, files, WORK / "drains" / "run")
        took["drain"] = sum(took[name][0] for name in OF_A_DRAIN), sum(took[name][1] for name in OF_A_DRAIN)
        took["drain / bare append"] = (
            took["drain"][0] / took["bare append"][0],
            took["drain"][1] / took["bare append"][1],
        )
        print(f"{number}: {', '.join(f'{name} {s:.2f}, {cpu_s:.2f}' for name, (s, cpu_s) in took.items())}", flush=True)
        runs.append(took)
    for name in runs[0]:
        s, cpu_s = zip(*(took[name] for took in runs[WARM:]), strict=True)
        spread = (f"{median(each):.2f} ({min(each):.2f} .. {max(each):.2f})" for each in (s, cpu_s))
        print(f"{name}: s and CPU s {', '.join(spread)}; load {os.getloadavg()[0]:.0f}")
    spark.stop()
    shutil.rmtree(WORK / "drains")


if __name__ == "__main__":
    typer.run(main)
