"""`python -m benchmarks.scale_model`: what a micro-batch will need, fitted on half of the measured cells.

A cell is workload L (`workload_l`) on a host, with so many shards, cores and keys an operation, as `scale_cells` has
measured it. Each quantity is a sum of terms that are not negative, such as "so much for each row"; their coefficients
are fitted to every other cell, and the rest are predicted. Exit code: 0, or 1 if one is off by more than is tolerated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from spark_purgatory.cost import BLOB, LOG, Load

CELLS = Path(__file__).with_name("scale_cells.csv")
QUANTITIES = ("ms", "cpu_s", "state_bytes", "shuffle_bytes", "worker_bytes", "driver_bytes")
SPREAD = ("lowest_ms", "highest_ms")
COLUMNS = ("host", "waiting", "operations", "events", "keys", "shards", "cores", "partitions")
"""The columns of a cell before it is measured."""
ROWS = 3
"""The position of the rows in `Load.terms`."""
PREDICTED = 0.25
TOLERATED = {"ms": 1.0, "cpu_s": 0.45, "state_bytes": 0.45, "worker_bytes": 0.3, "driver_bytes": 0.55}
"""Larger errors of the worst cell; benchmarks/RESULTS.md says why."""
TRIGGER_S = {BLOB: 60, LOG: 10}
WAITING_A_SHARD = {BLOB: 62_500, LOG: 600_000}  # docs/choosing.md
CORES = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)
LOADS = ",".join(str(10**power) for power in range(4, 10))


@dataclass(frozen=True)
class Cell(Load):
    """A load that was measured, or is like one."""

    found: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What was measured, by the names of `QUANTITIES`."""

    def terms(self, quantity: str) -> list[float]:
        """Return what the coefficients multiply, as `Load` does for the quantities that users are shown."""
        if quantity == "driver_bytes":  # Rows and states do not come to the driver
            return [1]
        first, *work = super().terms(quantity)
        at_once = min(self.cores, self.partitions) if quantity == "ms" else 1
        return [first, *(each / at_once for each in work)]


def read_cells(path: Path = CELLS) -> list[Cell]:
    """Return the measured cells in ascending order, each with the medians of its runs."""
    runs: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            runs.setdefault(tuple(row[name] for name in COLUMNS), []).append(row)
    cells = []
    for (host, *counts), rows in runs.items():
        waiting, operations, events, keys, shards, cores, partitions = map(int, counts)
        found = {name: median(float(row[name]) for row in rows) for name in QUANTITIES}
        cells.append(Cell(host, waiting, operations, events, keys, shards, cores, partitions, keys > 1, found=found))
    return sorted(cells, key=lambda cell: [getattr(cell, name) for name in COLUMNS])


def fitted(cells: Sequence[Cell], quantity: str, a_row: float = 0) -> np.ndarray:
    """Return coefficients that are not negative, by least squares of the relative errors; ``a_row``: that of rows."""
    terms = np.array([cell.terms(quantity) for cell in cells]) / np.array([[cell.found[quantity]] for cell in cells])
    used = [column for column in range(terms.shape[1]) if terms[:, column].any() and not (a_row and column == ROWS)]
    scale = terms.max(axis=0)
    rest = 1 - a_row * terms[:, ROWS] if a_row else np.ones(len(cells))
    while True:
        part = np.linalg.lstsq(terms[:, used] / scale[used], rest, rcond=None)[0]
        if part.min() >= 0:
            break
        used.pop(int(part.argmin()))
    coefficients = np.zeros(terms.shape[1])
    coefficients[used] = part / scale[used]
    if a_row:
        coefficients[ROWS] = a_row
    return coefficients


class Model:
    """The coefficients by host and quantity."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        by_host: dict[str, list[Cell]] = {}
        for cell in cells:
            by_host.setdefault(cell.host, []).append(cell)
        self.of = {(host, name): fitted(own, name) for host, own in by_host.items() for name in QUANTITIES}
        # A row takes the same way through both hosts, but beside a state that is rewritten the cells do not show it.
        self.of[BLOB, "cpu_s"] = fitted(by_host[BLOB], "cpu_s", float(self.of[LOG, "cpu_s"][ROWS]))

    def predicted(self, cell: Cell) -> dict[str, float]:
        """Return the quantities of a micro-batch."""
        return {name: float(self.of[cell.host, name] @ cell.terms(name)) for name in QUANTITIES}


def errors(cells: Sequence[Cell]) -> list[tuple[Cell, dict[str, float]]]:
    """Return predicted over measured, less 1, for every second cell, by a model of the other half."""
    model = Model(cells[::2])
    told = ((cell, model.predicted(cell)) for cell in cells[1::2])
    return [(cell, {name: said[name] / cell.found[name] - 1 for name in QUANTITIES}) for cell, said in told]


def load(host: str, waiting: int, rows: float, interval: float, keys: int, shards: int, cores: int) -> Cell:
    """Return the cell of a micro-batch; where ``rows`` a second are 0, operations wait for an hour on average."""
    operations = round((rows / 1.75 or waiting / 3600) * interval)
    shards = shards or max(cores, 8, waiting // WAITING_A_SHARD[host])
    return Cell(host, waiting, operations, operations * 3 // 4, keys, shards, cores, min(shards, cores), keys > 1)


def table_of(title: str, rows: Iterable[tuple[Cell, Iterable[str]]]) -> Table:
    """Return a table of cells, each with texts by quantity."""
    table = Table(*COLUMNS, *QUANTITIES, title=title, title_justify="left")
    for cell, texts in rows:
        table.add_row(cell.host, *(f"{getattr(cell, name):,}" for name in COLUMNS[1:]), *texts)
    return table


def main(
    waiting: Annotated[str, typer.Option(help="How many operations wait, of several loads.")] = LOADS,
    rows: Annotated[float, typer.Option(help="Rows a second, three events for four operations.")] = 0,
    interval: Annotated[float, typer.Option(help="Seconds from one micro-batch to the next.")] = 0,
    keys: Annotated[int, typer.Option(help="Keys of an operation.")] = 1,
    shards: Annotated[int, typer.Option(help="0: by the rule of docs/choosing.md.")] = 0,
    cores: Annotated[int, typer.Option(help="0: as few as are busy half of the time.")] = 0,
) -> None:
    """Print the errors of the prediction, and what loads need that were not measured."""
    console, cells = Console(width=170), read_cells()
    found, model, loads = errors(cells), Model(cells), []
    texts = ((cell, (f"{off:+.0%}" for off in wrong.values())) for cell, wrong in found)
    console.print(table_of("Predicted over measured, less 1", texts))
    for host, count in ((host, int(count)) for host in (BLOB, LOG) for count in waiting.split(",")):
        every_s = interval or TRIGGER_S[host]
        by_cores = [load(host, count, rows, every_s, keys, shards, n) for n in ([cores] if cores else CORES)]
        fits = (each for each in by_cores if model.predicted(each)["cpu_s"] <= every_s * each.cores / 2)
        cell = next(fits, by_cores[-1])
        loads.append((cell, (f"{each:,.3g}" for each in model.predicted(cell).values())))
    console.print(table_of("A micro-batch by the model", loads))
    raise typer.Exit(int(any(abs(off) > TOLERATED.get(name, PREDICTED) for _, by in found for name, off in by.items())))


if __name__ == "__main__":
    typer.run(main)
