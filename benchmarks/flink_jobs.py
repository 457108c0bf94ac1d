"""Workloads W and L and Nexmark's query 9 on Flink: the program of benchmarks/flink, compiled here, in its own JVM.

Two readers, one a side, and two parallel instances of the operator, on a cluster inside that JVM; object reuse,
checkpoints on. Backends: ``heap``, ``changelog`` (the heap with Flink's changelog), ``rocksdb`` (incremental).
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.harness import WORK, ContenderDiedError, WrongOutcomeError, last_words
from benchmarks.jars import compiled, resolved, spark_home
from benchmarks.long_results import LongRun
from benchmarks.long_run import FIRST_STEADY_BATCH
from benchmarks.workload_l import NEVER_US, Ended, Shape, clocks_ms, ended, ended_at_last
from benchmarks.workload_w import Workload

VERSION = "2.3.0"
MODULES = (
    "streaming-java connector-files parquet table-runtime statebackend-rocksdb statebackend-changelog dstl-dfs".split()
)
SOURCES = Path(__file__).parent / "flink"
MAIN = "beside.BesideSpark"
BACKENDS = ("heap", "changelog", "rocksdb")
GRACE_MS = 1
"""An ascending watermark is 1 ms behind the latest time, so that an operation expires that much later."""
OPENED = ("java.lang", "java.nio", "java.util", "java.util.concurrent")
"""Packages that Flink's start script opens to reflection, too."""


@dataclass(frozen=True)
class Throughput:
    """A run of workload W."""

    ms: int
    """From the job's submission until its last timer fired."""
    cpu_s: float
    """Of the whole process in that time."""


@dataclass(frozen=True)
class Winning(Throughput):
    """A run of query 9."""

    rows: int
    fingerprint: int


def classpath(work: Path = WORK) -> str:
    """Flink's jars, Hadoop's of the installed Spark for Parquet, and the compiled program."""
    jars = resolved([f"org.apache.flink:flink-{module}:{VERSION}" for module in MODULES], work / "ivy-flink")
    hadoop = sorted((spark_home() / "jars").glob("hadoop-client-*.jar"))
    return compiled(sorted(SOURCES.glob("*.java")), ":".join([jars, *map(str, hadoop)]), work / "flink")


def run_w(path: str, workload: Workload, backend: str, checkpoint_ms: int, runs: int, memory: str) -> list[Throughput]:
    """So many runs of workload W in one JVM: the first compiles as it goes, the others are warm."""
    lines = _run(path, memory, "w", str(workload.folder), backend, [str(checkpoint_ms), str(runs)])
    for line in lines:
        _check(f"flink_{backend}", Ended(*line[2:]), ended(workload.drawn, NEVER_US))
    return [Throughput(ms, cpu_ms / 1000) for ms, cpu_ms, *_ in lines]


def run_q9(path: str, folder: Path, backend: str, checkpoint_ms: int, runs: int, memory: str) -> list[Winning]:
    """So many runs of query 9 in one JVM, not checked yet."""
    lines = _run(path, memory, "q9", str(folder), backend, [str(checkpoint_ms), str(runs)])
    return [Winning(ms, cpu_ms / 1000, rows, fingerprint) for ms, cpu_ms, rows, fingerprint in lines]


def run_l(path: str, workload: Workload, shape: Shape, backend: str, number: int, memory: str) -> LongRun:
    """One run of workload L, with a checkpoint after each micro-batch."""
    rows = np.cumsum(workload.operation_rows) + np.cumsum(workload.event_rows)
    # Java's smallest long stands for "no watermark yet".
    watermarks = [-(1 << 63) if clock is None else clock - GRACE_MS for clock in clocks_ms(workload.drawn)]
    lists = [",".join(map(str, values)) for values in (rows, watermarks)]
    *batches, outcomes = _run(path, memory, "l", str(workload.folder), backend, lists)
    _check(f"flink_{backend}", Ended(*outcomes), ended_at_last(workload.drawn, GRACE_MS))
    steady = batches[FIRST_STEADY_BATCH:]
    return LongRun(
        contender=f"flink_{backend}",
        series=shape.series,
        waiting=shape.waiting,
        round=number,
        ms=tuple(batch[0] + batch[2] for batch in steady),
        first_ms=batches[0][0] + batches[0][2],
        cpu_s=mean(batch[1] + batch[3] for batch in steady) / 1000,
        checkpoint_bytes=round(mean(batch[4] for batch in steady)),
        checkpoint_ms=tuple(batch[2] for batch in steady),
        checkpoint_cpu_s=mean(batch[3] for batch in steady) / 1000,
    )


def _run(path: str, memory: str, workload: str, folder: str, backend: str, more: Sequence[str]) -> list[list[int]]:
    """Numbers of each line that the program prints."""
    WORK.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="flink-", dir=WORK) as checkpoints:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        command = ["java", f"-Xmx{memory}", *opened, "-cp", path, MAIN, workload, folder, backend, checkpoints, *more]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ContenderDiedError(last_words(done))
    return [[int(number) for number in line.split()] for line in done.stdout.splitlines()]


def _check(name: str, found: Ended, due: Ended) -> None:
    if found != due:
        raise WrongOutcomeError(f"{name}: {found} came out, {due} was expected; no time is reported")
