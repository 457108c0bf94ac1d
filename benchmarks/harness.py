"""One way to run every contender: same session, same trigger, same sink, same clock.

A run is a fresh checkpoint, `availableNow` over the workload's folders, and ``foreachBatch`` into ``noop``. Outcomes
are counted by an observation inside that one evaluation, so counting costs all of them the same. Before a run
is a number, it must have read exactly one file a side in each micro-batch and have the outcomes that were expected.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.rates import Batch, Run
from benchmarks.workload_w import Workload, expected, prepared
from spark_purgatory.spark.checkpoint import start_check
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.host.exchange import EXCHANGE_SETTINGS, unix_sockets
from spark_purgatory.spark.storage.spark_access import settings

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".bench"
SEED = 42
OBSERVATION = "bench"
ERROR_NAME = re.compile(r"\w(?:Error|Exception)\b|Killed|terminated")
STATUSES = ("COMPLETED", "EXPIRED")
OURS_OBSERVATION = "spark_purgatory"
"""`Purgatory.name`, under which it counts its state's bytes."""
CORES = 2
SHUFFLE_PARTITIONS = 2
WARM_UP_BATCHES = 4
SHARDS = 8
MASTER = f"local[{CORES}]"

MANAGER = start_check.LOCAL_CHECKPOINT[requirements.FILE_MANAGER]
LOCAL_CHECKPOINT = {
    requirements.FILE_MANAGER: MANAGER,
    requirements.LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem",
}
"""What `write_stream` sets for a checkpoint on a local disk, for all streams of a session."""
AS_SPARK_WRITES = {requirements.FILE_MANAGER: MANAGER.replace("FileSystem", "FileContext")}

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    # Every micro-batch is read from the progress reports, and 100 of them is where Spark begins to forget.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # One version beside the current one: a run is never restarted.
    "spark.sql.streaming.maxBatchesToRetainInMemory": "1",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    **EXCHANGE_SETTINGS,
    **LOCAL_CHECKPOINT,
    # Of Spark's own serialisers under pandas, once a worker and line.
    "spark.executorEnv.PYTHONWARNINGS": "ignore::FutureWarning",
}


class WrongOutcomeError(Exception):
    """A contender's rows are not the expected ones: its time means nothing."""


class ContenderDiedError(Exception):
    """A contender's process ended before its run did, for example without memory. The others go on."""


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process ended, in one line: its exit code, and the last line of its errors that names one."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    named = [line for line in lines if ERROR_NAME.search(line)] or lines or ["it printed no error"]
    return f"exit code {done.returncode}: {named[-1][:300]}"


def local_sockets() -> dict[str, str]:
    """Between Spark and Python on one machine, as the README advises for frequent micro-batches."""
    return unix_sockets(tempfile.gettempdir())


def session(memory: str = "3g", master: str = MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session that all contenders share; ``memory`` is the heap of the driver and of every executor."""
    # Workers must run this Python, or they miss pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    heaps = {"spark.driver.memory": memory, "spark.executor.memory": memory}
    builder = SparkSession.builder.appName("spark_purgatory benchmarks").master(master)
    for name, value in {**SETTINGS, **heaps, **(settings or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def measure(
    spark: SparkSession,
    names: Sequence[str],
    operations: int,
    batches: int,
    rounds: int,
    say: Callable[[str], None] = print,
    work: Path = WORK,
    shards: int = SHARDS,
) -> list[Run]:
    """Warm up, then run all contenders ``rounds`` times in turn; raises `WrongOutcomeError`."""
    contenders = [CONTENDERS[name] for name in names]
    say(f"warm-up: {', '.join(names)}")
    for contender in contenders:
        few = min(max(operations // 10, batches), contender.at_most or operations)
        run_once(spark, contender, prepared(few, min(batches, WARM_UP_BATCHES), SEED, work), 0, work, shards)
    say("warm-up: every contender has the expected outcomes")
    runs: list[Run] = []
    for number in range(1, rounds + 1):
        # Another one first in each round, so that none is always after the same neighbour's garbage.
        first = (number - 1) % len(contenders)
        for contender in contenders[first:] + contenders[:first]:
            count = min(operations, contender.at_most or operations)
            run = run_once(spark, contender, prepared(count, batches, SEED, work), number, work, shards)
            runs.append(run)
            seconds = sum(batch.ms for batch in run.batches) / 1000
            say(
                f"round {number}/{rounds}  {run.contender:14s} {run.rate:>10,.0f} rows/s  "
                f"({run.workload_operations:,} operations in {seconds:.1f} s, load {run.load:.1f}; outcomes right)"
            )
    return sorted(runs, key=lambda run: (run.round, list(names).index(run.contender)))


def run_once(
    spark: SparkSession,
    contender: Contender,
    workload: Workload,
    number: int,
    work: Path = WORK,
    shards: int = SHARDS,
) -> Run:
    """One checked run with a checkpoint of its own."""
    work.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    checkpoint = tempfile.mkdtemp(prefix=f"checkpoint-{contender.name}-", dir=work)
    try:
        with settings(spark, contender.settings):
            progress = _stream(contender.build(spark, workload.folder, shards), contender, checkpoint)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    run = Run(
        contender=contender.name,
        round=number,
        workload_operations=len(workload.drawn),
        batches=tuple(read_batches(progress, workload, contender)),
        counts=counters_of(progress, OBSERVATION),
        load=load,
    )
    check_counts(run.counts, contender, workload)
    return run


def _stream(frame: DataFrame, contender: Contender, checkpoint: str) -> list[dict[str, Any]]:
    counters = [F.count(F.lit(1)).alias("rows")]
    if contender.decides:
        status = F.col("status")
        counters += [F.count_if(status == name).alias(name) for name in STATUSES]
    query = (
        frame.observe(OBSERVATION, *counters)
        .writeStream.foreachBatch(to_noop)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [dict(progress) for progress in query.recentProgress]


def to_noop(batch: DataFrame, batch_id: int) -> None:
    """Evaluate the micro-batch, and keep nothing of it."""
    batch.write.format("noop").mode("overwrite").save()


def read_batches(progress: list[dict[str, Any]], workload: Workload, contender: Contender) -> Iterator[Batch]:
    """Micro-batches that read files; those that only moved the clock, at the end, bring no rows and are left out.

    Raises `WrongOutcomeError` unless each of them read its two files, once.
    """
    files = list(zip(workload.operation_rows, workload.event_rows, strict=True))
    seen = [report["batchId"] for report in progress if report["batchId"] < len(files)]
    if seen != list(range(len(files))):
        raise WrongOutcomeError(f"{contender.name}: Spark reported {len(seen)} of {len(files)} batches: {seen}")
    for report in progress:
        number, read = report["batchId"], report["numInputRows"]
        operations, events = files[number] if number < len(files) else (0, 0)
        if read != operations + events:
            raise WrongOutcomeError(
                f"{contender.name}: batch {number} read {read:,} rows, its files hold {operations:,} operations "
                f"and {events:,} events: not one file a side and batch, or evaluated more than once"
            )
        if number >= len(files):
            continue
        own = report["observedMetrics"].get(OURS_OBSERVATION)
        yield Batch(
            number=number,
            operations=operations,
            events=events,
            ms=report["durationMs"]["triggerExecution"],
            state_bytes=None if own is None else int(own["state_bytes_written"] or 0),
            state_memory_bytes=sum(state["memoryUsedBytes"] for state in report["stateOperators"]),
        )


def counters_of(progress: list[dict[str, Any]], observation: str) -> dict[str, int]:
    """An observation's numbers, added up over all micro-batches."""
    total: dict[str, int] = {}
    for report in progress:
        observed = report["observedMetrics"].get(observation)
        for name, value in (observed.asDict() if observed is not None else {}).items():
            total[name] = total.get(name, 0) + int(value or 0)
    return total


def check_counts(counts: dict[str, int], contender: Contender, workload: Workload) -> None:
    """Raise `WrongOutcomeError` unless the rows that came out are those expected of the arrays."""
    due = expected(workload.drawn, contender.grace_ms)
    if contender.decides:
        wanted = {"rows": due.completed + due.expired, "COMPLETED": due.completed, "EXPIRED": due.expired}
    else:
        wanted = {"rows": workload.rows}
    if counts != wanted:
        raise WrongOutcomeError(
            f"{contender.name} at {len(workload.drawn):,} operations: {counts} came out, {wanted} was expected "
            f"({asdict(due)}); no time is reported"
        )
