"""Counts of a checkpoint's operations, made by the workers, which need not have ``rich``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_purgatory.core.state.engine_snapshot import inspect
from spark_purgatory.spark.checkpoint.shard_states import StateReaderError, shard_states, states_in
from spark_purgatory.spark.storage.checkpoint_files import NoCheckpointError

TALLY_DDL = "received bigint, decided bigint, pending bigint"


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
    if states is None:
        return None
    row = states.whole.mapInArrow(_tallies, TALLY_DDL).groupBy().sum().first()
    return JobTally(*(int(value or 0) for value in row or ()))


def _tallies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        engines = (inspect(state.blob())[0] for state in states_in(batch))
        counted = (JobTally(e.outcomes.tally.received, e.outcomes.tally.decided(), e.pending) for e in engines)
        rows = [tally._asdict() for tally in counted]
        yield pa.RecordBatch.from_pylist(rows, pa.schema([(name, pa.int64()) for name in JobTally._fields]))
