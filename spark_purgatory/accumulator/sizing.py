"""Sizes in bytes: of records for the policy, and an estimate of the size of staged rows in a committed file.

A row is staged in a small Parquet file and committed later in a large one. Its size there is estimated::

    file bytes = staged bytes * ratio              ratio = committed bytes / staged bytes, as seen so far
    row bytes  = ratio * staged bytes a row        the bytes that one row adds to the file
    rows       = file size wanted / row bytes

Both quotients are kept as decayed sums (`DecayedQuotient`), so that a large file counts more than a small one. With
``keep`` = 0.5 an observation counts half as much as the next one of the same size. The sums start at a *prior*:
``PRIOR_STAGED_BYTES`` that were committed at ``PRIOR_RATIO``. A new partition starts at the ratio of its table, with
the prior's weight. Observed ratios are cut at ``MIN_RATIO`` and ``MAX_RATIO``, so their mean stays within bounds.

tests/unit/test_accumulator.py has a worked example.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

R_contra = TypeVar("R_contra", contravariant=True)

PRIOR_RATIO = 1.0  # staged and committed files are Parquet of the same codec
PRIOR_STAGED_BYTES = 1 << 20  # the prior's weight: one commit of 16 MiB leaves it 3 %
KEEP = 0.5  # after 4 commits of one size the first has 7 % of the weight: a change of the data shows in a few files
MIN_RATIO = 1 / 64
MAX_RATIO = 64.0  # dictionary and codec seldom change a size by more than 20 times; beyond 64 a piece has no rows
PRIOR_ROW_BYTES = 100.0  # staged bytes per row before any was staged, with the weight of one row
MIN_ROW_BYTES = 1 / 64  # without a minimum, a file of rows without bytes would have no end
MAX_PARTITIONS = 10_000  # the last used: at about 500 bytes, 5 MB. Others start again at the table's ratio


class Sizing(Protocol[R_contra]):
    """The sizes of a record that the policy needs (Kafka: ``AbstractRecords``, ``DefaultRecord``).

    Kafka's sizes depend on the records before it (varints of offsets and times).
    """

    @property
    def header_bytes(self) -> int:
        """The bytes of a batch without records."""

    def record_bytes(self, record: R_contra, batch: Sequence[R_contra]) -> int:
        """Return the bytes that ``record`` adds to a batch with the records ``batch`` (Kafka: ``sizeInBytes``)."""

    def upper_bound_bytes(self, record: R_contra) -> int:
        """Return a bound of the bytes of a new batch with this record and the header; the size of its buffer if that
        is more than ``batch_bytes`` (Kafka: ``estimateSizeInBytesUpperBound``).
        """


@dataclass
class DecayedQuotient:
    """A quotient of sums of observations, in which newer and larger ones count more."""

    top: float
    bottom: float  # greater than 0

    def observe(self, top: float, bottom: float, keep: float) -> None:
        """Add an observation; earlier ones count ``keep`` times as much as before."""
        self.top = keep * self.top + top
        self.bottom = keep * self.bottom + bottom

    @property
    def value(self) -> float:
        return self.top / self.bottom

    def restarted(self, bottom: float) -> DecayedQuotient:
        return DecayedQuotient(self.value * bottom, bottom)


@dataclass
class _Seen:
    ratio: DecayedQuotient  # committed bytes / staged bytes
    staged_row_bytes: DecayedQuotient  # staged bytes / rows


class SizeCalibration:
    """Estimates of the size of each partition's staged bytes and rows in a file. The module has the arithmetic."""

    def __init__(self) -> None:
        self._table = _Seen(
            DecayedQuotient(PRIOR_RATIO * PRIOR_STAGED_BYTES, PRIOR_STAGED_BYTES), DecayedQuotient(PRIOR_ROW_BYTES, 1.0)
        )
        self._partitions: OrderedDict[str, _Seen] = OrderedDict()

    def observe_staged(self, partition: str, staged_bytes: int, rows: int) -> None:
        if rows:
            for seen in (self._table, self._of(partition)):
                seen.staged_row_bytes.observe(staged_bytes, rows, KEEP)

    def observe_committed(self, partition: str, staged_bytes: int, file_bytes: int) -> None:
        """Take the size of files that pieces of ``staged_bytes`` became; without bytes it changes nothing."""
        if staged_bytes:
            bounded_bytes = clamp(file_bytes / staged_bytes, MIN_RATIO, MAX_RATIO) * staged_bytes
            for seen in (self._table, self._of(partition)):
                seen.ratio.observe(bounded_bytes, staged_bytes, KEEP)

    def ratio(self, partition: str) -> float:
        """Return committed bytes / staged bytes, from ``MIN_RATIO`` to ``MAX_RATIO``."""
        return clamp(self._peek(partition).ratio.value, MIN_RATIO, MAX_RATIO)

    def file_bytes(self, partition: str, staged_bytes: int) -> int:
        """Return the bytes of ``staged_bytes`` in a file, rounded up."""
        return math.ceil(self.ratio(partition) * staged_bytes)

    def row_bytes(self, partition: str) -> float:
        return self.ratio(partition) * self._peek(partition).staged_row_bytes.value

    def rows_for(self, partition: str, file_bytes: int) -> int:
        """Return the number of rows that fit into a file of ``file_bytes``, at least 1."""
        return max(1, int(file_bytes / max(self.row_bytes(partition), MIN_ROW_BYTES)))

    def _peek(self, partition: str) -> _Seen:
        return self._partitions.get(partition, self._table)

    def _of(self, partition: str) -> _Seen:
        seen = self._partitions.get(partition)
        if seen is None:
            seen = _Seen(self._table.ratio.restarted(PRIOR_STAGED_BYTES), self._table.staged_row_bytes.restarted(1.0))
            self._partitions[partition] = seen
            if len(self._partitions) > MAX_PARTITIONS:
                self._partitions.popitem(last=False)
        self._partitions.move_to_end(partition)
        return seen


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
