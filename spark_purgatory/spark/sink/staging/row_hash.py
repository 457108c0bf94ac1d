"""The two hashes that are staged with each row: of the row, and of the values of its table partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.storage.storage_access import back_ticked


def quoted(name: str) -> Column:
    """A column by its name, whatever characters that has."""
    return F.col(back_ticked(name))


class HashNames(NamedTuple):
    """Names of the two columns that are staged with the rows."""

    partition: str
    row: str


def hash_names(taken: Sequence[str]) -> HashNames:
    """Names that the rows do not have."""
    lower = {name.lower() for name in taken}

    def free(stem: str) -> str:
        return next(name for name in (stem, *(f"{stem}{i}" for i in range(len(taken) + 1))) if name not in lower)

    return HashNames(free("p"), free("h"))


def row_hash(schema: T.StructType) -> Column:
    """32 bits of all values of a row, whatever the settings of the session are."""
    return F.hash(*(_hashable(quoted(field.name), field.dataType) for field in schema.fields))


def _hashable(column: Column, kind: T.DataType) -> Column:
    """The column; maps as arrays of their entries and variants as JSON, because Spark hashes neither. A cast to string
    would depend on the session's time zone, and on how it writes maps and binaries.
    """
    if isinstance(kind, T.VariantType):
        return F.to_json(column, {"timeZone": "UTC"})
    if not _holds_map(kind):
        return column
    if isinstance(kind, T.MapType):
        entries = T.ArrayType(T.StructType().add("key", kind.keyType).add("value", kind.valueType))
        return F.struct(column.isNull(), _hashable(F.map_entries(column), entries))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(column, lambda each: _hashable(each, element))
    assert isinstance(kind, T.StructType)
    fields = (_hashable(column.getField(field.name), field.dataType) for field in kind.fields)
    return F.struct(column.isNull(), *fields)


def _holds_map(kind: T.DataType) -> bool:
    return isinstance(kind, (T.MapType, T.VariantType)) or any(_holds_map(part) for _, part in within(kind))
