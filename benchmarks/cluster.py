"""`python -m benchmarks.cluster`: workload W on a real standalone cluster, a master and two workers of one core.

Both workers and the driver are processes of this machine, so it shows the shape, not the size: what a micro-batch costs
whatever the cores (planning, offsets, commit), and what is divided by them. From the seconds on one core and on two,

    seconds on n cores = fixed + work / n

is solved for both, and compared with the cores inside one process (``local[2]``).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import pyspark
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.rates import Run

HOST = "127.0.0.1"
WORKERS = 2
START_S = 60
CONTENDERS = ("ours", "identity")


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextmanager
def standalone_cluster(memory: str) -> Iterator[str]:
    """The URL of a master with `WORKERS` workers of one core and ``memory``; they end with the context.

    Each has a host of its own, as Spark sees it: it starts no speculative attempt on the host of the first one.
    """
    port, web_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with TemporaryDirectory(prefix="cluster-") as folder:
        master = ["master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(web_port)]
        worker = ["worker.Worker", "--cores", "1", "--memory", memory, "--work-dir", folder, url]
        workers = [[*worker, "--host", f"127.0.0.{number + 1}"] for number in range(WORKERS)]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for command in (master, *workers):
                running.append(_start(command, Path(folder)))
                if command is master:
                    _wait(web_port, workers=0)
            _wait(web_port, workers=WORKERS)
            yield url
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    said = folder / f"{command[0]}-{time.monotonic_ns()}.log"
    with said.open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}", *command[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST},
        )


def _wait(web_port: int, workers: int) -> None:
    """Until the master answers and so many workers are there."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{web_port}/json/", timeout=5) as answer:
                if json.load(answer)["aliveworkers"] >= workers:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"no master with {workers} workers at {HOST}:{web_port} within {START_S} s: is a Java 17 there?")


def main(
    operations: Annotated[int, typer.Option(min=1000, help="Operations of the workload.")] = 1_000_000,
    batches: Annotated[int, typer.Option(min=4, help="Micro-batches with operations.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each place has its turn.")] = 3,
    memory: Annotated[str, typer.Option(help="Heap of the driver and of each executor.")] = "2g",
) -> None:
    """Run workload W on one and on two workers, and inside one process."""
    console = Console(highlight=False, width=120)
    found: dict[str, list[Run]] = {}
    with standalone_cluster(memory) as url:
        places = {
            "cluster, 1 core": (url, {"spark.cores.max": "1"}),
            "cluster, 2 cores": (url, {"spark.cores.max": "2"}),
            harness.MASTER: (harness.MASTER, {}),
        }
        for number in range(1, rounds + 1):
            for place, (master, settings) in places.items():
                settings = {"spark.driver.host": HOST, **settings}
                spark = harness.session(memory, master, settings)
                try:
                    runs = harness.measure(spark, CONTENDERS, operations, batches, 1, lambda said: None)
                finally:
                    spark.stop()
                found.setdefault(place, []).extend(runs)
                said = ", ".join(f"{run.contender} {run.rate:,.0f} rows/s" for run in runs)
                console.print(f"round {number}/{rounds}  {place}: {said}, load {runs[0].load:.1f}")
    console.print(table_of(found))
    console.print(arithmetic_of(found))


def seconds_of(runs: list[Run], contender: str) -> float:
    """Median seconds of a micro-batch with operations, from the third on."""
    return median(
        batch.ms / 1000 for run in runs if run.contender == contender for batch in run.batches[2:] if batch.operations
    )


def table_of(found: dict[str, list[Run]]) -> Table:
    """Seconds a micro-batch and rows a second, by place."""
    table = Table(title="Workload W, by place (medians)", title_justify="left")
    for name in ("place", *(f"{name}: {unit}" for name in CONTENDERS for unit in ("s a micro-batch", "rows/s"))):
        table.add_column(name, justify="left" if name == "place" else "right")
    for place, runs in found.items():
        cells = []
        for name in CONTENDERS:
            rate = median(run.rate for run in runs if run.contender == name)
            cells += [f"{seconds_of(runs, name):.2f}", f"{rate:,.0f}"]
        table.add_row(place, *cells)
    return table


def arithmetic_of(found: dict[str, list[Run]]) -> str:
    """The fixed seconds of a micro-batch of ours and the core-seconds of its rows, from one core and two."""
    one, two = (seconds_of(found[f"cluster, {cores} core{'s' * (cores > 1)}"], "ours") for cores in (1, 2))
    work, fixed = 2 * (one - two), 2 * two - one
    rows = median(
        batch.rows for runs in found.values() for run in runs for batch in run.batches[2:] if batch.operations
    )
    if work <= 0:
        return (
            f"ours: two workers took {two:.2f} s a micro-batch and one {one:.2f}: driver, executors and Python workers "
            f"share this machine's {os.cpu_count()} cores, and a second worker finds none to itself"
        )
    each = 1e6 * work / rows
    return f"ours: {fixed:.2f} s a micro-batch + {work:.2f} core-seconds for its {rows:,.0f} rows, {each:.1f} us each"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
