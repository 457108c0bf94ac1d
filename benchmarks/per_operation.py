"""By the book: one group an operation, its row in state, its deadline one of Spark's timers.

What is decided for a group is the same in all (`Held`); they differ in the API that keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.inputs import as_rows, sides_as_rows
from spark_purgatory.spark.host.exchange import OPERATIONS

STATE_DDL = "op_id string, created_us bigint, deadline_us bigint, amount double, event_us bigint"
OUTCOME_DDL = (
    "op_id string, key string, created timestamp, deadline timestamp, amount double, status string, "
    "resolved_at timestamp, wait_ms bigint"
)
OPERATOR = (OUTCOME_DDL, "append", "EventTime")
"""What both operators with timers are told beside their processor."""


class Held(NamedTuple):
    """What is known of an operation: its row, its earliest event, or both."""

    op_id: str | None = None
    created_us: int | None = None
    deadline_us: int | None = None
    amount: float | None = None
    event_us: int | None = None

    def joined(self, rows: Iterable[Any]) -> Held:
        """With the rows that arrived."""
        held = self
        for row in rows:
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

    @property
    def due_ms(self) -> int:
        """The first watermark at which it waits no more: that at which a timer fires."""
        return self.last_ms + 1

    def outcome(self, key: str) -> Iterator[dict[str, Any]]:
        """Its outcome by column; none of an event whose operation never came."""
        if self.created_us is None or self.deadline_us is None:
            return
        resolved_us = self.event_us if self.is_complete and self.event_us is not None else self.deadline_us
        yield {
            "op_id": self.op_id,
            "key": key,
            "created": _time(self.created_us),
            "deadline": _time(self.deadline_us),
            "amount": self.amount,
            "status": "COMPLETED" if self.is_complete else "EXPIRED",
            "resolved_at": _time(resolved_us),
            "wait_ms": (resolved_us - self.created_us) // 1000,
        }


def per_operation(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """State and time-out of ``applyInPandasWithState``."""
    return (
        _rows(spark, folder)
        .groupBy("key")
        .applyInPandasWithState(_on_group, OUTCOME_DDL, STATE_DDL, "append", GroupStateTimeout.EventTimeTimeout)
    )


def with_timers(spark: SparkSession, folder: Path, shards: int) -> DataFrame:
    """Value state and timers of ``transformWithStateInPandas``; RocksDB is the one store it runs on."""
    return _rows(spark, folder).groupBy("key").transformWithStateInPandas(WaitingFrames(), *OPERATOR)


def groups_of(operations: DataFrame, events: DataFrame) -> GroupedData:
    """Both sides, one group an operation."""
    return _timed(*sides_as_rows(operations, events)).groupBy("key")


def with_timers_by_row(groups: GroupedData) -> DataFrame:
    """Value state and timers of ``transformWithState``, whose rows come and go as rows."""
    return groups.transformWithState(WaitingRows(), *OPERATOR)


def with_timers_in_pandas(groups: GroupedData) -> DataFrame:
    """The same of ``transformWithStateInPandas``."""
    return groups.transformWithStateInPandas(WaitingFrames(), *OPERATOR)


def _rows(spark: SparkSession, folder: Path) -> DataFrame:
    return _timed(*as_rows(spark, folder))


def _timed(operations: DataFrame, events: DataFrame) -> DataFrame:
    times = (F.unix_micros(name).alias(f"{name}_us") for name in ("time", "deadline"))
    return operations.unionByName(events).select("*", *times)


def _time(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


def _frames(outcomes: Iterable[dict[str, Any]]) -> Iterator[pd.DataFrame]:
    return (pd.DataFrame([outcome]) for outcome in outcomes)


def _rows_of(frames: Iterable[pd.DataFrame]) -> Iterator[Any]:
    return chain.from_iterable(frame.itertuples() for frame in frames)


def _on_group(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    held = Held(*(state.get if state.exists else ())).joined(_rows_of(frames))
    # Spark's time-outs fire at time-out < watermark.
    if not held.is_complete and not state.hasTimedOut and held.last_ms >= state.getCurrentWatermarkMs():
        state.update(tuple(held))
        state.setTimeoutTimestamp(held.last_ms)
        return
    if state.exists:
        state.remove()
    yield from _frames(held.outcome(key[0]))


class WaitingRows(StatefulProcessor):
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
                self._handle.deleteTimer(Held(*before).due_ms)
            self._handle.registerTimer(held.due_ms)
            return
        if before is not None:
            self._handle.deleteTimer(Held(*before).due_ms)
            self._state.clear()
        yield from (Row(**outcome) for outcome in held.outcome(key[0]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Its time is over."""
        held = Held(*(self._state.get() or ()))
        self._state.clear()
        yield from (Row(**outcome) for outcome in held.outcome(key[0]))

    def close(self) -> None:
        """Nothing to close."""


class WaitingFrames(WaitingRows):
    """The same, of pandas frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Its row, its event, or both."""
        yield from _frames(row.asDict() for row in super().handleInputRows(key, _rows_of(rows), timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Its time is over."""
        yield from _frames(row.asDict() for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo))
