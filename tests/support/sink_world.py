"""A sink without Spark: the real loop, ledger and policy, on a log, a staging folder and a table that are dictionaries.

A row is a number. The world outlives a run, as storage does; `Crash` ends a run between two actions or inside of one.
Spark runs a micro-batch again after a crash, and it may have other rows then (`World.again`): those of the run that
Spark commits are to be in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from spark_purgatory.accumulator.policy import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import TableLostError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Work
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery
from spark_purgatory.spark.sink.drain.sender import Beside, Sender, SparkActions
from spark_purgatory.spark.sink.staging.ledger import (
    Contents,
    Failed,
    Intent,
    Ledger,
    LogEntry,
    Names,
    Piece,
    Run,
    epoch_path,
)
from spark_purgatory.spark.sink.staging.staged_files import StagedFiles
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import DeltaHistory, DrainCommit, TableFacts, TableLook, TableVersion
from spark_purgatory.spark.sink.table.target import Target

ROW_BYTES = 100

SMALL = {"a": 2, "b": 1}
LARGE = {"a": 12, "b": 11}
WORLDS: dict[str, tuple[list[tuple[str, dict[str, int]]], dict[str, Any]]] = {
    "files fill": ([("s", SMALL)] * 6, {"batch_size": "0.5 KiB", "linger": "1 hour", "delivery_timeout": "1 hour"}),
    "all linger": ([("s", SMALL)] * 3, {"linger": "1 hour", "delivery_timeout": "1 hour"}),
    "nothing lingers": ([("s", SMALL)] * 3, {"linger": "0 seconds"}),
    "some are empty": ([("s", SMALL), ("s", {}), ("s", {}), ("s", SMALL), ("s", {})], {"linger": "0 seconds"}),
    "each fills files": ([("s", LARGE)] * 3, {"batch_size": "1 KiB"}),
    "larger than memory": ([("s", LARGE)] * 2, {"batch_size": "1 KiB", "buffer_memory": "1 KiB"}),
    "memory runs out": ([("s", {"a": 6})] * 3, {"batch_size": "1 KiB", "buffer_memory": "1 KiB", "linger": "1 minute"}),
    "memory runs out, and makes two drains": (
        [("s", {"a": 6, "b": 6})] * 3,
        {"batch_size": "1 KiB", "buffer_memory": "1.25 KiB", "max_request_size": "0.65 KiB", "linger": "1 minute"},
    ),
    "the schema changes": ([("s", SMALL), ("t", SMALL), ("t", SMALL)], {}),
}
BESIDE = ("", "at once", "late")
AGAIN = ("the same rows", "other rows", "no rows", "more rows")


class Crash(BaseException):
    """The process is gone."""


@dataclass
class World:
    """What outlives a run."""

    batches: list[tuple[str, dict[str, int]]]
    """Micro-batches of the source: schema, and rows by table partition."""
    options: dict[str, Any]
    log: dict[str, dict[str, Any]] = field(default_factory=dict)
    folders: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    table_id: str | None = None
    rows: list[int] = field(default_factory=list)
    versions: list[TableVersion] = field(default_factory=list)
    """What the table says of its past, the oldest first."""
    was: dict[int, list[int]] = field(default_factory=dict)
    """The rows of each version."""
    last_txn: int = -1
    """Delta's own record: the last drain of the app id."""
    committed: int = 0
    """The micro-batch that Spark runs next."""
    again: str = "the same rows"
    """What a micro-batch has that is run again."""
    drawn: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """The rows of each micro-batch as it was run last."""
    truth: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """The rows of each micro-batch as Spark has committed it."""
    next_row: int = 0
    evaluated: list[int] = field(default_factory=list)
    commit_fails: list[str] = field(default_factory=list)
    """What the next commits do: "absent", "arrived", "remedy"."""
    takes_nothing: bool = False
    """Every commit raises, and takes a second."""
    beside: str = ""
    """Drains go on beside the micro-batches, and end with the next one; the commit arrives "at once" or "late"."""
    under_way: Intent | None = None
    """What is committed beside the micro-batches and has not arrived."""
    staged_ms: dict[str, int] | None = None
    """When the folders were staged, if a run is to know it of those that it finds; else long ago."""
    app: str = "app"
    place: Mapping[str, Any] = field(default_factory=lambda: {"path": "/table"})

    def target(self, options: SinkOptions) -> Target:
        return WorldTable(self, options)

    def draw(self, batch_id: int) -> dict[str, list[int]]:
        """Rows of a micro-batch by partition, run for the first time or again."""
        before = self.drawn.get(batch_id)
        if before is not None and self.again == "the same rows":
            return before
        parts = self.batches[batch_id][1]
        if before is not None and self.again == "no rows":
            parts = {}
        elif before is not None and self.again == "more rows":
            parts = {"a": 3, "c": 1, **{name: count + 2 for name, count in parts.items()}}
        rows = {}
        for partition, count in parts.items():
            rows[partition] = list(range(self.next_row, self.next_row + count))
            self.next_row += count
        self.drawn[batch_id] = rows
        return rows

    def spark_commits(self, batch_id: int) -> None:
        """The micro-batch ended: its state and its offsets are there."""
        self.committed = batch_id + 1
        self.truth[batch_id] = self.drawn[batch_id]

    def every(self) -> Counter[int]:
        """All rows that Spark has committed, each once."""
        return Counter(row for parts in self.truth.values() for rows in parts.values() for row in rows)

    def in_table(self) -> Counter[int]:
        return Counter(self.rows)

    def held(self) -> int:
        """The last drain that the table's history has."""
        return max([entry.commit.number for entry in self.versions if entry.commit is not None], default=-1)

    def add(self, operation: str, parameters: dict[str, str | None], commit: DrainCommit | None = None) -> None:
        number = self.versions[-1].version + 1 if self.versions else 0
        self.table_id = self.table_id or str(uuid4())
        self.versions.append(TableVersion(number, operation, parameters, commit and replace(commit, version=number)))
        self.was[number] = list(self.rows)

    def restore(self, version: int) -> None:
        """The table goes back; Delta's own record stays."""
        self.rows = list(self.was[version])
        self.add("RESTORE", {"version": str(version)})

    def put(self, intent: Intent, rows: list[int], target: Target | None = None) -> None:
        """What Delta does: a transaction that is not above the last one is skipped."""
        if intent.number > self.last_txn:
            self.last_txn = intent.number
            self.rows += rows
            self.add("WRITE", {}, DrainCommit(0, "app", intent.number, intent.uuid, len(rows), 1, len(rows)))

    def arrive(self) -> None:
        """What was under way comes through, though the run that began it is gone; not where its files are gone."""
        intent, self.under_way = self.under_way, None
        if intent is not None and all(piece.folder in self.folders for piece in intent.taken):
            self.put(intent, [row for piece in intent.taken for row in self.folders[piece.folder][piece.partition]])

    def remove(self, path: str) -> None:
        for found in (self.log, self.folders):
            for name in [name for name in found if name == path or name.startswith(f"{path}/")]:
                del found[name]

    def pieces(self) -> list[Piece]:
        found = []
        for path, parts in self.folders.items():
            epoch, batch, run = path.split("/")[-2], path.split("=")[-1].split("-")[0], path.split("-")[-2]
            for partition, rows in parts.items():
                size, number = len(rows) * ROW_BYTES, int(epoch.partition("=")[2])
                at_ms = (self.staged_ms or {}).get(path, 0)
                given = (partition, f"{path}/part-0", len(rows), size, int(batch), number, at_ms, int(run), sum(rows))
                found.append(Piece(*given))
        return sorted(found, key=lambda piece: (piece.batch_id, piece.partition))


class WorldTable(DeltaTarget):
    """The table of a world."""

    def __init__(self, world: World, options: SinkOptions) -> None:
        super().__init__(options)
        self.world = world

    def facts(self, spark: Any) -> TableFacts | None:
        return None if self.world.table_id is None else TableFacts(self.world.table_id, "/table", ())

    def history(self, spark: Any, since: int | None = None, first: int = 0) -> DeltaHistory:
        return DeltaHistory(tuple(reversed(self.world.versions)))

    def check(self, spark: Any, table_id: str | None, schema: str, since: int | None) -> TableLook:
        facts = self.facts(spark)
        if table_id is not None and (facts is None or facts.id != table_id):
            raise TableLostError("the table is another one")
        history = self.history(spark, since)
        return TableLook(facts, history, f"{schema.partition('@')[0]}@{history.version}")


class WorldFolder(StagingFolder):
    """The staging folder of a world."""

    def __init__(self, world: World) -> None:
        super().__init__("/checkpoint")
        self.uri, self.world = "/staging", world

    def write_entry(self, spark: Any, epoch: int, name: str, body: Mapping[str, object], is_note: bool = False) -> None:
        self.world.log[f"{epoch_path(epoch, 'log')}/{name}"] = dict(body)

    def read_entries(self, spark: Any, others_write: bool = False) -> list[LogEntry]:
        return [LogEntry(path.rpartition("/")[2], {**body, "format": 1}) for path, body in self.world.log.items()]

    def remove(self, spark: Any, path: str) -> None:
        self.world.remove(path)


class WorldFiles(StagedFiles):
    """The staged files of a world. A micro-batch is known by its number alone."""

    def __init__(self, world: World, sender: WorldSender) -> None:
        super().__init__("/staging", sender.options, ())
        self.world, self.now = world, sender.policy.now

    def evaluate(self, rows: Any) -> Contents:
        self.world.evaluated.append(self.world.committed)
        return contents(self.world.draw(self.world.committed))

    def stage(self, rows: Any, folder: str, max_file_rows: int) -> tuple[Contents, int]:
        world, drawn = self.world, self.world.draw(self.world.committed)
        world.evaluated.append(world.committed)
        if world.staged_ms is not None:
            world.staged_ms[folder] = self.now()
        if (found := contents(drawn)).rows:
            world.folders[folder] = {name: mine[: len(mine) // 2] for name, mine in drawn.items() if mine[1:]}
            do.reach("in stage")
            world.folders[folder] = {name: mine for name, mine in drawn.items() if mine}
        return found, found.rows * ROW_BYTES

    def found_before(self, spark: Any, ledger: Ledger, before: int) -> list[Piece]:
        return self.world.pieces()

    def _measured(self, spark: Any, paths: Sequence[str]) -> list[Piece]:
        return [piece for piece in self.world.pieces() if piece.folder in paths]


class WorldActions(SparkActions):
    """The product's own, but for what reads and writes rows."""

    def __init__(self, world: World, sender: WorldSender) -> None:
        super().__init__(sender.options, "/checkpoint", sender.target)
        self.folder: StagingFolder = WorldFolder(world)
        self.files: StagedFiles = WorldFiles(world, sender)
        self.world, self.sender = world, sender

    def open(self, spark: Any) -> Ledger:
        ledger = read_ledger(spark, self.folder)
        ledger.run = Run(id=uuid4().hex[:8])
        ledger.names = Names("/checkpoint", "/staging", "/table", self.world.app)
        return ledger

    def _repartitions(self, *given: Any) -> list[int]:
        return []

    def commit(self, ledger: Ledger, action: do.Commit, spark: Any) -> do.Result:
        world, intent = self.world, action.intent
        fault = world.commit_fails.pop(0) if world.commit_fails else ""
        if world.takes_nothing:
            fault = "absent"
            self.sender.waited()
        if fault in ("", "arrived"):
            rows = [row for piece in intent.taken for row in world.folders[piece.folder][piece.partition]]
            world.put(intent, rows, self.target)
        if fault:
            return Failed(fault, "Drop it" * (fault == "remedy"))
        return do.Committed()


class WorldSender(Sender):
    """The product's loop on the actions of a `World`."""

    def __init__(self, world: World, on_delivery: Callback[Delivery] | None = None) -> None:
        super().__init__(SinkOptions(**world.place, **world.options), "/checkpoint", on_delivery)
        self.target = world.target(self.options)
        self.actions = WorldActions(world, self)
        self.world = world
        self.beside = WorldBeside(self)
        self.done: list[str] = []

    def take(self, batch_id: int | None, flush: bool = False, ripe: bool = False) -> None:
        """What Spark, or `drain`, asks for."""
        if self.is_open and batch_id is not None:
            do.reach("after return")
        schema = None if batch_id is None else self.world.batches[batch_id][0]

        def schema_after(known: str | None) -> str | None:
            is_same = schema is None or (known is not None and known.partition("@")[0] == schema)
            return known if is_same else schema

        self._run(Work(None, self.world.committed, batch_id, schema_after, flush=flush, ripe=ripe))
        if batch_id is not None:
            do.reach("before return")
            self.world.spark_commits(batch_id)

    def _do(self, action: do.Action, work: Work) -> do.Result:
        self.done.append(type(action).__name__)
        return super()._do(action, work)

    def waited(self) -> None:
        self.policy._made_ms += 1000


class WorldBeside(Beside):
    """A commit beside the micro-batches: it ends in the micro-batch after the one that began it, or is waited for."""

    def __init__(self, sender: WorldSender) -> None:
        super().__init__()
        self.sender = sender
        self.commit: Callable[[], do.Result] | None = None
        """None: nothing is under way."""
        self.batch_id, self.is_waited_for = -1, False

    def begin(self, spark: Any, commit: Callable[[Any], do.Result]) -> bool:
        world = self.sender.world
        if not world.beside:
            return False
        self.batch_id, self.is_waited_for = world.committed, False
        early = commit(spark) if world.beside == "at once" else None
        self.commit = lambda: early or commit(spark)
        world.under_way = None if early else self.sender.ledger.intent
        return True

    def result(self) -> do.Result | None:
        commit = self.commit
        if commit is None or (not self.is_waited_for and self.sender.world.committed <= self.batch_id):
            return None
        self.commit, self.sender.world.under_way = None, None
        return commit()

    def wait(self, ms: int) -> None:
        if self.commit is None:
            self.sender.waited()
        self.is_waited_for = True


def contents(rows: Mapping[str, Sequence[int]]) -> Contents:
    return Contents(sum(map(len, rows.values())), sum(map(sum, rows.values())))


def crash_at(number: int) -> tuple[Callable[[str], None], list[str]]:
    """A hook that crashes at the failpoint of that number, and the failpoints reached."""
    reached: list[str] = []

    def hook(name: str) -> None:
        reached.append(name)
        if len(reached) == number + 1:
            raise Crash(name)

    return hook, reached


def run(world: World, sender: WorldSender | None = None) -> WorldSender:
    """A run to the end of the source, with a drain then."""
    sender = sender or WorldSender(world)
    while world.committed < len(world.batches):
        sender.take(world.committed)
    sender.take(None, flush=True)
    return sender


def run_each(world: World, later_ms: int = 0) -> None:
    """A run for each micro-batch, so much later than the one before, which ends with what is ripe."""
    later = 0
    while world.committed < len(world.batches):
        sender = WorldSender(world)
        sender.policy._made_ms += later
        sender.take(world.committed)
        sender.take(None, ripe=True)
        later += later_ms


def crashed(
    world: World,
    number: int,
    also: Callable[[str], None] | None = None,
    play: Callable[[World], Any] = run,
) -> str:
    """Play a world up to the failpoint of that number and return its name; "" if it ended before.

    ``also`` is called at each failpoint first.
    """
    stop, reached = crash_at(number)

    def hook(name: str) -> None:
        if also is not None:
            also(name)
        stop(name)

    do.hook = hook
    try:
        play(world)
    except Crash:
        return reached[-1]
    finally:
        do.hook = None
    return ""


def last_of(world: World, kind: str) -> int:
    numbers = [int(path.rpartition("=")[2]) for path in world.log if f"/{kind}=" in path]
    return max(numbers, default=-1)
