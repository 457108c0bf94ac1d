"""`python -m jobs.benchmarks.beside_kafka`: workload K through our engine and through Kafka's own classes, in turn.

Kafka's jar comes through Spark's own package resolution, once; the driver is compiled from jobs/benchmarks/kafka. A
rate is reported only where both say how the same number of operations ended, and with the same checksum.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jobs.benchmarks.engine_k import Timed, run_purgatory, run_wheel
from jobs.benchmarks.harness import WORK, WrongOutcomeError
from jobs.benchmarks.workload_k import KNOWN, Ended, WorkloadK, draw

PACKAGE = "org.apache.kafka:kafka-server-common:4.3.0"
SOURCE = Path(__file__).parent / "kafka" / "WorkloadK.java"
MAIN = "org.apache.kafka.server.util.timer.WorkloadK"
JVM = ("-Xmx3g", "-XX:+UseSerialGC")
STEPS = (1000, 100)
PURGE_INTERVALS = {1000: ("100000", "1000"), 100: ("100000",)}
"""By number of steps: Kafka's purge intervals; at its default, 1000, a step of 10,000 rows takes minutes."""


def classpath(work: Path = WORK) -> str:
    """Kafka's jars and the compiled driver."""
    ivy, classes = work / "ivy", work / "kafka"
    if not list((ivy / "jars").glob("*kafka-server-common*")):
        nothing = work / "nothing.py"
        work.mkdir(parents=True, exist_ok=True)
        nothing.write_text("", encoding="utf-8")
        submit = [sys.executable, "-m", "pyspark.find_spark_home"]
        home = subprocess.run(submit, check=True, capture_output=True, text=True).stdout.strip()
        resolve = [f"{home}/bin/spark-submit", "--packages", PACKAGE, "--conf", f"spark.jars.ivy={ivy}", str(nothing)]
        subprocess.run(resolve, check=True, capture_output=True)
    classes.mkdir(parents=True, exist_ok=True)
    subprocess.run(["javac", "-d", str(classes), "-cp", f"{ivy}/jars/*", str(SOURCE)], check=True)
    return f"{classes}{os.pathsep}{ivy}/jars/*"


def run_kafka(path: str, operations: int, steps: int, contender: str) -> Timed:
    """One run in a JVM of its own, after one to warm up; ``contender`` is "wheel" or a purge interval."""
    command = ["java", *JVM, "-cp", path, MAIN, str(operations), str(steps), "1", contender]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    rate, completed, expired, checksum = map(int, said[-4:])
    return Timed(rate, Ended(completed, expired, checksum))


def contests(path: str, workload: WorkloadK) -> Iterator[tuple[str, Callable[[], Timed], Callable[[], Timed]]]:
    """(name, ours, Kafka's) of everything that is compared at this number of steps."""
    operations, steps = len(workload), workload.steps
    yield "wheel", lambda: run_wheel(workload), lambda: run_kafka(path, operations, steps, "wheel")
    for interval in PURGE_INTERVALS[steps]:
        name = f"purgatory, Kafka's purge interval {int(interval):,}"
        yield name, lambda: run_purgatory(workload), lambda i=interval: run_kafka(path, operations, steps, i)  # type: ignore[misc]


def compare(ours: Callable[[], Timed], kafka: Callable[[], Timed], rounds: int) -> tuple[float, float, float]:
    """Median rates of both and the median ratio, run in turn. Raises `WrongOutcomeError` where they end differently."""
    pairs = []
    for _ in range(rounds):
        pair = ours(), kafka()
        if pair[0].ended != pair[1].ended:
            raise WrongOutcomeError(f"ours {pair[0].ended}, Kafka {pair[1].ended}: no rate is reported")
        pairs.append(pair)
    mine, other = zip(*pairs, strict=True)
    ratio = median(a.rate / b.rate for a, b in pairs)
    return median(run.rate for run in mine), median(run.rate for run in other), ratio


def main(
    operations: Annotated[int, typer.Option(min=10_000, help="Operations of the workload.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs.")] = 3,
) -> None:
    """Run workload K through our engine and Kafka's classes."""
    console = Console(highlight=False)
    path = classpath()
    table = Table(title=f"Workload K, {operations:,} operations: operations a second, medians", title_justify="left")
    for name in ("rows a step", "part", "ours", "Kafka", "ours / Kafka"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for steps in STEPS:
        workload = draw(operations, steps)
        known = KNOWN.get((operations, steps))
        if known and run_purgatory(workload).ended != Ended(*known):
            raise WrongOutcomeError(f"the checksum published with the workload is {known[2]}, ours differs")
        for name, ours, kafka in contests(path, workload):
            console.print(f"{operations // steps:,} rows a step: {name}")
            mine, other, ratio = compare(ours, kafka, rounds)
            table.add_row(f"{operations // steps:,}", name, f"{mine:,.0f}", f"{other:,.0f}", f"{ratio:.1f}x")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
