"""`python -m benchmarks.growth`: what a step of the event-time engine costs as what waits grows. No Spark.

A step is 50,000 operations and 50,000 events; each event completes one operation drawn from all that wait, so that
as many wait after it. Told apart are the time of a step in an engine that runs on, of the first step after the state
was restored (columns are copied when they are first written), of restoring and of saving it, and its bytes; every
point is a process of its own. Another one does what a Python worker does for a micro-batch, restore, step, save, and
tells how much memory that took beyond what the process had before. Hashes are given, as Spark gives them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.table import Table

from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.value_column import mix64
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import EventArrivals, OperationArrivals, read_events, read_operations
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.spark.host.exchange import from_blob, to_blob
from spark_purgatory.spark.host.worker import prepare_worker

ROWS = 100_000
STEPS = 5
LOADED_AT_ONCE = 500_000
START_MS = 1_700_000_000_000
WAIT_MS = 3_600_000
NO_LIMIT = 1 << 40
STATE, OPERATIONS, EVENTS = "state", "operations.arrow", "events.arrow"
SPEC = EngineSpec(
    Criterion("any_key", 1.0),
    identity_width=2,
    roles=(("id", 0), ("keys", 1)),
    control_events=False,
    max_pending=NO_LIMIT,
    max_state_bytes=NO_LIMIT,
)


@dataclass(frozen=True)
class Point:
    """What is measured at once."""

    curve: str
    pending: int = 100_000
    key_bytes: int = 12
    payload_bytes: int = 0
    hot: bool = False
    """All operations wait on one key, and one event completes them all."""


@dataclass(frozen=True)
class Measured:
    """Medians of a point."""

    step_ms: float
    restored_step_ms: float
    restore_ms: float
    save_ms: float
    state_bytes: int
    worker_bytes: int | None
    """Most memory that a process with nothing else to do took to restore, step and save."""


POINTS = (
    *(Point("pending", pending) for pending in (10_000, 100_000, 1_000_000, 10_000_000)),
    *(Point("key bytes", key_bytes=size) for size in (8, 40, 200)),
    *(Point("payload bytes", payload_bytes=size) for size in (0, 100, 1000)),
    *(Point("a million end", 1_000_000, hot=hot) for hot in (False, True)),
)


class Driver:
    """An engine, and the numbers of the operations that wait in it."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.rng = np.random.default_rng(42)
        self.engine = EventTimePurgatory(SPEC)
        self.waiting: Int64s = np.empty(0, np.int64)
        self.registered = 0
        self.now_ms = START_MS

    def load(self) -> None:
        """Register all that shall wait."""
        while self.registered < self.point.pending:
            self.engine.step(
                self.operations(min(LOADED_AT_ONCE, self.point.pending - self.registered)), None, self.now_ms
            )

    def step(self) -> float:
        """One step; returns its seconds."""
        self.now_ms += 1000
        operations = self.operations(ROWS // 2)
        drawn = self.rng.permutation(len(self.waiting))[: ROWS // 2]
        events = self.events(self.waiting[drawn])
        self.waiting = np.delete(self.waiting, drawn)
        return self._timed(lambda: self._step(operations, events, ROWS // 2))

    def finish(self) -> float:
        """Complete all that wait; returns the seconds."""
        events = self.events(self.waiting[:1] if self.point.hot else self.waiting)
        return self._timed(lambda: self._step(None, events, self.point.pending))

    def save(self) -> tuple[float, float, int]:
        """Save and restore; returns the seconds of each, and the bytes."""
        blobs: list[bytes] = []
        save_s = self._timed(lambda: blobs.append(save(self.engine, 1)))
        # A worker has one engine at a time, and the memory of the last one to put it in.
        self.engine = EventTimePurgatory(SPEC)

        def restored() -> None:
            self.engine = restore(SPEC, blobs[0], 1)

        return save_s, self._timed(restored), len(blobs[0])

    def worker_bytes(self) -> int:
        """What a Python worker needs for the state as it is and a step more."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / STATE).write_bytes(save(self.engine, 1))
            operations = self._operations(ROWS // 2)
            drawn = self.rng.permutation(len(self.waiting))[: ROWS // 2]
            for file, table in ((OPERATIONS, operations), (EVENTS, self._events(self.waiting[drawn]))):
                (folder / file).write_bytes(to_blob(table))
            command = [sys.executable, "-m", "benchmarks.growth", "--worker", name]
            return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def operations(self, count: int) -> OperationArrivals:
        """The next operations; they wait from now on."""
        return read_operations(self._operations(count), SPEC)

    def events(self, numbers: Int64s) -> EventArrivals:
        """One event for the key of each operation."""
        return read_events(self._events(numbers), SPEC.criterion)

    def _operations(self, count: int) -> pa.Table:
        numbers = np.arange(self.registered, self.registered + count)
        self.registered += count
        self.waiting = np.concatenate((self.waiting, numbers))
        created_us = np.full(count, self.now_ms * 1000 + 1)
        ids, keys = self._texts(numbers), self._texts(self._keys(numbers))
        table = {
            "id_hash": mix64(numbers),
            "key_hashes": mix64(~self._keys(numbers)),
            "created_us": created_us,
            "deadline_us": created_us + self.rng.integers(WAIT_MS // 2, WAIT_MS, count) * 1000,
            "ahead": np.zeros(count, bool),
            "p0": ids,
            "p1": keys,
        }
        if self.point.payload_bytes:
            table["p2"] = self._payload(count)
        return pa.table(table)

    def _events(self, numbers: Int64s) -> pa.Table:
        keys = self._keys(numbers)
        table = {
            "key": self._texts(keys),
            "key_hash": mix64(~keys),
            "time_us": np.full(len(keys), self.now_ms * 1000 + 2),
            "value": pa.nulls(len(keys), pa.float64()),
            "ahead": np.zeros(len(keys), bool),
        }
        return pa.table(table)

    def _step(self, operations: OperationArrivals | None, events: EventArrivals, completed: int) -> None:
        decided = sum(batch.num_rows for batch in self.engine.step(operations, events, self.now_ms))
        if decided != completed:
            raise AssertionError(f"{self.point}: {decided:,} outcomes, {completed:,} expected: no time is reported")

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    def _keys(self, numbers: Int64s) -> Int64s:
        return np.zeros(len(numbers), np.int64) if self.point.hot else numbers

    def _texts(self, numbers: Int64s) -> pa.Array:
        return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), self.point.key_bytes, "0")

    def _payload(self, count: int) -> pa.Array:
        size = self.point.payload_bytes
        letters = self.rng.integers(97, 123, count * size, np.uint8)
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])


def measure(point: Point) -> Measured:
    """Measure a point in this process; CPU seconds, as milliseconds."""
    prepare_worker()
    driver = Driver(point)
    driver.load()
    finishes = point.curve.startswith("a million end")
    steps, restored_steps, saves = [0.0], [0.0], [driver.save()]
    for _ in range(STEPS):
        if not finishes:
            restored_steps.append(driver.step())
            steps.append(driver.step())
        saves.append(driver.save())
    if finishes:
        restored_steps.append(driver.finish())
    save_s, restore_s, state_bytes = (median(column) for column in zip(*saves[1:], strict=True))
    times = (median(times[1:] or times) * 1000 for times in (steps, restored_steps, [0.0, restore_s], [0.0, save_s]))
    step_ms, restored_step_ms, restore_ms, save_ms = times
    return Measured(
        step_ms, restored_step_ms, restore_ms, save_ms, int(state_bytes), None if finishes else driver.worker_bytes()
    )


def work_once(folder: Path) -> int:
    """A worker's micro-batch in this process; returns how far its peak memory rose, in bytes."""
    prepare_worker()
    before = peak_bytes()
    operations, events = (from_blob((folder / file).read_bytes()) for file in (OPERATIONS, EVENTS))
    engine = restore(SPEC, (folder / STATE).read_bytes(), 1)
    decided = engine.step(read_operations(operations, SPEC), read_events(events, SPEC.criterion), engine.watermark_ms)
    save(engine, 1)
    if sum(batch.num_rows for batch in decided) != ROWS // 2:
        raise AssertionError("other outcomes than expected: no memory is reported")
    return peak_bytes() - before


def peak_bytes() -> int:
    """The most memory that this process has had; ``getrusage`` would tell its parent's where that had more."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measured_apart(points: tuple[Point, ...]) -> Iterator[tuple[Point, Measured]]:
    """Each point in a process of its own."""
    for point in points:
        command = [sys.executable, "-m", "benchmarks.growth", "--point", json.dumps(asdict(point))]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        yield point, Measured(**json.loads(said))


def draw_picture(path: Path, results: list[tuple[Point, Measured]]) -> None:
    """A panel a curve: first step, restore and save; above each, bytes of state a waiting operation."""
    from matplotlib.figure import Figure  # Only those who want a picture need it.

    from tools.pictures import save

    curves = list(dict.fromkeys(point.curve for point, _ in results))
    figure = Figure(figsize=(5 * len(curves), 4.5), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        mine = [(point, measured) for point, measured in results if point.curve == curve]
        places = range(len(mine))
        below = [0.0] * len(mine)
        for part, colour in (("restored_step_ms", "#1f6f8b"), ("restore_ms", "#b8c4cc"), ("save_ms", "#dfe5e8")):
            heights = [getattr(measured, part) for _, measured in mine]
            axes.bar(places, heights, bottom=below, color=colour, label=part.removesuffix("_ms").replace("_", " "))
            below = [a + b for a, b in zip(below, heights, strict=True)]
        for place, (point, measured) in zip(places, mine, strict=True):
            axes.text(place, below[place], f"{measured.state_bytes / point.pending:,.0f} B", ha="center", va="bottom")
        axes.set_xticks(places, [label_of(point) for point, _ in mine])
        axes.set_title(curve)
        axes.set_ylabel("CPU ms")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend()
    save(figure, path)


def label_of(point: Point) -> str:
    """The point's place on its curve."""
    sizes = {"pending": point.pending, "key bytes": point.key_bytes, "payload bytes": point.payload_bytes}
    return f"{sizes[point.curve]:,}" if point.curve in sizes else ("one key" if point.hot else "spread")


def main(
    results: Annotated[Path, typer.Option(help="Folder for growth.json and growth.png.")] = Path("bench-results"),
    most_pending: Annotated[int, typer.Option(min=10_000, help="Leave out points with more pending.")] = 10_000_000,
    point: Annotated[str, typer.Option(hidden=True)] = "",
    worker: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the event-time engine as what waits grows."""
    if worker is not None:
        print(work_once(worker))
        return
    if point:
        print(json.dumps(asdict(measure(Point(**json.loads(point))))))
        return
    table = Table(title=f"A step of {ROWS:,} rows: CPU milliseconds, medians", title_justify="left")
    for name in ("curve", "at", "step", "first step", "restore", "save", "state MB", "bytes a row", "worker MB"):
        table.add_column(name, justify="left" if name == "curve" else "right")
    console, measured = Console(highlight=False, width=110), []
    for at, found in measured_apart(tuple(each for each in POINTS if each.pending <= most_pending)):
        measured.append((at, found))
        parts = (found.step_ms, found.restored_step_ms, found.restore_ms, found.save_ms)
        times = (f"{ms:,.0f}" for ms in parts)
        each = f"{found.state_bytes / at.pending:,.0f}"
        sizes = (
            f"{found.state_bytes / 1e6:,.1f}",
            each,
            "" if found.worker_bytes is None else f"{found.worker_bytes / 1e6:,.0f}",
        )
        table.add_row(at.curve, label_of(at), *times, *sizes)
    console.print(table)
    results.mkdir(parents=True, exist_ok=True)
    document = [{"point": asdict(at), "measured": asdict(found)} for at, found in measured]
    (results / "growth.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw_picture(results / "growth.png", measured)


if __name__ == "__main__":
    typer.run(main)
