"""`python -m benchmarks.long_waits`: workload L, what a micro-batch costs as more and more operations wait.

Contenders take turns in rounds; each run is a process of its own, and its restart another one. A micro-batch that
brings next to nothing shows what Spark itself takes: `--waiting 1000 --operations 10`. Exit code: 0, or 1 if a
contender's outcomes were wrong.
"""

from __future__ import annotations

import json as json_format
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer
from rich.console import Console

from benchmarks import flink_jobs, long_results
from benchmarks.harness import ROOT, SEED, STATUSES, WORK, ContenderDiedError, WrongOutcomeError, last_words
from benchmarks.long_results import Death, LongRun, standings
from benchmarks.long_run import FIRST_STEADY_BATCH, SIDES, Task, contenders
from benchmarks.report import machine, machine_line
from benchmarks.workload_l import SERIES, Ended, Shape, ended_at_last, prepared
from benchmarks.workload_w import COMPLETING, Workload

RESULTS = ROOT / "bench-results"
WAITING_A_SHARD = 250_000
FEWEST_SHARDS = 8
FLINK = tuple(f"flink_{backend}" for backend in flink_jobs.BACKENDS)
NAMES = (*contenders(minutes=1), *FLINK)


def measure(
    shapes: Sequence[Shape],
    names: Sequence[str],
    rounds: int,
    memory: str,
    say: Callable[[str], None] = print,
    work: Path = WORK,
    waiting_a_shard: int = WAITING_A_SHARD,
    fewest_shards: int = FEWEST_SHARDS,
) -> tuple[list[LongRun], list[Death]]:
    """All contenders ``rounds`` times in turn at every size, and those whose process died; `WrongOutcomeError`."""
    flink = flink_jobs.classpath() if any(name in FLINK for name in names) else ""
    runs: list[LongRun] = []
    deaths: list[Death] = []
    for shape in shapes:
        workload = prepared(shape, SEED, work)
        shards = max(fewest_shards, shape.waiting // waiting_a_shard)
        say(f"{shape.series}, {shape.waiting:,} waiting, {shards} shards: {arrivals_of(workload)}")
        for number in range(1, rounds + 1):
            # Another one first in each round, so that none always follows the same neighbour.
            first = (number - 1) % len(names)
            for name in [*names[first:], *names[:first]]:
                try:
                    if name in FLINK:
                        run = flink_jobs.run_l(flink, workload, shape, name.removeprefix("flink_"), number, memory)
                    else:
                        run = run_on_spark(name, workload, shape, number, memory, work, shards)
                except ContenderDiedError as error:
                    deaths.append(Death(name, shape.series, shape.waiting, number, memory, str(error)))
                    say(f"round {number}/{rounds}  {name:14s} died: {error}")
                    continue
                runs.append(run)
                restart = "" if run.restart_ms is None else f", restart {run.restart_ms / 1000:.1f} s"
                say(
                    f"round {number}/{rounds}  {name:14s} {run.median_ms:>8,.0f} ms a micro-batch, worst "
                    f"{max(run.ms):,} ms, {run.checkpoint_bytes / 1e6:,.2f} MB{restart} (outcomes right)"
                )
    runs.sort(key=lambda run: (shapes_at(shapes, run), run.round, list(names).index(run.contender)))
    return runs, deaths


def shapes_at(shapes: Sequence[Shape], run: LongRun) -> int:
    """Which of the shapes a run is of."""
    return [(shape.series, shape.waiting) for shape in shapes].index((run.series, run.waiting))


def arrivals_of(workload: Workload) -> str:
    """What a steady micro-batch brings."""
    files = [
        [sorted((workload.folder / side).iterdir())[batch] for side in SIDES]
        for batch in range(FIRST_STEADY_BATCH, workload.drawn.batches)
    ]
    arrow = mean(sum(pq.read_table(file).nbytes for file in pair) for pair in files)
    stored = mean(sum(file.stat().st_size for file in pair) for pair in files)
    operations, events = (mean(rows[FIRST_STEADY_BATCH:]) for rows in (workload.operation_rows, workload.event_rows))
    return (
        f"a micro-batch brings {operations:,.0f} operations and {events:,.0f} events, {arrow / 1e6:.2f} MB in Arrow, "
        f"{stored / 1e6:.2f} MB in Parquet"
    )


def run_on_spark(
    name: str, workload: Workload, shape: Shape, number: int, memory: str, work: Path, shards: int
) -> LongRun:
    """Both parts of a run, each in a process; raises `WrongOutcomeError`."""
    with TemporaryDirectory(prefix=f"long-{name}-", dir=work) as folder:
        files = workload.drawn.batches
        steady, restarted = (
            part_in_a_process(Task(name, shape, shards, str(workload.folder), folder, until, memory))
            for until in (files - 1, files)
        )
    check_outcomes(name, [steady["counts"], restarted["counts"]], workload, shape)
    check_batches(name, steady["batches"] + restarted["batches"], workload)
    fed = [batch for batch in steady["batches"] if batch["rows"]]
    cycles = max(steady["cycles"], 1)
    return LongRun(
        contender=name,
        series=shape.series,
        waiting=shape.waiting,
        round=number,
        ms=tuple(batch["ms"] for batch in fed[FIRST_STEADY_BATCH:]),
        first_ms=fed[0]["ms"],
        cpu_s=steady["cpu_s"] / cycles,
        checkpoint_bytes=steady["checkpoint_bytes"] // cycles,
        worker_bytes=steady["worker_bytes"],
        steady_worker_bytes=steady["steady_worker_bytes"],
        restart_ms=until_fed_ms(restarted["batches"]),
        cold_ms=restarted["cold_ms"],
    )


def until_fed_ms(batches: Sequence[dict[str, int]]) -> int:
    """Up to and with the first micro-batch that brings rows; one that only moves the clock may come before it."""
    fed = next(place for place, batch in enumerate(batches) if batch["rows"])
    return sum(batch["ms"] for batch in batches[: fed + 1])


def part_in_a_process(task: Task) -> dict[str, Any]:
    """What `benchmarks.long_run` prints of the task; raises `ContenderDiedError` if its process ends before."""
    command = [sys.executable, "-m", "benchmarks.long_run", json_format.dumps(asdict(task))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise ContenderDiedError(last_words(done))
    return dict(json_format.loads(done.stdout.splitlines()[-1]))


def check_outcomes(name: str, counts: Sequence[dict[str, int]], workload: Workload, shape: Shape) -> None:
    """Raise `WrongOutcomeError` unless the outcomes of all parts are those expected of the arrays."""
    contender = contenders(shape.minutes)[name]
    total = {key: sum(part.get(key, 0) for part in counts) for key in set().union(*counts)}
    found: object = total
    due: object = {"rows": workload.rows}
    if contender.decides:
        counted = [total.get(f"{status}{of}", 0) for of in ("", "_numbers") for status in STATUSES]
        found, due = Ended(*counted), ended_at_last(workload.drawn, contender.grace_ms)
    if found != due:
        raise WrongOutcomeError(f"{name} at {shape}: {found} came out, {due} was expected; no time is reported")


def check_batches(name: str, batches: Sequence[dict[str, int]], workload: Workload) -> None:
    """Raise `WrongOutcomeError` unless every micro-batch with rows read its two files, once."""
    read = [batch["rows"] for batch in batches if batch["rows"]]
    files = [sum(pair) for pair in zip(workload.operation_rows, workload.event_rows, strict=True)]
    if read != files:
        raise WrongOutcomeError(f"{name}: its micro-batches read {read} rows, the files hold {files}")


def shapes_of(
    waiting: Sequence[int], operations: int, batches: int, minutes: int, events: int, series: str
) -> list[Shape]:
    """The sizes of one series or of both; ``events`` 0: as many as follow from the smallest size."""
    fixed = events or round(COMPLETING * min(waiting) / minutes)
    wanted = SERIES if series == "both" else (series,)
    return [
        Shape(count, operations, batches, minutes, None if name == "follows" else fixed)
        for name in wanted
        for count in waiting
    ]


def listed(text: str, allowed: Sequence[str], option: str) -> list[str]:
    """The names of a comma-separated list, each once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or not set(names) <= set(allowed):
        raise typer.BadParameter(f"{option} {text!r}: name some of {', '.join(allowed)}, each once")
    return names


def numbers(text: str, option: str) -> list[int]:
    """The numbers of a comma-separated list."""
    try:
        found = [int(number.strip().replace("_", "")) for number in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r}: give whole numbers, as 100000,1000000") from error
    if min(found) < 1:
        raise typer.BadParameter(f"{option} {text!r}: each must be at least 1")
    return found


def main(
    waiting: Annotated[str, typer.Option(help="Sizes: how many operations wait.")] = "100000",
    operations: Annotated[int, typer.Option(min=1, help="Operations of a micro-batch.")] = 10_000,
    batches: Annotated[int, typer.Option(min=5, help="Micro-batches after the one that brings what waits.")] = 14,
    minutes: Annotated[int, typer.Option(min=8, help="The longest delay.")] = 120,
    series: Annotated[str, typer.Option(help=f"{', '.join(SERIES)}, or both.")] = "both",
    events: Annotated[int, typer.Option(min=0, help="Events a batch of the series fixed; 0: from --waiting.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(NAMES)}.")] = "blob,log,join",
    waiting_a_shard: Annotated[
        int, typer.Option(min=1, help="Operations that wait in a shard, of which there are --fewest-shards at least.")
    ] = WAITING_A_SHARD,
    fewest_shards: Annotated[int, typer.Option(min=1, help="Shards, however few operations wait.")] = FEWEST_SHARDS,
    memory: Annotated[str, typer.Option(help="Heap of each JVM.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where all numbers go.")] = RESULTS / "long_waits.json",
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = RESULTS / "long_waits.svg",
) -> None:
    """Run workload L through the contenders, in turn, and compare."""
    names = listed(contenders, NAMES, "--contenders")
    listed(series, (*SERIES, "both"), "--series")
    shapes = shapes_of(numbers(waiting, "--waiting"), operations, batches, minutes, events, series)
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 170))
    facts = machine()
    console.print(machine_line(facts), soft_wrap=True)
    try:
        runs, deaths = measure(
            shapes,
            names,
            rounds,
            memory,
            lambda line: console.print(line, soft_wrap=True),
            waiting_a_shard=waiting_a_shard,
            fewest_shards=fewest_shards,
        )
    except WrongOutcomeError as error:
        console.print(f"wrong outcomes: {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    base = "log" if "log" in names else names[0]
    table = standings(runs, base)
    console.print(long_results.table_of(table, base))
    for line in long_results.checkpoint_lines(table):
        console.print(line, soft_wrap=True)
    for line in long_results.death_lines(deaths):
        console.print(line, soft_wrap=True)
    long_results.write_json(json, facts, runs, table, deaths)
    long_results.draw_picture(picture, table)
    console.print(f"numbers: {json}\npicture: {picture}", soft_wrap=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
