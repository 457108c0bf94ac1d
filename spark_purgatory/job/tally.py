"""Counts of a checkpoint's operations, made by the workers, which need not have ``rich``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_purgatory.core.state.engine_snapshot import inspect
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.spark.checkpoint.shard_states import StateReaderError, shard_states, told_by_states
from spark_purgatory.spark.storage.checkpoint_files import NoCheckpointError


class JobTally(NamedTuple):
    """Counts of a checkpoint's operations over all its runs."""

    received: int = 0
    decided: int = 0
    pending: int = 0


def state_tally(spark: SparkSession, checkpoint: str) -> JobTally | None:
    """Count a checkpoint's operations; None if no micro-batch is committed or Spark cannot read such a path."""
    try:
        states = shard_states(spark, checkpoint)
    except (NoCheckpointError, StateReaderError):
        return None
    return None if states is None else JobTally(*map(sum, zip(*told_by_states(states.whole, _tally), strict=True)))


def _tally(state: ShardState) -> Iterator[JobTally]:
    engine, _ = inspect(state.blob())
    yield JobTally(engine.outcomes.tally.received, engine.outcomes.tally.decided(), engine.pending)
