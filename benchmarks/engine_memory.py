"""`python -m benchmarks.engine_memory`: what a live engine takes in memory for each operation that waits. No Spark.

An engine is built by steps of workload W, packed as the exchange packs them, and taken as the log host takes them: a
minute of event time and 10,000 operations a step; three quarters get one event, uniform within their delay. Delays are
as long as it takes for N operations to wait once as many end as arrive. Then it runs on, so that columns have grown,
rows have ended and been compacted away, and ids have been forgotten. Shapes:

steady    every operation arrived in a step of 10,000
loaded    N operations arrived in the first step, as at a query's start; then 24 steps of 10,000

Told are bytes a waiting operation: the sum of all buffers, worst and median of the last steps, what the engine says,
and how far the process's memory grew (the most after one of the last steps, as it is). With ``--trim 0.25`` a process
gives free memory back (``malloc_trim``) after each step at which it has grown beyond that part more than the engine
holds: a step leaves holes where columns lay, and glibc keeps them. Beside it the CPU milliseconds of a step, that
included, and the bytes of a saved state. A second table has the buffers by attribute. Every point is a process of its
own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.workload_w import BATCH_US, COMPLETING, START_US, timestamps
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.value_column import mix64
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.spark.host.exchange import to_blob
from spark_purgatory.spark.host.worker import prepare_worker

NO_LIMIT = 1 << 40
MEAN_WAIT = (1 - COMPLETING) / 2 + COMPLETING / 4
"""Of the longest delay: the others wait for half of it, those that complete for a quarter."""
LOADED_STEPS = 24
PAYLOAD = pa.schema(
    [
        pa.field("op_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("created", pa.timestamp("us", "UTC")),
        pa.field("deadline", pa.timestamp("us", "UTC")),
        pa.field("amount", pa.float64()),
    ]
)
SPEC = EngineSpec(
    criteria.any_key(),
    identity_width=2,
    roles=(("id", 0), ("keys", 1), ("created_us", 2), ("deadline_us", 3)),
    control_events=False,
    columns=PAYLOAD,
    max_pending=NO_LIMIT,
    max_state_bytes=NO_LIMIT,
)


@dataclass(frozen=True)
class Point:
    """What is measured at once."""

    shape: str
    waiting: int
    arrivals: int = 10_000
    trim: float | None = None


@dataclass(frozen=True)
class Measured:
    """Bytes are a waiting operation's."""

    waiting: int
    most: float
    median: float
    said: float
    """`EventTimePurgatory.memory_bytes` at the end."""
    grown: float
    state: float
    step_ms: float
    mean_step_ms: float
    worst_step_ms: float


class Source:
    """Steps of the workload; operations are numbered as they arrive."""

    def __init__(self, longest_us: int) -> None:
        self.longest_us = longest_us
        self.rng = np.random.default_rng(42)
        self.events: dict[int, list[tuple[Int64s, Int64s]]] = {}
        """(numbers, times) by the step in which they arrive."""
        self.registered = 0
        self.minute = 0

    @property
    def bytes_ahead(self) -> int:
        """What the events of later steps take in memory, which is not the engine's."""
        return sum(numbers.nbytes + times.nbytes for due in self.events.values() for numbers, times in due)

    def step(self, operations: int) -> Step:
        """The next minute."""
        numbers = np.arange(self.registered, self.registered + operations)
        self.registered += operations
        start_us = START_US + self.minute * BATCH_US
        created_us = np.sort(start_us + self.rng.integers(0, BATCH_US, operations))
        delay_us = self.rng.integers(1, self.longest_us, operations, endpoint=True)
        has_event = np.flatnonzero(self.rng.random(operations) < COMPLETING)
        event_us = (created_us + self.rng.integers(0, delay_us, endpoint=True))[has_event]
        minute = (event_us - START_US) // BATCH_US
        order = np.argsort(minute, kind="stable")
        minutes, starts = np.unique(minute[order], return_index=True)
        for at, part in zip(minutes.tolist(), np.split(order, starts[1:]), strict=True):
            self.events.setdefault(at, []).append((numbers[has_event[part]], event_us[part]))
        due = self.events.pop(self.minute, [])
        self.minute += 1
        blobs = [to_blob(packed_operations(numbers, created_us, created_us + delay_us)).to_pybytes()]
        events = [to_blob(packed_events(*map(np.concatenate, zip(*due, strict=True)))).to_pybytes()] if due else []
        return Step(start_us // 1000, blobs, events)


def packed_operations(numbers: Int64s, created_us: Int64s, deadline_us: Int64s) -> pa.Table:
    """Operations as the exchange packs them for `SPEC`."""
    names, hashes = _names(numbers), mix64(numbers)
    return pa.table(
        {
            "id_hash": hashes,
            "key_hashes": hashes,
            "ahead": np.zeros(len(numbers), bool),
            "p0": names,
            "p1": names,
            "p2": timestamps(created_us),
            "p3": timestamps(deadline_us),
            "p4": (numbers * 7919 % 100_000) / 100,
        }
    )


def packed_events(numbers: Int64s, time_us: Int64s) -> pa.Table:
    """Events as the exchange packs them for `SPEC`."""
    return pa.table(
        {
            "key": _names(numbers),
            "key_hash": mix64(numbers),
            "time_us": time_us,
            "ahead": np.zeros(len(numbers), bool),
        }
    )


def _names(numbers: Int64s) -> pa.Array:
    return pc.binary_join_element_wise("order", pa.array(numbers).cast(pa.string()), "-")


def measure(point: Point) -> Measured:
    """Measure a point in this process."""
    prepare_worker()
    take_step(EventTimePurgatory(SPEC), Source(BATCH_US).step(point.arrivals), is_kept=True)
    gc.collect()
    trim = ctypes.CDLL(None).malloc_trim
    trim(0)
    before = resident_bytes()
    steps = round(point.waiting / point.arrivals / MEAN_WAIT)
    source, engine = Source(steps * BATCH_US), EventTimePurgatory(SPEC)
    sizes = [point.arrivals] * (2 * steps)
    if point.shape == "loaded":
        sizes = [point.waiting, *[point.arrivals] * LOADED_STEPS]
    counted = len(sizes) // 2 if point.shape == "steady" else 4
    times: list[float] = []
    seen: list[float] = []
    grown = 0.0
    for at, size in enumerate(sizes):
        step = source.step(size)
        started = time.process_time()
        outcomes = take_step(engine, step, is_kept=True)
        del outcomes, step
        spent = time.process_time() - started
        grown_by = resident_bytes() - before - source.bytes_ahead
        if point.trim is not None and grown_by > (1 + point.trim) * engine.memory_bytes:
            started = time.process_time()
            trim(0)
            spent += time.process_time() - started
        times.append(spent)
        if at >= counted:
            seen.append(engine.memory_bytes / engine.pending)
            grown = max(grown, (resident_bytes() - before - source.bytes_ahead) / engine.pending)
    pending, last = engine.pending, times[counted:]
    return Measured(
        waiting=pending,
        most=max(seen),
        median=median(seen),
        said=engine.memory_bytes / pending,
        grown=grown,
        state=len(save(engine, 1)) / pending,
        step_ms=median(last) * 1000,
        mean_step_ms=fmean(last) * 1000,
        worst_step_ms=max(last) * 1000,
    )


def resident_bytes() -> int:
    """The memory that this process has."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def measured_apart(points: list[Point]) -> Iterator[tuple[Point, Measured]]:
    """Each point in a process of its own."""
    for point in points:
        command = [sys.executable, "-m", "benchmarks.engine_memory", "--point", json.dumps(asdict(point))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield point, Measured(**json.loads(said))


def main(
    waiting: Annotated[list[int] | None, typer.Option(help="Operations that wait; may be repeated.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="steady or loaded; may be repeated.")] = None,
    arrivals: Annotated[int, typer.Option(min=100, help="Operations a step.")] = 10_000,
    trim: Annotated[float | None, typer.Option(help="Give free memory back beyond this part of what is held.")] = None,
    point: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure the memory of a live engine."""
    if point:
        print(json.dumps(asdict(measure(Point(**json.loads(point))))))
        return
    points = [
        Point(s, n, arrivals, trim) for s in shape or ("steady", "loaded") for n in waiting or (250_000, 1_000_000)
    ]
    measured = list(measured_apart(points))
    console = Console(highlight=False, width=110)
    table = Table(title="Bytes a waiting operation; CPU milliseconds a step", title_justify="left")
    names = "shape,waiting,most,median,said,process,state,step ms,mean ms,worst ms"
    for name in names.split(","):
        table.add_column(name, justify="left" if name == "shape" else "right")
    for at, found in measured:
        bytes_of = (found.most, found.median, found.said, found.grown, found.state)
        ms = (found.step_ms, found.mean_step_ms, found.worst_step_ms)
        table.add_row(
            at.shape, f"{found.waiting:,}", *(f"{each:,.0f}" for each in bytes_of), *(f"{x:,.1f}" for x in ms)
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
