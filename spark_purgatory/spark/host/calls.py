"""What the hosts have in common: what a call of a shard is given, and the row that it answers with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.codes import Status
from spark_purgatory.core.state.step_log import Step
from spark_purgatory.errors import LimitError
from spark_purgatory.schema import COUNTERS, REJECTION_COUNTERS
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, to_blob

RESULT_DDL = "blob binary, " + ", ".join(f"{name} bigint" for name in COUNTERS) + ", rejections array<bigint>"
"""A call's row: its outcomes, packed, and what it counted; by `REJECTION_COUNTERS`, null where all of them are 0."""


@dataclass(frozen=True)
class Broadcast:
    """Every shard is sent every event: to how many, and how much of it a micro-batch may bring."""

    shards: int
    max_bytes: int

    def check(self, size: int) -> None:
        """Raise LimitError where so many bytes of packed events, those that came so far, are too many."""
        if size > self.max_bytes:
            raise LimitError(
                f"max_broadcast_bytes is {self.max_bytes:,} and the events of one micro-batch have {size:,} or more, "
                f"sent to each of {self.shards:,} shards because operations have several keys: name a column that both "
                "inputs have in scope=, use fewer shards (spark-purgatory move), or make micro-batches "
                "smaller (maxFilesPerTrigger, maxBytesPerTrigger, maxOffsetsPerTrigger); nothing was lost"
            )


def clock_behind(watermark_ms: int, delay_ms: int) -> int:
    """The engine's clock, so far behind Spark's watermark; 0, none yet, where that is none or so early."""
    return max(watermark_ms - delay_ms, 0)


def timer_of(due_ms: int | None, watermark_ms: int, clock_delay_ms: int) -> int | None:
    """The watermark at which Spark calls a shard whose engine is next due at ``due_ms``; None: nothing is due.

    It lies beyond the present watermark, since Spark deletes the timer that has just fired, and after 1970.
    """
    return None if due_ms is None else max(due_ms + clock_delay_ms, watermark_ms + 1, 1)


def step_of(rows: Iterable[tuple[int, bytes]], watermark_ms: int, broadcast: Broadcast | None) -> Step:
    """The step that rows of the exchange, (side, blob), are."""
    sides: dict[int, list[bytes]] = {OPERATIONS: [], EVENTS: []}
    size = 0
    for side, blob in rows:
        sides[int(side)].append(blob)
        if broadcast is not None and side == EVENTS:
            size += len(blob)
            broadcast.check(size)
    return Step(watermark_ms, sides[OPERATIONS], sides[EVENTS])


def counts_of(tally: Tally) -> dict[str, int]:
    """What a shard has counted since its beginning, by counter."""
    reasons = (*tally.rejections[1:], *tally.event_rejections[1:])
    return {
        "received": tally.received,
        **{status.name.lower(): tally.by_status[status] for status in Status if status != Status.ORPHAN},
        "events_received": tally.events_received,
        "events_rejected": tally.events_rejected,
        "events_late": tally.events_late,
        "operations_late": tally.operations_late,
        "pending_change": tally.pending,
        "state_bytes_written": 0,
        **dict(zip(REJECTION_COUNTERS, reasons, strict=True)),
    }


def added(tally: Tally, before: Mapping[str, int]) -> dict[str, int]:
    """What a call has counted; ``before``: `counts_of` before it."""
    return {name: now - before[name] for name, now in counts_of(tally).items()}


def packed(outcomes: Sequence[pa.RecordBatch]) -> bytes | None:
    """Outcomes as one blob, None of none."""
    # ORPHANs lack the operation's columns, which become null; these come last where the first batch is of ORPHANs.
    tables = [pa.Table.from_batches([batch]) for batch in outcomes]
    return to_blob(pa.concat_tables(tables, promote_options="default")).to_pybytes() if tables else None


def result_of(blob: bytes | None, counted: Mapping[str, int], state_bytes: int) -> dict[str, Any]:
    """A call's row, by column of `RESULT_DDL`; ``counted``: what the call `added`."""
    numbers = {name: counted[name] for name in COUNTERS}
    rejections = [counted[name] for name in REJECTION_COUNTERS]
    row = {"blob": blob, **numbers, "state_bytes_written": state_bytes}
    return {**row, "rejections": rejections if any(rejections) else None}


def nothing(state_bytes: int) -> dict[str, Any]:
    """The row of a call that has no outcome and counted nothing."""
    return result_of(None, counts_of(Tally()), state_bytes)


def frame_of(row: Mapping[str, Any]) -> pd.DataFrame:
    """A call's row, for an operator that takes pandas frames."""
    return pd.DataFrame({name: [value] for name, value in row.items()})


def rows_in(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, bytes]]:
    """The rows of the exchange, (side, blob), from an operator that gives pandas frames."""
    for frame in frames:
        yield from zip(frame["side"], frame["blob"], strict=True)
