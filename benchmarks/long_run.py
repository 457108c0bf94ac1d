"""One part of a run of workload L on Spark, in a process of its own: `python -m benchmarks.long_run` with a task.

A run has two parts, over one checkpoint. The first one reads every micro-batch but the last. The second one is another
process, so another JVM and other Python workers: what its first micro-batch takes is a restart. Both parts begin with
a small workload, so that classes are loaded and code is compiled before anything is measured; how long the first
micro-batch of that took is told as well, and a real restart takes about so much more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import harness
from benchmarks.contenders import ROCKSDB, Contender, join, jvm_only, log, log_columns, ours, ours_columns
from benchmarks.process_tree import cpu_seconds, sampled, worker_bytes
from benchmarks.workload_l import Shape, prepared
from spark_purgatory.spark.host.requirements import COUNT_ROWS, STATE_STORE_SETTINGS

FIRST_STEADY_BATCH = 2
"""The third one: by then what waits is in the state, and the workers run."""
WARM_UP = Shape(waiting=5000, operations=1000, batches=25, minutes=120)
"""In a JVM's first 20 micro-batches a third of the CPU goes into compiling, whoever runs."""
WARM_UP_SHARDS = 2
SIDES = ("operations", "events")


@dataclass(frozen=True)
class Task:
    """What one process does."""

    contender: str
    shape: Shape
    shards: int
    inputs: str
    """Folder of the workload."""
    folder: str
    """Folder of the run: what may be read, and the checkpoint."""
    files: int
    """How many files a side the stream may read by the end of this part."""
    memory: str


@dataclass(frozen=True)
class Part:
    """What one process measured."""

    batches: list[dict[str, int]]
    """Of every micro-batch: its number, the rows that it read, its milliseconds."""
    counts: dict[str, int]
    """Outcomes and sums of their numbers, by status; of a contender without outcomes the rows."""
    cold_ms: int
    """The first micro-batch of the small workload: what a JVM without anything loaded takes beyond its work."""
    worker_bytes: int
    """The most memory that the Python workers had."""
    cycles: int = 0
    """Steady micro-batches between the marks of the next two."""
    cpu_s: float = 0.0
    checkpoint_bytes: int = 0
    """By how much the checkpoint's files grew."""
    steady_worker_bytes: int = 0
    """Of the Python workers as the last steady micro-batch begins."""


@dataclass
class Marks:
    """What was used when the first and the last steady micro-batch began to be evaluated."""

    checkpoint: Path
    taken: list[tuple[int, float, int, int]] = field(default_factory=list)
    """(number of the micro-batch, CPU seconds, bytes of the checkpoint, and of the workers); the last one is replaced
    until the end."""

    def begin(self, batch: DataFrame, batch_id: int) -> None:
        """A micro-batch: from here to the same point of a later one are whole cycles, commits included."""
        if batch_id >= FIRST_STEADY_BATCH:
            self.taken[1:] = [(batch_id, cpu_seconds(), bytes_below(self.checkpoint), worker_bytes())]
        harness.to_noop(batch, batch_id)

    def cycles(self) -> dict[str, Any]:
        """The fields of `Part`; none where there are no two marks."""
        if len(self.taken) < 2:
            return {}
        (first, cpu_s, size, _), (last, cpu_at_end_s, size_at_end, worker_bytes_at_end) = self.taken
        return {
            "cycles": last - first,
            "cpu_s": cpu_at_end_s - cpu_s,
            "checkpoint_bytes": size_at_end - size,
            "steady_worker_bytes": worker_bytes_at_end,
        }


def contenders(minutes: int) -> dict[str, Contender]:
    """Who runs workload L; ``minutes`` is its longest delay."""
    joined = partial(join, longest_delay_minutes=minutes)
    rocksdb = {**STATE_STORE_SETTINGS, **ROCKSDB}
    counted = {**rocksdb, COUNT_ROWS: "true"}
    return {
        contender.name: contender
        for contender in (
            Contender("blob", "Purgatory, the state of a shard as one value, rewritten", ours, True, rocksdb),
            Contender("log", "Purgatory, a snapshot and a log", log, decides=True, settings=STATE_STORE_SETTINGS),
            Contender("blob_columns", "blob, with a column of the event", ours_columns, decides=True),
            Contender("log_columns", "log, with a column", log_columns, True, STATE_STORE_SETTINGS),
            Contender("join", "stream-stream left outer join", joined, decides=True, grace_ms=1),
            Contender("blob_heap", "blob, state on the heap of the JVM", ours, decides=True),
            Contender("blob_counted", "blob, Spark counts its rows", ours, decides=True, settings=counted),
            Contender("join_rocksdb", "join, state in RocksDB", joined, decides=True, grace_ms=1, settings=rocksdb),
            Contender("spark", "union and shuffle alone: no Python, no state", jvm_only, decides=False),
        )
    }


def run_part(spark: SparkSession, task: Task, warm_up: Path) -> Part:
    """The part of a run that the task describes."""
    contender = contenders(task.shape.minutes)[task.contender]
    small = prepared(WARM_UP, harness.SEED, warm_up)
    with TemporaryDirectory(prefix="checkpoint-", dir=warm_up) as checkpoint:
        cold = streamed(spark, contender, small.folder, Path(checkpoint), WARM_UP_SHARDS)
    folder = Path(task.folder)
    link_inputs(Path(task.inputs), folder, task.files)
    with sampled() as peak:
        marks = Marks(folder / "checkpoint")
        progress = streamed(spark, contender, folder, marks.checkpoint, task.shards, marks)
    return Part(
        batches=[numbers_of(report) for report in progress],
        counts=harness.counters_of(progress, harness.OBSERVATION),
        cold_ms=numbers_of(cold[0])["ms"],
        worker_bytes=peak.worker_bytes,
        **marks.cycles(),
    )


def numbers_of(report: Mapping[str, Any]) -> dict[str, int]:
    """A micro-batch of Spark's progress reports."""
    return {
        "number": report["batchId"],
        "rows": report["numInputRows"],
        "ms": report["durationMs"]["triggerExecution"],
    }


def link_inputs(inputs: Path, folder: Path, files: int) -> None:
    """Let the stream below ``folder`` find the first files of both sides; hard links keep their times."""
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
        for file in sorted((inputs / side).iterdir())[:files]:
            if not (folder / side / file.name).exists():
                os.link(file, folder / side / file.name)


def bytes_below(folder: Path) -> int:
    """Bytes of all files."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # Spark renamed or removed it meanwhile.
                continue
    return total


def streamed(
    spark: SparkSession,
    contender: Contender,
    folder: Path,
    checkpoint: Path,
    shards: int,
    marks: Marks | None = None,
) -> list[dict[str, Any]]:
    """Progress reports of a run over all files that are there."""
    counters = [F.count(F.lit(1)).alias("rows")]
    if contender.decides:
        number = F.substring("op_id", len("order-") + 1, 20).cast("bigint")
        for status in harness.STATUSES:
            matches = F.col("status") == status
            counters += [F.count_if(matches).alias(status), F.sum(F.when(matches, number)).alias(f"{status}_numbers")]
    query = (
        contender.build(spark, folder, shards)
        .observe(harness.OBSERVATION, *counters)
        .writeStream.foreachBatch(harness.to_noop if marks is None else marks.begin)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(progress) for progress in query.recentProgress]


def main() -> None:
    """Read the task, print the part: both JSON, the part on the last line."""
    given = json.loads(sys.argv[1])
    task = Task(**{**given, "shape": Shape(**given["shape"])})
    settings = {**harness.local_sockets(), **contenders(task.shape.minutes)[task.contender].settings}
    spark = harness.session(task.memory, settings=settings)
    try:
        part = run_part(spark, task, harness.WORK / "warm-up")
    finally:
        spark.stop()
    print(json.dumps(asdict(part)))


if __name__ == "__main__":
    main()
