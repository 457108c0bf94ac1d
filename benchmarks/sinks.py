"""`python -m benchmarks.sinks`: what a micro-batch costs in each way to write a stream to a Delta table.

| contender | what it is |
| --- | --- |
| ours | `RecordAccumulator`: staged in Parquet, drained by size |
| append | a plain append a micro-batch, default settings |
| append_lean | the same with ``LEAN_SETTINGS`` |
| auto_compact | the same, and Delta's auto compaction after it |

All read the same files, one a micro-batch, with availableNow; time is from the start of the query until all of its rows
are in the table, drains included, after a warm-up of each. Exit code: 0, or 1 if a goal was missed or rows are wrong.

Spark's own checkpoints cost all of them the same. On a local disk most of that is processes that Spark starts to rename
small files, which no other storage needs: all run without (``LOCAL_CHECKPOINT``), or, with
``--no-plain-checkpoints``, all with them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from delta import configure_spark_with_delta_pip
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.harness import AS_SPARK_WRITES, LOCAL_CHECKPOINT, MASTER, SETTINGS, WORK
from spark_purgatory import RecordAccumulator
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.delta_target import LEAN_SETTINGS

PARTITIONS = 4
ROWS_A_FILE = 12_000
"""About 1 MB of Parquet."""
DDL = "id bigint, part int, amount double, text string"
FULL_BATCHES, FULL_BATCH_BYTES = 200, 16 << 20
"""The size of the goals; fewer micro-batches take smaller files, so that a table has as many."""
AUTO_COMPACT = {"spark.databricks.delta.autoCompact.enabled": "true"}
CONTENDERS: dict[str, Mapping[str, str]] = {
    "ours": LEAN_SETTINGS,
    "append": {},
    "append_lean": LEAN_SETTINGS,
    "auto_compact": {**LEAN_SETTINGS, **AUTO_COMPACT},
}
EVERY_SETTING = tuple({name for settings in CONTENDERS.values() for name in settings})


@dataclass(frozen=True)
class Measured:
    """One contender's run."""

    name: str
    seconds_a_batch: float
    """Mean, drains included."""
    median_seconds: float
    """Of its micro-batches: what one without a drain takes."""
    commits: int
    file_bytes: tuple[int, ...]
    written_bytes: int
    """Staged files, and every file that a commit added."""

    @property
    def median_bytes(self) -> float:
        """Of the table's files."""
        return statistics.median(self.file_bytes)


def land(folder: Path, batches: int) -> int:
    """The files of the workload; returns their bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    for batch in range(batches):
        ids = np.arange(batch * ROWS_A_FILE, (batch + 1) * ROWS_A_FILE)
        words = rng.integers(0, 1 << 62, (4, ROWS_A_FILE))
        table = pa.table(
            {
                "id": ids,
                "part": (ids % PARTITIONS).astype("int32"),
                "amount": rng.random(ROWS_A_FILE),
                "text": ["".join(f"{word:016x}" for word in row) for row in words.T],
            }
        )
        path = folder / f"{batch:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return sum(path.stat().st_size for path in folder.iterdir())


def run_once(spark: SparkSession, name: str, folder: Path, batches: int, batch_bytes: int) -> Measured:
    """One contender over all files."""
    work = WORK / "sinks" / name
    shutil.rmtree(work, ignore_errors=True)
    for setting in EVERY_SETTING:
        spark.conf.unset(setting)
    for setting, value in CONTENDERS[name].items():
        spark.conf.set(setting, value)
    rows = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder))
    table, checkpoint = work / "table", work / "checkpoint"
    staged = StagedBytes(checkpoint)
    actions.hook = staged.note
    started = time.monotonic()
    if name == "ours":
        accumulator = RecordAccumulator(
            path=str(table),
            partition_by=["part"],
            batch_size=batch_bytes,
            linger="1 hour",
            delivery_timeout="1 hour",
        )
        query: Any = accumulator.write_stream(rows, checkpoint=str(checkpoint), trigger={"availableNow": True})
    else:
        query = _appending(rows, table, checkpoint)
    query.awaitTermination()
    seconds = time.monotonic() - started
    actions.hook = None
    found = spark.read.format("delta").load(str(table)).selectExpr("count(*)", "count(distinct id)").first()
    if found is None or tuple(found) != (batches * ROWS_A_FILE,) * 2:
        raise typer.BadParameter(f"{name}: {found} rows, expected {batches * ROWS_A_FILE}")
    files = [
        Path("/" + path.removeprefix("file:").lstrip("/"))
        for path in spark.read.format("delta").load(str(table)).inputFiles()
    ]
    commits = len(list((table / "_delta_log").glob("*.json")))
    written = staged.bytes + sum(path.stat().st_size for path in table.glob("part=*/*.parquet"))
    median_s = statistics.median(progress["durationMs"]["triggerExecution"] for progress in query.recentProgress) / 1000
    return Measured(name, seconds / batches, median_s, commits, tuple(path.stat().st_size for path in files), written)


def _appending(rows: DataFrame, table: Path, checkpoint: Path) -> Any:
    def append(batch: DataFrame, batch_id: int) -> None:
        one_a_partition = batch.repartition("part")
        writer = one_a_partition.write.format("delta").mode("append").partitionBy("part")
        writer.option("txnAppId", "bench").option("txnVersion", batch_id).save(str(table))

    writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


class StagedBytes:
    """Adds up what is staged, micro-batch by micro-batch, as it is written."""

    def __init__(self, checkpoint: Path) -> None:
        self.staging = checkpoint / "staging"
        self.bytes = 0
        self._seen: set[Path] = set()

    def note(self, failpoint: str) -> None:
        """At a failpoint of the sink."""
        if failpoint != "after stage":
            return
        for batch in self.staging.glob("rows/*/epoch=*/batch=*"):
            if batch not in self._seen:
                self._seen.add(batch)
                self.bytes += sum(path.stat().st_size for path in batch.rglob("*.parquet"))


def session(memory: str, checkpoints: Mapping[str, str]) -> SparkSession:
    """As the other benchmarks', with Delta; ``checkpoints`` says how Spark writes its own small files."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName("spark_purgatory sinks").master(MASTER)
    delta = {
        "spark.driver.memory": memory,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    for name, value in {**SETTINGS, **checkpoints, **delta}.items():
        builder = builder.config(name, value)
    spark: SparkSession = configure_spark_with_delta_pip(builder).getOrCreate()
    return spark


def table_of(runs: list[Measured], batch_bytes: int, row_bytes: int) -> Table:
    """All contenders side by side."""
    table = Table(title=f"Sinks, batch_size {batch_bytes / 2**20:.1f} MiB a partition", title_justify="left")
    table.add_column("contender")
    names = (
        "s a micro-batch",
        "median",
        "ours is",
        "commits",
        "files",
        "median MB",
        "of batch_size",
        "largest",
        "written",
    )
    for name in names:
        table.add_column(name, justify="right")
    ours = runs[0].seconds_a_batch
    for run in runs:
        cells = (
            f"{run.seconds_a_batch:.3f}",
            f"{run.median_seconds:.3f}",
            f"{ours / run.seconds_a_batch:.2f}x",
            str(run.commits),
            str(len(run.file_bytes)),
            f"{run.median_bytes / 1e6:.2f}",
            f"{run.median_bytes / batch_bytes:.2f}",
            f"{max(run.file_bytes) / batch_bytes:.2f}",
            f"{run.written_bytes / row_bytes:.2f}x",
        )
        table.add_row(run.name, *cells)
    return table


def goals_of(runs: list[Measured], batches: int, batch_bytes: int, row_bytes: int) -> list[tuple[str, bool]]:
    """Each goal, and whether it was reached; those of time at their own size, where a drain has 70 micro-batches."""
    by_name = {run.name: run for run in runs}
    ours = by_name["ours"]
    goals = [
        ("median file at least 0.8 of batch_size", ours.median_bytes >= 0.8 * batch_bytes),
        ("no file above 1.3 of batch_size", max(ours.file_bytes) <= 1.3 * batch_bytes),
        ("at most 20 commits", ours.commits <= 20),
        ("bytes written at most 2.1x the rows' own", ours.written_bytes <= 2.1 * row_bytes),
    ]
    for name, most in (("append_lean", 0.4), ("auto_compact", 0.35)):
        if name in by_name and batches >= FULL_BATCHES:
            ratio = ours.seconds_a_batch / by_name[name].seconds_a_batch
            goals.append((f"at most {most}x {name}: {ratio:.2f}x", ratio <= most))
    return goals


def main(
    batches: Annotated[int, typer.Option(min=8, help="Micro-batches of about 1 MB.")] = 40,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(CONTENDERS)}.")] = ",".join(CONTENDERS),
    memory: Annotated[str, typer.Option(help="Heap of the Spark process.")] = "2g",
    rounds: Annotated[
        int, typer.Option(min=1, help="Times that each contender runs, in turn; the fastest counts.")
    ] = 1,
    plain_checkpoints: Annotated[
        bool,
        typer.Option(help="Checkpoints of all contenders as an object store has them; else ten processes a file."),
    ] = True,
) -> None:
    """Write the same stream through each sink and compare."""
    names = ["ours", *(name for name in contenders.split(",") if name != "ours")]
    console = Console(highlight=False, width=130)
    folder = WORK / "sinks" / "in"
    batch_bytes = FULL_BATCH_BYTES * min(batches, FULL_BATCHES) // FULL_BATCHES
    spark = session(memory, LOCAL_CHECKPOINT if plain_checkpoints else AS_SPARK_WRITES)
    few = 6
    land(folder, few)
    for name in names:
        run_once(spark, name, folder, few, 1 << 20)
    land(folder, batches)
    every: list[Measured] = []
    for number in range(rounds):
        # Another one first in each round: whoever is first compiles for all.
        first = number % len(names)
        for name in names[first:] + names[:first]:
            every.append(run_once(spark, name, folder, batches, batch_bytes))
            said = f"{every[-1].seconds_a_batch:.3f} s a micro-batch (median {every[-1].median_seconds:.3f})"
            console.print(f"{name}: {said}, load {os.getloadavg()[0]:.1f}")
    spark.stop()
    runs = [min((run for run in every if run.name == name), key=lambda run: run.seconds_a_batch) for name in names]
    # The rows' own bytes: what they weigh in well-sized files.
    row_bytes = sum(runs[0].file_bytes)
    console.print(table_of(runs, batch_bytes, row_bytes))
    goals = goals_of(runs, batches, batch_bytes, row_bytes)
    for says, is_reached in goals:
        console.print(f"{'reached' if is_reached else 'MISSED '}  {says}")
    if batches < FULL_BATCHES:
        console.print(f"goals of time: with --batches {FULL_BATCHES} --rounds 2, as many micro-batches to a drain")
    shutil.rmtree(WORK / "sinks", ignore_errors=True)
    if not all(is_reached for _, is_reached in goals):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
