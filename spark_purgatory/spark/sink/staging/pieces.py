"""The values in the ledger: pieces, micro-batches, runs of a query and intents of drains, and their folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

EPOCHS_A_GENERATION, GENERATIONS = 16, 4  # docs/formats.md explains them.
MAX_GROWTH, MAX_OVERHEAD_BYTES = 2, 1 << 20  # Parquet at worst: twice the rows' bytes, and the footers.


def generation(epoch: int) -> int:
    return epoch // EPOCHS_A_GENERATION % GENERATIONS


def epoch_path(epoch: int, kind: str = "rows") -> str:
    """Return the folder of an epoch's ``rows`` or ``log``, below the staging folder."""
    return f"{kind}/generation={generation(epoch)}/epoch={epoch}"


def batch_of(path: str) -> int:
    """Return the number of the micro-batch in a folder of staged rows."""
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
        """A key that no other piece has."""
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
    """The rows that a drain will commit."""

    number: int  # The drain's number.
    uuid: str  # The mark of its commit has it, too.
    table_id: str | None  # None if the drain must create the table.
    schema: str | None  # None if nothing was staged yet.
    last_batch: int  # The last micro-batch that counts. Spark has committed it, so ``taken`` and ``left`` are final.
    last_contents: Contents  # The rows of ``last_batch``: if Spark runs it again, they must be the same.
    taken: tuple[Piece, ...]  # Without any it is done by itself (`Renumber`).
    left: tuple[Piece, ...]
    epochs: tuple[int, ...]  # Epochs whose files were not removed when the intent was made.
    run: int  # Number of the run that made it.
    table_version: int | None = None  # The version after the drain before this one; None if it is not known.
    base_version: int = -1  # The version when the intent was made, -1 without a table; the drain's own is later.

    @property
    def taken_rows(self) -> int:
        return sum(piece.rows for piece in self.taken)
