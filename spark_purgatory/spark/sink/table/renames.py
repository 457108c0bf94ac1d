"""Follows columns that a Delta table's owner renamed, dropped or added while rows with the old names were staged.

Delta gives each column an id, but its schemas do not show the ids. Its history names every change of a column. So
staged rows carry the version of the table whose names their columns have (`StagedColumns`), and the changes since then
lead each column to the one that has its id now. Example, rows with the columns ``a`` and ``b`` of version 4::

    version 5  RENAME COLUMN a TO tmp
    version 6  RENAME COLUMN b TO a
    version 7  RENAME COLUMN tmp TO b      the rows' a goes to b, and their b to a

A column that was dropped has no id any more. Its values go only to a column that was added under its name since then.
If the history lacks a version since then, the names are not known (`UnknownColumnsError`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import types as T

from spark_purgatory.spark.nested import within
from spark_purgatory.spark.sink.table.delta_history import DeltaHistory, made_of
from spark_purgatory.spark.sink.table.history import TableVersion
from spark_purgatory.spark.sink.table.staged_columns import Path, StagedColumns, paths


class UnknownColumnsError(Exception):
    """The history does not show how columns were renamed."""


class Change(NamedTuple):
    """A change of a column: renamed with both paths, dropped with only the old one, added with only the new one."""

    old: Path | None = None
    new: Path | None = None

    def applied(self, path: Path) -> Path | None:
        """Return a column's path after the change; None if it was dropped or replaced."""
        if self.old is not None and _lower(path[: len(self.old)]) == _lower(self.old):
            return None if self.new is None else self.new + path[len(self.old) :]
        return None if self.new is not None and _lower(path[: len(self.new)]) == _lower(self.new) else path


ALL_NEW = Change(old=())  # Every column was replaced.


def followed(columns: StagedColumns, history: DeltaHistory, there: T.StructType) -> tuple[T.StructType, list[str]]:
    """Return the columns with the names that the table, whose columns are ``there``, has for them now.

    Also returns columns that were dropped while another column got their name. Nulls are allowed at every depth,
    because Spark casts no rows from files to a type that forbids them. UnknownColumnsError if the names are not known.
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
    """Return the changes that lead from a version to the last one. UnknownColumnsError.

    If a RESTORE led to an earlier version, the changes since that one are undone first.
    """
    before, now = history.lineage(version), history.lineage(history.version)
    if not (shared := before.keys() & now.keys()):
        raise UnknownColumnsError

    def newest_first(lineage: dict[int, TableVersion | None]) -> list[Change]:
        steps = (entry for at, entry in lineage.items() if at > max(shared) and entry is not None)
        return [change for step in steps for change in reversed(changes_of(step.operation, step.parameters))]

    return [Change(change.new, change.old) for change in newest_first(before)] + newest_first(now)[::-1]


def changes_of(operation: str, parameters: Mapping[str, Any]) -> list[Change]:
    """Return the changes that one version of a table made. UnknownColumnsError if its history lacks them."""
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


def takes_names(entry: TableVersion) -> bool:
    """Return True if a version may have given a column another one's name."""
    try:
        changes = changes_of(entry.operation, entry.parameters)
    except UnknownColumnsError:
        return True
    return made_of(entry) != entry.version - 1 or any(change.old is not None for change in changes)


def _parts(path: str) -> Path:
    """Split a path of the history: parts with a dot are in back-ticks, and a back-tick is not doubled."""
    return tuple(dotted or plain for dotted, plain in re.findall(r"`(.+?)`(?=[.]|$)|([^.]+)", path))


def _applied(changes: Iterable[Change], path: Path) -> Path | None:
    at: Path | None = path
    for change in changes:
        at = None if at is None else change.applied(at)
    return at


def _lower(parts: Sequence[str]) -> Path:
    return tuple(part.lower() for part in parts)
