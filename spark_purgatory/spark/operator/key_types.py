"""Types of keys and ids, and the one text that each value has (docs/keys_and_times.md).

No setting of the session may change a text. But a cast of a timestamp to text uses the session's zone, where the two
instants of a repeated hour have one text. A cast of a date obeys ``spark.sql.legacy.timeParserPolicy``, and a cast of a
small decimal ``spark.sql.ansi.enabled``.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

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
    """Raise ConfigError unless each value of the type has one text."""
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
    """Raise ConfigError unless a column can hold the words that are read from it."""
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
    """Raise ConfigError if two fields that are compared have types whose values would never be equal."""
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
