"""Delayed completion on Spark: operations wait in a purgatory until events complete them or their deadline passes.

Importing the package imports no Spark; `Purgatory`, `RecordAccumulator`, `check_checkpoint`, `gauges` and `pending` do
when they are first used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_purgatory import errors
from spark_purgatory.config import Completions, Operations
from spark_purgatory.core.spec import criteria
from spark_purgatory.version import __version__

if TYPE_CHECKING:
    from spark_purgatory.spark.checkpoint.gauges import gauges
    from spark_purgatory.spark.checkpoint.pending import pending
    from spark_purgatory.spark.checkpoint.start_check import check_checkpoint
    from spark_purgatory.spark.operator.purgatory import Purgatory
    from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Completions",
    "Operations",
    "Purgatory",
    "RecordAccumulator",
    "__version__",
    "check_checkpoint",
    "criteria",
    "errors",
    "gauges",
    "pending",
]


def __getattr__(name: str) -> object:
    if name == "Purgatory":
        from spark_purgatory.spark.operator.purgatory import Purgatory

        return Purgatory
    if name == "RecordAccumulator":
        from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator

        return RecordAccumulator
    if name == "check_checkpoint":
        from spark_purgatory.spark.checkpoint.start_check import check_checkpoint

        return check_checkpoint
    if name == "gauges":
        from spark_purgatory.spark.checkpoint.gauges import gauges

        return gauges
    if name == "pending":
        from spark_purgatory.spark.checkpoint.pending import pending

        return pending
    raise AttributeError(f"module 'spark_purgatory' has no attribute {name!r}; it has {', '.join(__all__)}")
