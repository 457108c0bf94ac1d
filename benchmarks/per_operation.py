"""Workload W by the book: one group an operation, its row in state, its deadline one of Spark's timers.

What is decided for a group is the same in both (`decide`); they differ in the API that keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.inputs import as_rows
from spark_purgatory.spark.host.exchange import OPERATIONS

STATE_DDL = "op_id string, created_us bigint, deadline_us bigint, amount double, event_us bigint"
OUTCOME_DDL = (
    "op_id string, key string, created timestamp, deadline timestamp, amount double, status string, "
    "resolved_at timestamp, wait_ms bigint"
)


class Held(NamedTuple):
    """What is known of an operation: its row, its earliest event, or both."""

    op_id: str | None = None
    created_us: int | None = None
    deadline_us: int | None = None
    amount: float | None = None
    event_us: int | None = None

    def joined(self, frames: Iterable[pd.DataFrame]) -> Held:
        """With the rows that arrived."""
        held = self
        row: Any
        for frame in frames:
            for row in frame.itertuples():
                if row.side == OPERATIONS:
                    held = Held(row.op_id, int(row.time_us), int(row.deadline_us), float(row.amount), held.event_us)
                else:
                    earliest = min(int(row.time_us), int(row.time_us) if held.event_us is None else held.event_us)
                    held = held._replace(event_us=earliest)
        return held

    @property
    def is_complete(self) -> bool:
        """Whether its event came within its time."""
        if self.created_us is None or self.deadline_us is None or self.event_us is None:
            return False
        return self.created_us <= self.event_us <= self.deadline_us

    @property
    def last_ms(self) -> int:
        """The last watermark at which it may still wait.

        A deadline is due at deadline <= watermark. An event that came first is held until no operation of its time
        can come any more.
        """
        if self.deadline_us is not None:
            return -(-self.deadline_us // 1000) - 1
        assert self.event_us is not None, "a group without rows"
        return self.event_us // 1000

    def outcome(self, key: str) -> Iterator[pd.DataFrame]:
        """Its outcome; none of an event whose operation never came."""
        if self.created_us is None or self.deadline_us is None:
            return
        resolved_us = self.event_us if self.is_complete and self.event_us is not None else self.deadline_us
        outcome = {
            "op_id": self.op_id,
            "key": key,
            "created": pd.Timestamp(self.created_us, unit="us"),
            "deadline": pd.Timestamp(self.deadline_us, unit="us"),
            "amount": self.amount,
            "status": "COMPLETED" if self.is_complete else "EXPIRED",
            "resolved_at": pd.Timestamp(resolved_us, unit="us"),
            "wait_ms": (resolved_us - self.created_us) // 1000,
        }
        yield pd.DataFrame([outcome])


def per_operation(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """State and time-out of ``applyInPandasWithState``."""
    return (
        _rows(spark, folder)
        .groupBy("key")
        .applyInPandasWithState(_on_group, OUTCOME_DDL, STATE_DDL, "append", GroupStateTimeout.EventTimeTimeout)
    )


def with_timers(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """Value state and timers of ``transformWithStateInPandas``; RocksDB is the one store it runs on."""
    return (
        _rows(spark, folder)
        .groupBy("key")
        .transformWithStateInPandas(WaitingOperation(), OUTCOME_DDL, "append", "eventTime")
    )


def _rows(spark: SparkSession, folder: Path) -> DataFrame:
    operations, events = as_rows(spark, folder)
    times = (F.unix_micros(name).alias(f"{name}_us") for name in ("time", "deadline"))
    return operations.unionByName(events).select("*", *times)


def _on_group(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    held = Held(*(state.get if state.exists else ())).joined(frames)
    # Spark's time-outs fire at time-out < watermark.
    if not held.is_complete and not state.hasTimedOut and held.last_ms >= state.getCurrentWatermarkMs():
        state.update(tuple(held))
        state.setTimeoutTimestamp(held.last_ms)
        return
    if state.exists:
        state.remove()
    yield from held.outcome(key[0])


class WaitingOperation(StatefulProcessor):
    """One operation and its timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """The state, by name."""
        self._handle = handle
        self._state = handle.getValueState("held", STATE_DDL)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Its row, its event, or both."""
        before = self._state.get()
        held = Held(*(before or ())).joined(rows)
        if not held.is_complete and held.last_ms >= timerValues.getCurrentWatermarkInMs():
            self._state.update(tuple(held))
            if before is not None:
                self._handle.deleteTimer(Held(*before).last_ms)
            self._handle.registerTimer(held.last_ms)
            return
        if before is not None:
            self._handle.deleteTimer(Held(*before).last_ms)
            self._state.clear()
        yield from held.outcome(key[0])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Its time is over."""
        held = Held(*(self._state.get() or ()))
        self._state.clear()
        yield from held.outcome(key[0])

    def close(self) -> None:
        """Nothing to close."""
