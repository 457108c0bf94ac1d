"""The columns that a table can hold, and the types that it takes into its columns, as Delta 4.4 does.

`tests/spark/test_column_rules.py` checks the same cases against Delta.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.storage.storage_access import back_ticked

FORBIDDEN_CHARACTERS = (
    " ,;{}()\n\t="  # In names of columns, unless the table maps names (``delta.columnMapping.mode``).
)
REMEDIES = {  # By types that Delta does not have.
    "CalendarIntervalType": "cast it to string",
    "DayTimeIntervalType": "cast it to string, or to a number",
    "YearMonthIntervalType": "cast it to string, or to a number",
    "TimeType": "cast it to string",
    "GeometryType": "write ST_AsBinary of it",
    "GeographyType": "write ST_AsBinary of it",
}
NO_FOLDER = (T.ArrayType, T.MapType, T.StructType, T.VariantType, T.NullType)  # They cannot name a partition's folder.
# The most digits of a value, as Spark counts them when it compares a type with a decimal's.
MOST_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
# A column of the type takes every value of so many digits.
SURE_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 2, T.ShortType: 4, T.IntegerType: 9, T.LongType: 18}
FLOAT_DIGITS: dict[type[T.DataType], int] = {T.FloatType: 7, T.DoubleType: 15}  # Whole numbers up to here are exact.
MAX_DIGITS = 99  # More than any type has.


def unfit(
    schema: T.StructType, partition_by: Sequence[str] = (), *, is_mapped: bool = False, format: str = "Delta"
) -> Iterator[str]:
    """Yield the reasons why a table cannot hold such rows, each with its remedy.

    ``is_mapped``: columns have other names in the table's files.
    """
    yield from _faults(schema, "", is_mapped, format)
    for field in schema.fields:
        if field.name in partition_by and isinstance(field.dataType, NO_FOLDER):
            kind = field.dataType.simpleString()
            yield f"column {field.name!r} of partition_by is of type {kind}, which cannot name a folder: choose another"
    if len(partition_by) >= len(schema.fields):
        yield "partition_by names every column: a table needs one more"
    if all(isinstance(field.dataType, T.NullType) for field in schema.fields):
        yield "every column is of type void: give one a type, CAST(NULL AS STRING)"


def _faults(kind: T.DataType, path: str, is_mapped: bool, format: str, is_inside: bool = False) -> Iterator[str]:
    """Yield the faults of the parts of a type; ``is_inside``: in an array or a map."""
    seen: dict[str, str] = {}
    for name, part in within(kind):
        at, inside = f"{path}.{name}" if path else name, is_inside or not isinstance(kind, T.StructType)
        said = f"column {at!r} is of type {part.simpleString()}"
        if other := seen.get(name.lower()):
            yield f"columns {other!r} and {at!r} are the same name to {format}, which ignores case: rename one"
        seen[name.lower()] = at
        if not is_mapped and any(character in FORBIDDEN_CHARACTERS for character in name):
            yield (
                f"column {at!r} has in its name one of the characters {FORBIDDEN_CHARACTERS!r}, which a Delta table "
                "does not take: rename it, or make the table first, with 'delta.columnMapping.mode' = 'name'"
            )
        if remedy := REMEDIES.get(type(part).__name__):
            yield f"{said}, which {format} does not have: {remedy}"
        elif isinstance(part, T.NullType) and (inside or format == "Iceberg"):
            yield f"{said}, which {format} does not take{' in an array or a map' if inside else ''}: cast it"
        elif isinstance(part, T.StringType) and part.collation != "UTF8_BINARY":
            yield f"{said}, and {format} takes no collation: write it as COLLATE UTF8_BINARY"
        elif isinstance(part, T.StructType) and all(isinstance(field.dataType, T.NullType) for field in part.fields):
            yield f"column {at!r} is a struct without a field that has a type: leave it out, or give it one"
        yield from _faults(part, at, is_mapped, format, inside)


class Taking(NamedTuple):
    adds: bool = False  # The session lets Delta add columns that the table lacks.
    widens: bool = False  # The table also lets it widen types (``delta.enableTypeWidening``).


def fitted_columns(staged: T.StructType, there: T.StructType) -> T.StructType:
    """Return the columns to cast rows to for a table with the columns ``there``, without changing values.

    Delta itself would widen few types, by path, or cast all of them, by name, according to
    ``spark.sql.storeAssignmentPolicy``: digits would change silently, or an error come much later.
    """
    known = {field.name.lower(): field.dataType for field in there.fields}
    fields = ((field, known.get(field.name.lower(), field.dataType)) for field in staged.fields)
    return T.StructType([T.StructField(field.name, fitted(field.dataType, kind)) for field, kind in fields])


def fitted(staged: T.DataType, there: T.DataType) -> T.DataType:
    """Return the type to cast to; ``staged`` itself where values might change, or Delta casts well."""
    if isinstance(staged, T.StructType) and isinstance(there, T.StructType):
        return fitted_columns(staged, there)
    if isinstance(staged, T.ArrayType) and isinstance(there, T.ArrayType):
        return T.ArrayType(fitted(staged.elementType, there.elementType))
    if isinstance(staged, T.MapType) and isinstance(there, T.MapType):
        return T.MapType(fitted(staged.keyType, there.keyType), fitted(staged.valueType, there.valueType))
    return there if _may_cast(staged, there) and not isinstance(staged, T.StringType) else staged


def changed(staged: T.DataType, there: T.DataType, path: str, taking: Taking) -> Iterator[str]:
    """Yield the places where Delta would not take one type into a column of the other, or would change values."""
    if isinstance(staged, T.NullType) or staged == there:
        return
    if isinstance(staged, T.StructType) and isinstance(there, T.StructType):
        yield from _changed_fields(staged, there, path, taking)
    elif type(staged) is type(there) and within(staged):
        for (name, part), (_, other) in zip(within(staged), within(there), strict=True):
            yield from changed(part, other, f"{path}.{name}", taking)
    elif not (_may_cast(staged, there) or (taking.widens and _may_cast(there, staged))):
        yield f"{path} ({staged.simpleString()}, in the table {there.simpleString()})"


def _changed_fields(staged: T.StructType, there: T.StructType, path: str, taking: Taking) -> Iterator[str]:
    known = {field.name.lower(): field for field in there.fields}
    given = {field.name.lower() for field in staged.fields}
    for field in staged.fields:
        at = f"{path}.{field.name}"
        if field.name.lower() in known:
            yield from changed(field.dataType, known[field.name.lower()].dataType, at, taking)
        elif not taking.adds:
            yield f"{at} ({field.dataType.simpleString()}, not in the table)"
    for name, field in known.items():
        if name not in given and not field.nullable:
            yield f"{path}.{field.name} (not there, in the table NOT NULL)"


def _may_cast(staged: T.DataType, there: T.DataType) -> bool:
    """Return True if the other type has every value of the one, so that a cast cannot change it."""
    atomic = (T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)
    if isinstance(staged, T.DateType) and isinstance(there, T.TimestampNTZType):
        return True
    if isinstance(staged, atomic) or isinstance(there, atomic):
        return type(staged) is type(there)
    if type(there) in FLOAT_DIGITS and not isinstance(staged, T.DecimalType):
        digits = MOST_DIGITS.get(type(staged)) or FLOAT_DIGITS.get(type(staged))
        return digits is not None and digits <= FLOAT_DIGITS[type(there)]
    if isinstance(staged, T.DecimalType):
        digits, scale = staged.precision - staged.scale, staged.scale
    else:
        digits, scale = MOST_DIGITS.get(type(staged), MAX_DIGITS), 0
    if isinstance(there, T.DecimalType):
        return digits <= there.precision - there.scale and scale <= there.scale
    return scale == 0 and digits <= SURE_DIGITS.get(type(there), -1)


# --- the columns of staged rows --------------------------------------------------------------------------------------

Path = tuple[str, ...]  # The names of a column's structs, and its own.


@dataclass(frozen=True)
class StagedColumns:
    rows: T.StructType
    version: int = NO_VERSION  # The table's version whose names they have; `NO_VERSION` if there was no table.

    @classmethod
    def of(cls, text: str) -> StagedColumns:
        body = json.loads(text)
        return cls(T.StructType.fromJson(body), body.get("version", NO_VERSION))

    @property
    def text(self) -> str:
        """The columns in the form of the staging log: the JSON of a schema, with the version."""
        return json.dumps({**self.rows.jsonValue(), "version": self.version}, separators=(",", ":"))

    def continued(self, known: str | None) -> str:
        """Return the text to stage rows with: ``known`` if its columns are the same, and its version not older."""
        if known is None:
            return self.text
        other = StagedColumns.of(known)
        return known if other.rows == self.rows and other.version >= self.version else self.text


def with_types(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the rows with the types of a schema, at every depth, column by column."""
    if rows.schema.simpleString() == schema.simpleString():
        return rows
    pairs = zip(rows.columns, schema.fields, strict=True)
    return rows.select(*(F.col(back_ticked(old)).cast(new.dataType).alias(new.name) for old, new in pairs))


def paths(kind: T.DataType, path: Path = ()) -> Iterable[Path]:
    for name, part in within(kind):
        if isinstance(kind, T.StructType):
            yield (*path, name)
        yield from paths(part, (*path, name))
