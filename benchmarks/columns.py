"""`python -m benchmarks.columns`: what it costs that outcomes carry a column of the event, a text of 20 random letters.

Each measurement is of a pair, with the column and without, in turn, the first of them changing: ratios are of the same
round, and medians over the rounds. Three parts:

engine  one of 8 shards of workload W in this process (`benchmarks.engine_w`), by CPU seconds: its rate, and the most
        bytes of its state; less the column's own bytes, those of the events that the state keeps
w       workload W on Spark, both hosts: its rate from the third micro-batch on, and bytes of state
l       workload L on Spark, both hosts: milliseconds and CPU seconds of a micro-batch, bytes of checkpoint

Exit code: 0, or 1 if outcomes were wrong. `--parts engine` takes a minute, everything some 20 minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import harness, long_waits
from benchmarks.engine_w import HOSTS, run_steps, shard_steps
from benchmarks.long_results import write_document
from benchmarks.long_waits import RESULTS, listed
from benchmarks.rates import FIRST_STEADY_BATCH, Run
from benchmarks.report import machine, machine_line
from benchmarks.workload_l import Shape
from benchmarks.workload_w import NOTE_BYTES, draw
from spark_purgatory.spark.host.worker import prepare_worker

PARTS = ("engine", "w", "l")
PAIRS_W = {"ours": "ours_columns", "log": "log_columns"}
PAIRS_L = {"blob": "blob_columns", "log": "log_columns"}
LEAST_RATE = 0.85
MOST_STATE = 1.3
ENGINE_OPERATIONS, ENGINE_BATCHES = 400_000, 8


@dataclass(frozen=True)
class Compared:
    """A pair in one round: the value with the column over that without."""

    part: str
    what: str
    round: int
    ratio: float
    load: float
    goal: str = ""
    """What the median must be, as text; `met` has it as a comparison."""

    def met(self, ratio: float) -> bool | None:
        """Whether a ratio reaches the goal; None where there is none."""
        if not self.goal:
            return None
        sign, number = self.goal.split()
        return ratio >= float(number) if sign == ">=" else ratio <= float(number)


RATE_GOAL, STATE_GOAL = f">= {LEAST_RATE}", f"<= {MOST_STATE}"


def engine(rounds: int, say: Callable[[str], None], operations: int = ENGINE_OPERATIONS) -> Iterator[Compared]:
    """Both ways of hosting an engine; raises `WrongOutcomeError` where the pair ends differently."""
    prepare_worker()
    drawn = draw(operations, ENGINE_BATCHES, harness.SEED)
    steps = {with_note: shard_steps(drawn, with_note) for with_note in (False, True)}
    for host in HOSTS:
        for number in range(rounds + 1):
            load = os.getloadavg()[0]
            order = (False, True) if number % 2 else (True, False)
            runs = {with_note: run_steps(steps[with_note], with_note, host) for with_note in order}
            without, with_note = runs[False], runs[True]
            if (without.completed, without.expired) != (with_note.completed, with_note.expired):
                raise harness.WrongOutcomeError(f"{host}: {with_note} with the column, {without} without")
            if not number:
                continue  # The first one warms up.
            of = partial(Compared, "engine", round=number, load=load)
            own = with_note.state_bytes - NOTE_BYTES * with_note.kept_events
            yield of(f"{host}, rate by CPU", ratio=without.cpu_s / with_note.cpu_s, goal=RATE_GOAL)
            yield of(f"{host}, most bytes of a state", ratio=with_note.state_bytes / without.state_bytes)
            yield of(f"{host}, ... less the column's", ratio=own / without.state_bytes, goal=STATE_GOAL)
        say(f"engine, {host}: {rounds} rounds, load {load:.1f} (outcomes right)")


def on_w(operations: int, batches: int, rounds: int, memory: str, say: Callable[[str], None]) -> Iterator[Compared]:
    """Workload W on Spark."""
    spark = harness.session(memory, settings=harness.local_sockets())
    try:
        names = [name for pair in PAIRS_W.items() for name in pair]
        runs = harness.measure(spark, names, operations, batches, rounds, say)
    finally:
        spark.stop()
    found = {(run.contender, run.round): run for run in runs}
    for (name, number), run in found.items():
        if name in PAIRS_W:
            with_note = found[PAIRS_W[name], number]
            of = partial(Compared, "w", round=number, load=run.load)
            yield of(f"{name}, rate", ratio=with_note.rate / run.rate, goal=RATE_GOAL)
            yield of(f"{name}, bytes of state written", ratio=state_bytes(with_note) / state_bytes(run))


def state_bytes(run: Run) -> float:
    """What a steady micro-batch with operations writes of its state, the median."""
    return median(b.state_bytes or 0 for b in run.batches if b.number >= FIRST_STEADY_BATCH and b.operations)


def on_l(waiting: int, rounds: int, memory: str, say: Callable[[str], None]) -> Iterator[Compared]:
    """Workload L on Spark."""
    names = [name for pair in PAIRS_L.items() for name in pair]
    shape = Shape(waiting, 10_000, 14, 120)
    load = os.getloadavg()[0]
    runs, deaths = long_waits.measure([shape], names, rounds, memory, say)
    if deaths:
        raise harness.WrongOutcomeError(f"a contender died: {deaths[0]}")
    found = {(run.contender, run.round): run for run in runs}
    for (name, number), run in found.items():
        if name in PAIRS_L:
            with_note = found[PAIRS_L[name], number]
            of = partial(Compared, "l", round=number, load=load)
            yield of(f"{name}, rate by milliseconds", ratio=run.median_ms / with_note.median_ms, goal=RATE_GOAL)
            yield of(f"{name}, rate by CPU", ratio=run.cpu_s / with_note.cpu_s)
            yield of(f"{name}, bytes of checkpoint", ratio=with_note.checkpoint_bytes / run.checkpoint_bytes)


def table_of(compared: Sequence[Compared]) -> Table:
    """A row for each thing that was compared."""
    table = Table(title="With a column of the event over without, medians over the rounds", title_justify="left")
    for name in ("part", "what"):
        table.add_column(name, no_wrap=True)
    for name in ("ratio", "lowest .. highest", "load", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    for part, what in dict.fromkeys((each.part, each.what) for each in compared):
        mine = [each for each in compared if (each.part, each.what) == (part, what)]
        ratios, loads = [each.ratio for each in mine], [each.load for each in mine]
        met = mine[0].met(median(ratios))
        table.add_row(
            part,
            what,
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f} .. {max(ratios):.2f}",
            f"{min(loads):.0f} .. {max(loads):.0f}",
            "" if met is None else f"{mine[0].goal}: {'reached' if met else 'missed'}",
        )
    return table


def main(
    parts: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}.")] = ",".join(PARTS),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds on Spark.")] = 5,
    engine_rounds: Annotated[int, typer.Option(min=1, help="Rounds of the engine alone.")] = 15,
    operations: Annotated[int, typer.Option(min=1000, help="Operations of workload W.")] = 1_000_000,
    batches: Annotated[int, typer.Option(min=FIRST_STEADY_BATCH + 1, help="Its micro-batches.")] = 10,
    waiting: Annotated[int, typer.Option(min=1, help="How many operations wait in workload L.")] = 1_000_000,
    memory: Annotated[str, typer.Option(help="Heap of each JVM.")] = "3g",
    json: Annotated[Path, typer.Option(help="Where all numbers go.")] = RESULTS / "columns.json",
) -> None:
    """Run pairs with a column of the event and without, in turn, and compare."""
    chosen = listed(parts, PARTS, "--parts")
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, 110))
    say = partial(console.print, soft_wrap=True)
    facts = machine()
    say(machine_line(facts))
    measured = {
        "engine": lambda: engine(engine_rounds, say),
        "w": lambda: on_w(operations, batches, rounds, memory, say),
        "l": lambda: on_l(waiting, rounds, memory, say),
    }
    try:
        compared = [each for part in chosen for each in measured[part]()]
    except harness.WrongOutcomeError as error:
        say(f"wrong outcomes: {error}")
        raise typer.Exit(1) from error
    console.print(table_of(compared))
    write_document(json, {"machine": facts, "compared": [asdict(each) for each in compared]})
    say(f"numbers: {json}")


if __name__ == "__main__":
    typer.run(main)
