"""What is within a type: the elements of an array, the keys and values of a map, the fields of a struct."""

from __future__ import annotations

from pyspark.sql import types as T


def within(kind: T.DataType) -> list[tuple[str, T.DataType]]:
    """The types within a type, by their names."""
    if isinstance(kind, T.StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, T.ArrayType):
        return [("element", kind.elementType)]
    return [("key", kind.keyType), ("value", kind.valueType)] if isinstance(kind, T.MapType) else []
