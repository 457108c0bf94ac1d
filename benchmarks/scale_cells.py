"""`python -m benchmarks.scale_cells`: measure the cells of `scale_model`, all in one JVM.

Cells with the fewest runs come first, and each run appends a line to ``scale_cells.csv``. Milliseconds are those of the
median, quickest and slowest steady micro-batch; CPU seconds, bytes of the checkpoint and of shuffles are means. The
workers' memory is that at the end; the driver's is what is alive on its heap after a collection.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import harness
from benchmarks.contenders import ROCKSDB, Contender, purgatory_of
from benchmarks.inputs import read_sides
from benchmarks.long_run import FIRST_STEADY_BATCH, Marks, streamed
from benchmarks.process_tree import worker_bytes
from benchmarks.scale_model import CELLS, COLUMNS, QUANTITIES, SPREAD, Cell
from benchmarks.workload_l import Ended, Shape, ended_at_last, prepared, waiting_after
from spark_purgatory.cost import BLOB, LOG
from spark_purgatory.spark.host.requirements import TRANSFORM_WITH_STATE_SETTINGS

MINUTES, BATCHES = 120, 7
LOADS = [  # What waits at first, operations of a micro-batch, keys, shards, cores, state partitions
    *((1_000_000, 10_000, 1, shards, 2, 2) for shards in (2, 4, 8)),
    *((waiting, 10_000, 3, shards, 2, 2) for waiting, shards in ((10_000, 2), (100_000, 8))),
    *((10_000, 10_000, 1, shards, 2, 2) for shards in (2, 4, 8)),
    *((100_000, 10_000, 1, shards, 2, 2) for shards in (2, 8)),
    (1_000_000, 10_000, 1, 8, 1, 1),
    *((10_000, 2_000, 1, shards, 2, shards) for shards in (8, 32)),
    (1_000_000, 2_000, 1, 8, 2, 2),
    (10_000, 10_000, 1, 8, 1, 1),
    *((waiting, 10_000, 3, shards, 2, 2) for waiting, shards in ((10_000, 8), (100_000, 2))),
    *((10_000, 2_000, 1, shards, 2, 2) for shards in (2, 8)),
    (100_000, 10_000, 1, 2, 1, 1),
    (100_000, 2_000, 3, 8, 2, 2),
]


@dataclass(frozen=True)
class Design:
    """What is chosen of a cell."""

    host: str
    loaded: int
    """Operations of the first micro-batch."""
    operations: int
    keys: int
    shards: int
    cores: int
    partitions: int


class Used(Marks):
    """The marks of a run, with the bytes that shuffles wrote."""

    store: Any
    shuffled: tuple[int, ...] = ()

    def begin(self, batch: DataFrame, batch_id: int) -> None:
        """Note them beside the others."""
        if batch_id >= FIRST_STEADY_BATCH:
            self.shuffled = *self.shuffled[:1], self.store.executorList(False).apply(0).totalShuffleWrite()
        super().begin(batch, batch_id)


def run_once(cell: Design) -> Cell:
    """Return what was found, in a context and a checkpoint of its own."""

    def build(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
        operations, events = read_sides(spark, folder)
        if cell.keys > 1:
            others = [F.concat("key", F.lit(f"-{number}")) for number in range(1, cell.keys)]
            operations = operations.withColumn("key", F.array("key", *others))
        return purgatory_of(shards, host=cell.host, max_broadcast_bytes=1 << 31).resolve(operations, events)

    partitions = {"spark.sql.shuffle.partitions": str(cell.partitions)}
    given = {**harness.local_sockets(), **ROCKSDB, **TRANSFORM_WITH_STATE_SETTINGS, **partitions}
    spark = harness.session(master=f"local[{cell.cores}]", settings=given)
    workload = prepared(Shape(cell.loaded, cell.operations, BATCHES, MINUTES), harness.SEED, harness.WORK)
    with TemporaryDirectory(prefix="scale-", dir=harness.WORK) as folder:
        used, contender = Used(Path(folder)), Contender(cell.host, "", build, True)
        used.store = spark.sparkContext._jsc.sc().statusStore()
        progress = streamed(spark, contender, workload.folder, Path(folder), cell.shards, used)
        workers = worker_bytes()
    counts = harness.counters_of(progress, harness.OBSERVATION)
    counted = [counts.get(f"{status}{of}", 0) for of in ("", "_numbers") for status in harness.STATUSES]
    if Ended(*counted) != (due := ended_at_last(workload.drawn)):
        raise harness.WrongOutcomeError(f"{cell}: {counts} came out, {due} was expected")
    jvm: Any = spark.sparkContext._jvm
    for _ in range(2):  # What the first one finalizes, the second one frees
        jvm.System.gc()
        time.sleep(0.5)
    alive = jvm.Runtime.getRuntime().totalMemory() - jvm.Runtime.getRuntime().freeMemory()
    spark.stop()
    cycles = used.cycles()
    ms = [it["durationMs"]["triggerExecution"] for it in progress if it["numInputRows"]][FIRST_STEADY_BATCH:]
    totals = cycles["cpu_s"], cycles["checkpoint_bytes"], used.shuffled[1] - used.shuffled[0]
    found = (median(ms), *(each / cycles["cycles"] for each in totals), workers, alive, min(ms), max(ms))
    return Cell(
        host=cell.host,
        waiting=round(mean(waiting_after(workload.drawn)[FIRST_STEADY_BATCH:-1])),
        operations=cell.operations,
        events=round(median(workload.event_rows[FIRST_STEADY_BATCH:])),
        keys=cell.keys,
        shards=cell.shards,
        cores=cell.cores,
        partitions=cell.partitions,
        is_broadcast=cell.keys > 1,
        found=dict(zip((*QUANTITIES, *SPREAD), found, strict=True)),
    )


def runs() -> Counter[tuple[str, ...]]:
    """Return the number of runs in `CELLS` by design."""
    names = [each.name for each in fields(Design)]
    with CELLS.open(encoding="utf-8") as file:
        return Counter(tuple(row[name] for name in names) for row in csv.DictReader(file))


def append(design: Design, cell: Cell) -> None:
    """Append a line to `CELLS`."""
    commit = subprocess.check_output(["git", "log", "-1", "--format=%h"], text=True).strip()
    with CELLS.open("a", encoding="utf-8", newline="") as file:
        told = [getattr(cell, name) for name in COLUMNS]
        numbers = (float(f"{number:.4g}") for number in cell.found.values())
        csv.writer(file, lineterminator="\n").writerow(
            [*told, *numbers, commit, round(os.getloadavg()[0], 1), design.loaded]
        )


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times that each cell runs.")] = 2,
    minutes: Annotated[float, typer.Option(help="After so many, no other cell begins.")] = 20,
) -> None:
    """Run all cells in turn."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    harness.WORK.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + 60 * minutes
    designs = [Design(host, *load) for load in LOADS for host in (BLOB, LOG)]
    for host in (BLOB, LOG) * 2:  # A JVM's first minutes are another thing
        run_once(Design(host, 10_000, 10_000, 1, 8, 2, 2))
    for number in range(rounds):
        ran = runs()
        for each in sorted(designs[:: -1 if number % 2 else 1], key=lambda each: ran[tuple(map(str, astuple(each)))]):
            if time.monotonic() < until_s:
                append(each, done := run_once(each))
                print(f"round {number}, load {os.getloadavg()[0]:.0f}: {done}", flush=True)


if __name__ == "__main__":
    typer.run(main)
