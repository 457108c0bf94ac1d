"""What is staged, as the log and the staged folders say it: pure bookkeeping, the same after a restart as before.

A *piece* is the rows of one table partition in one staged file of a micro-batch. A micro-batch that has rows is a
folder of files; one that has none is in a note; so a gap shows. An *intent* N says which pieces drain N takes and which
it leaves, and up to which micro-batch that is all there is: nothing before it needs to be read again. *Epoch* e is what
is written after intent e - 1 and up to intent e.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

from spark_purgatory.errors import ForeignWriterError, StagingError

NO_BATCH = -1
"""The micro-batch before micro-batch 0, and the drain before drain 0."""


@dataclass(frozen=True)
class Piece:
    """The rows of a table partition in a staged file."""

    partition: str
    """Hash of the table partition's values, in hex; "" without partitions."""
    path: str
    """Below the staging folder."""
    rows: int
    staged_bytes: int
    """Its share of the file's, by rows."""
    batch_id: int
    epoch: int
    staged_ms: int
    run: int = 0
    """Number of the run that staged it."""

    @property
    def folder(self) -> str:
        """Below the staging folder."""
        return self.path.rpartition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        """Unlike that of any other piece."""
        return self.path, self.partition


@dataclass(frozen=True)
class StagedBatch:
    """A micro-batch that this run has staged; what its files are has not been looked at."""

    batch_id: int
    epoch: int
    staged_ms: int
    path: str
    """Below the staging folder."""
    rows: int = 0
    plain_bytes: int = 0
    """Before any encoding."""


@dataclass(frozen=True)
class Run:
    """One life of a query: from a start to an end, however it comes."""

    number: int = 0
    """More than that of every run before it of which something is left; two that start at once have the same."""
    id: str = field(default_factory=lambda: uuid4().hex[:8])

    def batch_path(self, epoch: int, batch_id: int) -> str:
        """The one folder of a micro-batch in an epoch, below the staging folder: no other run writes there."""
        return f"epoch={epoch}/batch={batch_id:020d}-{self.number:06d}-{self.id}"


@dataclass(frozen=True)
class Intent:
    """What a drain will commit."""

    number: int
    """Of the drain, and its txnVersion."""
    uuid: str
    """In the commit's userMetadata: whose commit it is."""
    table_id: str | None
    """Delta's id of the table; None if it is to be made."""
    schema: str
    last_batch: int
    """The last micro-batch of which ``taken`` and ``left`` tell; with ``direct`` the one that this drain brings."""
    direct: bool
    """The rows of ``last_batch`` go to the table unstaged."""
    taken: tuple[Piece, ...]
    left: tuple[Piece, ...]
    epochs: tuple[int, ...]
    """Those whose files were not removed when the intent was made."""
    run: int
    """Number of the run that made it."""

    def to_body(self) -> dict[str, Any]:
        """As JSON."""
        packed = {"taken": _packed(self.taken), "left": _packed(self.left)}
        return {name: value for name, value in vars(self).items() if name not in packed} | packed


def _packed(pieces: Iterable[Piece]) -> list[list[Any]]:
    return [list(asdict(piece).values()) for piece in pieces]


def _pieces(packed: list[list[Any]]) -> tuple[Piece, ...]:
    return tuple(Piece(*values) for values in packed)


@dataclass
class Ledger:
    """All that counts. ``pieces`` are in the order in which they were staged."""

    pieces: dict[tuple[str, str], Piece] = field(default_factory=dict)
    """By key; what the intent takes is not among them."""
    uncounted: dict[int, StagedBatch] = field(default_factory=dict)
    """By micro-batch: those after all pieces, whose own are not known yet."""
    schema: str | None = None
    """Of all rows staged."""
    last_batch: int = NO_BATCH
    """The last micro-batch that counts."""
    intent: Intent | None = None
    """The last one."""
    is_done: bool = True
    """The last intent's commit was read back, and that was noted."""
    epochs: set[int] = field(default_factory=set)
    """Those that may hold files."""
    writing_epoch: int | None = None
    """That of a micro-batch which does not count yet, and must not be removed before that is decided."""
    run: Run = field(default_factory=Run)
    """The one that keeps this ledger."""
    empty: list[tuple[int, int]] = field(default_factory=list)
    """First and last of each row of micro-batches without rows, after the last intent."""

    @property
    def next_drain(self) -> int:
        """Number of the next new intent, and the epoch of what is staged now."""
        return 0 if self.intent is None else self.intent.number + 1

    @property
    def staged_bytes(self) -> int:
        """Of all pieces that count and were not read back in the table."""
        taken = () if self.is_done or self.intent is None else self.intent.taken
        return sum(piece.staged_bytes for piece in (*taken, *self.pieces.values()))

    @property
    def awaits_direct(self) -> bool:
        """The last intent's rows were to go direct, and may not have: its micro-batch has to come again."""
        return self.intent is not None and self.intent.direct and not self.is_done

    def add(self, batch_id: int, epoch: int, pieces: Iterable[Piece]) -> None:
        """A micro-batch counts, and so do its pieces."""
        self.pieces.update((piece.key, piece) for piece in pieces)
        self.last_batch = batch_id
        self.epochs.update({self.next_drain, epoch})

    def add_uncounted(self, staged: StagedBatch) -> None:
        """A micro-batch counts, whatever its pieces are."""
        self.add(staged.batch_id, staged.epoch, ())
        self.uncounted[staged.batch_id] = staged

    def empty_run(self, batch_id: int) -> tuple[int, int]:
        """The run of micro-batches without rows that ends with this one."""
        if self.empty and self.empty[-1][1] == batch_id - 1:
            return self.empty[-1][0], batch_id
        return batch_id, batch_id

    def add_empty(self, run: tuple[int, int]) -> None:
        """The last micro-batch of a run counts."""
        if self.empty and self.empty[-1][0] == run[0]:
            self.empty.pop()
        self.empty.append(run)
        self.last_batch = run[1]

    def adopt(self, pieces: Iterable[Piece], before: int) -> int:
        """Let staged micro-batches count that came after the last intent, up to ``before``, which Spark runs now.

        Of one that several runs have staged, as the last of them did that has all its rows: the others ended in it, or
        will. Returns the first micro-batch of which nothing is known, ``before`` if all are. ForeignWriterError if two
        runs were last.
        """
        found: dict[int, dict[tuple[int, int], list[Piece]]] = {}
        last_run = self.intent.run if self.intent else NO_BATCH
        for piece in pieces:
            self.epochs.add(piece.epoch)
            last_run = max(last_run, piece.run)
            if self.last_batch < piece.batch_id < before:
                found.setdefault(piece.batch_id, {}).setdefault((piece.run, piece.epoch), []).append(piece)
        self.run = replace(self.run, number=last_run + 1)
        runs = sorted([*self.empty, *((batch_id, batch_id) for batch_id in found)])
        known = self.last_batch + 1
        for first, last in runs:
            if first <= known:
                known = max(known, last + 1)
        if known < before:
            return known
        for batch_id, by_run in sorted(found.items()):
            _, staged = max(by_run.items(), key=lambda one: (sum(piece.rows for piece in one[1]), one[0]))
            folders = sorted({piece.folder for piece in staged})
            if len(folders) > 1:
                raise ForeignWriterError(
                    f"{folders[0]} and {folders[1]} of the staging folder were written by two runs of the query at "
                    "once. Nothing was committed. Stop one of them, remove its folder, and start again"
                )
            self.add(batch_id, staged[0].epoch, staged)
        self.last_batch = max(self.last_batch, before - 1)
        return before

    def take(self, intent: Intent) -> None:
        """A drain was decided."""
        self.intent, self.is_done = intent, False
        self.last_batch = intent.last_batch
        self.pieces = {piece.key: piece for piece in intent.left}
        self.schema = intent.schema
        self.epochs.update(intent.epochs)
        self.empty = []

    def idle_epochs(self) -> set[int]:
        """Epochs whose files nothing that counts needs, once the last intent is done."""
        needed = {piece.epoch for piece in self.pieces.values()} | {self.writing_epoch}
        needed |= {staged.epoch for staged in self.uncounted.values()}
        return {epoch for epoch in self.epochs if epoch < self.next_drain and epoch not in needed}


def replay(entries: Iterable[tuple[str, dict[str, Any]]], folder: str) -> Ledger:
    """The ledger that the entries of a log tell of. ForeignWriterError if two writers made them."""
    ledger = Ledger()
    bodies: dict[str, dict[str, Any]] = {}
    for name, body in entries:
        if name in bodies and bodies[name] != body:
            raise ForeignWriterError(
                f"{folder}/log holds two different entries {name!r}: two runs of the query write at once. Stop one of "
                "them, remove the entry of the one stopped, and start again; staged rows were not touched"
            )
        bodies[name] = body
    try:
        return _replayed(ledger, bodies)
    except (KeyError, TypeError) as error:
        raise StagingError(f"an entry of {folder}/log was written by another version of spark_purgatory") from error


def _replayed(ledger: Ledger, bodies: dict[str, dict[str, Any]]) -> Ledger:
    intents = [_intent(body) for name, body in bodies.items() if name.startswith("intent")]
    if intents:
        ledger.take(max(intents, key=lambda intent: intent.number))
        ledger.is_done = f"done={ledger.next_drain - 1}" in bodies
    schemas = [body for name, body in bodies.items() if name.startswith("schema")]
    for body in sorted(schemas, key=lambda body: body["batch_id"]):
        if body["batch_id"] > ledger.last_batch:
            ledger.schema = body["schema"]
    empty = [(body["first"], body["last"]) for name, body in bodies.items() if name.startswith("empty")]
    ledger.empty = sorted(run for run in empty if run[1] > ledger.last_batch)
    if any(name.startswith("manifest") for name in bodies):
        raise KeyError("manifest")
    ledger.epochs.add(ledger.next_drain)
    return ledger


def _intent(body: dict[str, Any]) -> Intent:
    packed = {"taken": _pieces(body["taken"]), "left": _pieces(body["left"]), "epochs": tuple(body["epochs"])}
    return Intent(**{**body, **packed})
