"""The operations' columns that only travel: which types can, and as which Arrow types.

Every Spark type travels that ``mapInArrow`` takes in and gives back unchanged. `check_columns` refuses the others
before the query starts, and names the column, its type and a cast that helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_purgatory.core.state.payload_evolution import merged
from spark_purgatory.core.state.payload_schema import SPARK_TYPE, UTC
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.nested import within

CASTS = {
    T.YearMonthIntervalType: (
        "cast it to string, or send its months, extract(year from c) * 12 + extract(month from c), "
        "of which make_ym_interval(0, months) makes it again"
    ),
    T.CalendarIntervalType: "cast it to string",
    T.CharType: "cast it to string",
    T.VarcharType: "cast it to string",
}
"""What to do with a column of a type that Spark does not hand over to Python."""
NOTED_TYPES: tuple[type[T.DataType], ...] = (
    # TIME is of Spark 4.1.
    *(kind for kind in [getattr(T, "TimeType", None)] if kind is not None),
    T.DayTimeIntervalType,
)
"""Types that Arrow does not tell apart as Spark does."""
IN_UTC: Mapping[str, Any] = {"timezone": UTC} if "timezone" in signature(to_arrow_schema).parameters else {}
"""Before Spark 4.2 timestamps are in UTC without being asked."""


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of rows that go back to Spark."""
    return cast("pa.Schema", to_arrow_schema(schema, **IN_UTC))


def spark_types(fields: Sequence[pa.Field]) -> T.StructType:
    """Columns that were noted as `columns_of` does, as Spark has them."""
    found = from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)
    return T.StructType([_typed(field, arrow) for field, arrow in zip(found.fields, fields, strict=True)])


def _typed(field: T.StructField, arrow: pa.Field) -> T.StructField:
    noted = (arrow.metadata or {}).get(SPARK_TYPE)
    return field if noted is None else T.StructField(field.name, T.DataType.fromDDL(noted.decode()), field.nullable)


def schema_text(schema: pa.Schema | None) -> str | None:
    """A schema as a text, which `schema_of` reads."""
    return None if schema is None else schema.serialize().to_pybytes().hex()


def schema_of(text: str) -> pa.Schema:
    """The schema that `schema_text` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def merged_texts(texts: Iterable[str | None]) -> list[pa.Field]:
    """The columns that hold what each of several schemas holds (`merged`)."""
    return merged([list(schema_of(text)) for text in dict.fromkeys(texts) if text is not None])


def columns_of(schema: T.StructType, case_sensitive: bool, side: str = "operations") -> pa.Schema:
    """An input's columns as they are sent, kept and remembered. Raises ConfigError for types that cannot be."""
    check_columns(schema, case_sensitive, side)
    fields = zip(schema.fields, arrow_schema(with_nullable_voids(schema)), strict=True)
    return pa.schema([_noted(field, spark.dataType) for spark, field in fields])


def check_columns(schema: T.StructType, case_sensitive: bool, side: str = "operations") -> None:
    """Raise ConfigError where two columns have one name, or a column's type does not travel."""
    for path, kind in _parts(schema, ""):
        column = f"{side}: column {path.removesuffix('.')!r} is {kind.simpleString()}"
        if isinstance(kind, T.StructType):
            # A struct may hold x and X whatever the session says: the fields travel by position.
            _check_names(kind.names, path, case_sensitive or bool(path), side)
        for refused, remedy in CASTS.items():
            if isinstance(kind, refused):
                raise ConfigError(f"{column}, which Spark does not hand over to Python and take back: {remedy}")
        if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.NullType):
            raise ConfigError(f"{column}, whose keys have no type: cast it, for example to map<string,string>")


def with_nullable_voids(schema: T.StructType) -> T.StructType:
    """The schema in which whatever is void may be null: the elements of Spark's ``array()`` are not."""
    fields = ((each, each.nullable or isinstance(each.dataType, T.NullType)) for each in schema.fields)
    made = (T.StructField(f.name, _with_nullable_voids(f.dataType), nullable, f.metadata) for f, nullable in fields)
    return T.StructType([*made])


def _check_names(names: list[str], path: str, case_sensitive: bool, side: str) -> None:
    counts = Counter(name if case_sensitive else name.casefold() for name in names)
    twice = [name for name in names if counts[name if case_sensitive else name.casefold()] > 1]
    if twice:
        listed = ", ".join(repr(path + name) for name in twice)
        raise ConfigError(f"{side} have columns of one name, {listed}: rename or drop all but one")


def _parts(kind: T.DataType, path: str) -> Iterator[tuple[str, T.DataType]]:
    """A type and all within it, each with the path that leads there, which ends in a full stop."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    yield path, kind
    for name, part in within(kind):
        yield from _parts(part, f"{path}{name}.")


def _with_nullable_voids(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.StructType):
        return with_nullable_voids(kind)
    if isinstance(kind, T.ArrayType):
        nullable = kind.containsNull or isinstance(kind.elementType, T.NullType)
        return T.ArrayType(_with_nullable_voids(kind.elementType), nullable)
    if isinstance(kind, T.MapType):
        nullable = kind.valueContainsNull or isinstance(kind.valueType, T.NullType)
        return T.MapType(_with_nullable_voids(kind.keyType), _with_nullable_voids(kind.valueType), nullable)
    return kind


def _noted(field: pa.Field, kind: T.DataType) -> pa.Field:
    """The field without Spark's comments, but with what the Arrow type does not say of Spark's, at every depth."""
    if isinstance(kind, T.UserDefinedType):
        kind = kind.sqlType()
    note = {SPARK_TYPE: kind.simpleString().encode()} if isinstance(kind, NOTED_TYPES) else None
    within = field.type
    if isinstance(kind, T.StructType):
        parts = zip(kind.fields, within, strict=True)
        within = pa.struct([_noted(part, spark.dataType) for spark, part in parts])
    elif isinstance(kind, T.ArrayType):
        within = pa.list_(_noted(within.value_field, kind.elementType))
    elif isinstance(kind, T.MapType):
        within = pa.map_(_noted(within.key_field, kind.keyType), _noted(within.item_field, kind.valueType))
    return pa.field(field.name, within, field.nullable, note)
