"""Kafka's producer accumulation as a policy (Kafka: ``RecordAccumulator``); docs/accumulator.md has a worked example.

Terms. A *record* joins the last *batch* of its *partition*. A batch without room for it is closed, and a new one is
opened. The first batches of *ripe* partitions go to the table. The partitions are those of the table, a record is a
staged piece, and a batch becomes a file. Codes such as A13 are facts about Kafka (docs/kafka_facts.md), each with a
trace in ``tests/conformance``. That folder has the parts that only these traces need (results, retries, memory,
leaders, mutes, flushes, splits, the end): what a drain took stays with the drain, and the policy is made again of what
is left (`spark_purgatory.spark.sink.drain.policy_adapter`).

A batch goes when it is full, has lingered, or everything must go. Kafka then also sends the first batches of all other
partitions of a node, because a request costs little. A commit costs seconds and leaves small files, so only batches go
along that are nearly full or have nearly lingered.

**Sizes.** A row is staged in a small Parquet file and committed later in a large one. Its size there is estimated::

    file bytes = staged bytes * ratio              ratio = committed bytes / staged bytes, as seen so far
    row bytes  = ratio * staged bytes a row        the bytes that one row adds to the file
    rows       = file size wanted / row bytes

Both quotients are kept as decayed sums (`DecayedQuotient`), so that a large file counts more than a small one. They
start at a *prior*: ``PRIOR_STAGED_BYTES`` that were committed at the same size. Observed ratios are cut at
``MIN_RATIO`` and ``MAX_RATIO``, so their mean stays within bounds. tests/unit/test_accumulator.py has an example.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")

FULL_PART, LINGERED_PART = 0.9, 0.5  # the part of its size, or of its linger, with which a batch goes along
MULTIPLIER = 2  # Kafka's RETRY_BACKOFF_EXP_BASE

Callback = Callable[[V | None, BaseException | None], None]  # takes the batch's value or error; the other is None


@dataclass(eq=False)
class ProducerBatch(Generic[R]):
    """Records of one partition that go together (Kafka: ``ProducerBatch``). Compared by identity."""

    capacity_bytes: int  # the size of its buffer: it limits all records but the first
    created_ms: int
    bytes: int = 0
    records: list[R] = field(default_factory=list)
    is_closed: bool = False

    @property
    def is_full(self) -> bool:
        """True if it is closed for appends, or at its limit (A4; Kafka: ``MemoryRecordsBuilder.isFull``)."""
        return self.is_closed or (bool(self.records) and self.capacity_bytes <= self.bytes)

    def try_append(self, record: R, record_bytes: int) -> bool:
        """Take a record if it fits; the first one always does (A4; Kafka: ``tryAppend``, ``hasRoomFor``)."""
        if self.is_full or (self.records and self.capacity_bytes < self.bytes + record_bytes):
            return False
        self.bytes += record_bytes
        self.records.append(record)
        return True

    def close(self) -> None:
        self.is_closed = True

    def waited_ms(self, now_ms: int) -> int:
        """Return the milliseconds since it was created, at least 0 (A12; Kafka: ``waitedTimeMs``)."""
        return max(0, now_ms - self.created_ms)


class PartitionQueue(deque[ProducerBatch[R]]):
    """The waiting batches of one partition, the oldest first."""

    @property
    def is_full(self) -> bool:
        """True if several batches wait, or a full one (A7, A13)."""
        return len(self) > 1 or self[-1].is_full


def exponential_backoff_ms(initial_ms: int, max_ms: int, retry: int) -> int:
    """Return ``initial_ms * 2 ** retry``, at most ``max_ms``: the wait before a retry, from 0 (Kafka's class, base 2).

    Kafka multiplies by a random number between 0.8 and 1.2, so that producers that failed together do not retry
    together; a table has one sink. Example, 100 ms up to 1 s: 100, 200, 400, 800, 1000, 1000, ...
    """
    first_ms = min(initial_ms, max_ms)
    largest_exponent = math.log(max(max_ms, 1) / max(first_ms, 1)) / math.log(MULTIPLIER)
    return min(int(first_ms * math.pow(MULTIPLIER, min(retry, largest_exponent))), max_ms)


class AccumulatorPolicy(Generic[P, R]):
    """Decides when batches go (Kafka: ``RecordAccumulator``). ``P`` is a partition, ``R`` a record.

    Sizes are bytes, times absolute milliseconds that do not decrease.
    """

    def __init__(self, batch_bytes: int, linger_ms: int, size_of: Callable[[R, Sequence[R]], int]) -> None:
        self.batch_bytes = batch_bytes  # the capacity of a normal batch (Kafka: ``batch.size``)
        self.linger_ms = linger_ms  # the longest wait of a batch for more records (Kafka: ``linger.ms``)
        self.size_of = size_of  # the bytes that a record adds to a batch with the records given
        self.queues: dict[P, PartitionQueue[R]] = {}

    def append(self, partition: P, record: R, now_ms: int) -> None:
        """Put a record into the partition's last batch, or into a new one (Kafka: ``append``)."""
        if self.join_last(partition, record):
            return
        record_bytes = self.size_of(record, ())
        batch: ProducerBatch[R] = ProducerBatch(max(self.batch_bytes, record_bytes), now_ms)
        batch.try_append(record, record_bytes)
        self.queues.setdefault(partition, PartitionQueue()).append(batch)

    def join_last(self, partition: P, record: R) -> bool:
        """Try the last batch; without room for the record it is closed for good (A6; Kafka: ``tryAppend``)."""
        if not (queue := self.queues.get(partition)):
            return False
        if queue[-1].try_append(record, self.size_of(record, queue[-1].records)):
            return True
        queue[-1].close()
        return False

    def ripe(self, now_ms: int, everything: bool = False) -> list[P]:
        """Return the partitions whose first batch should go now, with those that go along.

        A batch should go if it is full or has lingered, or if ``everything`` must go.
        """
        if everything:
            return list(self.queues)
        waited_ms = {partition: queue[0].waited_ms(now_ms) for partition, queue in self.queues.items()}
        has_lingered = any(each_ms >= self.linger_ms for each_ms in waited_ms.values())
        if not has_lingered and not any(queue.is_full for queue in self.queues.values()):
            return []
        least_ms = self.linger_ms * (LINGERED_PART if has_lingered else 1)
        least_bytes = self.batch_bytes * FULL_PART
        return [
            partition
            for partition, queue in self.queues.items()
            if queue.is_full or waited_ms[partition] >= least_ms or queue[0].bytes >= least_bytes
        ]

    def peek(self, only: Collection[P], max_bytes: int, everything: bool = False) -> list[ProducerBatch[R]]:
        """Return the first batches of some partitions, and full ones after them, that fit into ``max_bytes``.

        With ``everything`` they need not be full. Unlike a request of Kafka, a transaction takes more at no cost.
        """
        queues = [queue for partition, queue in self.queues.items() if partition in only]
        chosen = first_that_fit((queue[0] for queue in queues), max_bytes)
        left_bytes = max_bytes - sum(batch.bytes for batch in chosen)
        for queue in queues[: len(chosen)]:
            for batch in islice(queue, 1, None):
                if batch.bytes > left_bytes or not (everything or batch.is_full):
                    break
                left_bytes -= batch.bytes
                chosen.append(batch)
        return chosen


B = TypeVar("B", bound=ProducerBatch[Any])


def first_that_fit(batches: Iterable[B], max_bytes: int) -> list[B]:
    """Return the first batches that have at most ``max_bytes`` together, or a single larger one (A18)."""
    taken, taken_bytes = list[B](), 0
    for batch in batches:
        taken_bytes += batch.bytes
        if taken and taken_bytes > max_bytes:
            break
        taken.append(batch)
    return taken


# --- sizes ------------------------------------------------------------------------------------------------------------

PRIOR_STAGED_BYTES = 1 << 20  # the prior's weight: one commit of 16 MiB leaves it 3 %
# After 4 observations of one size the first has 7 % of the weight: a change of the data shows in a few files.
KEEP = 0.5
MIN_RATIO = 1 / 64
MAX_RATIO = 64.0  # dictionary and codec seldom change a size by more than 20 times; beyond 64 a piece has no rows
PRIOR_ROW_BYTES = 100.0  # staged bytes per row before any was staged, with the weight of one row
MIN_ROW_BYTES = 1 / 64  # without a minimum, a file of rows without bytes would have no end


@dataclass
class DecayedQuotient:
    """A quotient of sums of observations, in which newer and larger ones count more."""

    top: float
    bottom: float  # greater than 0

    def observe(self, top: float, bottom: float) -> None:
        self.top = KEEP * self.top + top
        self.bottom = KEEP * self.bottom + bottom

    @property
    def value(self) -> float:
        return self.top / self.bottom


class SizeCalibration:
    """Estimates of the size of a table's staged bytes and rows in its files. The module has the arithmetic."""

    def __init__(self) -> None:
        self._ratio = DecayedQuotient(PRIOR_STAGED_BYTES, PRIOR_STAGED_BYTES)
        self._staged_row_bytes = DecayedQuotient(PRIOR_ROW_BYTES, 1.0)

    def observe_staged(self, staged_bytes: int, rows: int) -> None:
        if rows:
            self._staged_row_bytes.observe(staged_bytes, rows)

    def observe_committed(self, staged_bytes: int, file_bytes: int) -> None:
        """Take the size of files that pieces of ``staged_bytes`` became; without bytes it changes nothing."""
        if staged_bytes:
            self._ratio.observe(_bounded(file_bytes / staged_bytes) * staged_bytes, staged_bytes)

    @property
    def ratio(self) -> float:
        """Committed bytes / staged bytes, from ``MIN_RATIO`` to ``MAX_RATIO``."""
        return _bounded(self._ratio.value)

    def file_bytes(self, staged_bytes: int) -> int:
        """Return the bytes of ``staged_bytes`` in a file, rounded up."""
        return math.ceil(self.ratio * staged_bytes)

    @property
    def row_bytes(self) -> float:
        return self.ratio * self._staged_row_bytes.value

    def rows_for(self, file_bytes: int) -> int:
        """Return the number of rows that fit into a file of ``file_bytes``, at least 1."""
        return max(1, int(file_bytes / max(self.row_bytes, MIN_ROW_BYTES)))


def _bounded(ratio: float) -> float:
    return min(max(ratio, MIN_RATIO), MAX_RATIO)
