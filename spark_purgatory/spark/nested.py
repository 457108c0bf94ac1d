"""The parts of a type: the elements of an array, the keys and values of a map, the fields of a struct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T


def within(kind: T.DataType) -> list[tuple[str, T.DataType]]:
    if isinstance(kind, T.StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, T.ArrayType):
        return [("element", kind.elementType)]
    return [("key", kind.keyType), ("value", kind.valueType)] if isinstance(kind, T.MapType) else []


def merged(one: T.StructType, other: T.StructType) -> T.StructType:
    """Return the columns of both types, the first one's first; their fields likewise, at every depth."""
    more = {field.name.lower(): field for field in other.fields}
    kinds = [(field, more.pop(field.name.lower(), field).dataType) for field in one.fields]
    fields = [T.StructField(field.name, _merged(field.dataType, kind)) for field, kind in kinds]
    return T.StructType([*fields, *more.values()])


def _merged(one: T.DataType, other: T.DataType) -> T.DataType:
    if isinstance(one, T.StructType) and isinstance(other, T.StructType):
        return merged(one, other)
    if type(one) is not type(other) or not within(one):
        return one
    make: Any = type(one)
    return make(*(_merged(mine, theirs) for (_, mine), (_, theirs) in zip(within(one), within(other), strict=True)))


def by_name(held: T.StructType, wanted: T.StructType, get: Callable[[str], Column]) -> list[Column]:
    """Return the columns of ``wanted``, matched by name at every depth; those that are not ``held`` are null."""
    kinds = {field.name.lower(): field for field in held.fields}
    columns = []
    for field in wanted.fields:
        mine, column = kinds.get(field.name.lower()), F.lit(None).cast(field.dataType)
        if mine is not None:
            column = _conformed(get(mine.name), mine.dataType, field.dataType)
        columns.append(column.alias(field.name))
    return columns


def _conformed(column: Column, kind: T.DataType, wanted: T.DataType) -> Column:
    if kind.simpleString() == wanted.simpleString():
        return column
    if isinstance(kind, T.StructType) and isinstance(wanted, T.StructType):
        return F.when(column.isNotNull(), F.struct(*by_name(kind, wanted, column.getField)))
    if isinstance(kind, T.ArrayType) and isinstance(wanted, T.ArrayType):
        element = kind.elementType, wanted.elementType
        return F.transform(column, lambda each: _conformed(each, *element))
    if isinstance(kind, T.MapType) and isinstance(wanted, T.MapType):
        key, value = (kind.keyType, wanted.keyType), (kind.valueType, wanted.valueType)
        column = F.transform_values(column, lambda _, each: _conformed(each, *value))
        return F.transform_keys(column, lambda each, _: _conformed(each, *key))
    return column
