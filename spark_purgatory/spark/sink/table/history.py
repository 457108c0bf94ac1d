"""What a table says of itself and of its past: the door between the protocol and a format of tables.

A drain is one version of the table, which has the drain's *mark*: the app id, the drain's number, and the uuid of the
drain's intent. A version is a number that only its own table understands; `NO_VERSION` is before them all. Tables
forget their oldest versions. So what is not in the history was never done only where the history is *whole* since a
version from before it; elsewhere nobody can say by the history alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

NO_VERSION = -1
"""The version before a table's first one."""
FIRST_LOOK = 10
"""Versions that are asked for first: all since the last drain, unless others write much."""
LOOKED_AT = 1000
"""Versions among which queries are looked for: reading them takes 3 s."""


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
    """None where the table keeps no metrics, or the history has lost it; so with files and bytes."""
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


class Words(NamedTuple):
    """What a person does with such tables, for errors."""

    version: str
    """What a version is called."""
    keep: str
    """How the history is kept for longer."""
    restore: str
    """How to bring a version back, which follows."""
    skips: str
    """Why a commit that was written is not there."""


@dataclass(frozen=True)
class History(ABC):
    """The last versions of a table."""

    entries: tuple[TableVersion, ...]
    """The newest first, none left out."""
    words: ClassVar[Words]

    @property
    def version(self) -> int:
        """The version of the table."""
        return self.entries[0].version if self.entries else NO_VERSION

    @abstractmethod
    def is_whole_since(self, version: int) -> bool:
        """Return True if every version after this one is here."""

    @abstractmethod
    def is_whole_from(self, version: int) -> bool:
        """Return True if this version, and every one after it, is here."""

    @abstractmethod
    def lacks(self, version: int, app_id: str) -> bool:
        """Return True if the table never had this version of the query's: it is another one, or an old copy."""

    @abstractmethod
    def undone(self, version: int) -> str | None:
        """What the table was made into, if this version is no longer part of it; None if it is, or nobody can tell."""

    @abstractmethod
    def up_to(self, version: int) -> History:
        """The history as it was at a version."""

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


@dataclass(frozen=True)
class TableFacts:
    """A table as its format describes it."""

    id: str
    """What no other table has; "" where it is known by its versions alone."""
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
