"""The allowed types of the fields of `Operations`, `Completions` and a criterion by row.

`inputs` asks with the columns of a DataFrame, and `spark_purgatory.testing` with the schema of a test's rows. Both
refuse the same types with the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pyspark.sql import types as T

from spark_purgatory.config import Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike
from spark_purgatory.core.arrays.numbers import DOUBLE
from spark_purgatory.core.spec.codes import KINDS, RULES
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.key_types import LEVEL_KEYS, FieldTypes, check_compared, check_key_type, check_words
from spark_purgatory.spark.operator.value_types import number_type

TypeOf = Callable[[Any, str], T.DataType]
"""Returns the type of the column that an argument names; its second argument is the argument's name. Raises ConfigError
if there is no such column."""


def operation_types(type_of: TypeOf, options: PurgatoryOptions) -> tuple[FieldTypes, bool]:
    """Return the types of the operations' keys and ids by field, and True if an operation may have several keys."""
    config, criterion = options.operations, options.criterion
    types = {"operations.id": type_of(config.id, "operations.id")}
    check_key_type(types["operations.id"], "operations.id")
    types["operations.keys"], several = _key_type_of([type_of(name, label) for name, label in keys_of(config)])
    types |= _scope_type(type_of, options, "operations")
    if isinstance(criterion, ByRow):
        check_words(type_of(criterion.rule, "criterion.rule"), "criterion.rule", ", ".join(RULES))
        if criterion.levels is not None:
            levels = type_of(criterion.levels, "criterion.levels")
            if not isinstance(levels, T.MapType):
                raise ConfigError(
                    f"criterion.levels={criterion.levels!r} is {levels.simpleString()}, not a map from key to level: "
                    "name a column such as map<string,double>, or leave levels out"
                )
            check_key_type(levels.keyType, LEVEL_KEYS)
            types[LEVEL_KEYS] = levels.keyType
            check_compared(types, {})
        for label, need in needs_of(criterion).items():
            type_of(need, label)
    times = {"operations.created": config.created, "operations.deadline": config.deadline}
    for label, name in times.items():
        if name is not None:
            _check_time(type_of(name, label), label)
    if config.timeout_column is not None:
        try:
            timeout = type_of(config.timeout_column, "operations.timeout")
        except ConfigError as error:
            raise ConfigError(f'{error}; nor is it a duration, such as "30 minutes"') from None
        _check_timeout(timeout, config.timeout_unit)
    return types, several


def completion_types(type_of: TypeOf, options: PurgatoryOptions) -> FieldTypes:
    config = options.completions
    named = {"key": config.key, "operation_id": config.operation_id, "event_id": config.event_id}
    labels = {f"completions.{name}": value for name, value in named.items() if value is not None}
    types = {label: type_of(value, label) for label, value in labels.items()}
    for label, kind in types.items():
        check_key_type(kind, label)
    types |= _scope_type(type_of, options, "completions")
    _check_time(type_of(config.time, "completions.time"), "completions.time")
    if reads_value(options) and not isinstance(kind := type_of(config.value, "completions.value"), T.NumericType):
        raise ConfigError(f"completions.value is {kind.simpleString()}, not a number: cast it")
    if config.kind is not None:
        check_words(type_of(config.kind, "completions.kind"), "completions.kind", ", ".join(KINDS))
    return types


def reads_zone(operations: TypeOf, completions: TypeOf | None, options: PurgatoryOptions) -> bool:
    """Return True if the session's time zone decides which instants the created times, deadlines or events have."""
    config = options.operations
    kinds = [operations(config.created, "operations.created")]
    if config.deadline is not None:
        kinds.append(operations(config.deadline, "operations.deadline"))
    if completions is not None:
        kinds.append(completions(options.completions.time, "completions.time"))
    return any(isinstance(kind, (T.TimestampNTZType, T.DateType)) for kind in kinds)


def number_of(operations: TypeOf, completions: TypeOf | None, options: PurgatoryOptions) -> str:
    """Return the type in which values and needs are compared; doubles if no completions are known."""
    value, criterion = options.completions.value, options.criterion
    if value is None or completions is None:
        return DOUBLE
    needs = {label: operations(name, label) for label, name in needs_of(criterion).items()}
    return number_type(criterion, completions(value, "completions.value"), needs)


def keys_of(config: Operations) -> list[tuple[ColumnLike, str]]:
    """Return the columns of operations.keys, each with the name of its argument."""
    named = config.keys if isinstance(config.keys, (list, tuple)) else [cast("ColumnLike", config.keys)]
    return [(name, f"operations.keys[{i}]" if len(named) > 1 else "operations.keys") for i, name in enumerate(named)]


def needs_of(criterion: Criterion | ByRow) -> dict[str, str]:
    """Return the columns of needs by the name of their argument."""
    named = {} if isinstance(criterion, Criterion) else {"need": criterion.need, "levels": criterion.levels}
    return {f"criterion.{role}": name for role, name in named.items() if name is not None}


def reads_value(options: PurgatoryOptions) -> bool:
    """Return True if the engine reads the events' values, for the criterion or to extend deadlines."""
    config = options.completions
    return config.value is not None and (options.criterion.reads_values or config.kind is not None)


def payload_roles(schema: T.StructType, options: PurgatoryOptions) -> tuple[tuple[str, int], ...]:
    """Return (role, position) of engine columns that are unchanged payload columns, to send and store them once."""
    config = options.operations
    named: dict[str, Any] = {"created_us": config.created, "deadline_us": config.deadline}
    if options.scope is None:
        named = {"id": config.id, "keys": config.keys, **named}
    columns = {role: name for role, name in named.items() if isinstance(name, str) and name in schema.names}
    return tuple(
        (role, schema.names.index(name))
        for role, name in columns.items()
        if schema[name].dataType == (T.TimestampType() if role.endswith("_us") else T.StringType())
    )


def _scope_type(type_of: TypeOf, options: PurgatoryOptions, given: str) -> dict[str, T.DataType]:
    if options.scope is None:
        return {}
    label, kind = f"scope ({given})", type_of(options.scope, "scope")
    check_key_type(kind, label)
    return {label: kind}


def _key_type_of(kinds: Sequence[T.DataType]) -> tuple[T.DataType, bool]:
    """Return the type of a key, and True if an operation may have several. ``kinds``: those of operations.keys."""
    first = kinds[0]
    if any(kind != first for kind in kinds):
        kinds_text = ", ".join(kind.simpleString() for kind in kinds)
        raise ConfigError(f"operations.keys has columns of types {kinds_text}: cast them to one type")
    if len(kinds) == 1 and isinstance(first, T.ArrayType):
        check_key_type(first.elementType, "operations.keys (its elements)")
        return first.elementType, True
    check_key_type(first, "operations.keys")
    return first, len(kinds) > 1


def _check_time(kind: T.DataType, field: str) -> None:
    if not isinstance(kind, (T.TimestampType, T.TimestampNTZType, T.DateType)):
        raise ConfigError(
            f"{field} is {kind.simpleString()}, not a timestamp: make it one, with to_timestamp(...) of a text, "
            "timestamp_millis(...) or timestamp_seconds(...) of a number"
        )


def _check_timeout(kind: T.DataType, unit: str | None) -> None:
    name = kind.simpleString()
    if isinstance(kind, T.IntegralType) and unit is None:
        raise ConfigError(f"operations.timeout has type {name} and no unit: set timeout_unit, for example 'minutes'")
    if isinstance(kind, T.DayTimeIntervalType) and unit is not None:
        raise ConfigError(f"operations.timeout is {name}, which has a unit: leave out timeout_unit={unit!r}")
    if not isinstance(kind, (T.IntegralType, T.DayTimeIntervalType)):
        raise ConfigError(
            f'operations.timeout is {name}: write "30 minutes", or name a column of day-time intervals, or one of '
            "whole numbers and its timeout_unit"
        )
