"""Columns that a table's owner renamed while rows with the old names were staged.

``ALTER TABLE ... RENAME COLUMN`` changes no file, and the table's history names both names. So rows that a table lacks
a column for, and were staged before, go where the column is now. Worked example, rows with ``city``::

    version 5  RENAME COLUMN city TO town      the rows' city goes to town
    version 6  RENAME COLUMN town TO place     the rows' city goes to place
    version 7  ADD COLUMNS (city)              the table has a city again: the rows' city goes there
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.spark.sink.table.table_place import name_parts, sql_name

CHANGES = ("RENAME COLUMN", "ADD COLUMNS", "DROP COLUMNS")
Path = tuple[str, ...]
"""A column's place in lower case: its struct's name, and its own."""


@dataclass(frozen=True)
class Change:
    """A change of a table's columns."""

    old: Path | None = None
    """What is gone; None if nothing is."""
    new: Path | None = None
    """What is there; with both it is the same column."""
    name: str = ""
    """The new one as the table has it."""


def followed(spark: SparkSession, place: str, staged: T.StructType, there: T.StructType) -> T.StructType:
    """The columns of staged rows, with the names that the table has for them now; those that it lacks as they were.

    ``place``: the table as SQL has it, a name or the literal of a path.
    """
    known = set(_paths(there))
    if known.issuperset(_paths(staged)):
        return staged
    history = spark.sql(f"DESCRIBE HISTORY {place}").where(F.col("operation").isin(*CHANGES))
    rows = history.select("version", "operation", "operationParameters").collect()
    changes = [
        change for row in sorted(rows, key=lambda row: row["version"]) for change in changes_of(row[1], row[2] or {})
    ]
    renamed = renamed_by(changes, staged, known)
    return renamed if len(set(map(str.lower, renamed.names))) == len(renamed.names) else staged


def changes_of(operation: str, parameters: Mapping[str, Any]) -> list[Change]:
    """The changes that one version of a table made, as its history has them."""
    if operation == "RENAME COLUMN":
        old = name_parts(parameters["oldColumnPath"])
        name = parameters["newColumnPath"]
        for parents in (sql_name(*old[:-1]), ".".join(old[:-1])):
            name = name.removeprefix(f"{parents}." if parents else "")
        name = name_parts(name)[0] if name.startswith("`") else name
        return [Change(_lower(old), _lower([*old[:-1], name]), name)]
    listed = json.loads(parameters.get("columns") or "[]")
    if operation == "DROP COLUMNS":
        return [Change(old=_lower(name_parts(name))) for name in listed]
    return [Change(new=_lower([one["column"]["name"]]), name=one["column"]["name"]) for one in listed]


def renamed_by(changes: Sequence[Change], schema: T.StructType, known: Iterable[Path]) -> T.StructType:
    """The schema after the changes, as far as they lead from a column that is not known to one that is.

    Nulls are allowed at every depth: Spark casts no rows that it has read from files to a type that forbids them.
    """
    known = set(known)

    def name_of(path: Path, name: str) -> str:
        at, now = path, name
        for change in changes:
            if change.old is not None and at[: len(change.old)] == change.old:
                if change.new is None:
                    at, now = path, name
                elif at == change.old:
                    at, now = change.new, change.name
                else:
                    at = change.new + at[len(change.old) :]
            elif change.old is None and change.new == path:
                at, now = path, name
        return now if path not in known and at in known else name

    def renamed(kind: T.DataType, path: Path) -> T.DataType:
        if isinstance(kind, T.ArrayType):
            return T.ArrayType(renamed(kind.elementType, (*path, "element")))
        if isinstance(kind, T.MapType):
            key, value = renamed(kind.keyType, (*path, "key")), renamed(kind.valueType, (*path, "value"))
            return T.MapType(key, value)
        if not isinstance(kind, T.StructType):
            return kind
        fields = []
        for field in kind.fields:
            at = (*path, field.name.lower())
            name = name_of(at, field.name)
            fields.append(T.StructField(name, renamed(field.dataType, at), True, field.metadata))
        return T.StructType(fields)

    done = renamed(schema, ())
    assert isinstance(done, T.StructType)
    return done


def with_names(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """The rows with the names of a schema, at every depth, column by column."""
    if rows.schema.simpleString() == schema.simpleString():
        return rows
    pairs = zip(rows.columns, schema.fields, strict=True)
    return rows.select(*(F.col(sql_name(old)).cast(new.dataType).alias(new.name) for old, new in pairs))


def _paths(kind: T.DataType, path: Path = ()) -> Iterable[Path]:
    if isinstance(kind, T.ArrayType):
        yield from _paths(kind.elementType, (*path, "element"))
    elif isinstance(kind, T.MapType):
        yield from _paths(kind.keyType, (*path, "key"))
        yield from _paths(kind.valueType, (*path, "value"))
    elif isinstance(kind, T.StructType):
        for field in kind.fields:
            yield (*path, field.name.lower())
            yield from _paths(field.dataType, (*path, field.name.lower()))


def _lower(parts: Sequence[str]) -> Path:
    return tuple(part.lower() for part in parts)
