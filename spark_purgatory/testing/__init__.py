"""Tools for tests of a purgatory: a tester without a stream, and assertions on DataFrames.

Importing this package imports no Spark. `PurgatoryTester` and the assertions import it when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_purgatory.testing.kit import assert_exactly_once, assert_outcomes_equal, comparable
    from spark_purgatory.testing.tester import PurgatoryTester

__all__ = ["PurgatoryTester", "assert_exactly_once", "assert_outcomes_equal", "comparable"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'spark_purgatory.testing' has no attribute {name!r}; it has {', '.join(__all__)}")
    room = "tester" if name == "PurgatoryTester" else "kit"
    return getattr(import_module(f"spark_purgatory.testing.{room}"), name)
