"""The history of a Delta table, from DESCRIBE HISTORY, by path and by name, under any catalog.

A drain's writer puts its mark into the version's ``userMetadata``; Delta's own record of transactions is not in the
history. Versions are counted, and log clean-up cuts the oldest ones. But Delta skips a write whose ``txnVersion`` is
not above the app id's last. So a drain that may have been committed is written again (docs/accumulator.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_purgatory.spark.sink.table import history
from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit, Mark, TableVersion

# Columns of DESCRIBE HISTORY that are read, besides ``timestamp`` as text, ``at``.
COLUMNS = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")
RENAME = "RENAME COLUMN"
_TAKES_NAMES = re.compile(rf"{RENAME}|DROP COLUMN|REPLACE|CLONE")


def made_of(entry: TableVersion) -> int | None:
    """Return the version that a version is based on: the one before, or that of a RESTORE; None if that is not known.

    A RESTORE may name a time, and a CLONE over the table has the columns of another one.
    """
    if entry.operation == "CLONE" and entry.version > 0:
        return None
    if entry.operation != "RESTORE":
        return entry.version - 1
    to_version = (entry.parameters.get("version") or "").strip('"')
    return int(to_version) if to_version.isdigit() else None


def takes_names(entry: TableVersion) -> bool:
    """Return True if a version may have given a column's name to another column, or to none."""
    is_new = entry.parameters.get("canOverwriteSchema") == "true"
    return entry.version > 0 and (is_new or _TAKES_NAMES.search(entry.operation) is not None)


def _is_back(rename: TableVersion, other: TableVersion) -> bool:
    """Return True if a rename takes the other one back."""
    if {rename.operation, other.operation} != {RENAME}:
        return False
    names = [
        (entry.parameters.get("oldColumnPath"), entry.parameters.get("newColumnPath")) for entry in (rename, other)
    ]
    (old, new), (before, after) = ([(name or "").replace("`", "").lower() for name in pair] for pair in names)
    return old == after != "" and new == before != ""


@dataclass(frozen=True)
class DeltaHistory(history.History):
    words = history.Words(
        version="version",
        keep="Raise delta.logRetentionDuration",
        restore="RESTORE the table to version",
        skips="Delta skips a txnVersion that is not above the app id's last",
    )

    def is_whole_since(self, version: int) -> bool:
        """Also True without a table."""
        return not self.entries or self.entries[-1].version <= version + 1

    def is_whole_from(self, version: int) -> bool:
        return self.is_whole_since(version - 1)

    def lacks(self, version: int, app_id: str) -> bool:
        """Versions are counted, so the last one decides."""
        return self.version < version

    def lineage(self, version: int) -> dict[int, TableVersion | None]:
        """Return the versions that a version is based on, the newest first, without those that a RESTORE undid.

        The last of them is one that the history has lost (None), or a RESTORE to a time, which may have led anywhere.
        """
        of = {entry.version: entry for entry in self.entries}
        found: dict[int, TableVersion | None] = {}
        at: int | None = version
        lost = min(of, default=NO_VERSION) - 1
        while at is not None and at >= lost and at not in found:
            entry = found[at] = of.get(at)
            at = None if entry is None else made_of(entry)
        return found

    def undone(self, version: int) -> history.Undone | None:
        """A later RESTORE may have brought the version back. If a RESTORE names a time, the version counts as gone."""
        for at, entry in self.lineage(self.version).items():
            if entry is None or at <= version:
                return None
            if entry.replaces:
                return history.Undone(f"replaced in version {at}", at)
            if (before := made_of(entry)) is None:
                time = (entry.parameters.get("timestamp") or "").strip('"')
                return history.Undone(f"restored to time {time}", at)
            if before < version:
                return history.Undone(f"restored to version {before}", at, before)
        return None

    def renamed(self, since: int) -> int | None:
        """Return a version after ``since`` by which a column's name may mean another column now, or none.

        None if there is no such version. Renames do not count if those after them take them back, the last one first.
        The oldest known version counts if the history does not show what the table is made of since then.
        """
        lineage = self.lineage(self.version)
        later = [entry for at, entry in lineage.items() if at > since and entry is not None]
        if since not in lineage:
            return later[-1].version if later else self.version
        changes: list[TableVersion] = []
        for entry in filter(takes_names, reversed(later)):
            if changes and _is_back(entry, changes[-1]):
                changes.pop()
            else:
                changes.append(entry)
        return changes[-1].version if changes else None


def metadata_of(mark: Mark) -> str:
    return json.dumps({"app_id": mark.app_id, "drain": mark.number, "intent": mark.intent_uuid})


def whole_history(
    rows_of: Callable[[int], Iterable[Mapping[str, Any]]], since: int | None = None, first: int = history.FIRST_LOOK
) -> DeltaHistory:
    """Return the last versions of a table, and all after version ``since`` that it still has.

    ``rows_of`` returns a number of the last rows of DESCRIBE HISTORY, in any order, with `COLUMNS`; ``first`` is the
    number to begin with.
    """
    found = _history(rows_of(first))
    if since is None or len(found.entries) < first or found.is_whole_since(since):
        return found
    # Others may add versions meanwhile, which are read as well.
    return _history(rows_of(2 * history.FIRST_LOOK + found.version - since))


def _history(rows: Iterable[Mapping[str, Any]]) -> DeltaHistory:
    entries = []
    for row in sorted(rows, key=lambda row: row["version"], reverse=True):
        operation, parameters = row["operation"] or "", row["operationParameters"] or {}
        entries.append(TableVersion(row["version"], operation, parameters, _commit(row), row.get("at", "")))
    return DeltaHistory(tuple(entries))


def _commit(row: Mapping[str, Any]) -> DrainCommit | None:
    try:
        said = json.loads(row["userMetadata"] or "null")
        app_id, number, uuid = said["app_id"], said["drain"], said["intent"]
    except (ValueError, KeyError, TypeError):
        return None
    metrics = row["operationMetrics"] or {}
    found = [metrics.get(name) for name in ("numOutputRows", "numFiles", "numOutputBytes")]
    counts = (None if count is None else int(count) for count in found)
    return DrainCommit(row["version"], str(app_id), int(number), str(uuid), *counts)
