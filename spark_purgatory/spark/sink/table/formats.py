"""Which format a table has."""

from __future__ import annotations

from spark_purgatory.config import SinkOptions
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.sink.table.target import Target


def opened(options: SinkOptions, since: int = NO_VERSION) -> Target:
    """The table of these options, of its format; ``since``: whose names of columns ``partition_by`` has."""
    return DeltaTarget(options, since)
