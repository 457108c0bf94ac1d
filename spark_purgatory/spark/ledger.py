"""What is staged, as the entries of the log say it: pure bookkeeping, the same after a restart as before.

A *piece* is one staged file: rows of one micro-batch and one table partition. A *manifest* makes an attempt's pieces
count. An *intent* N says which pieces drain N takes; it also carries all that is left, so that nothing before it needs
to be read again. *Epoch* e is what is written after intent e - 1 and up to intent e.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from spark_purgatory.errors import ForeignWriterError, StagingError

NO_BATCH = -1
"""The micro-batch before micro-batch 0, and the drain before drain 0."""


@dataclass(frozen=True)
class Piece:
    """One staged file."""

    partition: str
    """Hash of the table partition's values, in hex; "" without partitions."""
    path: str
    """Below the staging folder."""
    rows: int
    staged_bytes: int
    batch_id: int
    epoch: int
    staged_ms: int


@dataclass(frozen=True)
class Attempt:
    """A folder that holds the rows of a micro-batch, and may come to count."""

    batch_id: int
    schema: str
    """Of the rows, as Spark's JSON."""
    path: str
    """Below the staging folder."""
    epoch: int
    staged_ms: int

    def pieces(self, files: Iterable[Mapping[str, Any]]) -> tuple[Piece, ...]:
        """Its files, each of ``name`` (below ``path``), ``rows`` and ``bytes``, in the order of their rows."""
        found = [
            Piece(
                partition=file["name"].rpartition("/")[0].partition("=")[2],
                path=f"{self.path}/{file['name']}",
                rows=file["rows"],
                staged_bytes=file["bytes"],
                batch_id=self.batch_id,
                epoch=self.epoch,
                staged_ms=self.staged_ms,
            )
            for file in files
            if file["rows"]
        ]
        return tuple(sorted(found, key=lambda piece: piece.path.rsplit("/", 1)[1]))


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
    """The last micro-batch that counts; with ``direct`` the one that this drain brings."""
    direct: bool
    """The rows of ``last_batch`` go to the table unstaged."""
    taken: tuple[Piece, ...]
    left: tuple[Piece, ...]
    epochs: tuple[int, ...]
    """Those whose files were not removed when the intent was made."""

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

    pieces: dict[str, Piece] = field(default_factory=dict)
    """By path; what the intent takes is not among them."""
    schema: str | None = None
    """Of all pieces."""
    last_batch: int = NO_BATCH
    intent: Intent | None = None
    """The last one."""
    is_done: bool = True
    """The last intent's commit was read back, and that was noted."""
    epochs: set[int] = field(default_factory=set)
    """Those that may hold files."""
    writing_epoch: int | None = None
    """That of an attempt which does not count yet, and must not be removed before that is decided."""

    @property
    def next_drain(self) -> int:
        """Number of the next new intent, and the epoch of what is staged now."""
        return 0 if self.intent is None else self.intent.number + 1

    @property
    def staged_bytes(self) -> int:
        """Of everything that counts and was not read back in the table."""
        taken = () if self.is_done or self.intent is None else self.intent.taken
        return sum(piece.staged_bytes for piece in (*taken, *self.pieces.values()))

    @property
    def awaits_direct(self) -> bool:
        """The last intent's rows were to go direct, and may not have: its micro-batch has to come again."""
        return self.intent is not None and self.intent.direct and not self.is_done

    def add(self, attempt: Attempt, pieces: Iterable[Piece]) -> None:
        """An attempt counts."""
        self.pieces.update((piece.path, piece) for piece in pieces)
        self.last_batch, self.schema = attempt.batch_id, attempt.schema
        self.epochs.update({self.next_drain, attempt.epoch})

    def take(self, intent: Intent) -> None:
        """A drain was decided."""
        self.intent, self.is_done = intent, False
        self.last_batch = intent.last_batch
        self.pieces = {piece.path: piece for piece in intent.left}
        self.schema = intent.schema
        self.epochs.update(intent.epochs)

    def idle_epochs(self) -> set[int]:
        """Epochs whose files nothing that counts needs, once the last intent is done."""
        needed = {piece.epoch for piece in self.pieces.values()} | {self.writing_epoch}
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
    manifests = [body for name, body in bodies.items() if name.startswith("manifest")]
    for body in sorted(manifests, key=lambda body: body["batch_id"]):
        if body["batch_id"] > ledger.last_batch:
            attempt = Attempt(*(body[field.name] for field in fields(Attempt)))
            ledger.add(attempt, attempt.pieces(body["files"]))
    ledger.epochs.add(ledger.next_drain)
    return ledger


def _intent(body: dict[str, Any]) -> Intent:
    packed = {"taken": _pieces(body["taken"]), "left": _pieces(body["left"]), "epochs": tuple(body["epochs"])}
    return Intent(**{**body, **packed})
