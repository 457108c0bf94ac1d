"""Decides when staged files must be counted. That is a job, so it is done as late as possible, about twice a drain.

The policy needs bytes by table partition, which only the files' footers have. But a file cannot be full while its
partition's counted bytes, plus its share of the uncounted ones, are below ``batch_size``. Memory is not full while the
uncounted rows fit at their largest size. Linger needs only the time of the oldest rows.

The shares are those of the rows counted last. The file of a partition that suddenly gets more is closed late, but it is
still cut at its size, and linger and memory bound the wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_purgatory.accumulator.sizing import DecayedQuotient
from spark_purgatory.spark.sink.staging.pieces import Piece, StagedBatch

MAX_GROWTH, MAX_OVERHEAD_BYTES = 2, 1 << 20  # Parquet at worst: twice the rows' bytes, and the footers.
MAX_FILES_AHEAD = 8  # So many files' bytes may stay uncounted, in case all belong to a new partition.
KEEP = 0.5


class Backlog:
    """Estimates the sizes of micro-batches before their files are counted."""

    def __init__(self) -> None:
        self._staged_a_plain: DecayedQuotient | None = None  # Bytes of files over bytes of rows.
        self._shares: defaultdict[str, float] = defaultdict(float)  # Of the bytes counted last, by partition.

    def learn(self, batches: Iterable[StagedBatch], pieces: Sequence[Piece]) -> None:
        """Learn from micro-batches that were counted."""
        plain_bytes = sum(staged.plain_bytes for staged in batches)
        staged_bytes = sum(piece.staged_bytes for piece in pieces)
        self._staged_a_plain = self._staged_a_plain or DecayedQuotient(0.0, 0.0)
        self._staged_a_plain.observe(staged_bytes, plain_bytes, KEEP)
        self._shares.clear()
        for piece in pieces:
            self._shares[piece.partition] += piece.staged_bytes / staged_bytes

    def staged_bytes(self, batches: Iterable[StagedBatch]) -> float:
        """Return the expected bytes of micro-batches' files; the bytes of their rows before any was counted."""
        scale = 1.0 if self._staged_a_plain is None else self._staged_a_plain.value
        return scale * sum(staged.plain_bytes for staged in batches)

    def could_fill(
        self, batches: Iterable[StagedBatch], open_bytes: Mapping[str, int], ratio: float, batch_bytes: int
    ) -> bool:
        """Return True if one of the files of ``open_bytes`` may be full; ``ratio`` is file bytes to staged bytes."""
        if self._staged_a_plain is None:
            return True
        file_bytes = self.staged_bytes(batches) * ratio
        if file_bytes >= batch_bytes * MAX_FILES_AHEAD:
            return True
        return any(
            open_bytes.get(partition, 0) + file_bytes * self._shares.get(partition, 0.0) >= batch_bytes
            for partition in self._shares.keys() | open_bytes.keys()
        )


def most_bytes(batches: Iterable[StagedBatch]) -> int:
    """Return the most bytes that the files of micro-batches can have, or those that were counted."""
    return sum(
        staged.plain_bytes * MAX_GROWTH + MAX_OVERHEAD_BYTES if staged.staged_bytes is None else staged.staged_bytes
        for staged in batches
    )
