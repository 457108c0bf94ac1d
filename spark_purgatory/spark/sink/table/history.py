"""A table's facts and history, in the same terms for all formats of tables.

A drain is one version of the table, which has the drain's *mark*: the app id, the drain's number, and the uuid of the
drain's intent. A version is a number that only its own table understands; `NO_VERSION` comes before all. Tables forget
their oldest versions. So a drain that the history lacks was never committed only if the history is *whole* since a
version before it. Otherwise the history alone cannot tell.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

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
    keep: str  # The remedy that keeps the history for longer.
    restore: str  # The remedy that brings a version back; the version follows.
    skips: str  # The reason why a commit that was written is missing.


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

    @abstractmethod
    def is_whole_from(self, version: int) -> bool:
        """Return True if the history has this version and every one after it."""

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
    def may_fill(self) -> bool:
        """True if Delta may fill columns that rows lack: generated ones, identities, those with a default."""
        return not {"allowColumnDefaults", "generatedColumns", "identityColumns"}.isdisjoint(self.features)

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
