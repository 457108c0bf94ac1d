"""Where a column of staged rows is, after a table's owner has changed the table's columns."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from spark_purgatory.spark.sink.table.renames import Change, changes_of, renamed_by

STAGED = T.StructType(
    [
        T.StructField("n", T.LongType()),
        T.StructField("city", T.StringType()),
        T.StructField("at", T.StructType().add("x", T.IntegerType()).add("y", T.IntegerType())),
        T.StructField("list", T.ArrayType(T.StructType().add("z", T.IntegerType()))),
    ]
)


def renamed(old: str, new: str) -> list[Change]:
    return changes_of("RENAME COLUMN", {"oldColumnPath": old, "newColumnPath": new})


def added(name: str) -> list[Change]:
    return changes_of("ADD COLUMNS", {"columns": f'[{{"column":{{"name":"{name}","type":"string"}}}}]'})


def dropped(name: str) -> list[Change]:
    return changes_of("DROP COLUMNS", {"columns": f'["{name}"]'})


@pytest.mark.parametrize(
    ("changes", "there", "named"),
    [
        (renamed("city", "town"), "n, town, at, at.x, at.y", "n, town, at.x, at.y"),
        (renamed("city", "town") + renamed("town", "the place"), "n, the place, at.x", "n, the place, at.x, at.y"),
        (renamed("CITY", "Town"), "n, town", "n, Town, at.x, at.y"),
        (renamed("city", "town"), "n, city, town", "n, city, at.x, at.y"),
        (renamed("city", "town") + added("city") + dropped("city"), "n, town", "n, city, at.x, at.y"),
        (renamed("city", "town") + dropped("town"), "n", "n, city, at.x, at.y"),
        (renamed("city", "town") + dropped("town") + added("town"), "n, town", "n, city, at.x, at.y"),
        (renamed("city", "a") + renamed("n", "city") + renamed("a", "n"), "n, city", "n, city, at.x, at.y"),
        (renamed("at.x", "at.lon"), "n, city, at, at.lon, at.y", "n, city, at.lon, at.y"),
        (renamed("at", "pos") + renamed("pos.x", "pos.lon"), "n, city, pos, pos.lon, pos.y", "n, city, pos.lon, pos.y"),
        (renamed("x", "at.x"), "n, city, at, at.x, at.y", "n, city, at.x, at.y"),
    ],
)
def test_a_column_is_followed(changes: list[Change], there: str, named: str) -> None:
    known = [tuple(path.split(".")) for path in there.split(", ")]
    found = renamed_by(changes, STAGED, known)
    names: list[str] = []
    for field in found.fields[:3]:
        inner = field.dataType
        names += [f"{field.name}.{one}" for one in inner.names] if isinstance(inner, T.StructType) else [field.name]
    assert ", ".join(names) == named
    assert [field.dataType.simpleString() for field in found.fields[:2]] == ["bigint", "string"]


def test_names_are_read_as_the_history_has_them() -> None:
    assert renamed("s.`b.c`", "s.x y") == [Change(("s", "b.c"), ("s", "x y"), "x y")]
    assert renamed("`p.q`.a", "`p.q`.z.z") == [Change(("p.q", "a"), ("p.q", "z.z"), "z.z")]
    assert renamed("id", "the id") == [Change(("id",), ("the id",), "the id")]
    assert changes_of("DROP COLUMNS", {"columns": '["s.`b.c`"]'}) == [Change(old=("s", "b.c"))]
