"""What a Delta table says of itself and of its past: DETAIL and HISTORY, by path and by name, whoever keeps its log.

A drain is one version of the table. Its writer puts its *mark* into the version's ``userMetadata``: the app id, the
drain's number, and the uuid of the drain's intent. Delta's own record of transactions is not in the history.

Log clean-up cuts the history from its oldest version on. So what is not in the history was never done only where the
history is *whole* since a version from before it; elsewhere nobody can say. Delta itself still knows: a write whose
``txnVersion`` is not above the app id's last is skipped. So a drain that may have been done is done again::

    intent 7 was made at version 40; the query crashed; the history now begins at version 55, the table is at 60
    7 is not in 55 .. 60, and the history is not whole since 40         so: write 7 again
    the table is at 61, which has the mark of 7                         it was not there, and is now
    the table is at 60, or at 61 with another's mark                    Delta skipped it: it was there
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NO_VERSION = -1
"""The version before a table's version 0."""
FIRST_LOOK = 10
"""Versions that are asked for first: all since the last drain, unless others write much."""
LOOKED_AT = 1000
"""Versions among which queries are looked for: reading them takes 3 s."""
COLUMNS = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")
"""Columns of DESCRIBE HISTORY that are read, and ``timestamp`` as text, ``at``."""


@dataclass(frozen=True)
class DrainCommit:
    """A drain as the table's history has it."""

    version: int
    """The table's version that is the drain; `NO_VERSION` where the history has lost it."""
    app_id: str
    number: int
    """The drain's number."""
    intent_uuid: str
    """Whose commit it is."""
    rows: int | None = None
    """None where Delta keeps no metrics, or the history has lost it; so with files and bytes."""
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class TableVersion:
    """A version of the table."""

    version: int
    operation: str
    parameters: Mapping[str, str | None]
    commit: DrainCommit | None
    """None where the version is no drain."""
    at: str = ""
    """When it was made, in the session's time zone."""

    @property
    def made_of(self) -> int | None:
        """The version that it goes on from: the one before, or that which a RESTORE led to; None if it names a time."""
        if self.operation != "RESTORE":
            return self.version - 1
        to_version = (self.parameters.get("version") or "").strip('"')
        return int(to_version) if to_version.isdigit() else None


@dataclass(frozen=True)
class History:
    """The last versions of a table."""

    entries: tuple[TableVersion, ...]
    """The newest first, none left out."""

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.entries[0].version if self.entries else NO_VERSION

    def is_whole_since(self, version: int) -> bool:
        """Return True if every version after this one is here."""
        return not self.entries or self.entries[-1].version <= version + 1

    def drains(self, app_id: str) -> dict[int, DrainCommit]:
        """The drains of an app id, by number."""
        commits = [entry.commit for entry in self.entries if entry.commit is not None]
        # Delta's automatic compaction after a drain has the drain's mark, too: the oldest of a number is the drain.
        return {commit.number: commit for commit in commits if commit.app_id == app_id}

    def queries(self) -> dict[str, list[TableVersion]]:
        """The drains of each app id, the latest first; those from before a REPLACE TABLE left out."""
        found: dict[str, list[TableVersion]] = {}
        for entry in self.entries:
            if entry.commit is not None:
                found.setdefault(entry.commit.app_id, []).append(entry)
            if "REPLACE TABLE" in entry.operation:
                break
        return found

    def lineage(self, version: int) -> dict[int, TableVersion | None]:
        """The versions that a version is made of, the newest first: what a RESTORE undid is left out.

        The last of them is one that the history has lost (None), or a RESTORE to a time, which may have led anywhere.
        """
        of = {entry.version: entry for entry in self.entries}
        found: dict[int, TableVersion | None] = {}
        at: int | None = version
        lost = min(of, default=NO_VERSION) - 1
        while at is not None and at >= lost and at not in found:
            entry = found[at] = of.get(at)
            at = None if entry is None else entry.made_of
        return found

    def undone(self, version: int) -> str | None:
        """What the table was made into, if version ``version`` is no longer part of it; None if it is.

        A RESTORE keeps the table's id and Delta's record of transactions, so that neither shows it. A later RESTORE may
        have brought the version back. Where one names a time, the version counts as gone.
        """
        for at, entry in self.lineage(self.version).items():
            if entry is None or at <= version:
                return None
            if "REPLACE TABLE" in entry.operation:
                return f"replaced in version {at}"
            if entry.made_of is None:
                return f"restored to time {(entry.parameters.get('timestamp') or '').strip(chr(34))}"
            if entry.made_of < version:
                return f"restored to version {entry.made_of}"
        return None


@dataclass(frozen=True)
class TableFacts:
    """A table as Delta describes it."""

    id: str
    location: str
    partition_by: tuple[str, ...]
    """Partition columns, as the table names them."""
    features: tuple[str, ...] = ()
    """Table features that a writer must support."""
    is_mapped: bool = False
    """Columns have other names in its files, and so may have any."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_be_renamed(self) -> bool:
        """True if columns may have got other names, also where the table maps names no more."""
        return self.is_mapped or "columnMapping" in self.features


class TableState(NamedTuple):
    """What there is of the table."""

    facts: TableFacts | None
    """None if there is no table."""
    history: History
    """Whole since a version that was asked for, as far as it was not cut; empty if there is no table."""


def mark(app_id: str, number: int, intent_uuid: str) -> str:
    """The ``userMetadata`` of a drain."""
    return json.dumps({"app_id": app_id, "drain": number, "intent": intent_uuid})


def whole_history(
    rows_of: Callable[[int], Iterable[Mapping[str, Any]]], since: int | None = None, first: int = FIRST_LOOK
) -> History:
    """The last versions of a table, and all after version ``since`` that it still has.

    ``rows_of``: so many of the last rows of DESCRIBE HISTORY, in any order, with `COLUMNS`; ``first``: at first.
    """
    history = _history(rows_of(first))
    if since is None or len(history.entries) < first or history.is_whole_since(since):
        return history
    # Others may go on: what they add meanwhile is read as well.
    return _history(rows_of(2 * FIRST_LOOK + history.version - since))


def _history(rows: Iterable[Mapping[str, Any]]) -> History:
    entries = []
    for row in sorted(rows, key=lambda row: row["version"], reverse=True):
        operation, parameters = row["operation"] or "", row["operationParameters"] or {}
        entries.append(TableVersion(row["version"], operation, parameters, _commit(row), row.get("at", "")))
    return History(tuple(entries))


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
