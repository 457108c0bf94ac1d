"""What the ledger counts, as values: pieces, micro-batches, runs of a query, and intents of drains; where they lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

EPOCHS_A_GENERATION = 16
GENERATIONS = 4
"""`staging_folder` says why."""


def generation(epoch: int) -> int:
    """The generation of an epoch."""
    return epoch // EPOCHS_A_GENERATION % GENERATIONS


def epoch_path(epoch: int, kind: str = "rows") -> str:
    """Folder of an epoch's ``rows``, or of its ``log``, below the staging folder."""
    return f"{kind}/generation={generation(epoch)}/epoch={epoch}"


def idle_paths(drain: int, idle: set[int], needed: set[int]) -> list[str]:
    """Return idle folders before drain ``drain``: of epochs, the log before the last intent, the next generation."""
    following = generation(drain + EPOCHS_A_GENERATION)
    is_free = drain % EPOCHS_A_GENERATION == 0 and following not in map(generation, needed)
    paths = [epoch_path(drain - 2, "log")] if drain > 1 else []
    paths += [epoch_path(epoch) for epoch in sorted(idle)]
    return paths + [f"{kind}/generation={following}" for kind in ("rows", "log") if is_free]


@dataclass(frozen=True)
class Piece:
    """The rows of a table partition in a staged file."""

    partition: str
    """Hash of the table partition's values, in hex; "" without partitions."""
    path: str
    """Below the staging folder."""
    rows: int
    staged_bytes: int
    """The piece's share of the file's bytes, by rows."""
    batch_id: int
    epoch: int
    staged_ms: int
    run: int = 0
    """Number of the run that staged it."""
    checksum: int = 0
    """Sum of the hashes of its rows, which is the same in any order."""

    @property
    def folder(self) -> str:
        """Below the staging folder."""
        return self.path.rpartition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        """Unique among pieces."""
        return self.path, self.partition


def by_partition(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    """Pieces of each table partition: a file to be."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.partition, []).append(piece)
    return found


@dataclass(frozen=True)
class Contents:
    """Which rows a micro-batch has, whatever their order."""

    rows: int = 0
    checksum: int = 0
    """Sum of the hashes of the rows."""

    def __str__(self) -> str:
        return f"{self.rows:,} rows (checksum {self.checksum})"

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Self:
        """The contents of all pieces of a micro-batch."""
        counts = [(piece.rows, piece.checksum) for piece in pieces]
        return cls(sum(rows for rows, _ in counts), sum(checksum for _, checksum in counts))


@dataclass(frozen=True)
class StagedBatch:
    """A micro-batch that this run has staged; its files have not been looked at."""

    batch_id: int
    epoch: int
    staged_ms: int
    path: str
    """Below the staging folder."""
    contents: Contents = Contents()
    plain_bytes: int = 0
    """Before any encoding."""
    staged_bytes: int | None = None
    """The bytes of its files, once these were counted."""


class EmptyRun(NamedTuple):
    """Micro-batches without rows, one after the other."""

    first: int
    last: int
    run: int
    """Number of the run that noted it."""


@dataclass(frozen=True)
class Run:
    """One life of a query: from a start to an end, however it comes."""

    number: int = 0
    """More than that of every run before it of which something is left; two that start at once have the same."""
    id: str = ""
    """Random."""

    def batch_path(self, epoch: int, batch_id: int) -> str:
        """The one folder of a micro-batch in an epoch, below the staging folder: no other run writes there."""
        return f"{epoch_path(epoch)}/batch={batch_id:020d}-{self.number:06d}-{self.id}"


@dataclass(frozen=True)
class Intent:
    """The rows that a drain will commit."""

    number: int
    """The drain's number."""
    uuid: str
    """What the commit's mark has: it says whose commit it is."""
    table_id: str | None
    """The table's id; None if it is to be made."""
    schema: str
    last_batch: int
    """The last micro-batch that counts. Spark has committed it, so all of ``taken`` and ``left`` is as it will be."""
    last_contents: Contents
    """The rows of ``last_batch``: should Spark run it again, they must be the same."""
    taken: tuple[Piece, ...]
    left: tuple[Piece, ...]
    epochs: tuple[int, ...]
    """Epochs whose files were not removed when the intent was made."""
    run: int
    """Number of the run that made it."""
    table_version: int | None = None
    """The table's version after the drain before this one; None if that is not known."""
    base_version: int = -1
    """The table's version when the intent was made, -1 if there was none: the drain's own is a later one."""

    @property
    def taken_rows(self) -> int:
        """Rows of all pieces taken."""
        return sum(piece.rows for piece in self.taken)
