"""`python -m benchmarks`: workload W, ours beside the others, with a line for each goal.

Exit code: 0, or 1 if a goal was missed or a contender's outcomes were wrong.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import harness, report
from benchmarks.contenders import CONTENDERS
from benchmarks.rates import FIRST_STEADY_BATCH, standings, verdicts
from spark_purgatory.spark.host.exchange import unix_sockets as unix_socket_settings

RESULTS = harness.ROOT / "bench-results"


def names_of(text: str) -> list[str]:
    """Contenders of a comma-separated list, each once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or not names or len(set(names)) < len(names):
        raise typer.BadParameter(f"{text!r}: name some of {', '.join(CONTENDERS)}, each once")
    return names


def main(
    operations: Annotated[int, typer.Option(min=1000, help="Operations of the workload.")] = 1_000_000,
    batches: Annotated[int, typer.Option(min=FIRST_STEADY_BATCH + 1, help="Micro-batches with operations.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs.")] = 3,
    contenders: Annotated[str, typer.Option(help=f"Some of {', '.join(CONTENDERS)}.")] = "ours,join,identity",
    shards: Annotated[int, typer.Option(min=1, help="Groups of ours and of the identities.")] = harness.SHARDS,
    master: Annotated[str, typer.Option(help="Where it runs.")] = harness.MASTER,
    memory: Annotated[str, typer.Option(help="Heap of the Spark process.")] = "3g",
    unix_sockets: Annotated[
        bool, typer.Option(help="Between Spark and Python, as the README advises for frequent micro-batches.")
    ] = True,
    json: Annotated[Path, typer.Option(help="Where every micro-batch's numbers go.")] = RESULTS / "workload_w.json",
    picture: Annotated[Path, typer.Option(help="Where the bars go.")] = RESULTS / "workload_w.png",
) -> None:
    """Run workload W through the contenders, in turn, and compare."""
    names = names_of(contenders)
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, report.TABLE_WIDTH))
    sockets = unix_socket_settings(tempfile.gettempdir()) if unix_sockets and master.startswith("local") else None
    spark = harness.session(memory, master, sockets)
    facts = report.machine_facts(spark)
    console.print(report.facts_line(facts), soft_wrap=True)
    console.print(f"workload W: {operations:,} operations, {batches} batches, {rounds} rounds")
    for name in names:
        console.print(f"  {name:14s} {CONTENDERS[name].says}")
    try:
        say = partial(console.print, soft_wrap=True)
        runs = harness.measure(spark, names, operations, batches, rounds, say, shards=shards)
    except harness.WrongOutcomeError as error:
        console.print(f"wrong outcomes: {error}", soft_wrap=True)
        raise typer.Exit(1) from error
    finally:
        spark.stop()
    table = standings(runs)
    goals = verdicts(table, operations // batches)
    console.print(report.table_of(table))
    report.write_json(json, facts, runs, table, goals)
    report.draw_picture(picture, table, facts)
    console.print(f"numbers: {json}\npicture: {picture}", soft_wrap=True)
    for goal in goals:
        console.print(str(goal))
    if not all(goal.reached for goal in goals):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
