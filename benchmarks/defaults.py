"""`python -m benchmarks.defaults`: what each setting of a default session costs a micro-batch of 1,000 operations.

The session is that of a user who has set nothing. Every contender is the same stream, on one of the two hosts, started
as `RecordAccumulator.write_stream` starts it, with one setting changed: "before" is what Spark would have taken. They
run in turn, each in a new checkpoint, and into ``noop``. The table has medians over the micro-batches from the second
on: CPU seconds of this process and all that it started, milliseconds, and new files in the checkpoint.

Exit code: 0, or 1 if a contender had other outcomes than the others of its host.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import ours
from benchmarks.harness import AS_SPARK_WRITES, MASTER, OURS_OBSERVATION, ROOT, SEED, SHARDS, WORK, to_noop
from benchmarks.process_tree import cpu_seconds
from benchmarks.report import TABLE_WIDTH, machine, machine_line
from benchmarks.workload_w import prepared
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.host.exchange import EXCHANGE_SETTINGS
from spark_purgatory.spark.host.requirements import CHANGELOG, COUNT_ROWS, PROVIDER, ROCKSDB
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.spark_access import settings, settings_at_start

ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SNAPSHOTS = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
BLOB, LOG = "applyInPandasWithState", "transformWithState"
OPERATIONS = 1_000
POLL_S = 0.1
WAIT_S = 3_600


@dataclass(frozen=True)
class Setting:
    """One contender: what the session sets on its own, on a host."""

    name: str
    host: str
    given: Mapping[str, str] = field(default_factory=dict, hash=False)


CONTENDERS = (
    Setting("before: 200 partitions", BLOB, {PARTITIONS: "200"}),
    Setting("8 partitions, one a shard", BLOB, {PARTITIONS: "8"}),
    Setting("as write_stream starts it", BLOB),
    Setting("no limit of bytes in an Arrow batch", BLOB, EXCHANGE_SETTINGS),
    Setting("small files as Spark writes them", BLOB, AS_SPARK_WRITES),
    Setting("2 micro-batches kept", BLOB, {"spark.sql.streaming.minBatchesToRetain": "2"}),
    Setting("a snapshot of the state after 2 deltas", BLOB, {SNAPSHOTS: "2"}),
    Setting("no checksums of files of the checkpoint", BLOB, {CHECKSUMS: "false"}),
    Setting("Arrow batches of 100,000 rows", BLOB, {ARROW_ROWS: "100000"}),
    Setting("progress reports without a limit", BLOB, {"spark.sql.streaming.numRecentProgressUpdates": "100000"}),
    Setting("metrics of streams", BLOB, {"spark.sql.streaming.metricsEnabled": "true"}),
    Setting("RocksDB", BLOB, {PROVIDER: ROCKSDB}),
    Setting("RocksDB with its changelog", BLOB, {PROVIDER: ROCKSDB, CHANGELOG: "true"}),
    Setting("RocksDB that counts rows", BLOB, {PROVIDER: ROCKSDB, COUNT_ROWS: "true"}),
    Setting("code is not generated", BLOB, {"spark.sql.codegen.wholeStage": "false"}),
    Setting("before: 200 partitions", LOG, {PARTITIONS: "200"}),
    Setting("8 partitions, one a shard", LOG, {PARTITIONS: "8"}),
    Setting("as write_stream starts it", LOG),
    Setting("RocksDB without its changelog", LOG, {CHANGELOG: "false"}),
    Setting("RocksDB that counts rows", LOG, {COUNT_ROWS: "true"}),
    Setting("small files as Spark writes them", LOG, AS_SPARK_WRITES),
    Setting("no checksums of files of the checkpoint", LOG, {CHECKSUMS: "false"}),
)


@dataclass(frozen=True)
class Cost:
    """What the micro-batches of a run took."""

    cpu_s: list[float]
    ms: list[int]
    files: int
    completed: int


def run_once(spark: SparkSession, setting: Setting, batches: int) -> Cost:
    """A run, in a checkpoint of its own."""
    workload = prepared(OPERATIONS * batches, batches, SEED, WORK)
    checkpoint = tempfile.mkdtemp(prefix="checkpoint-defaults-", dir=WORK)
    cpu_s: list[float] = []
    seen = -1
    try:
        with settings(spark, setting.given):
            outcomes = ours(spark, workload.folder, SHARDS, host=setting.host)
            writer = outcomes.writeStream.foreachBatch(to_noop).option("checkpointLocation", checkpoint)
            with settings_at_start(spark, settings_to_start(outcomes, checkpoint)):
                query = writer.trigger(availableNow=True).start()
        until_s = time.monotonic() + WAIT_S
        while query.isActive and time.monotonic() < until_s:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > seen:
                seen = progress["batchId"]
                cpu_s.append(cpu_seconds())
            time.sleep(POLL_S)
        query.awaitTermination()
        reports = [report for report in query.recentProgress if 0 < report["batchId"] < batches]
        files = sum(len(names) for _, _, names in os.walk(checkpoint))
        counted = [report["observedMetrics"][OURS_OBSERVATION].asDict() for report in query.recentProgress]
        completed = sum(int(counters["completed"] or 0) for counters in counted)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    each = [after - before for before, after in pairwise(cpu_s)][: len(reports)]
    ms = [report["durationMs"]["triggerExecution"] for report in reports]
    return Cost(each, ms, files // (seen + 1), completed)


def main(
    batches: Annotated[int, typer.Option(min=3, help="Micro-batches of a run, the first of which does not count.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="How often all run in turn.")] = 1,
    only: Annotated[str, typer.Option(help="Contenders whose names contain one of these, with commas.")] = "",
) -> None:
    """Run all contenders in turn and print their costs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    WORK.mkdir(parents=True, exist_ok=True)
    console = Console(width=TABLE_WIDTH)
    facts = machine()
    builder = SparkSession.builder.appName("spark_purgatory defaults").master(MASTER)
    builder = builder.config("spark.executorEnv.PYTHONPATH", str(ROOT)).config("spark.log.level", "ERROR")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    chosen = [setting for setting in CONTENDERS if any(part in setting.name for part in only.split(","))]
    costs: dict[Setting, list[Cost]] = {}
    for host in dict.fromkeys(setting.host for setting in chosen):
        run_once(spark, Setting("warm-up", host), 3)
    for _ in range(rounds):
        for setting in chosen:
            costs.setdefault(setting, []).append(cost := run_once(spark, setting, batches))
            console.print(f"{setting.host}, {setting.name}: {median(cost.cpu_s):.2f} CPU s, {median(cost.ms):.0f} ms")
    spark.stop()
    console.print(table_of(costs), f"{machine_line(facts)}; {batches} micro-batches, {rounds} round(s)")
    by_host = {(setting.host, cost.completed) for setting, each in costs.items() for cost in each}
    raise typer.Exit(int(len(by_host) > len({host for host, _ in by_host})))


def table_of(costs: Mapping[Setting, list[Cost]]) -> Table:
    """Medians, by host."""
    table = Table(title=f"A micro-batch of {OPERATIONS:,} operations in a default session", title_justify="left")
    table.add_column("host")
    table.add_column("the session")
    for name in ("CPU s", "ms", "files"):
        table.add_column(name, justify="right")
    for setting, each in costs.items():
        cpu_s = median(value for cost in each for value in cost.cpu_s)
        ms = median(value for cost in each for value in cost.ms)
        files = median(cost.files for cost in each)
        table.add_row(setting.host, setting.name, f"{cpu_s:.2f}", f"{ms:,.0f}", f"{files:.0f}")
    return table


if __name__ == "__main__":
    typer.run(main)
