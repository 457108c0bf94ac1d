"""`python -m benchmarks.moves`: what it takes to move a checkpoint in which many operations wait to other shards.

A query takes in the operations, whose deadlines lie far ahead, in one micro-batch, and is stopped. Its checkpoint is
moved to four times as many shards and back to as many as before. Told are seconds, CPU seconds of all processes, and
the most memory that the driver had with its JVM. Under ``local[2]`` the tasks run in that JVM; with ``--cluster`` they
do not, so that memory is the driver's own. As many have to wait as before.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cluster import HOST, standalone_cluster
from benchmarks.harness import session
from benchmarks.process_tree import cpu_seconds, sampled
from spark_purgatory import Completions, Operations, Purgatory, criteria, move_checkpoint


def outcomes(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """The query."""
    purgatory = Purgatory(
        operations=Operations(id="id", keys="id", created="created", timeout="30 days", watermark="1 minute"),
        completions=Completions(key="id", time="created", watermark="1 minute"),
        criterion=criteria.any_key(),
        emit="final",
        shards=shards,
    )
    operations, events = (
        spark.readStream.schema("id string, created timestamp, amount double, city string").parquet(str(folder / side))
        for side in ("operations", "events")
    )
    return purgatory.resolve(operations, events)


def land(spark: SparkSession, folder: Path, waiting: int) -> None:
    """The operations, and one event that nobody waits for."""
    rows = spark.range(waiting).select(
        F.concat(F.lit("order-"), "id").alias("id"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id")).alias("created"),
        (F.col("id") % 997).cast("double").alias("amount"),
        F.concat(F.lit("city "), F.col("id") % 50).alias("city"),
    )
    rows.write.parquet(str(folder / "operations"))
    rows.limit(1).withColumn("id", F.lit("nobody")).write.parquet(str(folder / "events"))


def main(
    waiting: Annotated[int, typer.Option(min=1000, help="Operations that wait.")] = 1_000_000,
    shards: Annotated[int, typer.Option(min=1, help="Shards before the move.")] = 16,
    memory: Annotated[str, typer.Option(help="Heap of the JVM, or of each of a cluster's executors.")] = "3g",
    cluster: Annotated[bool, typer.Option(help="On a cluster of two workers: the driver is alone in its JVM.")] = False,
    driver_memory: Annotated[str, typer.Option(help="Heap of a cluster's driver.")] = "1g",
) -> None:
    """Measure two moves."""
    if not cluster:
        return measure(session(memory), waiting, shards)
    with standalone_cluster(memory) as url:
        own = {"spark.driver.host": HOST, "spark.driver.memory": driver_memory}
        return measure(session(memory, url, own), waiting, shards)


def measure(spark: SparkSession, waiting: int, shards: int) -> None:
    """Move to four times as many shards, and back."""
    with tempfile.TemporaryDirectory(prefix="moves_") as name:
        folder = Path(name)
        land(spark, folder, waiting)
        source = folder / "checkpoint-0"
        writer = outcomes(spark, folder, shards).writeStream.format("noop")
        writer.option("checkpointLocation", str(source)).trigger(availableNow=True).start().awaitTermination()
        for number, wanted in enumerate((4 * shards, shards), start=1):
            target = folder / f"checkpoint-{number}"
            cpu, began = cpu_seconds(), time.monotonic()
            with sampled() as peak:
                query = outcomes(spark, folder, wanted)
                moved = move_checkpoint(spark, query, source=str(source), target=str(target), progress=_said(began))
            seconds, cpu = time.monotonic() - began, cpu_seconds() - cpu
            assert moved.operations == waiting
            print(
                f"{waiting:,} waiting, {moved.before.shards} to {wanted} shards, {moved.before.state_bytes:,} bytes: "
                f"{seconds:.1f} s, {cpu:.1f} CPU s; at the peak {peak.driver_bytes / 1e6:,.0f} MB of driver and its "
                f"JVM, {peak.worker_bytes / 1e6:,.0f} MB of Python workers",
                flush=True,
            )
            source = target
    spark.stop()


def _said(began: float) -> Callable[[str], None]:
    return lambda line: print(f"  {time.monotonic() - began:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
    typer.run(main)
