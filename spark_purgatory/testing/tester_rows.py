"""Rows of a test, lists of dicts or Arrow tables, as tables with the types that Spark would give them.

The types are those of a schema, or of the first rows, as in ``spark.createDataFrame``: an int becomes a bigint, a
str a string, a `datetime` with a time zone a timestamp, a `timedelta` a day-time interval. Later rows must fit these
types. An error names the column of a value that does not fit; no value is rounded or guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from spark_purgatory.core.state.payload_schema import plain
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.payload import arrow_schema

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table  # of one input: dicts by column name, or a table
Schema: TypeAlias = pa.Schema | T.StructType
UNFIT = (pa.ArrowException, TypeError, OverflowError, UnicodeError)


class RowReader:
    """A reader of the rows of one input, "operations" or "completions", into tables with the schema of the first rows.

    In the columns ``maps``, a dict is a map and not a struct.
    """

    def __init__(self, given: str, schema: Schema | None, maps: Sequence[str] = ()) -> None:
        self.given = given
        self.schema: T.StructType | None = None
        self._maps = maps
        if schema is not None:
            self._set(schema)

    def read(self, rows: Rows) -> pa.Table | None:
        """Return the rows as a table; None if there is no row and no schema."""
        if not isinstance(rows, pa.Table):
            rows = list(rows)
            if any(not isinstance(row, Mapping) for row in rows):
                raise ConfigError(f"{self.given} must be rows as dicts by column name, or a pyarrow.Table")
        names = rows.column_names if isinstance(rows, pa.Table) else names_of(rows)
        if self.schema is None:
            if not len(rows):
                return None
            types = (
                rows.schema.types if isinstance(rows, pa.Table) else [self._array(rows, n, None).type for n in names]
            )
            self._set(pa.schema(list(zip(names, types, strict=True))))
        assert self.schema is not None
        if unknown := [name for name in names if name not in self.schema.names]:
            raise ConfigError(
                f"{self.given}: column {unknown[0]!r} is not one of {', '.join(self.schema.names)}, which the schema "
                f"or the first rows have: give all columns in {self.given}_schema="
            )
        fields = arrow_schema(self.schema)
        columns = [self._column(rows, name, kind) for name, kind in zip(fields.names, fields.types, strict=True)]
        return pa.Table.from_arrays(columns, fields.names)

    def _set(self, schema: Schema) -> None:
        if isinstance(schema, pa.Schema):
            try:
                schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
            except PySparkException as error:
                raise ConfigError(f"{self.given}: Spark does not have a column's type: cast it. {error}") from error
        if not isinstance(schema, T.StructType):
            raise ConfigError(f"{self.given}_schema={schema!r} must be a pyarrow.Schema or a pyspark StructType")
        self.schema = schema

    def _column(self, rows: Rows, name: str, kind: pa.DataType) -> pa.Array:
        if not isinstance(rows, pa.Table):
            return self._array(rows, name, kind)
        if name not in rows.column_names:
            return pa.nulls(len(rows), kind)
        column = rows[name].combine_chunks()
        if pa.types.is_timestamp(kind) and (kind.tz is None) != (getattr(column.type, "tz", None) is None):
            raise ConfigError(
                f"{self.given}: column {name!r} is {column.type}, but {kind} in the schema or first rows: give one type"
            )
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            raise ConfigError(
                f"{self.given}: column {name!r} is {column.type} and does not fit {plain(kind)}: cast it, or give "
                f"{self.given}_schema="
            ) from error

    def _array(self, rows: Sequence[Mapping[str, Any]], name: str, kind: pa.DataType | None) -> pa.Array:
        values = [row.get(name) for row in rows]
        if name in self._maps:
            values = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
            kind = kind or self._map_type(values)
        try:
            array = pa.array(values, kind)
        except UNFIT as error:
            at = next((i for i, value in enumerate(values) if not _fits(value, kind)), 0)
            where = f"{self.given}[{at}][{name!r}] is a {type(values[at]).__name__}"
            if isinstance(error, UnicodeError):
                raise ConfigError(f"{where} with a lone surrogate, which UTF-8 does not have: remove it") from None
            wanted = "the type of the rows before it" if kind is None else f"{plain(kind)} of the schema or first rows"
            raise ConfigError(
                f"{where}, which does not fit {wanted}: give values of one type, or {self.given}_schema="
            ) from error
        for moment in _moments(values):
            if (moment.tzinfo is None) == _has_zone(array.type):
                raise ConfigError(
                    f"{self.given}: column {name!r} has datetimes with a time zone and without one, but a timestamp is "
                    "an instant: write datetime(..., tzinfo=UTC)"
                )
        return array

    @staticmethod
    def _map_type(values: Sequence[Any]) -> pa.DataType:
        entries = [entry for value in values for entry in value or ()]
        return pa.map_(pa.array([key for key, _ in entries]).type, pa.array([item for _, item in entries]).type)


def names_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of rows, in the order in which they appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _fits(value: Any, kind: pa.DataType | None) -> bool:
    try:
        pa.array([value], kind)
    except UNFIT:
        return False
    return True


def _moments(values: Sequence[Any]) -> Iterator[datetime]:
    for value in values:
        if isinstance(value, datetime):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _moments(value)


def _has_zone(kind: pa.DataType) -> bool:
    """Return True if timestamps of the type, or in it, are instants."""
    if pa.types.is_timestamp(kind):
        return kind.tz is not None
    return any(_has_zone(kind.field(i).type) for i in range(kind.num_fields))
