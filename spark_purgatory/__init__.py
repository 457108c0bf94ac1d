"""Delayed completion on Spark: operations wait in a purgatory until events complete them or their deadline passes.

Importing the package takes milliseconds and imports no Spark: each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spark_purgatory import errors
from spark_purgatory.version import __version__

if TYPE_CHECKING:
    from spark_purgatory import metrics
    from spark_purgatory.config import Completions, Operations
    from spark_purgatory.core.spec import criteria
    from spark_purgatory.spark.checkpoint.pending import gauges, pending
    from spark_purgatory.spark.checkpoint.start_check import check_checkpoint
    from spark_purgatory.spark.host.requirements import STATE_STORE_SETTINGS
    from spark_purgatory.spark.monitoring.monitor import monitor
    from spark_purgatory.spark.move.move import move_checkpoint
    from spark_purgatory.spark.move.tables import export_state
    from spark_purgatory.spark.operator.purgatory import Purgatory
    from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
    from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator

__all__ = [
    "STATE_STORE_SETTINGS",
    "AccumulatorQuery",
    "Completions",
    "Operations",
    "Purgatory",
    "RecordAccumulator",
    "__version__",
    "check_checkpoint",
    "criteria",
    "errors",
    "export_state",
    "gauges",
    "metrics",
    "monitor",
    "move_checkpoint",
    "pending",
]
_MODULES = {
    "STATE_STORE_SETTINGS": "spark.host.requirements",
    "AccumulatorQuery": "spark.sink.accumulator_query",
    "Completions": "config",
    "Operations": "config",
    "Purgatory": "spark.operator.purgatory",
    "RecordAccumulator": "spark.sink.record_accumulator",
    "check_checkpoint": "spark.checkpoint.start_check",
    "export_state": "spark.move.tables",
    "gauges": "spark.checkpoint.pending",
    "monitor": "spark.monitoring.monitor",
    "move_checkpoint": "spark.move.move",
    "pending": "spark.checkpoint.pending",
}


def __getattr__(name: str) -> object:
    if name == "metrics":
        return import_module("spark_purgatory.metrics")
    if name == "criteria":
        return import_module("spark_purgatory.core.spec.criteria")
    if name in _MODULES:
        return getattr(import_module(f"spark_purgatory.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'spark_purgatory' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
