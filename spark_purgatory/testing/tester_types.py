"""What a test's schemas say of the columns that a configuration names, and what of it only Spark could evaluate.

Which types a field may have is said in `spark_purgatory.spark.operator.field_types`, for Spark and for tests alike.
"""

from __future__ import annotations

from pyspark.sql import types as T

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, not_a_column
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.field_types import TypeOf, check_timeout, needs_of


def kind_of(schema: T.StructType, value: ColumnLike | None, field: str) -> T.DataType:
    """Type of the column that a config value names. Raises ConfigError where only Spark could make it."""
    if not isinstance(value, str):
        raise ConfigError(
            f"{field} is a Column, an expression that only Spark evaluates: select it into a column, and name that"
        )
    if value in schema.names:
        return schema[value].dataType
    first, *rest = value.split(".")
    kind: T.DataType = schema
    for name in (first, *rest):
        if not isinstance(kind, T.StructType) or name not in kind.names:
            raise not_a_column(field, value, schema.names)
        kind = kind[name].dataType
    return kind


def check_operations(type_of: TypeOf, options: PurgatoryOptions) -> None:
    """Raise ConfigError where times, time-outs or needs have types that no test can read, or no query."""
    config = options.operations
    if config.timeout_column is not None:
        check_timeout(type_of(config.timeout_column, "operations.timeout"), config.timeout_unit)
    check_time(type_of(config.created, "operations.created"), "operations.created")
    if config.deadline is not None:
        check_time(type_of(config.deadline, "operations.deadline"), "operations.deadline")
    for label, name in needs_of(options.criterion).items():
        kind = type_of(name, label)
        each = kind.valueType if isinstance(kind, T.MapType) else kind
        if not isinstance(each, (T.NumericType, T.NullType)):
            raise ConfigError(f"{label} is {each.simpleString()}, not a number: cast it to one")


def check_time(kind: T.DataType, field: str) -> None:
    """Raise ConfigError unless a column has instants: other times need a session's zone."""
    if isinstance(kind, (T.TimestampNTZType, T.DateType)):
        raise ConfigError(
            f"{field} is {kind.simpleString()}, which Spark places by the session's time zone, and there is no session "
            "here: give instants, datetime(..., tzinfo=UTC)"
        )
    if not isinstance(kind, T.TimestampType):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a timestamp: give datetime(..., tzinfo=UTC)")
