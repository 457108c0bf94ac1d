"""Columns that a Delta table's owner renamed, dropped or added while rows with the old names were staged.

Delta gives each column an id, and shows it to nobody: a schema that it hands out has none. But its history names every
change of a column. So staged rows carry the version of the table at which their columns had the names that they have
(`StagedColumns`), and the changes since then lead each column to the one that has its id now. Example, rows with
``a`` and ``b``, whose names were those of version 4::

    version 5  RENAME COLUMN a TO tmp
    version 6  RENAME COLUMN b TO a
    version 7  RENAME COLUMN tmp TO b      the rows' a goes to b, and their b to a

A column that was dropped has no id any more. Its values go to a column that was added since then under its name, and to
no other. Where the history lacks a version since then, nobody can tell (`UnknownColumnsError`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.sink.table.delta_history import DeltaHistory
from spark_purgatory.spark.sink.table.history import TableVersion
from spark_purgatory.spark.sink.table.staged_columns import Path, StagedColumns, paths


class UnknownColumnsError(Exception):
    """The history does not say what became of the columns."""


class Change(NamedTuple):
    """A change of a table's columns: with both paths a column has another name, with one it is new, or gone."""

    old: Path | None = None
    new: Path | None = None

    def applied(self, path: Path) -> Path | None:
        """A column's path after the change; None if it is gone, or another one has its place."""
        if self.old is not None and _lower(path[: len(self.old)]) == _lower(self.old):
            return None if self.new is None else self.new + path[len(self.old) :]
        return None if self.new is not None and _lower(path[: len(self.new)]) == _lower(self.new) else path


ALL_NEW = Change(old=())
"""Every column was replaced."""


def followed(columns: StagedColumns, history: DeltaHistory, there: T.StructType) -> tuple[T.StructType, list[str]]:
    """The columns with the names that the table, whose columns are ``there``, has for them now.

    Also returns those that were dropped while another column got their name: no column of the table is theirs. Raises
    UnknownColumnsError where the history does not say. Nulls are allowed at every depth, because Spark
    casts no rows that it has read from files to a type that forbids them.
    """
    changes = changes_since(columns.version, history)
    undoing = [Change(change.new, change.old) for change in reversed(changes)]
    known, lost = {*map(_lower, paths(there))}, list[str]()

    def after(path: Path, parent: Path) -> Path:
        now = _applied(changes, path) or (*parent, path[-1])
        if _lower(now) in known:
            was = _applied(undoing, now)
            if was is not None and _lower(was) != _lower(path):
                lost.append(".".join(path))
        return now

    def renamed(kind: T.DataType, path: Path, now: Path) -> T.DataType:
        if not isinstance(kind, T.StructType):
            parts = [renamed(part, (*path, name), (*now, name)) for name, part in within(kind)]
            make: Any = type(kind)
            return make(*parts) if parts else kind
        fields = []
        for field in kind.fields:
            at = after((*path, field.name), now)
            inner = renamed(field.dataType, (*path, field.name), at)
            fields.append(T.StructField(at[-1], inner, True, field.metadata))
        return T.StructType(fields)

    done = renamed(columns.there or columns.rows, (), ())
    assert isinstance(done, T.StructType)
    return done, lost


def changes_since(version: int, history: DeltaHistory) -> list[Change]:
    """The changes that lead from version ``version`` to the last one; UnknownColumnsError.

    They are undone first, and made then, where a RESTORE led to a version before ``version``.
    """
    before, now = history.lineage(version), history.lineage(history.version)
    if not (shared := before.keys() & now.keys()):
        raise UnknownColumnsError

    def newest_first(lineage: dict[int, TableVersion | None]) -> list[Change]:
        steps = (entry for at, entry in lineage.items() if at > max(shared) and entry is not None)
        return [change for step in steps for change in reversed(changes_of(step.operation, step.parameters))]

    return [Change(change.new, change.old) for change in newest_first(before)] + newest_first(now)[::-1]


def changes_of(operation: str, parameters: Mapping[str, Any]) -> list[Change]:
    """The changes that one version of a table made, as its history has them. UnknownColumnsError if it lacks them."""
    try:
        if operation == "RENAME COLUMN":
            old = _parts(parameters["oldColumnPath"])
            parents = "".join(f"`?{re.escape(part)}`?[.]" for part in old[:-1])
            name = re.sub(f"^{parents}", "", parameters["newColumnPath"])
            return [Change(old, (*old[:-1], name[1:-1] if name.startswith("`") else name))]
        if operation == "DROP COLUMNS":
            return [Change(old=_parts(name)) for name in json.loads(parameters["columns"])]
        if operation == "ADD COLUMNS":
            return [Change(new=_parts(one["column"]["name"])) for one in json.loads(parameters["columns"])]
    except (KeyError, TypeError, ValueError, IndexError):
        raise UnknownColumnsError from None
    is_new = "REPLACE" in operation or parameters.get("canOverwriteSchema") == "true"
    return [ALL_NEW] if is_new else []


def _parts(path: str) -> Path:
    """The parts of a path as the history has it: in back-ticks where they have a dot, and no back-tick is doubled."""
    return tuple(dotted or plain for dotted, plain in re.findall(r"`(.+?)`(?=[.]|$)|([^.]+)", path))


def _applied(changes: Iterable[Change], path: Path) -> Path | None:
    at: Path | None = path
    for change in changes:
        at = None if at is None else change.applied(at)
    return at


def _lower(parts: Sequence[str]) -> Path:
    return tuple(part.lower() for part in parts)
