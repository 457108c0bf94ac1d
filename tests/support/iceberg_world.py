"""A `World` whose table is an Iceberg table: snapshots with parents, a branch, picks, expiry, compaction, rollback.

The product's own target decides what to write and to pick. Here a snapshot is a set of files, and a file a list of
rows. Nothing of the product is used to say what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ForeignWriterError, TableLostError
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.staging.ledger import Intent
from spark_purgatory.spark.sink.table.history import SAYS, History, Mark, TableFacts, TableLook
from spark_purgatory.spark.sink.table.iceberg_target import IcebergTarget, SnapshotHistory, branch_of, snapshot_history
from spark_purgatory.spark.sink.table.target import Target
from tests.support.sink_world import World, WorldFolder

APP = "spark_purgatory/app"
IN_COMMIT = "in commit"
"""Between the branch and the table."""


class Rows(list[int]):
    """Stands for a DataFrame."""

    sparkSession = None


class UnknownSnapshotError(Exception):
    """One that is to be picked has expired."""


@dataclass
class Snapshot:
    """One of them."""

    parent: int | None
    operation: str
    files: frozenset[int]
    added: frozenset[int] = frozenset()
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass
class IcebergWorld(World):
    """What outlives a run."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    files: dict[int, tuple[int, ...]] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    made: int = 0
    drained: set[int] = field(default_factory=set)
    """Drains that were picked."""
    stalled: tuple[Intent, list[int], History] | None = None
    """The drain that a run was writing which is believed dead, its rows, and what it saw of the table."""
    unpicked: int | None = None
    """What such a run has written, and not picked."""
    app: str = APP
    place: Mapping[str, Any] = field(default_factory=lambda: {"table": "c.d.t", "format": "iceberg"})

    def target(self, options: SinkOptions) -> Target:
        return WorldIceberg(self, options)

    def create(self) -> None:
        if self.table_id is None:
            self.table_id = ""
            self.commit("main", "append")

    def snapshot(self, id: int | None) -> frozenset[int]:
        return frozenset() if id is None else self.snapshots[id].files

    def file(self, rows: Sequence[int]) -> frozenset[int]:
        self.made += 1
        self.files[self.made] = tuple(rows)
        return frozenset({self.made})

    def commit(
        self,
        ref: str,
        operation: str,
        added: frozenset[int] = frozenset(),
        gone: frozenset[int] = frozenset(),
        summary: Mapping[str, str] | None = None,
    ) -> int:
        """A snapshot on a branch; ids are in no order."""
        self.made += 1
        parent, id = self.refs.get(ref), 1 + self.made * 7_919 % 104_729
        files = (self.snapshot(parent) - gone) | added
        self.snapshots[id] = Snapshot(parent, operation, files, added, summary or {})
        self.refs[ref] = id
        return id

    def ancestors(self, ref: str = "main") -> list[int]:
        found, at = [], self.refs.get(ref)
        while at in self.snapshots:
            found.append(at)
            at = self.snapshots[at].parent
        return found

    def pick(self, id: int) -> None:
        """Cherry-pick: refused if an ancestor is the snapshot, was picked from it, or has its ``wap.id``."""
        if id not in self.snapshots:
            raise UnknownSnapshotError(id)
        picked = self.snapshots[id]
        drain = picked.summary.get("wap.id")
        for at in self.ancestors():
            summary = self.snapshots[at].summary
            if at == id or summary.get("source-snapshot-id") == str(id):
                return
            if drain and drain in (summary.get("wap.id"), summary.get("published-wap-id")):
                return
        if picked.parent == self.refs.get("main"):
            self.refs["main"] = id
        else:
            there = self.snapshot(self.refs.get("main"))
            added = [self.file(self.files[file]) if file in there else {file} for file in picked.added]
            said = {"source-snapshot-id": str(id), "added-records": picked.summary["added-records"]}
            if drain:
                said["published-wap-id"] = drain
            self.commit(
                "main",
                "append",
                frozenset().union(*added),
                summary={**said, "added-records": picked.summary["added-records"]},
            )

    def neighbour(self) -> None:
        """Someone else's append, of no row of ours."""
        self.create()
        self.commit("main", "append", self.file([]))

    def compact(self) -> None:
        files = self.snapshot(self.refs.get("main"))
        rows = [row for file in sorted(files) for row in self.files[file]]
        self.commit("main", "replace", self.file(rows), files)

    def expire(self) -> None:
        self.snapshots = {id: found for id, found in self.snapshots.items() if id in self.refs.values()}

    def drop(self) -> None:
        self.table_id, self.snapshots, self.refs, self.files, self.properties = None, {}, {}, {}, {}

    def in_table(self) -> Counter[int]:
        files = self.snapshot(self.refs.get("main"))
        return Counter(row for file in files for row in self.files[file])

    def begin(self, stalls_in: str) -> None:
        """A run that is believed dead has begun the drain that is under way. It stalls before its "look" at the table,
        in its "write" to the branch, or before its "pick"."""
        intent = self.under_way
        assert intent is not None
        rows = [row for piece in intent.taken for row in self.folders[piece.folder][piece.partition]]
        seen = self.target(SinkOptions(**self.place)).history(None)  # type: ignore[arg-type]
        self.stalled = intent, rows, seen if stalls_in == "write" else SnapshotHistory(())
        if stalls_in == "pick":
            self.go_on(HeldIceberg)
        elif self.stalled[2].entries:
            self.refs[branch_of(APP)] = self.stalled[2].version

    def arrive(self) -> None:
        self.under_way = None
        if self.unpicked is None:
            self.go_on(StalledIceberg)
        elif self.unpicked in self.snapshots:
            self.pick(self.unpicked)

    def go_on(self, kind: type[WorldIceberg]) -> None:
        if self.stalled is not None:
            intent, rows, _ = self.stalled
            hook, actions.hook = actions.hook, None
            with suppress(ForeignWriterError, UnknownSnapshotError):
                self.put(intent, Rows(rows), kind(self, SinkOptions(**self.place, **self.options)))
            self.stalled, actions.hook = None, hook

    def put(self, intent: Intent, rows: list[int], target: Target | None = None) -> None:
        target = target or self.target(SinkOptions(**self.place, **self.options))
        looked = TableLook(target.facts(None), target.no_history, "")  # type: ignore[arg-type]
        mark = Mark(self.app, intent.number, intent.uuid)
        is_alone = partial(WorldFolder(self).check_alone, None, intent)  # type: ignore[arg-type]
        target.append(Rows(rows), looked, mark, 0, is_alone)  # type: ignore[arg-type]


class WorldIceberg(IcebergTarget):
    """The product's target; what it asks Spark is answered here."""

    def __init__(self, world: IcebergWorld, options: SinkOptions) -> None:
        super().__init__(options)
        self.world = world

    def is_known(self, spark: Any) -> bool:
        return self.world.table_id is not None

    def facts(self, spark: Any) -> TableFacts | None:
        world = self.world
        return None if world.table_id is None else TableFacts("", "/t", ("p",), properties=world.properties)

    def history(self, spark: Any, since: int | None = None, first: int = 0) -> SnapshotHistory:
        rows = (
            {"snapshot_id": id, "parent_id": one.parent, "operation": one.operation, "summary": one.summary}
            for id, one in self.world.snapshots.items()
        )
        return snapshot_history(rows, self.world.refs)

    def check(self, spark: Any, table_id: str | None, schema: str, since: int | None) -> TableLook:
        facts = self.facts(spark)
        if table_id is not None and (facts is None):
            raise TableLostError("the table is gone")
        history = self.history(spark, since)
        return TableLook(facts, history, f"{schema.partition('@')[0]}@{history.version}")

    def _has_files(self, spark: Any, snapshot: int) -> bool:
        world = self.world
        return bool(world.snapshots[snapshot].added & world.snapshot(world.refs.get("main")))

    def _create(self, rows: Any) -> None:
        self.world.create()

    def _move(self, spark: Any, branch: str, version: int) -> None:
        if version < 0:
            self.world.commit(branch, "append")
        else:
            self.world.refs[branch] = version

    def _write(self, rows: Any, branch: str, mark: Mapping[str, str], file_bytes: int) -> None:
        added = self.world.file(rows)
        self.world.commit(branch, "append", added, summary={**mark, "added-records": str(len(rows))})

    def _forget(self, spark: Any, intent_uuid: str) -> None:
        del self.world.properties[SAYS + intent_uuid]

    def _pick(self, spark: Any, written: int | None) -> None:
        assert written is not None
        actions.reach(IN_COMMIT)
        self.world.pick(written)
        uuid = self.world.snapshots[written].summary["spark_purgatory.intent"]
        self.world.drained |= {body["number"] for body in self.world.log.values() if body.get("uuid") == uuid}


class HeldIceberg(WorldIceberg):
    """Stalls before it picks."""

    def _pick(self, spark: Any, written: int | None) -> None:
        self.world.unpicked = written


class StalledIceberg(WorldIceberg):
    """Looked at the table when its write began, and goes on now."""

    def __init__(self, world: IcebergWorld, options: SinkOptions) -> None:
        super().__init__(world, options)
        assert world.stalled is not None
        self.seen = world.stalled[2]
        self.has_moved = bool(self.seen.entries)

    def history(self, spark: Any, since: int | None = None, first: int = 0) -> SnapshotHistory:
        seen, self.seen = self.seen, SnapshotHistory(())
        return seen if isinstance(seen, SnapshotHistory) and seen.entries else super().history(spark)

    def _move(self, spark: Any, branch: str, version: int) -> None:
        if not self.has_moved:
            super()._move(spark, branch, version)
