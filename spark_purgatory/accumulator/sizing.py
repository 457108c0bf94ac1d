"""Sizes in bytes: of records, as the policy needs them, and of staged rows in a committed file, as an estimate.

**For the policy** a record is whatever its `Sizing` can measure. Kafka's own sizes depend on the records before it
(varints of offsets and times); a staged piece weighs what is estimated below.

**For the files.** A row is staged in a small Parquet file, and committed later in a large one, with other rows, perhaps
another codec, and fewer footers and dictionaries. What it will weigh there is estimated::

    file bytes = staged bytes * ratio              ratio = committed bytes / staged bytes, as seen so far
    row bytes  = ratio * staged bytes a row        what one row adds to the file
    rows       = file size wanted / row bytes

Both quotients are kept as decayed sums, so that a large file says more than a small one::

    top    <- keep * top    + observed top
    bottom <- keep * bottom + observed bottom      quotient = top / bottom

With ``keep`` = 0.5 an observation weighs half of what one of the same size does that came after it. The sums start at a
*prior*: ``PRIOR_STAGED_BYTES`` staged that were committed at ``PRIOR_RATIO``. A partition met for the first time starts
at what its table has shown so far, with the prior's weight. Each observed ratio is taken as ``MIN_RATIO`` or
``MAX_RATIO`` where it is beyond, and a mean of numbers within bounds is within them, so no file, however odd, moves an
estimate out of bounds.

Worked example, keep 0.5, prior 1 MiB at 1.0 (a test asserts it)::

    32,768 rows staged in 4 MiB         ratio 1                                row bytes 128
    4 MiB staged, committed in 2 MiB    ratio (0.5 + 2) / (0.5 + 4) = 5/9      row bytes 71.1
    8 MiB staged, committed in 4 MiB    ratio (1.25 + 4) / (2.25 + 8) = 21/41  row bytes 65.6
    a file of 16 MiB then takes 255,903 rows
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

R_contra = TypeVar("R_contra", contravariant=True)
P = TypeVar("P", bound=Hashable)

PRIOR_RATIO = 1.0
"""Staged and committed files are Parquet of the same codec: before anything is known, a byte is a byte."""
PRIOR_STAGED_BYTES = 1 << 20
"""How much the prior weighs: one commit of 16 MiB leaves it 3 % of the say."""
KEEP = 0.5
"""After 4 commits of one size the first has 7 % of the say, so a change of the data is followed within a few files."""
MIN_RATIO = 1 / 64
MAX_RATIO = 64.0
"""Dictionary and codec together seldom do more than 20 in either direction; beyond 64 it is a piece without rows."""
PRIOR_ROW_BYTES = 100.0
"""Staged bytes a row before any was staged; the weight of one row, so the first rows staged replace it."""
MIN_ROW_BYTES = 1 / 64
"""Rows without bytes would make a file of endlessly many."""
MAX_PARTITIONS = 10_000
"""Partitions remembered, the last used: 10,000 of about 500 bytes are 5 MB. The others start again at the table's."""


class Sizing(Protocol[R_contra]):
    """Sizes of a record that the policy needs (Kafka: ``AbstractRecords``, ``DefaultRecord``)."""

    @property
    def header_bytes(self) -> int:
        """Bytes of a batch without records."""

    def record_bytes(self, record: R_contra, batch: Sequence[R_contra]) -> int:
        """Bytes that ``record`` adds to a batch that holds the records ``batch`` (Kafka: ``sizeInBytes``)."""

    def upper_bound_bytes(self, record: R_contra) -> int:
        """Bytes, header included, that a new batch of this record alone cannot exceed; the size of its buffer if
        that is more than ``batch_bytes`` (Kafka: ``estimateSizeInBytesUpperBound``).
        """


@dataclass
class DecayedQuotient:
    """``top / bottom`` of what was observed, newer observations and larger ones weighing more."""

    top: float
    bottom: float
    """Greater than 0."""

    def observe(self, top: float, bottom: float, keep: float) -> None:
        """Add an observation; what was there before counts ``keep`` times as much as it did."""
        self.top = keep * self.top + top
        self.bottom = keep * self.bottom + bottom

    @property
    def value(self) -> float:
        """The quotient now."""
        return self.top / self.bottom

    def restarted(self, bottom: float) -> DecayedQuotient:
        """The same quotient with the weight ``bottom``."""
        return DecayedQuotient(self.value * bottom, bottom)


@dataclass
class _Seen:
    ratio: DecayedQuotient
    """Committed bytes over staged bytes."""
    staged_row_bytes: DecayedQuotient
    """Staged bytes over rows."""


class SizeCalibration(Generic[P]):
    """What staged bytes and rows of each partition will weigh in a file. See the module for the arithmetic."""

    def __init__(self) -> None:
        self._table = _Seen(
            DecayedQuotient(PRIOR_RATIO * PRIOR_STAGED_BYTES, PRIOR_STAGED_BYTES), DecayedQuotient(PRIOR_ROW_BYTES, 1.0)
        )
        self._partitions: OrderedDict[P, _Seen] = OrderedDict()

    def observe_staged(self, partition: P, staged_bytes: int, rows: int) -> None:
        """Rows were staged. Without rows nothing is learned."""
        if rows:
            for seen in (self._table, self._of(partition)):
                seen.staged_row_bytes.observe(staged_bytes, rows, KEEP)

    def observe_committed(self, partition: P, staged_bytes: int, file_bytes: int) -> None:
        """Pieces of ``staged_bytes`` became files of ``file_bytes``. Without staged bytes nothing is learned."""
        if staged_bytes:
            bounded_bytes = clamp(file_bytes / staged_bytes, MIN_RATIO, MAX_RATIO) * staged_bytes
            for seen in (self._table, self._of(partition)):
                seen.ratio.observe(bounded_bytes, staged_bytes, KEEP)

    def ratio(self, partition: P) -> float:
        """Committed bytes over staged bytes, from ``MIN_RATIO`` to ``MAX_RATIO``."""
        return clamp(self._peek(partition).ratio.value, MIN_RATIO, MAX_RATIO)

    def file_bytes(self, partition: P, staged_bytes: int) -> int:
        """What ``staged_bytes`` will weigh in a file, rounded up."""
        return math.ceil(self.ratio(partition) * staged_bytes)

    def row_bytes(self, partition: P) -> float:
        """What a row adds to a file, in bytes."""
        return self.ratio(partition) * self._peek(partition).staged_row_bytes.value

    def rows_for(self, partition: P, file_bytes: int) -> int:
        """The number of rows that fit into a file of ``file_bytes``; at least 1."""
        return max(1, int(file_bytes / max(self.row_bytes(partition), MIN_ROW_BYTES)))

    def _peek(self, partition: P) -> _Seen:
        return self._partitions.get(partition, self._table)

    def _of(self, partition: P) -> _Seen:
        seen = self._partitions.get(partition)
        if seen is None:
            seen = _Seen(self._table.ratio.restarted(PRIOR_STAGED_BYTES), self._table.staged_row_bytes.restarted(1.0))
            self._partitions[partition] = seen
            if len(self._partitions) > MAX_PARTITIONS:
                self._partitions.popitem(last=False)
        self._partitions.move_to_end(partition)
        return seen


def clamp(value: float, low: float, high: float) -> float:
    """``value``, or the bound that it is beyond."""
    return min(max(value, low), high)
