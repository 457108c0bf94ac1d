"""`python -m benchmarks.iceberg_sinks`: what a micro-batch costs in each way to write a stream to an Iceberg table.

| contender | what it is |
| --- | --- |
| ours | `RecordAccumulator`: staged in Parquet, drained by size |
| append | ``foreachBatch`` with a plain append, which doubles rows if a micro-batch is replayed |
| stream | Iceberg's own streaming sink |

All read the same files, one a micro-batch, with availableNow, into a table of 4 partitions in a hadoop catalog on local
files. Time is from the start of the query until all of its rows are in the table, after a warm-up of each. It starts
itself on the release of Spark that Iceberg has a runtime for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyspark
import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.harness import LOCAL_CHECKPOINT, MASTER, SETTINGS, WORK
from benchmarks.sinks import DDL, FULL_BATCH_BYTES, FULL_BATCHES, ROWS_A_FILE, StagedBytes, land
from spark_purgatory import RecordAccumulator
from spark_purgatory.spark.sink.drain import failpoints
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION, RUNTIMES, iceberg_package
from tests.matrix.cells import CELLS
from tests.matrix.environments import CACHE, ROOT, environment_of

CONTENDERS = ("ours", "append", "stream")
FEW = 6


@dataclass(frozen=True)
class Measured:
    """One contender's run."""

    name: str
    seconds: float
    snapshots: int
    files: int
    table_bytes: int
    metadata_files: int
    written_bytes: int
    """Staged files, data and metadata."""


def session(memory: str) -> SparkSession:
    """With a catalog ``lake`` below the folder of the benchmarks."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        **SETTINGS,
        **LOCAL_CHECKPOINT,
        "spark.driver.memory": memory,
        "spark.jars.packages": str(iceberg_package(pyspark.__version__)),
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(WORK / "iceberg" / "lake"),
    }
    builder: Any = SparkSession.builder.appName("spark_purgatory Iceberg sinks").master(MASTER)
    spark: SparkSession = builder.config(map=settings).getOrCreate()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    return spark


def query_of(name: str, rows: DataFrame, table: str, checkpoint: Path, batch_bytes: int) -> Any:
    """One contender, started."""
    if name == "ours":
        accumulator = RecordAccumulator(
            table=table, format="iceberg", batch_size=batch_bytes, linger="1 hour", delivery_timeout="1 hour"
        )
        return accumulator.write_stream(rows, checkpoint=str(checkpoint), trigger={"availableNow": True})
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if name == "stream":
        return writer.format("iceberg").outputMode("append").option("fanout-enabled", "true").toTable(table)
    return writer.foreachBatch(lambda batch, number: batch.writeTo(table).append()).start()


def run_once(spark: SparkSession, name: str, folder: Path, batches: int, batch_bytes: int) -> Measured:
    """One contender over all files."""
    table, work = f"lake.t.{name}", WORK / "iceberg" / name
    shutil.rmtree(work, ignore_errors=True)
    spark.sql(f"DROP TABLE IF EXISTS {table} PURGE")
    spark.sql(f"CREATE TABLE {table} ({DDL}) USING iceberg PARTITIONED BY (part)")
    rows = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))
    staged = StagedBytes(work / "checkpoint")
    failpoints.hook = staged.note
    started = time.monotonic()
    query_of(name, rows, table, work / "checkpoint", batch_bytes).awaitTermination()
    seconds = time.monotonic() - started
    failpoints.hook = None
    spark.sql(f"REFRESH TABLE {table}")
    found = spark.table(table).selectExpr("count(*)", "count(distinct id)").first()
    if found is None or tuple(found) != (batches * ROWS_A_FILE,) * 2:
        raise typer.BadParameter(f"{name}: {found} rows, expected {batches * ROWS_A_FILE}")
    files = [row["file_size_in_bytes"] for row in spark.table(f"{table}.files").collect()]
    place = WORK / "iceberg" / "lake" / "t" / name
    data = sum(path.stat().st_size for path in (place / "data").rglob("*.parquet"))
    metadata = [path.stat().st_size for path in (place / "metadata").iterdir() if path.suffix != ".crc"]
    snapshots = spark.table(f"{table}.snapshots").count()
    written = staged.bytes + data + sum(metadata)
    return Measured(name, seconds, snapshots, len(files), sum(files), len(metadata), written)


def main(
    batches: Annotated[int, typer.Option(min=8, help="Micro-batches of about 1 MB.")] = FULL_BATCHES,
    rounds: Annotated[
        int, typer.Option(min=1, help="Times that each contender runs, in turn; the fastest counts.")
    ] = 1,
    memory: Annotated[str, typer.Option(help="Heap of the Spark process.")] = "2g",
) -> None:
    """Write the same stream through each sink and compare."""
    if iceberg_package(pyspark.__version__) is None:
        CACHE.mkdir(parents=True, exist_ok=True)
        cell = next(cell for cell in reversed(CELLS) if cell.iceberg and [*RUNTIMES][-1] in cell.name)
        environment = environment_of(cell)
        again = [environment.python, "-m", "benchmarks.iceberg_sinks", *sys.argv[1:]]
        raise typer.Exit(subprocess.run(again, env=environment.variables(), cwd=ROOT, check=False).returncode)
    console, folder = Console(highlight=False, width=130), WORK / "iceberg" / "in"
    batch_bytes = FULL_BATCH_BYTES * min(batches, FULL_BATCHES) // FULL_BATCHES
    spark = session(memory)
    land(folder, FEW)
    for name in CONTENDERS:
        run_once(spark, name, folder, FEW, 1 << 20)
    land(folder, batches)
    every: list[Measured] = []
    for number in range(rounds):
        first = number % len(CONTENDERS)  # Whoever is first compiles for all.
        for name in CONTENDERS[first:] + CONTENDERS[:first]:
            every.append(run_once(spark, name, folder, batches, batch_bytes))
            console.print(f"{name}: {every[-1].seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
    spark.stop()
    runs = [min((run for run in every if run.name == name), key=lambda run: run.seconds) for name in CONTENDERS]
    title = f"{batches} micro-batches into Iceberg, batch_size {batch_bytes / 2**20:.1f} MiB a partition"
    table = Table(title=title, title_justify="left")
    for column in (
        "contender",
        "s",
        "s a micro-batch",
        "ours is",
        "snapshots",
        "files",
        "MB a file",
        "metadata",
        "MB written",
    ):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for run in runs:
        cells = (f"{run.seconds:.0f}", f"{run.seconds / batches:.3f}", f"{runs[0].seconds / run.seconds:.2f}x")
        sizes = (f"{run.table_bytes / run.files / 1e6:.2f}", str(run.metadata_files), f"{run.written_bytes / 1e6:.0f}")
        table.add_row(run.name, *cells, str(run.snapshots), str(run.files), *sizes)
    console.print(table)
    shutil.rmtree(WORK / "iceberg", ignore_errors=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
