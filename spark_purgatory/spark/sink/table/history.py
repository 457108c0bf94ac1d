"""A table's facts and history, in the same terms for all formats of tables; and a Delta table's.

A drain is one version of the table, which has the drain's *mark*: the app id, the drain's number, and the uuid of the
drain's intent. A version is a number that only its own table understands; `NO_VERSION` comes before all. Tables forget
their oldest versions. So a drain that the history lacks was never committed only if the history is *whole* since a
version before it. Otherwise the history alone cannot tell.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

if TYPE_CHECKING:
    from pyspark.sql import types as T

NO_VERSION = -1  # The version before a table's first one.
FIRST_LOOK = 10  # Versions that are read first: all since the last drain, unless others write much.
# A table's owner may give an intent one of these values, in a property that begins with `SAYS`.
COMMITTED, NOT_COMMITTED = "committed", "not committed"
SAYS = "spark_purgatory.intent."
LOOKED_AT = 1000  # Versions in which other queries are looked for. Reading them takes 3 s.


class Mark(NamedTuple):
    app_id: str
    number: int  # The drain's number.
    intent_uuid: str


@dataclass(frozen=True)
class DrainCommit:
    version: int  # `NO_VERSION` if the history has lost it.
    app_id: str
    number: int  # The drain's number.
    intent_uuid: str
    rows: int | None = None  # None, as files and bytes, if the table keeps no metrics or the history has lost it.
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class TableVersion:
    version: int
    operation: str
    parameters: Mapping[str, str | None]
    commit: DrainCommit | None  # None if the version is not a drain.
    at: str = ""  # Its time, in the session's time zone.

    @property
    def replaces(self) -> bool:
        """True if it replaced all of the table but its id."""
        return "REPLACE TABLE" in self.operation or self.operation == "CLONE"


class Undone(NamedTuple):
    """A change that removed a version from the table."""

    what: str
    at: int  # The version that did so.
    to: int | None = None  # The version that the table went back to; None if that is not known, or it was replaced.


class Words(NamedTuple):
    version: str  # The name of a version.
    restore: str  # The remedy that brings a version back; the version follows.


@dataclass(frozen=True)
class History(ABC):
    entries: tuple[TableVersion, ...]  # The newest first, without gaps.
    words: ClassVar[Words]

    @property
    def version(self) -> int:
        return self.entries[0].version if self.entries else NO_VERSION

    @abstractmethod
    def is_whole_since(self, version: int) -> bool:
        """Return True if the history has every version after this one."""

    def is_whole_from(self, version: int) -> bool:
        """Return True if the history has this version and every one after it."""
        return self.is_whole_since(version - 1)

    @abstractmethod
    def lacks(self, version: int, app_id: str) -> bool:
        """Return True if the table never had this version of the query: it is another table, or an old copy."""

    @abstractmethod
    def undone(self, version: int) -> Undone | None:
        """Return what removed this version from the table; None if it is part of it, or that is not known."""

    def is_back(self, version: int) -> bool:
        return any(entry.version == version and entry.operation == "RESTORE" for entry in self.entries)

    def version_before(self, version: int) -> int | None:
        versions = [entry.version for entry in self.entries]
        return next((old for new, old in pairwise(versions) if new == version), None)

    def up_to(self, version: int) -> Self:
        at = next((at for at, entry in enumerate(self.entries) if entry.version == version), len(self.entries))
        return replace(self, entries=self.entries[at:])

    def drains(self, app_id: str) -> dict[int, DrainCommit]:
        commits = [entry.commit for entry in self.entries if entry.commit is not None]
        # Delta's automatic compaction after a drain has the drain's mark, too: the oldest version is the drain.
        return {commit.number: commit for commit in commits if commit.app_id == app_id}

    def queries(self) -> dict[str, list[TableVersion]]:
        """Return the drains of each app id since the table was last replaced, the latest first."""
        found: dict[str, list[TableVersion]] = {}
        for entry in self.entries:
            if entry.commit is not None:
                found.setdefault(entry.commit.app_id, []).append(entry)
            if entry.replaces:
                break
        return found


@dataclass(frozen=True)
class TableFacts:
    id: str  # Unique; "" if the table is known by its versions alone.
    location: str
    partition_by: tuple[str, ...]  # With the table's names.
    features: tuple[str, ...] = ()  # Table features that a writer must support.
    is_mapped: bool = False  # Columns have other names in its files, so they may have any name.
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_be_renamed(self) -> bool:
        """True if columns may have been renamed, also if the table no longer maps names, or has dropped the feature."""
        return self.is_mapped or not {"columnMapping", "checkpointProtection"}.isdisjoint(self.features)


class TableState(NamedTuple):
    facts: TableFacts | None  # None if there is no table.
    history: History  # Since a version that was asked for, unless it was cut; empty if there is no table.


class TableLook(NamedTuple):
    """The table as it was when it was looked at for a drain."""

    facts: TableFacts | None
    history: History
    columns: str  # Those of the rows in the form of the staging log, with their names of then.
    types: T.StructType | None = None  # Types of the table to cast the rows to; None: as they are.


# --- Delta ------------------------------------------------------------------------------------------------------------
#
# The history is that of DESCRIBE HISTORY, by path and by name, under any catalog. A drain's writer puts its mark into
# the version's ``userMetadata``; Delta's own record of transactions is not in the history. Versions are counted, and
# log clean-up cuts the oldest ones. But Delta skips a write whose ``txnVersion`` is not above the app id's last. So a
# drain that may have been committed is written again (docs/accumulator.md).

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
class DeltaHistory(History):
    words = Words(
        version="version",
        restore="RESTORE the table to version",
    )

    def is_whole_since(self, version: int) -> bool:
        """Also True without a table."""
        return not self.entries or self.entries[-1].version <= version + 1

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

    def undone(self, version: int) -> Undone | None:
        """A later RESTORE may have brought the version back. If a RESTORE names a time, the version counts as gone."""
        for at, entry in self.lineage(self.version).items():
            if entry is None or at <= version:
                return None
            if entry.replaces:
                return Undone(f"replaced in version {at}", at)
            if (before := made_of(entry)) is None:
                time = (entry.parameters.get("timestamp") or "").strip('"')
                return Undone(f"restored to time {time}", at)
            if before < version:
                return Undone(f"restored to version {before}", at, before)
        return None

    def renamed(self, since: int) -> int | None:
        """Return a version after ``since`` by which a column's name may mean another column now; None without.

        Renames do not count if those after them take them back, the last one first. The oldest known version counts if
        the history does not show what the table is made of since then.
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
    rows_of: Callable[[int], Iterable[Mapping[str, Any]]], since: int | None = None, first: int = FIRST_LOOK
) -> DeltaHistory:
    """Return the last versions of a table, and all after version ``since`` that it still has.

    ``rows_of`` returns a number of the last rows of DESCRIBE HISTORY, in any order, with `COLUMNS`; ``first`` is the
    number to begin with.
    """
    found = _history(rows_of(first))
    if since is None or len(found.entries) < first or found.is_whole_since(since):
        return found
    # Others may add versions meanwhile, which are read as well.
    return _history(rows_of(2 * FIRST_LOOK + found.version - since))


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
