"""Types of keys and ids: which can be compared, and the one text that each value has.

Keys, ids and partitions are compared as text (binary ones as bytes), which the JVM makes in the projection. So a type
is taken only where every value has one text, and no setting of the session has a say in it. docs/keys_and_times.md has
the text of each type.

A cast of a timestamp to text is in the session's zone: there the two instants of a repeated hour have one text, and a
restart in another zone gives all of them another. A cast of a date obeys ``spark.sql.legacy.timeParserPolicy``, a cast
of a small decimal ``spark.sql.ansi.enabled``. Years beyond 9999 have a sign, ``+10000-01-01``, and those before 1
count backwards, ``0000``, ``-0001``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.errors import ConfigError

ALLOWED = "strings, whole numbers, decimals, booleans, dates, timestamps and binary have one text for each value"
EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"
LAST_DAY = 106_751_990
"""Days from 1970 to the end of int64 microseconds, rounded down: a timestamp_ntz can be made of dates within these."""
LEVEL_KEYS = "criterion.levels (its keys)"
COMPARED = (
    ("operations.keys", "completions.key"),
    ("operations.keys", LEVEL_KEYS),
    ("operations.id", "completions.operation_id"),
    ("scope (operations)", "scope (completions)"),
)
"""Pairs of fields whose values are compared."""
KEPT = ("operations.id", "operations.keys", "completions.event_id", "scope (operations)")
"""Fields whose texts a checkpoint holds; what is compared with them has their type."""
TIMES = (T.DateType, T.TimestampNTZType, T.TimestampType)
KEY_TYPES = (T.BooleanType, T.IntegralType, T.DecimalType, T.BinaryType, T.StringType, *TIMES)
"""Types of keys, each before those that its values can be cast to."""

FieldTypes = Mapping[str, T.DataType]
"""Types of keys by the name of their field; of an array's its elements."""


def check_key_type(kind: T.DataType, field: str) -> None:
    """Raise ConfigError unless each value of the type has one text."""
    if isinstance(kind, T.StringType) and not is_binary_collation(kind):
        raise ConfigError(
            f"{field} is {kind.simpleString()}: keys are compared byte by byte, and strings of this collation are "
            f"equal by other rules. Select it as collate(..., 'UTF8_BINARY'), with lower(...) around it where upper "
            "and lower case are to be the same"
        )
    if not isinstance(kind, KEY_TYPES):
        remedy = "cast it to string" if isinstance(kind, T.AtomicType) else "name a column or a field that does"
        if isinstance(kind, T.FractionalType):
            remedy = "cast it to a whole number or a decimal, because 0.0 equals -0.0, and NaN nothing"
        raise ConfigError(f"{field} is {kind.simpleString()}, which cannot be a key: {ALLOWED}; {remedy}")


def check_words(kind: T.DataType, field: str, words: str) -> None:
    """Raise ConfigError unless a column can hold the words that are read from it."""
    if isinstance(kind, T.StringType) and not is_binary_collation(kind):
        raise ConfigError(
            f"{field} is {kind.simpleString()}: its words are compared byte by byte, and in lower case. Select it as "
            f"lower(collate(..., 'UTF8_BINARY')); the words are {words}"
        )
    if not isinstance(kind, (T.StringType, T.NullType)):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a string: it must hold one of {words}")


def is_binary_collation(kind: T.StringType) -> bool:
    """Return True if strings of the type are equal where their bytes are."""
    return kind.collation == T.StringType().collation


def key_text(column: Column, kind: T.DataType) -> Column:
    """A key or id as text (binary stays binary), of a type that `check_key_type` takes."""
    if isinstance(kind, (T.StringType, T.BinaryType)):
        return column
    if isinstance(kind, T.TimestampType):
        # An NTZ is rendered without a time zone.
        in_utc = F.timestamp_add("MICROSECOND", F.unix_micros(column), F.expr(EPOCH))
        return F.concat(in_utc.cast("string"), F.lit("Z"))
    if isinstance(kind, T.DateType):
        return _date_text(column)
    # try_cast: a cast writes decimals below 0.000001 as 1E-7 where ANSI mode is off.
    return column.try_cast("string") if isinstance(kind, T.DecimalType) else column.cast("string")


def text_of(kind: T.DataType) -> str:
    """Return the type that the texts of a key are made of: equal for types whose equal values have the same text."""
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


def comparable(left: T.DataType, right: T.DataType) -> bool:
    """Return True if equal values of two types of keys have the same text."""
    if isinstance(left, T.DecimalType) and isinstance(right, T.DecimalType):
        return left.scale == right.scale
    families = (T.IntegralType, T.StringType)
    return left == right or any(isinstance(left, family) and isinstance(right, family) for family in families)


def check_compared(operations: FieldTypes, completions: FieldTypes) -> None:
    """Raise ConfigError where two fields that are compared have types whose values would never be equal."""
    types = {**operations, **completions}
    for left, right in COMPARED:
        if left in types and right in types and not comparable(types[left], types[right]):
            raise ConfigError(
                f"{left} is {types[left].simpleString()} and {right} is {types[right].simpleString()}: "
                f"they would never be equal; {_remedy(left, types[left], right, types[right])}"
            )


def _remedy(left: str, left_type: T.DataType, right: str, right_type: T.DataType) -> str:
    """Which of two fields to cast to what: that whose type comes first in `KEY_TYPES`, where the cast keeps values."""
    fields = sorted([(left_type, left), (right_type, right)], key=lambda field: _rank(field[0]))
    (lower_type, lower), (upper_type, upper) = fields
    if isinstance(upper_type, TIMES) and not isinstance(lower_type, (*TIMES, T.StringType)):
        return f"give {lower} and {upper} columns of one type"
    return f"cast {lower} to {upper_type.simpleString()}"


def _rank(kind: T.DataType) -> tuple[int, int]:
    scale = kind.scale if isinstance(kind, T.DecimalType) else 0
    return next(i for i, each in enumerate(KEY_TYPES) if isinstance(kind, each)), scale


def kept_texts(*inputs: FieldTypes) -> tuple[tuple[str, str], ...]:
    """Return the types that the texts of keys and ids are made of, for the checkpoint to remember."""
    types = sorted(item for side in inputs for item in side.items() if item[0] in KEPT)
    return tuple((name, text_of(kind)) for name, kind in types)
