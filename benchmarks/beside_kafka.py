"""`python -m benchmarks.beside_kafka`: workload K through our engine and through Kafka's own classes, in turn.

Kafka's jar comes through Spark's own package resolution, once; the driver is compiled from benchmarks/kafka. A
rate is reported only where both say how the same number of operations ended, and with the same checksum.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.engine_k import Timed, run_purgatory, run_wheel
from benchmarks.harness import WORK, WrongOutcomeError
from benchmarks.jars import compiled, resolved
from benchmarks.workload_k import KNOWN, Ended, WorkloadK, draw

PACKAGE = "org.apache.kafka:kafka-server-common:4.3.0"
SOURCE = Path(__file__).parent / "kafka" / "WorkloadK.java"
MAIN = "org.apache.kafka.server.util.timer.WorkloadK"
JVM = ("-Xmx3g", "-XX:+UseSerialGC")


def classpath(work: Path = WORK) -> str:
    """Kafka's jars and the compiled driver."""
    return compiled([SOURCE], resolved([PACKAGE], work / "ivy"), work / "kafka")


def run_kafka(path: str, operations: int, steps: int, contender: str) -> Timed:
    """One run in a JVM of its own, after one to warm up; ``contender`` is "wheel" or a purge interval."""
    command = ["java", *JVM, "-cp", path, MAIN, str(operations), str(steps), "1", contender]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    rate, completed, expired, checksum, cpu_ms = map(int, said[-5:])
    return Timed(operations, rate, Ended(completed, expired, checksum), cpu_ms / 1000)


@dataclass(frozen=True)
class Contest:
    """What is run in turn: each of ours, then Kafka's."""

    kafka: str
    """ "wheel", or Kafka's purge interval."""
    ours: dict[str, Callable[[WorkloadK], Timed]]


def run_saving(workload: WorkloadK) -> Timed:
    """The purgatory, restored from its bytes before every step and saved after it."""
    return run_purgatory(workload, saving=True)


PURGATORY, SAVING = "purgatory", "purgatory, restored and saved each step"
CONTESTS = {
    1000: (
        Contest("wheel", {"wheel": run_wheel}),
        Contest("100000", {PURGATORY: run_purgatory}),
        Contest("1000", {PURGATORY: run_purgatory}),
    ),
    100: (
        Contest("wheel", {"wheel": run_wheel}),
        Contest("100000", {PURGATORY: run_purgatory, SAVING: run_saving}),
    ),
}
"""By number of steps. Minutes would take: a step of 10,000 rows at Kafka's default purge interval, 1000, and half a
million operations restored and saved 1200 times."""


def compare(path: str, workload: WorkloadK, contest: Contest, rounds: int) -> Iterator[tuple[str, ...]]:
    """Rows of the table. Raises `WrongOutcomeError` where two end differently."""
    turns = []
    for _ in range(rounds):
        kafka = run_kafka(path, len(workload), workload.steps, contest.kafka)
        mine = {name: run(workload) for name, run in contest.ours.items()}
        for name, timed in mine.items():
            if timed.ended != kafka.ended:
                raise WrongOutcomeError(f"{name} {timed.ended}, Kafka {kafka.ended}: no rate is reported")
        turns.append((mine, kafka))
    beside = "" if contest.kafka == "wheel" else f", Kafka's purge interval {int(contest.kafka):,}"
    for name in contest.ours:
        pairs = [(mine[name], kafka) for mine, kafka in turns]
        yield row_of(name + beside, workload, pairs)
        if name == SAVING:
            yield row_of("the same but for coding the bytes", workload, [(uncoded(a), b) for a, b in pairs])


def uncoded(run: Timed) -> Timed:
    """The run without the time that went into bytes."""
    seconds = run.operations / run.rate - run.coding_s
    return replace(run, rate=run.operations / seconds, cpu_s=run.cpu_s - run.coding_cpu_s)


def row_of(name: str, workload: WorkloadK, pairs: list[tuple[Timed, Timed]]) -> tuple[str, ...]:
    """Medians of both, and of the ratios turn by turn."""
    mine, kafka = (median(run.rate for run in runs) for runs in zip(*pairs, strict=True))
    ratio = median(a.rate / b.rate for a, b in pairs)
    cpu = median(b.cpu_s / a.cpu_s for a, b in pairs)
    return f"{len(workload) // workload.steps:,}", name, f"{mine:,.0f}", f"{kafka:,.0f}", f"{ratio:.1f}x", f"{cpu:.1f}x"


def main(
    operations: Annotated[int, typer.Option(min=10_000, help="Operations of the workload.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs.")] = 3,
) -> None:
    """Run workload K through our engine and Kafka's classes."""
    console = Console(highlight=False)
    path = classpath()
    table = Table(title=f"Workload K, {operations:,} operations: operations a second, medians", title_justify="left")
    for name in ("rows a step", "part", "ours", "Kafka", "ours / Kafka", "by CPU"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for steps, contests in CONTESTS.items():
        workload = draw(operations, steps)
        known = KNOWN.get((operations, steps))
        if known and run_purgatory(workload).ended != Ended(*known):
            raise WrongOutcomeError(f"the checksum published with the workload is {known[2]}, ours differs")
        for contest in contests:
            console.print(f"{operations // steps:,} rows a step: {contest.kafka}")
            for row in compare(path, workload, contest, rounds):
                table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
