"""The group functions: a shard's engine, hosted by ``applyInPandasWithState`` or, in a batch query, ``applyInPandas``.

A call restores the engine from the state's blob, takes what arrived, saves it, and sets the shard's time-out to its
next deadline. The boundary: Spark fires at ``timeout < watermark``, the engine expires at ``deadline <= watermark``;
so a shard whose next deadline is d asks for d - 1. A call with data replaces the time-out, so every call expires what
is due first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from spark_purgatory.core.arrays.times import END_OF_TIME_MS
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.errors import LimitError
from spark_purgatory.schema import COUNTERS
from spark_purgatory.spark.operator.exchange import EVENTS, OPERATIONS, from_blob, to_blob
from spark_purgatory.spark.operator.worker import prepare_worker

RESULT_DDL = "blob binary, " + ", ".join(f"{name} bigint" for name in COUNTERS)
STATE_DDL = "blob binary"


@dataclass(frozen=True)
class Broadcast:
    """Every shard is sent every event: to how many, and how much of it a micro-batch may bring."""

    shards: int
    max_bytes: int

    def check(self, frame: pd.DataFrame, before: int = 0) -> int:
        """Bytes of events so far. Raises LimitError beyond ``max_bytes``."""
        size = before + int(frame.loc[frame["side"] == EVENTS, "blob"].map(len).sum())
        if size > self.max_bytes:
            raise LimitError(
                f"max_broadcast_bytes is {self.max_bytes:,} and the events of one micro-batch have {size:,} or more, "
                f"sent to each of {self.shards:,} shards because operations have several keys: name a column that both "
                "inputs have in partition_by=, use fewer shards (either is a new checkpoint), or make micro-batches "
                "smaller (maxFilesPerTrigger, maxBytesPerTrigger, maxOffsetsPerTrigger); nothing was lost"
            )
        return size


def stream_function(
    spec: EngineSpec, shards: int | None, broadcast: Broadcast | None = None
) -> Callable[[Any, Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    """The function for ``applyInPandasWithState``."""

    def on_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        prepare_worker()
        operations, events = _tables(frames, broadcast)
        if state.exists:
            engine = restore(spec, state.get[0], shards or 0)
        else:
            engine = EventTimePurgatory(spec)
        before = counts_of(engine.outcomes.tally)
        outcomes = _step(engine, operations, events, state.getCurrentWatermarkMs())
        blob = save(engine, shards or 0)
        state.update((blob,))
        due_ms = engine.next_due_ms()
        if due_ms is not None:
            # Spark takes no time-out before 1 ms after 1970.
            state.setTimeoutTimestamp(max(due_ms - 1, state.getCurrentWatermarkMs(), 1))
        yield _result(outcomes, engine, before, len(blob))

    return on_group


def batch_function(
    spec: EngineSpec, as_of_ms: int | None, broadcast: Broadcast | None = None
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """The function for ``applyInPandas``: everything arrives at once, then the watermark is set."""

    def on_group(frame: pd.DataFrame) -> pd.DataFrame:
        prepare_worker()
        operations, events = _tables(iter([frame]), broadcast)
        engine = EventTimePurgatory(spec)
        before = counts_of(engine.outcomes.tally)
        outcomes = _step(engine, operations, events, 0)
        outcomes += engine.step(None, None, END_OF_TIME_MS if as_of_ms is None else as_of_ms)
        return _result(outcomes, engine, before, 0)

    return on_group


def _tables(frames: Iterator[pd.DataFrame], broadcast: Broadcast | None) -> tuple[pa.Table | None, pa.Table | None]:
    inputs: dict[int, list[pa.Table]] = {OPERATIONS: [], EVENTS: []}
    size = 0
    for frame in frames:
        if broadcast is not None:
            size = broadcast.check(frame, size)
        for side, blob in zip(frame["side"], frame["blob"], strict=True):
            inputs[int(side)].append(from_blob(blob))
    operations, events = (pa.concat_tables(tables) if tables else None for tables in inputs.values())
    return operations, events


def _step(
    engine: EventTimePurgatory, operations: pa.Table | None, events: pa.Table | None, watermark_ms: int
) -> list[pa.RecordBatch]:
    return engine.step(
        None if operations is None else read_operations(operations, engine.spec),
        None if events is None else read_events(events, engine.spec.criterion),
        watermark_ms,
    )


def counts_of(tally: Tally) -> dict[str, int]:
    """What a shard has counted since its beginning, by counter."""
    events = (tally.events_received, tally.events_rejected, tally.events_late)
    reasons = (*tally.rejections[1:], *tally.event_rejections[1:])
    totals = (tally.received, *tally.by_status[:6], *events, tally.pending, 0, *reasons)
    return dict(zip(COUNTERS, totals, strict=True))


def _result(
    outcomes: list[pa.RecordBatch], engine: EventTimePurgatory, before: dict[str, int], state_bytes: int
) -> pd.DataFrame:
    # ORPHANs come last and lack the operation's columns, which become null.
    tables = [pa.Table.from_batches([batch]) for batch in outcomes]
    blob = to_blob(pa.concat_tables(tables, promote_options="default")).to_pybytes() if tables else None
    added = {name: [now - before[name]] for name, now in counts_of(engine.outcomes.tally).items()}
    return pd.DataFrame({"blob": [blob], **added, "state_bytes_written": [state_bytes]})
