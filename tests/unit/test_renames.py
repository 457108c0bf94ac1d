"""Where a column of staged rows is, after a table's owner has changed the table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_purgatory.spark.sink.table.delta_history import DeltaHistory as History
from spark_purgatory.spark.sink.table.history import TableVersion
from spark_purgatory.spark.sink.table.renames import (
    Change,
    UnknownColumnsError,
    changes_of,
    followed,
    takes_names,
)
from spark_purgatory.spark.sink.table.staged_columns import StagedColumns

STAGED = T.StructType(
    [
        T.StructField("n", T.LongType()),
        T.StructField("city", T.StringType()),
        T.StructField("at", T.StructType().add("x", T.IntegerType()).add("y", T.IntegerType())),
        T.StructField("list", T.ArrayType(T.StructType().add("z", T.IntegerType()))),
    ]
)
Step = tuple[str, Mapping[str, Any]]


def renamed(old: str, new: str) -> Step:
    return "RENAME COLUMN", {"oldColumnPath": old, "newColumnPath": new}


def added(name: str) -> Step:
    return "ADD COLUMNS", {"columns": f'[{{"column":{{"name":"{name}","type":"string"}}}}]'}


def dropped(name: str) -> Step:
    return "DROP COLUMNS", {"columns": f'["{name}"]'}


def restored(version: int) -> Step:
    return "RESTORE", {"version": str(version), "timestamp": None}


WRITE: Step = ("WRITE", {"mode": "Append"})
CLONE: Step = ("CLONE", {"source": "file:/backup", "sourceVersion": "3", "isShallow": "true"})
OVERWRITE: Step = ("WRITE", {"mode": "Overwrite", "canOverwriteSchema": "true"})


SWAP = [renamed("at.x", "at.t"), renamed("at.y", "at.x"), renamed("at.t", "at.y")]


def history(*steps: Step, first: int = 1) -> History:
    entries = [TableVersion(first + at, name, parameters, None) for at, (name, parameters) in enumerate(steps)]
    return History(tuple(reversed(entries)))


def columns_of(text: str) -> T.StructType:
    """A table of these columns: ``at.x`` is a field of ``at``."""
    inner: dict[str, list[str]] = {}
    for one in text.split(", "):
        name, _, field = one.partition(".")
        inner.setdefault(name, []).extend([field] if field else [])
    made = T.StructType()
    for name, fields in inner.items():
        struct = T.StructType([T.StructField(field, T.IntegerType()) for field in fields])
        made.add(name, struct if fields else T.StringType())
    return made


def named(found: T.StructType) -> str:
    names: list[str] = []
    for field in found.fields[:3]:
        inner = field.dataType
        names += [f"{field.name}.{one}" for one in inner.names] if isinstance(inner, T.StructType) else [field.name]
    return ", ".join(names)


@pytest.mark.parametrize(
    ("steps", "there", "now"),
    [
        ([renamed("city", "town")], "n, town, at.x, at.y", "n, town, at.x, at.y"),
        ([renamed("city", "town"), renamed("town", "the place")], "n, the place, at.x", "n, the place, at.x, at.y"),
        ([renamed("CITY", "Town")], "n, Town", "n, Town, at.x, at.y"),
        # The names are those of before, the columns are not.
        ([renamed("n", "t"), renamed("city", "n"), renamed("t", "city")], "city, n, at.x, at.y", "city, n, at.x, at.y"),
        (SWAP, "at.y, at.x", "n, city, at.y, at.x"),
        ([renamed("city", "c"), renamed("n", "city")], "city, c, at.x, at.y", "city, c, at.x, at.y"),
        ([renamed("city", "a"), renamed("n", "city"), renamed("a", "n")], "n, city", "city, n, at.x, at.y"),
        ([renamed("city", "town"), added("city")], "n, town, city", "n, town, at.x, at.y"),
        # What was dropped has no column but one that was added since under its name.
        ([renamed("city", "town"), dropped("town")], "n", "n, city, at.x, at.y"),
        ([renamed("city", "town"), dropped("town"), added("town")], "n, town", "n, city, at.x, at.y"),
        ([dropped("city"), added("city")], "n, city", "n, city, at.x, at.y"),
        ([dropped("at.x"), renamed("at", "pos"), added("pos.x")], "n, pos.x, pos.y", "n, city, pos.x, pos.y"),
        ([renamed("at.x", "at.lon")], "n, city, at.lon, at.y", "n, city, at.lon, at.y"),
        ([renamed("at", "pos"), renamed("pos.x", "pos.lon")], "n, city, pos.lon, pos.y", "n, city, pos.lon, pos.y"),
        ([WRITE, renamed("city", "town"), WRITE], "n, town", "n, town, at.x, at.y"),
        # A RESTORE brings the names back, and one to a version before the staged rows' takes theirs back.
        ([renamed("city", "town"), restored(1)], "n, city", "n, city, at.x, at.y"),
        ([renamed("city", "town"), restored(1), renamed("city", "place")], "n, place", "n, place, at.x, at.y"),
        ([renamed("city", "n"), OVERWRITE], "n, city", "n, city, at.x, at.y"),
    ],
)  # fmt: skip
def test_a_column_is_followed(steps: list[Step], there: str, now: str) -> None:
    found, lost = followed(StagedColumns(STAGED, 1), history(WRITE, *steps), columns_of(there))
    assert named(found) == now and lost == []
    assert [field.dataType.simpleString() for field in found.fields[:2]] == ["bigint", "string"]


@pytest.mark.parametrize(
    ("steps", "there", "lost"),
    [
        ([dropped("city"), renamed("n", "city")], "city, at.x", ["city"]),
        ([dropped("at.x"), renamed("at.y", "at.x")], "n, city, at.x", ["at.x"]),
        # A column that the table never had, and now has by another's name.
        ([renamed("other", "city")], "n, city", ["city"]),
    ],
)
def test_a_column_that_another_ones_name_hides_is_told(steps: list[Step], there: str, lost: list[str]) -> None:
    assert followed(StagedColumns(STAGED, 1), history(WRITE, *steps), columns_of(there))[1] == lost


@pytest.mark.parametrize(
    ("found", "version"),
    [
        (history(WRITE, WRITE, first=7), 5),
        (history(WRITE, ("RESTORE", {"version": None, "timestamp": "2026-01-01"})), 1),
        (history(WRITE, restored(-1), first=4), 4),
        (history(WRITE, CLONE, WRITE), 1),  # The clone's source may have renamed them.
        (history(WRITE, ("RENAME COLUMN", {"queryId": "1"})), 1),
        (history(WRITE, ("DROP COLUMNS", {})), 1),
    ],
)
def test_what_the_history_does_not_say_is_not_guessed(found: History, version: int) -> None:
    with pytest.raises(UnknownColumnsError):
        followed(StagedColumns(STAGED, version), found, STAGED)


def test_columns_are_written_and_read_and_go_on_in_a_later_drain() -> None:
    swap = history(WRITE, renamed("n", "t"), renamed("city", "n"), renamed("t", "city"))
    staged = StagedColumns(STAGED, 1)
    there = columns_of("city, n, at.x, at.y")
    noted = staged.at(swap, followed(staged, swap, there)[0])
    read = StagedColumns.of(noted.text)
    assert read == noted and read.version == 4 and read.there is not None
    again = history(WRITE, renamed("city", "place"), first=4)
    assert named(followed(read, again, columns_of("place, n, at.x, at.y"))[0]) == "place, n, at.x, at.y"
    assert staged.continued(noted.text) == noted.text, "the same run stages on"
    assert StagedColumns(STAGED, 5).continued(noted.text) != noted.text, "a run that began later has names of its own"
    assert staged.continued(None) == staged.text


def test_names_are_read_as_the_history_has_them() -> None:
    def renames(old: str, new: str) -> list[Change]:
        return changes_of(*renamed(old, new))

    assert renames("s.`b.c`", "s.x y") == [Change(("s", "b.c"), ("s", "x y"))]
    assert renames("`p.q`.a", "`p.q`.z.z") == [Change(("p.q", "a"), ("p.q", "z.z"))]
    assert renames("s.o p", "s.`q.r`") == [Change(("s", "o p"), ("s", "q.r"))]
    assert renames("s p.`t.u`.a", "s p.`t.u`.b") == [Change(("s p", "t.u", "a"), ("s p", "t.u", "b"))]
    assert renames("größe.`t.u`.a", "größe.`t.u`.b b") == [Change(("größe", "t.u", "a"), ("größe", "t.u", "b b"))]
    assert renames("`s.p`.in s.`s.p`", "`s.p`.in s.`x.y`z`") == [
        Change(("s.p", "in s", "s.p"), ("s.p", "in s", "x.y`z"))
    ]
    assert renames("s.`x.y`z`.a", "s.`x.y`z`.b") == [Change(("s", "x.y`z", "a"), ("s", "x.y`z", "b"))]
    assert renames("ti`ck.a", "ti`ck.b") == [Change(("ti`ck", "a"), ("ti`ck", "b"))]
    assert renames("id", "the id") == [Change(("id",), ("the id",))]
    assert changes_of(*dropped("s.`b.c`")) == [Change(old=("s", "b.c"))]
    assert changes_of(*added("s.`b.c`")) == [Change(new=("s", "b.c"))]


@pytest.mark.parametrize(
    ("step", "taken"),
    [
        (renamed("a", "b"), True),
        (dropped("a"), True),
        (restored(1), True),
        (("CLONE", {}), True),
        (("CREATE OR REPLACE TABLE", {}), True),
        (("RENAME COLUMN", {}), True),  # Its parameters are lost.
        (added("a"), False),
        (("WRITE", {}), False),
        (("OPTIMIZE", {}), False),
    ],
)
def test_a_version_may_have_given_a_column_another_ones_name(step: Step, taken: bool) -> None:
    (entry,) = history(step, first=5).entries
    assert takes_names(entry) is taken
