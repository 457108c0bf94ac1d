"""`python -m benchmarks.beside_flink`: workloads W and L through Flink and through ours, in turn, on the same files.

Flink runs both as a small Java program (benchmarks/flink): a KeyedCoProcessFunction with ValueState and event-time
timers, checkpoints on. Its jars come through Spark's own package resolution, once: 170 MB. What is compared is
wall and CPU seconds a million rows, the CPU of all processes: ours are the JVM and the Python workers. Of workload W
Flink has a JVM for each turn, and its first run there and the next ones are told apart; ours are warm. A number is
reported only where the outcomes are those expected of the arrays. In both the end of Flink's files is the end of time.

For workload L see `benchmarks.long_waits`, which runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import flink_jobs, harness, long_results
from benchmarks.contenders import CONTENDERS
from benchmarks.long_waits import RESULTS, listed, numbers
from benchmarks.long_waits import measure as measure_l
from benchmarks.process_tree import cpu_seconds
from benchmarks.rates import steady_rate
from benchmarks.report import machine, machine_line
from benchmarks.workload_l import Shape
from benchmarks.workload_w import Workload, prepared

OURS = {"blob": "ours", "log": "log", "join": "join"}
"""Names of workload L, by those of workload W."""
LARGE = 2_000_000
"""From so many operations on, 8 micro-batches instead of 10, as in the other measurements of workload W."""


@dataclass(frozen=True)
class Turn:
    """A run of workload W."""

    contender: str
    operations: int
    round: int
    rows: int
    seconds: float
    """From start to end of the query or job."""
    cpu_s: float
    steady_rate: float | None = None
    """Of ours: rows a second from the third micro-batch on."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def cpu_s_a_million(self) -> float:
        """CPU seconds a million rows."""
        return 1e6 * self.cpu_s / self.rows


def measure_w(
    spark: SparkSession,
    flink: str,
    workload: Workload,
    ours: Sequence[str],
    flinks: Flinks,
    rounds: int,
    say: Callable[[str], None],
) -> Iterator[Turn]:
    """Ours and Flink's backends in turn; the first round of ours is preceded by one to warm up."""
    for name in ours:
        _ours(spark, name, prepared(len(workload.drawn) // 10, 4, harness.SEED, harness.WORK), 0)
    for number in range(1, rounds + 1):
        for name in ours:
            yield _ours(spark, name, workload, number)
        for backend in flinks.backends:
            try:
                runs = flink_jobs.run_w(flink, workload, backend, flinks.checkpoint_ms, flinks.runs, flinks.memory)
            except harness.ContenderDiedError as error:
                say(f"{len(workload.drawn):,} operations, round {number}/{rounds}  flink_{backend} died: {error}")
                continue
            for place, run in enumerate(runs):
                name = f"flink_{backend}, {'warm' if place else 'first run'}"
                yield Turn(name, len(workload.drawn), number, workload.rows, run.ms / 1000, run.cpu_s)


@dataclass(frozen=True)
class Flinks:
    """How Flink is run."""

    backends: tuple[str, ...]
    checkpoint_ms: int
    runs: int
    """In one JVM."""
    memory: str


def _ours(spark: SparkSession, name: str, workload: Workload, number: int) -> Turn:
    started, cpu_s = time.monotonic(), cpu_seconds()
    run = harness.run_once(spark, CONTENDERS[OURS[name]], workload, number)
    seconds, cpu_s = time.monotonic() - started, cpu_seconds() - cpu_s
    return Turn(name, len(workload.drawn), number, workload.rows, seconds, cpu_s, steady_rate(run.batches))


def table_of(turns: Sequence[Turn], base: str) -> Table:
    """A row a contender and size; ratios are of the same round."""
    table = Table(title="Workload W: medians over the rounds", title_justify="left")
    for name in ("operations", "contender", "rows/s", "lowest .. highest", "steady rows/s", "CPU s a million rows"):
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    table.add_column(f"{base} / it, rows/s", justify="right", no_wrap=True)
    table.add_column(f"{base} / it, CPU", justify="right", no_wrap=True)
    for operations, name in dict.fromkeys((turn.operations, turn.contender) for turn in turns):
        mine = [turn for turn in turns if (turn.operations, turn.contender) == (operations, name)]
        bases = {turn.round: turn for turn in turns if (turn.operations, turn.contender) == (operations, base)}
        pairs = [(bases[turn.round], turn) for turn in mine if turn.round in bases]
        rates = [turn.rate for turn in mine]
        steady = [turn.steady_rate for turn in mine if turn.steady_rate is not None]
        table.add_row(
            f"{operations:,}",
            name,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} .. {max(rates):,.0f}",
            f"{median(steady):,.0f}" if steady else "",
            f"{median(turn.cpu_s_a_million for turn in mine):.1f}",
            ratios(pairs, lambda turn: turn.rate),
            ratios(pairs, lambda turn: turn.cpu_s),
        )
    return table


def ratios(pairs: Sequence[tuple[Turn, Turn]], value: Callable[[Turn], float]) -> str:
    """Median of the base's value over the other's, with lowest and highest."""
    found = [value(base) / value(other) for base, other in pairs]
    return f"{median(found):.2f} ({min(found):.2f} .. {max(found):.2f})" if found else ""


def main(
    operations: Annotated[str, typer.Option(help="Sizes of workload W; none: leave it out.")] = "1000000",
    waiting: Annotated[str, typer.Option(help="Sizes of workload L; none: leave it out.")] = "1000000",
    arriving: Annotated[int, typer.Option(min=1, help="Operations of a micro-batch of workload L.")] = 10_000,
    batches: Annotated[int, typer.Option(min=5, help="Micro-batches of workload L after the first.")] = 14,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender has its turn.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(OURS)}.")] = "blob,log",
    backends: Annotated[
        str, typer.Option(help=f"Some of {', '.join(flink_jobs.BACKENDS)}.")
    ] = "heap,changelog,rocksdb",
    checkpoint_ms: Annotated[int, typer.Option(min=50, help="Between Flink's checkpoints in workload W.")] = 1000,
    runs: Annotated[int, typer.Option(min=1, help="Runs of workload W in each JVM of Flink.")] = 3,
    memory: Annotated[str, typer.Option(help="Heap of each JVM.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where the numbers go; of workload L beside it.")] = RESULTS / "flink.json",
) -> None:
    """Run workloads W and L through Flink and ours, in turn, and compare."""
    ours = listed(contenders, tuple(OURS), "--contenders")
    chosen = listed(backends, flink_jobs.BACKENDS, "--backends")
    flinks = Flinks(tuple(chosen), checkpoint_ms, runs, memory)
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 170))
    facts = machine()
    console.print(machine_line(facts), soft_wrap=True)
    base = "log" if "log" in ours else ours[0]
    try:
        turns = list(_all_of_w(sizes(operations, "--operations"), ours, flinks, rounds, console))
        if turns:
            console.print(table_of(turns, base))
        shapes = [Shape(count, arriving, batches, 120) for count in sizes(waiting, "--waiting")]
        names = [*ours, *(f"flink_{backend}" for backend in chosen)]
        long_runs, deaths = measure_l(shapes, names, rounds, memory, lambda line: console.print(line, soft_wrap=True))
    except harness.WrongOutcomeError as error:
        console.print(f"wrong outcomes: {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    table = long_results.standings(long_runs, base)
    if table:
        console.print(long_results.table_of(table, base))
        for line in long_results.checkpoint_lines(table):
            console.print(line, soft_wrap=True)
    for line in long_results.death_lines(deaths):
        console.print(line, soft_wrap=True)
    long_results.write_json(json.with_name(f"{json.stem}_l{json.suffix}"), facts, long_runs, table, deaths)
    long_results.write_document(json, {"machine": facts, "turns": [asdict(turn) for turn in turns]})
    console.print(f"numbers: {json}", soft_wrap=True)


def _all_of_w(
    counts: Sequence[int], ours: Sequence[str], flinks: Flinks, rounds: int, console: Console
) -> Iterator[Turn]:
    if not counts:
        return
    flink = flink_jobs.classpath()
    # Unix sockets would outlive workers that Spark ends while Flink runs.
    spark = harness.session(flinks.memory)
    try:
        for count in counts:
            workload = prepared(count, 8 if count >= LARGE else 10, harness.SEED, harness.WORK)
            say = partial(console.print, soft_wrap=True)
            for turn in measure_w(spark, flink, workload, ours, flinks, rounds, say):
                console.print(
                    f"{turn.operations:,} operations, round {turn.round}/{rounds}  {turn.contender:28s} "
                    f"{turn.rate:>10,.0f} rows/s, {turn.cpu_s_a_million:.1f} CPU s a million rows (outcomes right)",
                    soft_wrap=True,
                )
                yield turn
    finally:
        spark.stop()


def sizes(text: str, option: str) -> list[int]:
    """The numbers of a list; none of "none"."""
    return [] if text == "none" else numbers(text, option)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
