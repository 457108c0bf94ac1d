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
from typing import Any

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
    def restored_to(self) -> int | None:
        """The version that a RESTORE led to; None where it names a time."""
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
        """Whether every version after this one is here."""
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

    def undone(self, version: int) -> str | None:
        """What the table was made into, if version ``version`` is no longer part of it; None if it is.

        A RESTORE keeps the table's id and Delta's record of transactions, so that neither shows it. A later RESTORE may
        have brought the version back: the versions that the table is made of are followed from the newest on. Where
        a RESTORE names a time, the version that it led to is unknown: then the version counts as gone.
        """
        at = self.version
        for entry in self.entries:
            if entry.version <= version:
                return None
            if entry.version > at:
                continue
            if "REPLACE TABLE" in entry.operation:
                return f"replaced in version {entry.version}"
            if entry.operation == "RESTORE":
                if entry.restored_to is None:
                    return f"restored to time {(entry.parameters.get('timestamp') or '').strip(chr(34))}"
                at = entry.restored_to
                if at < version:
                    return f"restored to version {at}"
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


@dataclass(frozen=True)
class TableState:
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
    return History(tuple(map(_entry, sorted(rows, key=lambda row: row["version"], reverse=True))))


def _entry(row: Mapping[str, Any]) -> TableVersion:
    operation, parameters = row["operation"] or "", row["operationParameters"] or {}
    return TableVersion(row["version"], operation, parameters, _commit(row), row.get("at", ""))


def _commit(row: Mapping[str, Any]) -> DrainCommit | None:
    try:
        said = json.loads(row["userMetadata"] or "null")
        app_id, number, uuid = said["app_id"], said["drain"], said["intent"]
    except (ValueError, KeyError, TypeError):
        return None
    metrics = row["operationMetrics"] or {}
    counts = [metrics.get(name) for name in ("numOutputRows", "numFiles", "numOutputBytes")]
    rows, files, size = (None if count is None else int(count) for count in counts)
    return DrainCommit(
        version=row["version"],
        app_id=str(app_id),
        number=int(number),
        intent_uuid=str(uuid),
        rows=rows,
        files=files,
        bytes=size,
    )
