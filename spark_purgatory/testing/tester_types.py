"""What a test's schemas say of both inputs: `spark_purgatory.spark.operator.inputs` reads it off DataFrames.

The checks of types are the same functions; what only Spark can evaluate is refused by name.
"""

from __future__ import annotations

from typing import cast

from pyspark.sql import Column
from pyspark.sql import types as T

from spark_purgatory.config import ColumnLike, Operations, PurgatoryOptions, not_a_column
from spark_purgatory.core.arrays.numbers import DOUBLE
from spark_purgatory.core.spec.codes import KINDS, RULES
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.field_types import (
    check_timeout,
    check_value,
    key_type_of,
    level_key_type,
)
from spark_purgatory.spark.operator.inputs import InputTypes, payload_roles
from spark_purgatory.spark.operator.key_types import LEVEL_KEYS, check_compared, check_key_type, check_words
from spark_purgatory.spark.operator.value_types import number_type


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


def operation_types(schema: T.StructType, options: PurgatoryOptions, completions: T.StructType | None) -> InputTypes:
    """What the engine must know of the operations. Raises ConfigError as `Purgatory.resolve` does."""
    config = options.operations
    types = {"operations.id": kind_of(schema, config.id, "operations.id")}
    check_key_type(types["operations.id"], "operations.id")
    key_type, several = _key_type(schema, config)
    types["operations.keys"] = key_type
    _check_scope(schema, options, "operations", types)
    _check_time(schema, config.created, "operations.created")
    if config.deadline is not None:
        _check_time(schema, config.deadline, "operations.deadline")
    roles = payload_roles(schema, config)
    if options.scope is not None:
        roles = {role: at for role, at in roles.items() if role not in ("id", "keys")}
    needs = _need_types(schema, options.criterion)
    if isinstance(options.criterion, ByRow):
        rule = kind_of(schema, options.criterion.rule, "criterion.rule")
        check_words(rule, "criterion.rule", ", ".join(RULES))
        if options.criterion.levels is not None:
            types[LEVEL_KEYS] = level_key_type(needs["criterion.levels"], options.criterion.levels)
            check_compared(types, {})
    number = DOUBLE
    if options.completions.value is not None and completions is not None:
        value = kind_of(completions, options.completions.value, "completions.value")
        no_column = cast("Column", None)  # only its type is read
        number = number_type(options.criterion, value, {name: (no_column, kind) for name, kind in needs.items()})
    same = isinstance(config.id, str) and config.id == config.keys
    return InputTypes(
        key_type=key_type,
        several_keys=several,
        keyed_by_id=several or same,
        roles=tuple(roles.items()),
        types=types,
        number=number,
    )


def completion_types(schema: T.StructType, options: PurgatoryOptions) -> InputTypes:
    """What the engine must know of the events. Raises ConfigError as `Purgatory.resolve` does."""
    config, criterion = options.completions, options.criterion
    types = {"completions.key": kind_of(schema, config.key, "completions.key")}
    _check_scope(schema, options, "completions", types)
    for field in ("operation_id", "event_id"):
        if getattr(config, field) is not None:
            types[f"completions.{field}"] = kind_of(schema, getattr(config, field), f"completions.{field}")
    for name, kind in types.items():
        check_key_type(kind, name)
    _check_time(schema, config.time, "completions.time")
    if config.value is not None and (criterion.reads_values or config.kind is not None):
        check_value(kind_of(schema, config.value, "completions.value"))
    if config.kind is not None:
        check_words(kind_of(schema, config.kind, "completions.kind"), "completions.kind", ", ".join(KINDS))
    return InputTypes(types["completions.key"], types=types)


def _key_type(schema: T.StructType, config: Operations) -> tuple[T.DataType, bool]:
    names = list(config.keys) if isinstance(config.keys, (list, tuple)) else [cast("ColumnLike", config.keys)]
    return key_type_of([kind_of(schema, name, "operations.keys") for name in names])


def _check_scope(schema: T.StructType, options: PurgatoryOptions, given: str, types: dict[str, T.DataType]) -> None:
    if options.scope is not None:
        name = f"scope ({given})"
        types[name] = kind_of(schema, options.scope, "scope")
        check_key_type(types[name], name)


def _check_time(schema: T.StructType, value: ColumnLike, field: str) -> None:
    kind = kind_of(schema, value, field)
    if isinstance(kind, (T.TimestampNTZType, T.DateType)):
        raise ConfigError(
            f"{field} is {kind.simpleString()}, which Spark places by the session's time zone, and there is no session "
            "here: give instants, datetime(..., tzinfo=UTC)"
        )
    if not isinstance(kind, T.TimestampType):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a timestamp: give datetime(..., tzinfo=UTC)")


def _need_types(schema: T.StructType, criterion: Criterion | ByRow) -> dict[str, T.DataType]:
    named = {} if isinstance(criterion, Criterion) else {"need": criterion.need, "levels": criterion.levels}
    kinds = {f"criterion.{n}": kind_of(schema, v, f"criterion.{n}") for n, v in named.items() if v is not None}
    for field, kind in kinds.items():
        each = kind.valueType if isinstance(kind, T.MapType) else kind
        if not isinstance(each, (T.NumericType, T.NullType)):
            raise ConfigError(f"{field} is {each.simpleString()}, not a number: cast it to one")
    return kinds


def check_wait(schema: T.StructType, config: Operations) -> None:
    """Raise ConfigError where a column of time-outs has the wrong type."""
    if config.timeout_column is not None:
        check_timeout(kind_of(schema, config.timeout_column, "operations.timeout"), config.timeout_unit)
