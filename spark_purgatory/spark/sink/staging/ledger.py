"""The ledger of everything staged: pure bookkeeping from the log and the staged folders, the same after a restart.

docs/protocol.md and docs/formats.md have the terms. A *piece* is the rows of one table partition in one staged file.
*Epoch* e is written after intent e - 1, up to intent e.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple, Self

from spark_purgatory.errors import START_OVER, BugError, ForeignWriterError, StagingError

NO_BATCH = -1  # The micro-batch before micro-batch 0, and the drain before drain 0.
EPOCHS_A_GENERATION, GENERATIONS = 16, 4  # docs/formats.md explains them.
MAX_GROWTH, MAX_OVERHEAD_BYTES = 2, 1 << 20  # Parquet at worst: twice the rows' bytes, and the footers.


def generation(epoch: int) -> int:
    return epoch // EPOCHS_A_GENERATION % GENERATIONS


def epoch_path(epoch: int, kind: str = "rows") -> str:
    return f"{kind}/generation={generation(epoch)}/epoch={epoch}"


def batch_of(path: str) -> int:
    return int(path.rpartition("/batch=")[2].partition("-")[0])


def idle_paths(drain: int, idle: set[int], needed: set[int], waiting: int | None = None) -> list[str]:
    """Return idle folders before a drain: the log before the last intent, idle epochs, a free next generation."""
    following = generation(drain + EPOCHS_A_GENERATION)
    is_free = drain % EPOCHS_A_GENERATION == 0 and following not in map(generation, needed)
    # No intent names a micro-batch that waits for room, so its record in the log of epoch ``waiting`` stays.
    paths = [epoch_path(drain - 2, "log")] if drain > 1 and drain - 2 != waiting else []
    paths += [epoch_path(epoch) for epoch in sorted(idle)]
    return paths + [f"{kind}/generation={following}" for kind in ("rows", "log") if is_free]


@dataclass(frozen=True)
class Piece:
    """The rows of a table partition in a staged file. Paths are relative to the staging folder."""

    partition: str  # Hash of the table partition's values, in hex; "" without partitions.
    path: str
    rows: int
    staged_bytes: int  # The piece's share of the file's bytes, by rows.
    batch_id: int
    epoch: int
    staged_ms: int
    run: int = 0  # Number of the run that staged it.
    checksum: int = 0  # Sum of the hashes of its rows, in any order.

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.partition


def by_partition(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.partition, []).append(piece)
    return found


@dataclass(frozen=True)
class Contents:
    """Identifies the rows of a micro-batch, in any order."""

    rows: int = 0
    checksum: int = 0  # Sum of the hashes of the rows.

    def __str__(self) -> str:
        return f"{self.rows:,} rows (checksum {self.checksum})"

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Self:
        counts = [(piece.rows, piece.checksum) for piece in pieces]
        return cls(sum(rows for rows, _ in counts), sum(checksum for _, checksum in counts))


@dataclass(frozen=True)
class StagedBatch:
    batch_id: int
    epoch: int
    staged_ms: int
    path: str  # Below the staging folder.
    contents: Contents = Contents()
    plain_bytes: int = 0  # Before any encoding.
    staged_bytes: int | None = None  # The bytes of its files, once these were counted.

    @property
    def most_bytes(self) -> int:
        """The most bytes that its files can have, or those that were counted."""
        most = self.plain_bytes * MAX_GROWTH + MAX_OVERHEAD_BYTES
        return most if self.staged_bytes is None else self.staged_bytes


class EmptyRun(NamedTuple):
    """Consecutive micro-batches without rows."""

    first: int
    last: int
    run: int  # Number of the run that noted it.


@dataclass(frozen=True)
class Run:
    """A run of a query, from a start to any end. Two runs that start at once have one number and different ids."""

    number: int = 0  # Higher than the number of any earlier run that left files.
    id: str = ""  # Random.

    def batch_path(self, epoch: int, batch_id: int) -> str:
        """Return a micro-batch's folder in an epoch, below the staging folder. No other run writes there."""
        return f"{epoch_path(epoch)}/batch={batch_id:020d}-{self.number:06d}-{self.id}"


class TakenBack(NamedTuple):
    """Drains up to a number are in the table's history, but in a version the table went back to before them."""

    number: int
    version: int


@dataclass(frozen=True)
class Intent:
    number: int  # The drain's number.
    uuid: str = ""  # The mark of its commit has it, too.
    table_id: str | None = None  # None if the drain must create the table.
    schema: str | None = None  # None if nothing was staged yet.
    last_batch: int = NO_BATCH  # The last that counts. Spark has committed it: ``taken`` and ``left`` are final.
    last_contents: Contents = Contents()  # The rows of ``last_batch``: if Spark runs it again, they must be the same.
    taken: tuple[Piece, ...] = ()  # Without any it is done by itself (`Renumber`).
    left: tuple[Piece, ...] = ()
    epochs: tuple[int, ...] = ()  # Epochs whose files were not removed when the intent was made.
    run: int = 0  # Number of the run that made it.
    table_version: int | None = None  # The version after the drain before this one; None if it is not known.
    base_version: int = -1  # The version when the intent was made, -1 without a table; the drain's own is later.

    @property
    def taken_rows(self) -> int:
        return sum(piece.rows for piece in self.taken)


# --- the ledger -------------------------------------------------------------------------------------------------------


class DrainState(Enum):
    DONE = "done"  # The commit was read back and noted, or there was no drain yet.
    INTENDED = "intended"  # The table does not have it, and must be looked at before it is committed.
    READY = "ready"  # The table was looked at: it can be committed now.
    UNDERWAY = "underway"  # A thread is committing it.
    UNSURE = "unsure"  # The table may have it: a commit raised, or the run that made the intent has ended.
    WRITTEN = "written"  # The commit returned. The table may have skipped it.
    FOUND = "found"  # The table has it.


class Names(NamedTuple):
    checkpoint: str = ""
    folder: str = ""
    table: str = ""
    app_id: str = ""
    sql_place: str = ""  # The table in Spark's statements.


class Failed(NamedTuple):
    """The table did not take a drain, or could not be read before it."""

    said: str
    remedy: str = ""  # Without it every further try fails. It is empty if one may succeed.


@dataclass
class Ledger:
    """Everything staged that counts, and the last drain."""

    # Without the intent's, in the order of staging. Another dictionary whenever the pieces are others.
    pieces: dict[tuple[str, str], Piece] = field(default_factory=dict)
    uncounted: dict[int, StagedBatch] = field(default_factory=dict)  # Later micro-batches whose pieces are not known.
    schema: str | None = None  # The schema of all rows staged, as JSON; None if none were.
    last_batch: int = NO_BATCH  # The last micro-batch that counts.
    intent: Intent | None = None  # The last one.
    drain: DrainState = DrainState.DONE
    epochs: set[int] = field(default_factory=set)  # Epochs that may hold files.
    incoming: StagedBatch | None = None  # A micro-batch that does not count before buffer_memory has room.
    run: Run = field(default_factory=Run)
    empty: list[EmptyRun] = field(default_factory=list)  # Micro-batches without rows, after the last intent.
    last_contents: Contents = field(default_factory=Contents)  # The rows of ``last_batch``.
    records: Mapping[str, Contents] = field(default_factory=dict)  # By the paths of folders that a run completed.
    table_version: int | None = None  # The version after the last drain that was read back; None if not known.
    table_id: str | None = None  # None as long as there is no table.
    names: Names = field(default_factory=Names)
    failure: Failed | None = None  # Why the table did not take the last drain; None once it took one.
    failures: int = 0  # Tries that failed since the table took a drain.
    failed_ms: int = 0  # When the last one did.
    begun_ms: int | None = None  # When the running drain began; None if an earlier run began it and nothing was tried.
    progress_ms: int = 0  # When the table last took a drain.
    adopted_ms: int = 0  # When the run let count what earlier runs had staged.
    taken_back: TakenBack | None = None  # Drains whose numbers the last intent must be above.
    looked: Any = None  # The `TableLook` before the last try of the drain; None if this run has not tried it.
    just_counted: frozenset[tuple[str, str]] = frozenset()  # Keys of pieces counted since a micro-batch was staged.
    is_compared: bool = False  # The log was compared with the table, which a run does first.
    is_adopted: bool = False  # Everything staged since the last intent counts, which a run does second.

    @property
    def is_done(self) -> bool:
        """True if the last intent's commit was read back and noted."""
        return self.drain is DrainState.DONE

    @property
    def next_drain(self) -> int:
        """Number of the next intent, and the epoch of rows that are staged now."""
        return 0 if self.intent is None else self.intent.number + 1

    @property
    def recorded_rows(self) -> int:
        """Rows that wait for their file, by the log alone: no file is looked for, and no micro-batch adopted."""
        last = NO_BATCH if self.intent is None else self.intent.last_batch
        left = () if self.intent is None else self.intent.left
        fresh = {batch_of(path): contents.rows for path, contents in self.records.items()}
        fresh_rows = sum(rows for batch_id, rows in fresh.items() if batch_id > last)
        return fresh_rows + sum(piece.rows for piece in left)

    @property
    def taken(self) -> tuple[Piece, ...]:
        """The pieces of the running drain, which were not found in the table."""
        return () if self.intent is None or self.drain in (DrainState.DONE, DrainState.FOUND) else self.intent.taken

    @property
    def staged_bytes(self) -> int:
        """Bytes of all pieces that count and were not found in the table."""
        return sum(piece.staged_bytes for piece in (*self.taken, *self.pieces.values()))

    @property
    def has_staged(self) -> bool:
        """True if a row that counts was not found in the table."""
        return bool(self.taken or self.pieces or self.uncounted)

    @property
    def may_wait(self) -> bool:
        """True if the log shows rows that the last intent does not take, also before `adopt`."""
        return bool(self.pieces) or any(batch_of(path) > self.last_batch for path in self.records)

    @property
    def first_needed_version(self) -> int | None:
        """The version from which the table's history is read at a start; the last drain's own is included."""
        if self.table_version is not None:
            return self.table_version
        return None if self.intent is None or self.is_done else self.intent.base_version

    @property
    def before_version(self) -> int:
        """The table's version when it was looked at for the commit."""
        return -1 if self.looked is None else int(self.looked.history.version)

    def came_ms(self, piece: Piece) -> int:
        return piece.staged_ms if piece.run == self.run.number else self.adopted_ms

    def stage(self, staged: StagedBatch) -> None:
        """Add a micro-batch that was staged. Without rows it counts at once, with rows once it is admitted."""
        self.just_counted = frozenset()
        if staged.contents.rows:
            self.incoming = staged
            self.epochs.add(staged.epoch)
        else:
            self._add_empty(staged.batch_id)

    def count(self, pieces_of: Mapping[int, Iterable[Piece]]) -> None:
        """Take in the pieces of all uncounted micro-batches, or the size of the incoming one."""
        pieces = [piece for found in pieces_of.values() for piece in found]
        self.just_counted = self.just_counted.union(piece.key for piece in pieces)
        if self.incoming is not None and self.is_incoming(pieces_of):
            self.incoming = replace(self.incoming, staged_bytes=sum(piece.staged_bytes for piece in pieces))
        else:
            self.pieces = {**self.pieces, **{piece.key: piece for piece in pieces}}
            self.uncounted = {}

    def is_incoming(self, batch_ids: Container[int]) -> bool:
        return self.incoming is not None and self.incoming.batch_id in batch_ids

    def admit(self) -> None:
        if (incoming := self.incoming) is None:
            raise BugError("there is no micro-batch to admit")
        self.add(incoming.batch_id, incoming.epoch, incoming.contents)
        self.uncounted[incoming.batch_id] = incoming
        self.incoming = None

    def add(self, batch_id: int, epoch: int, contents: Contents) -> None:
        self.last_batch, self.last_contents = batch_id, contents
        self.epochs.update({self.next_drain, epoch})

    def empty_run(self, batch_id: int) -> EmptyRun:
        is_next = bool(self.empty) and self.empty[-1].last == batch_id - 1
        return EmptyRun(self.empty[-1].first if is_next else batch_id, batch_id, self.run.number)

    def _add_empty(self, batch_id: int) -> None:
        run = self.empty_run(batch_id)
        self.empty = [*(other for other in self.empty if other.first != run.first), run]
        self.last_batch, self.last_contents = batch_id, Contents()

    def unknown(self, pieces: Iterable[Piece], before: int) -> list[int]:
        """Return the micro-batches before ``before`` that have neither a piece nor a note."""
        known = {piece.batch_id for piece in pieces}.union(*(range(run.first, run.last + 1) for run in self.empty))
        return [batch_id for batch_id in range(self.last_batch + 1, before) if batch_id not in known]

    def adopt(self, pieces: Iterable[Piece], before: int, repartitions: Iterable[int] = ()) -> None:
        """Let micro-batches count that were staged after the last intent and before ``before``, which Spark runs now.

        ``repartitions`` are those without rows that Spark's own ``repartition`` made. StagingError, ForeignWriterError
        if one is missing or the files of one cannot count.
        """
        found: dict[int, dict[str, list[Piece]]] = {}
        last_run = max([NO_BATCH, *(run.run for run in self.empty), *([self.intent.run] if self.intent else [])])
        for piece in pieces:
            self.epochs.add(piece.epoch)
            last_run = max(last_run, piece.run)
            if self.last_batch < piece.batch_id < before:
                found.setdefault(piece.batch_id, {}).setdefault(piece.folder, []).append(piece)
        self.run, self.pieces = replace(self.run, number=last_run + 1), dict(self.pieces)
        made = (EmptyRun(batch_id, batch_id, self.run.number) for batch_id in repartitions)
        in_turn = sorted([*self.empty, *made], key=lambda run: run.run)
        self.empty = []  # A note that a later folder has replaced must not be continued.
        empty = {number: run for run in in_turn for number in range(run.first, min(run.last + 1, before))}
        chosen = {batch_id: self._complete(folders, empty.get(batch_id)) for batch_id, folders in found.items()}
        for batch_id in range(self.last_batch + 1, before):
            if staged := chosen.get(batch_id):
                self.add(batch_id, staged[0].epoch, Contents.of(staged))
                self.pieces.update((piece.key, piece) for piece in staged)
            elif batch_id in empty:
                self._add_empty(batch_id)
            else:
                raise self.missing(batch_id, before)

    def missing(self, first: int, batch_id: int) -> StagingError:
        """Return the error for staged rows that are lost, the first of them in micro-batch ``first``."""
        names = self.names
        lost = next((path for path in self.records if batch_of(path) == first and self.records[path].rows), None)
        if lost is None:
            what = f"{names.folder} has micro-batches only up to {first - 1} (-1: none): the folder was removed, "
            what += "another sink made the checkpoint, or Spark's repartition left out a micro-batch that failed"
        else:
            what = f"the files of {names.folder}/{lost} are missing, with the {self.records[lost].rows:,} rows that "
            what += f"were staged in micro-batch {first}"
        return StagingError(
            f"checkpoint {names.checkpoint} is at micro-batch {batch_id}, but {what}. Nothing was written. Bring the "
            f"folder back, or {START_OVER}"
        )

    def _complete(self, folders: Mapping[str, list[Piece]], empty: EmptyRun | None) -> list[Piece]:
        """Return the pieces of the last folder with a record; none if there is none, or a later note without rows."""
        recorded = [folder for folder in folders if folder in self.records]  # A run writes the record last.
        last_run = max((folders[folder][0].run for folder in recorded), default=NO_BATCH)
        last = [folder for folder in recorded if folders[folder][0].run == last_run]
        if empty is not None and empty.run > last_run:
            return []
        if len(last) > 1 or (last and empty is not None and empty.run == last_run):
            are_same = empty is None and len({self.records[folder] for folder in last}) == 1
            way = f"move {last[0]}, whose rows are the same, elsewhere, and start again" if are_same else START_OVER
            raise ForeignWriterError(
                f"{last[0]} and {last[1] if len(last) > 1 else 'a note without rows'} of the staging folder were "
                f"written by two runs of the query at once. Nothing was committed. Stop one of them, and {way}"
            )
        if not last:
            return []
        staged, record = folders[last[0]], self.records[last[0]]
        if (found := Contents.of(staged)) != record:
            raise StagingError(
                f"{last[0]} in the staging folder holds {found} in {len(staged)} pieces, but {record} by its record: "
                "a file was removed, emptied, replaced or damaged. Nothing was written. Bring the folder back "
                f"from a copy, or {START_OVER}"
            )
        return staged

    def begin(self, intent: Intent, looked: object, now_ms: int) -> None:
        self.take(intent)
        self.failure, self.looked, self.begun_ms = None, looked, now_ms

    def begin_again(self, looked: object, now_ms: int) -> None:
        self.looked, self.just_counted = looked, frozenset()
        self.begun_ms = now_ms if self.begun_ms is None else self.begun_ms

    def fail(self, failure: Failed, now_ms: int) -> None:
        """Note that the table did not take a drain, or may not have: `lack` says so later."""
        self.failure = failure
        if self.is_done:
            self.failures, self.failed_ms = self.failures + 1, now_ms

    def lack(self, taken_back: TakenBack | None, now_ms: int) -> None:
        self.taken_back = taken_back
        if self.failure is not None:
            self.failures, self.failed_ms = self.failures + 1, now_ms

    def deliver(self, table_id: str | None, version: int | None, now_ms: int) -> None:
        """Note that the table has the drain, in this version if that is known."""
        self.table_id, self.table_version = table_id, version
        self.failure, self.failures, self.progress_ms = None, 0, now_ms

    def end(self) -> None:
        self.epochs -= self.idle_epochs()
        self.begun_ms = None

    def take(self, intent: Intent) -> None:
        """Continue from an intent, which was decided now or read from the log."""
        self.intent = intent
        self.last_batch, self.last_contents = intent.last_batch, intent.last_contents
        self.pieces = {piece.key: piece for piece in intent.left}
        self.schema = intent.schema
        self.epochs.update(intent.epochs)
        self.empty = []

    def renumber(self, intent: Intent) -> None:
        self.intent, self.taken_back, self.table_version = intent, None, intent.table_version
        self.epochs.update(intent.epochs)

    def idle_folders(self) -> list[str]:
        """Return the folders below the staging folder that can go once the last intent is done."""
        waiting = None if self.incoming is None else self.incoming.epoch
        return idle_paths(self.next_drain, self.idle_epochs(), self._needed_epochs(), waiting)

    def idle_epochs(self) -> set[int]:
        return {epoch for epoch in self.epochs if epoch < self.next_drain} - self._needed_epochs()

    def _needed_epochs(self) -> set[int]:
        needed = {piece.epoch for piece in self.pieces.values()} | {self.next_drain}
        if self.incoming is not None:
            needed.add(self.incoming.epoch)
        return needed | {staged.epoch for staged in self.uncounted.values()}


# --- the ledger in entries of the log --------------------------------------------------------------------------------

Body = dict[str, Any]
PIECE_FIELDS = tuple(field.name for field in fields(Piece))
NewEntry = tuple[str, Body, bool]  # Name, body, and True for a note: the arguments of `StagingFolder.write_entry`.
_OF_EPOCH = re.compile(r"/epoch=(\d+)/")


class LogEntry(NamedTuple):
    name: str
    body: Body
    path: str = ""  # Below the staging folder.


def schema_entry(batch_id: int, schema: str | None) -> NewEntry:
    return f"schema={batch_id}", {"batch_id": batch_id, "schema": schema}, True


def record_entry(staged: StagedBatch) -> NewEntry:
    return staged.path.rpartition("/")[2], {"path": staged.path, **asdict(staged.contents)}, False


def empty_entry(run: EmptyRun) -> NewEntry:
    """Return a note of micro-batches without rows. A run writes two notes in turn, so that one is always whole."""
    return f"empty={run.first}-{run.run}-{run.last % 2}", run._asdict(), True


def intent_entry(intent: Intent) -> NewEntry:
    packed = {"taken": _columns(intent.taken), "left": _columns(intent.left)}
    packed["last_contents"] = asdict(intent.last_contents)
    body = {field.name: getattr(intent, field.name) for field in fields(Intent)} | packed
    return f"intent={intent.number}", body, False


def done_entry(ledger: Ledger) -> NewEntry:
    number = ledger.next_drain - 1
    body = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
    return f"done={number}", body, False


def replay(entries: Iterable[LogEntry], folder: str) -> Ledger:
    """Return the ledger that a log's entries describe. StagingError, ForeignWriterError if two have the same name."""
    known: dict[str, LogEntry] = {}
    for entry in entries:
        other = known.setdefault(entry.name, entry)
        if other.body != entry.body:
            raise ForeignWriterError(
                f"{folder}/log holds two different entries {entry.name!r}, {other.path} and {entry.path}: two runs of "
                "the query write at once. Stop both; `spark-purgatory repair CHECKPOINT` shows which entry is the true "
                "one, asks, and removes the other. Staged rows were not touched"
            )
    try:
        ledger = _replayed({name: entry.body for name, entry in known.items()})
        _check_last_intent(ledger, [entry.body for entry in known.values()], folder)
        return ledger
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StagingError(f"{folder}/log is of another release: run the one that wrote the checkpoint") from error


def _replayed(bodies: dict[str, Body]) -> Ledger:
    ledger = Ledger()
    of = {
        kind: {name: body for name, body in bodies.items() if name.startswith(f"{kind}=")}
        for kind in ("intent", "done", "schema", "empty", "batch")
    }
    if intents := [_intent(body) for body in of["intent"].values()]:
        last = max(intents, key=lambda intent: intent.number)
        ledger.take(last)
        done = of["done"].get(f"done={last.number}")
        ledger.drain = DrainState.UNSURE if done is None and last.taken else DrainState.DONE
        ledger.table_version = last.table_version if done is None else done["table_version"]
        ledger.table_id = last.table_id if done is None else done["table_id"]
    for body in sorted(of["schema"].values(), key=lambda body: body["batch_id"]):
        if body["batch_id"] > ledger.last_batch:
            ledger.schema = body["schema"]
    empty = [EmptyRun(body["first"], body["last"], body["run"]) for body in of["empty"].values()]
    ledger.empty = sorted(run for run in empty if run.last > ledger.last_batch)
    ledger.records = {body["path"]: Contents(body["rows"], body["checksum"]) for body in of["batch"].values()}
    ledger.epochs.add(ledger.next_drain)
    return ledger


def _check_last_intent(ledger: Ledger, bodies: Iterable[Body], folder: str) -> None:
    done = (body["number"] + 1 for body in bodies if "table_version" in body and "uuid" not in body)
    staged = (int(epoch[1]) for path in ledger.records if (epoch := _OF_EPOCH.search(path)))
    if (following := max([*done, *staged], default=0)) > ledger.next_drain:
        raise StagingError(
            f"the entry intent={following - 1} of {folder}/log is missing, but later ones are there: it was removed. "
            f"Nothing was written. Bring the file back from a copy, or {START_OVER}"
        )


def _intent(body: Body) -> Intent:
    packed = {"taken": _pieces(body["taken"]), "left": _pieces(body["left"]), "epochs": tuple(body["epochs"])}
    given = {name: value for name, value in body.items() if name != "format"}
    return Intent(**{**given, **packed, "last_contents": Contents(**body["last_contents"])})


def _columns(pieces: Sequence[Piece]) -> dict[str, list[Any]]:
    return {name: [getattr(piece, name) for piece in pieces] for name in PIECE_FIELDS}


def _pieces(packed: dict[str, list[Any]]) -> tuple[Piece, ...]:
    return tuple(Piece(*values) for values in zip(*(packed[name] for name in PIECE_FIELDS), strict=True))
