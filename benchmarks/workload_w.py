"""Workload W: operations, most of them completed by one event each, as two folders of Parquet files.

N operations in B batches; a batch spans one minute of event time. An operation waits up to `LONGEST_DELAY_US`
(uniform); `COMPLETING` of them get one completion event at a uniform point of their delay. One file a batch and
side, in the batch of its event time, so events end three batches after operations do. Watermarks have no delay.

What must come out follows from the arrays alone (`expected`). With both watermarks read from the data, the
slower one counts: after the last operation the clock stands at the last ``created``, in whole milliseconds.

1. Every completing operation is COMPLETED. Its event is read in the batch of its time, in which the clock is
   still before that batch's beginning, so before the deadline.
2. Of the others, those with ``deadline <= clock`` are EXPIRED when the stream ends.
3. The rest are pending, and no row tells of them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FORMAT = 3
"""Part of the cache's name: another number whenever the files of a seed change."""
START_US = 1_735_689_600_000_000
"""Event time of batch 0: 2025-01-01 00:00 UTC, in the past, so that no time counts as being in the future."""
BATCH_US = 60_000_000
LONGEST_DELAY_US = 180_000_000
TAIL_BATCHES = LONGEST_DELAY_US // BATCH_US
"""Batches after the last operation in which its event may still come."""
COMPLETING = 0.75
FIRST_MTIME_S = 1_735_689_600
NOTE_BYTES = 20
"""Of a text that each event has, for contenders whose outcomes carry it; the others do not read it."""
MTIME_STEP_S = 60
"""Spark takes files by modification time; a step that every file system can tell apart."""


@dataclass(frozen=True)
class Draw:
    """The workload as arrays, (N,), in order of ``created``."""

    batches: int
    created_us: Int64s
    deadline_us: Int64s
    completes: Bools
    event_us: Int64s
    """Time of the completion event; meaningless where ``completes`` is False."""

    def __len__(self) -> int:
        return len(self.created_us)

    @property
    def operation_batch(self) -> Int64s:
        """Batch of each operation, (N,)."""
        return (self.created_us - START_US) // BATCH_US

    @property
    def event_batch(self) -> Int64s:
        """Batch of each operation's event, (N,)."""
        return (self.event_us - START_US) // BATCH_US


@dataclass(frozen=True)
class Expected:
    """Operations by what has become of them when the stream ends."""

    completed: int
    expired: int
    pending: int


@dataclass(frozen=True)
class Workload:
    """A workload on disk, with what is known of it without asking Spark."""

    folder: Path
    drawn: Draw
    operation_rows: tuple[int, ...]
    """Rows of each batch's file, B and those of the tail; 0 where there is no file."""
    event_rows: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Operations and events."""
        return sum(self.operation_rows) + sum(self.event_rows)


def draw(operations: int, batches: int, seed: int) -> Draw:
    """Draw a workload; the same arguments give the same one."""
    if not 1 <= batches <= operations:
        raise ValueError(f"batches={batches} must lie between 1 and operations={operations}: no batch without any")
    rng = np.random.default_rng(seed)
    batch = np.arange(operations, dtype=np.int64) * batches // operations
    # Sorting keeps every operation in its batch, because batches do not overlap.
    created_us = np.sort(START_US + batch * BATCH_US + rng.integers(0, BATCH_US, operations))
    delay_us = rng.integers(1, LONGEST_DELAY_US, operations, endpoint=True)
    completes = rng.random(operations) < COMPLETING
    event_us = created_us + rng.integers(0, delay_us, endpoint=True)
    return Draw(batches, created_us, created_us + delay_us, completes, event_us)


def clock_at_end_us(drawn: Draw) -> int:
    """The watermark when the stream ends: the slower side's latest time, rounded down to a millisecond."""
    events_us = drawn.event_us[drawn.completes]
    latest_us = min(int(drawn.created_us.max()), int(events_us.max()) if len(events_us) else 0)
    return latest_us // 1000 * 1000


def expected(drawn: Draw, grace_ms: int = 0) -> Expected:
    """What must have become of the operations when the stream ends, if one expires ``grace_ms`` after its deadline."""
    completed = int(np.count_nonzero(drawn.completes))
    due_until_us = clock_at_end_us(drawn) - grace_ms * 1000
    expired = int(np.count_nonzero(~drawn.completes & (drawn.deadline_us <= due_until_us)))
    return Expected(completed, expired, len(drawn) - completed - expired)


def rows_by_batch(drawn: Draw, tail_batches: int = TAIL_BATCHES) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(operations, events) of every batch, the tail's included."""
    total = drawn.batches + tail_batches
    operations = np.bincount(drawn.operation_batch, minlength=total)
    events = np.bincount(drawn.event_batch[drawn.completes], minlength=total)
    return tuple(map(int, operations)), tuple(map(int, events))


def prepared(operations: int, batches: int, seed: int, root: Path) -> Workload:
    """The workload below ``root``, written now unless it lies there from an earlier run."""
    return stored(draw(operations, batches, seed), root / f"w{FORMAT}-{operations}-{batches}-{seed}", TAIL_BATCHES)


def stored(drawn: Draw, folder: Path, tail_batches: int) -> Workload:
    """The drawn workload in that folder, written now unless it lies there from an earlier run."""
    if not folder.exists():
        # Under another name until complete, so that an interrupted run leaves nothing that looks whole.
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        write(drawn, partial, tail_batches)
        try:
            partial.rename(folder)
        except OSError:
            shutil.rmtree(partial)  # Another run was quicker.
    return Workload(folder, drawn, *rows_by_batch(drawn, tail_batches))


def write(drawn: Draw, folder: Path, tail_batches: int) -> None:
    """Write ``operations/`` and ``events/``: one file a batch, modification times in order of batches."""
    numbers = np.arange(len(drawn))
    for batch in range(drawn.batches):
        write_file(folder / "operations", batch, _operations(drawn, numbers[drawn.operation_batch == batch]))
    with_event = numbers[drawn.completes]
    with_event = with_event[np.argsort(drawn.event_us[with_event], kind="stable")]
    event_batch = drawn.event_batch[with_event]
    for batch in range(drawn.batches + tail_batches):
        write_file(folder / "events", batch, _events(drawn, with_event[event_batch == batch]))


def _operations(drawn: Draw, numbers: Int64s) -> pa.Table:
    names = _names(numbers)
    return pa.table(
        {
            "op_id": names,
            "key": names,
            "created": timestamps(drawn.created_us[numbers]),
            "deadline": timestamps(drawn.deadline_us[numbers]),
            "amount": pa.array((numbers * 7919 % 100_000) / 100),
        }
    )


def _events(drawn: Draw, numbers: Int64s) -> pa.Table:
    return pa.table({"key": _names(numbers), "time": timestamps(drawn.event_us[numbers]), "note": notes(len(numbers))})


def notes(n: int) -> pa.Array:
    """Random letters, which nothing compresses by much."""
    letters = np.random.default_rng(n).integers(ord("a"), ord("z") + 1, n * NOTE_BYTES, np.uint8)
    ends = np.arange(n + 1, dtype=np.int32) * NOTE_BYTES
    return pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(letters))


def _names(numbers: Int64s) -> pa.Array:
    return pc.binary_join_element_wise("order", pa.array(numbers).cast(pa.string()), "-")


def timestamps(times_us: Int64s) -> pa.Array:
    """A column of microseconds as times, (n,)."""
    return pa.array(times_us).cast(pa.timestamp("us", "UTC"))


def write_file(folder: Path, batch: int, table: pa.Table) -> None:
    """A batch's file of one side; files are as old as their batches, so that Spark reads them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"batch-{batch:05d}.parquet"
    pq.write_table(table, path)
    mtime_s = FIRST_MTIME_S + batch * MTIME_STEP_S
    os.utime(path, (mtime_s, mtime_s))
