"""The common part of both hosts: the step that a call of a shard makes, and the row that it returns."""

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
"""A call's row: its packed outcomes, its counters, and those of `REJECTION_COUNTERS`, null if all of them are 0."""

BATCH_DDL = f"{RESULT_DDL}, shard bigint"


@dataclass(frozen=True)
class Broadcast:
    """The shards that are all sent every event, and the most bytes of events in a micro-batch."""

    shards: int
    max_bytes: int

    def check(self, size: int) -> None:
        if size > self.max_bytes:
            raise LimitError(
                f"max_broadcast_bytes is {self.max_bytes:,}, but the events of one micro-batch have {size:,} or more, "
                f"which go to each of {self.shards:,} shards because operations have several keys. Nothing was lost: "
                "set scope= to a column that both inputs have, use one shard (spark-purgatory move), or make "
                "micro-batches smaller (maxFilesPerTrigger, maxBytesPerTrigger, maxOffsetsPerTrigger)"
            )


def clock_behind(watermark_ms: int, delay_ms: int) -> int:
    """Return the engine's clock, which is behind Spark's watermark; 0 if there is none yet."""
    return max(watermark_ms - delay_ms, 0)


def timer_of(due_ms: int | None, watermark_ms: int, clock_delay_ms: int) -> int | None:
    """Return the watermark at which Spark calls a shard that is next due at ``due_ms``; None if nothing is due.

    It is after 1970, and beyond the present watermark, because Spark deletes the timer that has just fired.
    """
    return None if due_ms is None else max(due_ms + clock_delay_ms, watermark_ms + 1, 1)


def step_of(rows: Iterable[tuple[int, bytes]], watermark_ms: int, broadcast: Broadcast | None) -> Step:
    sides: dict[int, list[bytes]] = {OPERATIONS: [], EVENTS: []}
    size = 0
    for side, blob in rows:
        sides[int(side)].append(blob)
        if broadcast is not None and side == EVENTS:
            size += len(blob)
            broadcast.check(size)
    return Step(watermark_ms, sides[OPERATIONS], sides[EVENTS])


def counts_of(tally: Tally) -> dict[str, int]:
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
    """Return the counters of a call; ``before``: `counts_of` before it."""
    return {name: now - before[name] for name, now in counts_of(tally).items()}


def packed(outcomes: Sequence[pa.RecordBatch]) -> bytes | None:
    # ORPHANs lack the operation's columns, which become null, and which come last if the first batch has ORPHANs.
    tables = [pa.Table.from_batches([batch]) for batch in outcomes]
    return to_blob(pa.concat_tables(tables, promote_options="default")).to_pybytes() if tables else None


def result_of(blob: bytes | None, counted: Mapping[str, int], state_bytes: int) -> dict[str, Any]:
    """Return a call's row, by column of `RESULT_DDL`; ``counted``: the counters that the call `added`."""
    numbers = {name: counted[name] for name in COUNTERS}
    rejections = [counted[name] for name in REJECTION_COUNTERS]
    row = {"blob": blob, **numbers, "state_bytes_written": state_bytes}
    return {**row, "rejections": rejections if any(rejections) else None}


def nothing(state_bytes: int) -> dict[str, Any]:
    """Return the row of a call without outcomes and counts."""
    return result_of(None, counts_of(Tally()), state_bytes)


def frame_of(row: Mapping[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({name: [value] for name, value in row.items()})


def rows_in(frames: Iterable[pd.DataFrame]) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of the exchange, (side, blob), from an operator that gives pandas frames."""
    for frame in frames:
        yield from zip(frame["side"], frame["blob"], strict=True)
