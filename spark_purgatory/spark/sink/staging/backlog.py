"""When staged files have to be counted: as late as the policy can do without, for it is a job.

The policy wants bytes by table partition, which only the files' footers have. But a file is not full while what its
partition has, and its share of what was not counted, is less than ``batch_size``; memory is not out while the most that
the uncounted rows can weigh fits; and for linger the time of the oldest is enough. So the files of many micro-batches
are counted together, in about two jobs a drain.

The share is that of the rows counted last. Where a partition suddenly gets more, its file is closed later than it could
be: it is cut at its size all the same, and linger and memory bound the wait.

Worked example, batch_size 16, four partitions alike, 1 a micro-batch: each has 0 of 16, and a quarter of what comes, so
that the next count is after 64 micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from spark_purgatory.accumulator.sizing import DecayedQuotient
from spark_purgatory.spark.sink.staging.pieces import Piece, StagedBatch

MAX_GROWTH = 2
MAX_OVERHEAD_BYTES = 1 << 20
"""What Parquet can make of rows at the very worst: twice their bytes, and the footers."""
MAX_FILES_AHEAD = 8
"""How many files' bytes may stay uncounted, were they all of a partition that has not been seen yet."""
KEEP = 0.5


class Backlog:
    """What is known of micro-batches before their files are counted."""

    def __init__(self) -> None:
        self._staged_a_plain: DecayedQuotient | None = None
        """Bytes of files over bytes of rows."""
        self._shares: defaultdict[str, float] = defaultdict(float)
        """Each partition's share of the bytes counted last."""

    def learn(self, batches: Iterable[StagedBatch], pieces: Sequence[Piece]) -> None:
        """Micro-batches were counted."""
        plain_bytes = sum(staged.plain_bytes for staged in batches)
        staged_bytes = sum(piece.staged_bytes for piece in pieces)
        self._staged_a_plain = self._staged_a_plain or DecayedQuotient(0.0, 0.0)
        self._staged_a_plain.observe(staged_bytes, plain_bytes, KEEP)
        self._shares.clear()
        for piece in pieces:
            self._shares[piece.partition] += piece.staged_bytes / staged_bytes

    def staged_bytes(self, batches: Iterable[StagedBatch]) -> float:
        """What the files of micro-batches are expected to weigh; their rows' bytes before any was counted."""
        scale = 1.0 if self._staged_a_plain is None else self._staged_a_plain.value
        return scale * sum(staged.plain_bytes for staged in batches)

    def could_fill(
        self, batches: Iterable[StagedBatch], open_bytes: Mapping[str, int], ratio: float, batch_bytes: int
    ) -> bool:
        """Return True if a file may be full; ``open_bytes``: of each partition's last, ``ratio``: file to staged."""
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
    """What the files of micro-batches can weigh at most; what they weigh where they were counted."""
    return sum(
        staged.plain_bytes * MAX_GROWTH + MAX_OVERHEAD_BYTES if staged.staged_bytes is None else staged.staged_bytes
        for staged in batches
    )
