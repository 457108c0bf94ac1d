"""The host whose state is one blob a shard: the group function for ``applyInPandasWithState``, and for batch queries.

A call restores the engine, takes the rows that arrived, saves the engine, and sets the shard's timeout to its next
deadline. Spark fires at ``timeout < watermark``, and the engine expires at ``deadline <= watermark``. So a shard whose
next deadline is d asks for d - 1. A call with data replaces the timeout, so every call first expires what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_purgatory.core.arrays.times import END_OF_TIME_MS
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.spark.host import calls
from spark_purgatory.spark.host.worker import end_task, prepare_worker

StreamFunction = Callable[[Any, Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]


def blob_hosted(groups: GroupedData, function: StreamFunction) -> DataFrame:
    timeout = GroupStateTimeout.EventTimeTimeout
    return groups.applyInPandasWithState(function, calls.RESULT_DDL, "blob binary", "append", timeout)


def stream_function(spec: EngineSpec, shards: int, broadcast: calls.Broadcast | None = None) -> StreamFunction:

    def on_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG001
        prepare_worker()
        clock_ms = calls.clock_behind(state.getCurrentWatermarkMs(), spec.clock_delay_ms)
        step = calls.step_of(calls.rows_in(frames), clock_ms, broadcast)
        engine = restore(spec, state.get[0], shards) if state.exists else EventTimePurgatory(spec)
        before = calls.counts_of(engine.outcomes.tally)
        outcomes = take_step(engine, step)
        blob = save(engine, shards)
        state.update((blob,))
        set_timeout(state, engine.next_due_ms(), spec.clock_delay_ms)
        yield _result(outcomes, calls.added(engine.outcomes.tally, before), len(blob))
        end_task()

    return on_group


def set_timeout(state: Any, due_ms: int | None, clock_delay_ms: int) -> None:
    """Have Spark call the shard when its engine is next due. A timeout fires once the watermark is beyond it."""
    timer_ms = calls.timer_of(due_ms, state.getCurrentWatermarkMs(), clock_delay_ms)
    if timer_ms is not None:
        state.setTimeoutTimestamp(max(timer_ms - 1, 1))


def batch_function(
    spec: EngineSpec, as_of_ms: int | None, broadcast: calls.Broadcast | None = None
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return the function for ``applyInPandas``: all rows arrive at once, and then the watermark is set."""

    def on_group(frame: pd.DataFrame) -> pd.DataFrame:
        prepare_worker()
        engine = EventTimePurgatory(spec)
        outcomes = take_step(engine, calls.step_of(calls.rows_in([frame]), 0, broadcast))
        outcomes += take_step(engine, Step(END_OF_TIME_MS if as_of_ms is None else as_of_ms))
        return _result(outcomes, calls.counts_of(engine.outcomes.tally), 0).assign(shard=frame["shard"].iloc[0])

    return on_group


def _result(outcomes: list[pa.RecordBatch], counted: Mapping[str, int], state_bytes: int) -> pd.DataFrame:
    return calls.frame_of(calls.result_of(calls.packed(outcomes), counted, state_bytes))
