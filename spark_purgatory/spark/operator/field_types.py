"""Which types the fields of `Operations`, `Completions` and a criterion by row may have, keys and ids aside.

`inputs` asks with the types of a DataFrame's columns, `spark_purgatory.testing` with those of a test's rows: so both
refuse the same types in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as T

from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.key_types import LEVEL_KEYS, check_key_type


def key_type_of(kinds: Sequence[T.DataType]) -> tuple[T.DataType, bool]:
    """Type of a key, and whether an operation may have several; ``kinds``: of the columns of operations.keys."""
    first = kinds[0]
    if any(kind != first for kind in kinds):
        kinds_text = ", ".join(kind.simpleString() for kind in kinds)
        raise ConfigError(f"operations.keys has columns of types {kinds_text}: cast them to one type")
    if len(kinds) == 1 and isinstance(first, T.ArrayType):
        check_key_type(first.elementType, "operations.keys (its elements)")
        return first.elementType, True
    check_key_type(first, "operations.keys")
    return first, len(kinds) > 1


def level_key_type(kind: T.DataType, levels: str) -> T.DataType:
    """Type of the keys in a map of levels; ``levels``: the name of its column."""
    if not isinstance(kind, T.MapType):
        raise ConfigError(
            f"criterion.levels={levels!r} is {kind.simpleString()}, not a map from key to level, such as "
            "map<string,double>: name such a column, or leave levels out"
        )
    check_key_type(kind.keyType, LEVEL_KEYS)
    return kind.keyType


def check_timeout(kind: T.DataType, unit: str | None) -> None:
    """Raise ConfigError unless a column can be operations.timeout with ``unit`` as operations.timeout_unit."""
    name = kind.simpleString()
    if isinstance(kind, T.IntegralType) and unit is None:
        raise ConfigError(f"operations.timeout is {name}, and of which unit is not said: set timeout_unit='minutes'")
    if isinstance(kind, T.DayTimeIntervalType) and unit is not None:
        raise ConfigError(f"operations.timeout is {name}, which has its units: leave out timeout_unit={unit!r}")
    if not isinstance(kind, (T.IntegralType, T.DayTimeIntervalType)):
        raise ConfigError(
            f'operations.timeout is {name}: write "30 minutes", or name a column of day-time intervals, or one of '
            "whole numbers and its timeout_unit"
        )


def check_value(kind: T.DataType) -> None:
    """Raise ConfigError unless a column can be completions.value."""
    if not isinstance(kind, T.NumericType):
        raise ConfigError(f"completions.value is {kind.simpleString()}, not a number: cast it")


def check_value_is_named(value: object, criterion: Criterion | ByRow) -> None:
    """Raise ConfigError where the criterion reads values and no column of them is named."""
    if value is None and isinstance(criterion, Criterion) and criterion.reads_values:
        raise ConfigError("completions.value is missing: the criterion adds up or compares values; name their column")
