"""The history of an Iceberg table: its current snapshot and the parents of that.

A version is a snapshot's id, which is random (docs/how-to/iceberg.md). Expiry removes ancestors, also between two that
it keeps. So a history is whole since a version if that is an ancestor, or if the first snapshot of all is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit, History, TableVersion, Undone, Words

# Names in a snapshot's summary: Iceberg's own, and the uuid of a drain's intent.
WRITTEN, PICKED, SOURCE, INTENT = "wap.id", "published-wap-id", "source-snapshot-id", "spark_purgatory.intent"


def branch_of(app_id: str) -> str:
    return app_id.replace("/", "_").replace("-", "_")


def drain_id(app_id: str, number: int) -> str:
    return f"{app_id}/{number}"


@dataclass(frozen=True)
class SnapshotHistory(History):
    """The snapshots of an Iceberg table; the entries are the current one and its ancestors."""

    before: int = NO_VERSION  # The expired snapshot before the oldest entry; `NO_VERSION` if there was none.
    snapshots: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # Summaries of all snapshots.
    refs: Mapping[str, int] = field(default_factory=dict)  # Branches and tags.
    parents: Mapping[int, int] = field(default_factory=dict)  # Of all snapshots that have one.
    proven: DrainCommit | None = None  # A drain whose snapshot expired, and that is in the table.
    tags: frozenset[str] = frozenset()  # Those of ``refs`` that are no branches.
    words = Words(
        version="snapshot",
        keep="Let expire_snapshots keep them for longer",
        restore="Bring the table back (set_current_snapshot) to snapshot",
        skips="the table was rolled back at once, or someone else writes with the app id",
    )

    @property
    def _reaches_first(self) -> bool:
        return self.before == NO_VERSION

    def is_whole_since(self, version: int) -> bool:
        """Also True if the version expired and the history has its successor."""
        return self._reaches_first or version == self.before or self.is_whole_from(version)

    def is_whole_from(self, version: int) -> bool:
        """True for an ancestor, or if no ancestor is missing."""
        return self._reaches_first or any(entry.version == version for entry in self.entries)

    def lacks(self, version: int, app_id: str) -> bool:
        """No snapshot has the id. One that expired would have left the query's branch."""
        return version not in self.snapshots and (self._reaches_first or branch_of(app_id) not in self.refs)

    def undone(self, version: int) -> Undone | None:
        """A rollback keeps the snapshots that it undoes, until they expire."""
        if not self._reaches_first or any(entry.version == version for entry in self.entries):
            return None
        return Undone(f"rolled back to snapshot {self.version}, or replaced", self.version)

    def drains(self, app_id: str) -> dict[int, DrainCommit]:
        """Include the drain that is proven."""
        proven = {} if self.proven is None else {self.proven.number: self.proven}
        return {**proven, **super().drains(app_id)}

    def written(self, intent_uuid: str) -> int | None:
        return next((id for id, summary in self.snapshots.items() if summary.get(INTENT) == intent_uuid), None)


def snapshot_history(rows: Iterable[Mapping[str, Any]], refs: Mapping[str, int], tags: Any = ()) -> SnapshotHistory:
    of = {row["snapshot_id"]: row for row in rows}
    summaries = {id: dict(row["summary"] or {}) for id, row in of.items()}
    parents = {id: row["parent_id"] for id, row in of.items() if row["parent_id"] is not None}
    entries: list[TableVersion] = []
    at = refs.get("main", NO_VERSION)
    while at in of:
        row = of[at]
        commit = _commit(at, summaries)
        entries.append(TableVersion(at, row["operation"] or "", {}, commit, row.get("at", "")))
        at = parents.get(at, NO_VERSION)
    return SnapshotHistory(tuple(entries), at, summaries, refs, parents, tags=frozenset(tags))


def _commit(id: int, summaries: Mapping[int, Mapping[str, str]]) -> DrainCommit | None:
    summary = summaries[id]
    app_id, _, number = (summary.get(PICKED) or summary.get(WRITTEN) or "").rpartition("/")
    if not app_id.startswith("spark_purgatory/") or not number.isdigit():
        return None
    source = summaries.get(int(summary.get(SOURCE) or id), {})
    found = (summary.get(f"added-{what}") for what in ("records", "data-files", "files-size"))
    counts = (None if count is None else int(count) for count in found)
    return DrainCommit(id, app_id, int(number), source.get(INTENT, ""), *counts)
