"""The allowed types of the fields of `Operations`, `Completions` and a criterion by row.

`inputs` asks with the columns of a DataFrame, and `spark_purgatory.testing` with the schema of a test's rows. Both
refuse the same types with the same texts.

**Keys and ids** have one text for each value (docs/keys_and_times.md), which no setting of the session may change. But
a cast of a timestamp to text uses the session's zone, where the two instants of a repeated hour have one text. A cast
of a date obeys ``spark.sql.legacy.timeParserPolicy``, and a cast of a small decimal ``spark.sql.ansi.enabled``.

**Numbers.** Values of decimals and bigints are compared and added up unchanged. A need is rounded up to their digits,
which changes no answer (`core.arrays.numbers`). A need that is a float or double then means the decimal that Spark
writes for it: 0.8 is 0.8. No row raises an error under ANSI mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike
from spark_purgatory.core.arrays.numbers import DOUBLE, LARGEST_SCALE, scale_of
from spark_purgatory.core.spec.codes import KINDS, RULES
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError

ALLOWED = "strings, whole numbers, decimals, booleans, dates, timestamps and binary have one text for each value"
EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"
LAST_DAY = 106_751_990  # Days from 1970 to the end of int64 microseconds. Dates within have a timestamp_ntz
LEVEL_KEYS = "criterion.levels (its keys)"
COMPARED = (
    ("operations.keys", "completions.key"),
    ("operations.keys", LEVEL_KEYS),
    ("operations.id", "completions.operation_id"),
    ("scope (operations)", "scope (completions)"),
)
KEPT = ("operations.id", "operations.keys", "completions.event_id", "scope (operations)")
"""Fields whose texts are in a checkpoint. Fields that are compared with them have the same types."""
TIMES = (T.DateType, T.TimestampNTZType, T.TimestampType)
KEY_TYPES = (T.BooleanType, T.IntegralType, T.DecimalType, T.BinaryType, T.StringType, *TIMES)
"""Types of keys, each before the types to which its values can be cast."""

FieldTypes = Mapping[str, T.DataType]  # By the name of their field, for an array the type of its elements


def check_key_type(kind: T.DataType, field: str) -> None:
    if isinstance(kind, T.StringType) and not is_binary_collation(kind):
        raise ConfigError(
            f"{field} is {kind.simpleString()}: strings of this collation are equal by rules of its own, but keys are "
            "compared byte by byte. Select it as collate(..., 'UTF8_BINARY'), with lower(...) around it if upper and "
            "lower case should be the same"
        )
    if not isinstance(kind, KEY_TYPES):
        remedy = "cast it to string" if isinstance(kind, T.AtomicType) else "name a column or a field that does"
        if isinstance(kind, T.FractionalType):
            remedy = "cast it to a whole number or a decimal, because 0.0 equals -0.0, and NaN nothing"
        raise ConfigError(f"{field} is {kind.simpleString()}, which cannot be a key: {ALLOWED}; {remedy}")


def check_words(kind: T.DataType, field: str, words: str) -> None:
    if isinstance(kind, T.StringType) and not is_binary_collation(kind):
        raise ConfigError(
            f"{field} is {kind.simpleString()}: its words are compared byte by byte and in lower case. Select it as "
            f"lower(collate(..., 'UTF8_BINARY')). The words are {words}"
        )
    if not isinstance(kind, (T.StringType, T.NullType)):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a string: it must hold one of {words}")


def is_binary_collation(kind: T.StringType) -> bool:
    """Return True if strings of the type are equal only if their bytes are."""
    return kind.collation == T.StringType().collation


def key_text(column: Column, kind: T.DataType) -> Column:
    """Return a key or id as text (binary stays binary). `check_key_type` allows its type."""
    if isinstance(kind, (T.StringType, T.BinaryType)):
        return column
    if isinstance(kind, T.TimestampType):
        # A timestamp_ntz becomes text without a time zone.
        in_utc = F.timestamp_add("MICROSECOND", F.unix_micros(column), F.expr(EPOCH))
        return F.concat(in_utc.cast("string"), F.lit("Z"))
    if isinstance(kind, T.DateType):
        return _date_text(column)
    # Without try_cast, decimals below 0.000001 become 1E-7 if ANSI mode is off.
    return column.try_cast("string") if isinstance(kind, T.DecimalType) else column.cast("string")


def text_of(kind: T.DataType) -> str:
    """Return the type of a key's texts, which is the same for types whose equal values have one text."""
    if isinstance(kind, T.IntegralType):
        return "bigint"
    return f"decimal(38,{kind.scale})" if isinstance(kind, T.DecimalType) else kind.simpleString()


def _date_text(column: Column) -> Column:
    days = F.unix_date(column)
    usual = F.substring_index(F.timestamp_add("DAY", days, F.expr(EPOCH)).cast("string"), " ", 1)
    month, day = (F.lpad(part.cast("string"), 2, "0") for part in (F.month(column), F.dayofmonth(column)))
    sign = F.when(days > 0, F.lit("+")).otherwise(F.lit(""))
    far = F.concat(sign, F.year(column).cast("string"), F.lit("-"), month, F.lit("-"), day)
    return F.when(days.between(-LAST_DAY, LAST_DAY), usual).otherwise(far)


def check_compared(operations: FieldTypes, completions: FieldTypes) -> None:
    types = {**operations, **completions}
    for left, right in COMPARED:
        if left in types and right in types and text_of(types[left]) != text_of(types[right]):
            raise ConfigError(
                f"{left} is {types[left].simpleString()} and {right} is {types[right].simpleString()}: "
                f"they would never be equal; {_remedy((types[left], left), (types[right], right))}"
            )


def _remedy(*fields: tuple[T.DataType, str]) -> str:
    """Return which of two fields to cast: the one whose type is first in `KEY_TYPES`, if the cast keeps its values."""

    def rank(field: tuple[T.DataType, str]) -> tuple[int, int]:
        kind = next(i for i, each in enumerate(KEY_TYPES) if isinstance(field[0], each))
        return kind, field[0].scale if isinstance(field[0], T.DecimalType) else 0

    (lower_type, lower), (upper_type, upper) = sorted(fields, key=rank)
    if isinstance(upper_type, TIMES) and not isinstance(lower_type, (*TIMES, T.StringType)):
        return f"give {lower} and {upper} columns of one type"
    return f"cast {lower} to {upper_type.simpleString()}"


def kept_texts(*inputs: FieldTypes) -> tuple[tuple[str, str], ...]:
    """Return the types of the texts of keys and ids, which the checkpoint remembers."""
    types = sorted(item for side in inputs for item in side.items() if item[0] in KEPT)
    return tuple((name, text_of(kind)) for name, kind in types)


SMALL_TYPES = (T.ByteType, T.ShortType, T.IntegerType)  # Types whose values and sums are exact as doubles.
DOUBLE_TYPES = (T.FloatType, T.DoubleType)
Typed = tuple[Column, T.DataType]


def number_type(criterion: Criterion | ByRow, value: T.DataType, needs: Mapping[str, T.DataType]) -> str:
    """Return the type in which values and needs are compared; ``needs``: types of the columns of needs, by field.

    It is double if both are exact as doubles: ints of up to 32 bits. Raises ConfigError naming field and remedy.
    """
    if not criterion.reads_values or not isinstance(value, T.NumericType) or isinstance(value, DOUBLE_TYPES):
        return DOUBLE
    kinds = {field: level_type(kind) for field, kind in needs.items()}
    if isinstance(value, SMALL_TYPES) and _double_will_do(criterion, kinds):
        return DOUBLE
    number = value.simpleString() if isinstance(value, T.DecimalType) else "bigint"
    for field, kind in kinds.items():
        if not isinstance(kind, (T.NumericType, T.NullType)):
            raise ConfigError(
                f"{field} is {kind.simpleString()}, not a number, but is compared with completions.value: "
                f"cast {field} to a number"
            )
        if isinstance(kind, DOUBLE_TYPES) and scale_of(number) == LARGEST_SCALE:
            raise ConfigError(
                f"{field} is {kind.simpleString()}, and completions.value {value.simpleString()}: a double cannot be "
                f"rounded up to 38 digits. Cast {field} to a decimal"
            )
    return number


def level_type(kind: T.DataType) -> T.DataType:
    """Return the type of a need, or of the levels in a map."""
    return kind.valueType if isinstance(kind, T.MapType) else kind


def _double_will_do(criterion: Criterion | ByRow, kinds: Mapping[str, T.DataType]) -> bool:
    if not isinstance(criterion, Criterion):
        return not any(isinstance(kind, (T.LongType, T.DecimalType)) for kind in kinds.values())
    if Fraction(criterion.need) != Fraction(float(criterion.need)):
        return False
    try:
        criterion.check_double()
    except ConfigError:
        return False
    return True


def value_column(value: Column, kind: T.DataType, number: str, is_added: bool) -> Column:
    """Return values as the engine takes them. Without ``is_added`` they are only the seconds of extensions."""
    exact = number != DOUBLE or not is_added
    if exact and isinstance(kind, T.DecimalType):
        return value
    return value.cast("bigint" if exact and isinstance(kind, T.IntegralType) else "double")


def need_columns(
    needs: Mapping[str, Typed], keys: Column | list[Column], several: bool, number: str
) -> dict[str, Column]:
    """Return each operation's need, and its level at each of its ``keys``: columns, or one that may have several."""
    need, levels = _converted(needs, keys, several, lambda need, _: need.try_cast("double"))
    if number == DOUBLE:
        return {"need": need, "levels": levels}
    up, levels_up = _converted(needs, keys, several, lambda need, kind: _rounded_up(need, kind, number))
    return {"need": need, "levels": levels, "need_up": up, "levels_up": levels_up}


def _converted(
    needs: Mapping[str, Typed],
    keys: Column | list[Column],
    several: bool,
    convert: Callable[[Column, T.DataType], Column],
) -> tuple[Column, Column]:
    need = convert(*needs.get("criterion.need", (F.lit(None).cast("double"), T.DoubleType())))

    def level_at(key: Column) -> Column:
        if "criterion.levels" not in needs:
            return need
        levels, kind = needs["criterion.levels"]
        return F.when(levels.isNull(), need).otherwise(convert(F.try_element_at(levels, key), level_type(kind)))

    if isinstance(keys, list):
        return need, F.array(*map(level_at, keys))
    return need, F.transform(keys, level_at) if several else level_at(keys)


def _rounded_up(need: Column, kind: T.DataType, number: str) -> Column:
    """Round a need up to the digits of the number type; null if it is null or does not fit such a decimal."""
    scale = scale_of(number)
    assert scale is not None, "bug: doubles are not rounded"
    if isinstance(kind, T.DecimalType) and kind.scale > scale:
        need = F.ceil(need, F.lit(scale))
    elif isinstance(kind, DOUBLE_TYPES):
        return _double_rounded_up(need.cast("double"), scale)
    return need.try_cast(f"decimal({LARGEST_SCALE},{scale})")


def _double_rounded_up(need: Column, scale: int) -> Column:
    """Round a double up. It is written in 17 digits, so if one of them is cut off, there is room for a carry."""
    nearest = need.try_cast(f"decimal({LARGEST_SCALE},{scale})")
    room = f"decimal({LARGEST_SCALE - 1},{scale})"
    next_up = F.try_add(nearest.try_cast(room), F.lit(f"{Decimal(1).scaleb(-scale):f}").cast(room))
    return F.when(nearest.cast("double") < need, next_up).otherwise(nearest)


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
