"""A batch: the records of one partition that go together, and its life as a table (Kafka: ``ProducerBatch``).

A batch takes records while it is OPEN, and only into the memory that it got when it was opened: its limit is the
capacity of its buffer, which a large first record makes larger than ``batch_bytes`` (A3). A batch IN_FLIGHT has been
handed to whoever sends it; its memory comes back with the answer and not before (A22), even if the batch was given up
meanwhile, which is what ABANDONED is for (A27, A31).
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from spark_purgatory.accumulator.futures import RecordFuture
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import BatchStateError

P = TypeVar("P")
R = TypeVar("R")
V = TypeVar("V")


class BatchState(Enum):
    """The state of a batch; in the first three it has no result."""

    OPEN = "queued, takes records"
    CLOSED = "queued, takes no more records"
    IN_FLIGHT = "drained, its answer is awaited"
    ABANDONED = "aborted in flight, its result and its memory are outstanding"
    SUCCEEDED = "completed"
    FAILED = "failed, or out of time"
    ABORTED = "aborted, nothing is awaited"
    SPLIT = "its records are in other batches"


class BatchEvent(Enum):
    """What can happen to a batch."""

    CLOSE = "closed for appends"
    DRAIN = "drained"
    COMPLETE = "answered: success"
    FAIL = "answered: failure for good"
    REENQUEUE = "answered: to be tried again"
    SPLIT = "answered: too large"
    EXPIRE = "out of time in the queue"
    ABORT = "aborted"


_STATE, _EVENT = BatchState, BatchEvent
TRANSITIONS: dict[tuple[BatchState, BatchEvent], BatchState] = {
    (_STATE.OPEN, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.OPEN, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.OPEN, _EVENT.EXPIRE): _STATE.FAILED,
    (_STATE.OPEN, _EVENT.ABORT): _STATE.ABORTED,
    (_STATE.CLOSED, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.CLOSED, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.CLOSED, _EVENT.EXPIRE): _STATE.FAILED,
    (_STATE.CLOSED, _EVENT.ABORT): _STATE.ABORTED,
    (_STATE.IN_FLIGHT, _EVENT.COMPLETE): _STATE.SUCCEEDED,
    (_STATE.IN_FLIGHT, _EVENT.FAIL): _STATE.FAILED,
    (_STATE.IN_FLIGHT, _EVENT.REENQUEUE): _STATE.CLOSED,
    (_STATE.IN_FLIGHT, _EVENT.SPLIT): _STATE.SPLIT,
    (_STATE.IN_FLIGHT, _EVENT.ABORT): _STATE.ABANDONED,
    # An abandoned batch has ended: its result only returns the memory.
    (_STATE.ABANDONED, _EVENT.COMPLETE): _STATE.ABORTED,
    (_STATE.ABANDONED, _EVENT.FAIL): _STATE.ABORTED,
    (_STATE.ABANDONED, _EVENT.REENQUEUE): _STATE.ABORTED,
    (_STATE.ABANDONED, _EVENT.SPLIT): _STATE.ABORTED,
}
"""(state, event) -> state; a pair that is not here is an error and changes nothing."""

QUEUED = frozenset({BatchState.OPEN, BatchState.CLOSED})
SETTLED = frozenset(set(BatchState) - QUEUED - {BatchState.IN_FLIGHT})
"""The batch has its result."""
ENDED = SETTLED - {BatchState.ABANDONED}
"""Nothing can happen any more, and the memory has come back."""


class Batch(Generic[P, R, V]):
    """Records of one partition that go together (Kafka: ``ProducerBatch``). Compared by identity.

    Times are absolute milliseconds, sizes bytes.
    """

    def __init__(
        self,
        number: int,
        partition: P,
        capacity_bytes: int,
        created_ms: int,
        sizing: Sizing[R],
        is_split: bool = False,
    ) -> None:
        self.number = number
        """Batches are numbered in the order of their creation, from 0."""
        self.partition = partition
        self.capacity_bytes = capacity_bytes
        """The size of its buffer: it limits the size of the batch, but for the first record."""
        self.created_ms = created_ms
        """Linger and the delivery time-out count from here; kept over retries and splits (A24)."""
        self.is_split = is_split
        """It came out of a split and has no memory from the pool (A26)."""
        self.state = BatchState.OPEN
        self.bytes = sizing.header_bytes
        self.records: list[R] = []
        self.futures: list[RecordFuture[V]] = []
        """One for each record; both in order of their appends."""
        self.largest_bound_bytes = 0
        """The largest upper bound of any of its records."""
        self.attempts = 0
        self.backoff_ms = 0
        """How long to wait after the last attempt. Drawn once for each attempt; Kafka draws at every look."""
        self.last_attempt_ms = created_ms
        self.last_append_ms = created_ms
        self.drained_ms: int | None = None
        self.leader_epoch: int | None = None
        self.attempts_at_leader_change = 0
        self._sizing = sizing

    @property
    def is_settled(self) -> bool:
        """The batch has its result (Kafka: ``isDone``)."""
        return self.state in SETTLED

    @property
    def is_full(self) -> bool:
        """Closed for appends, or at its limit (A4; Kafka: ``MemoryRecordsBuilder.isFull``)."""
        return self.state is not BatchState.OPEN or (bool(self.records) and self.capacity_bytes <= self.bytes)

    @property
    def holds_memory(self) -> bool:
        """Whether its capacity is taken from the pool."""
        return not self.is_split and self.state not in ENDED

    @property
    def queue_ms(self) -> int | None:
        """The time from its creation to its last drain (Kafka: ``queueTimeMs``); None if it was never drained."""
        return None if self.drained_ms is None else self.drained_ms - self.created_ms

    def apply(self, event: BatchEvent) -> None:
        """Change the state by the table; BatchStateError if the event is not allowed, then nothing changes."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise BatchStateError(f"{self} cannot be {event.value}: it is {self.state.value}")
        self.state = state

    def try_append(self, record: R, future: RecordFuture[V], now_ms: int) -> bool:
        """Take a record if there is room (A4): the first always fits (Kafka: ``tryAppend``, ``hasRoomFor``)."""
        if self.is_full:
            return False
        record_bytes = self._sizing.record_bytes(record, self.records)
        if self.records and self.capacity_bytes < self.bytes + record_bytes:
            return False
        self.largest_bound_bytes = max(self.largest_bound_bytes, self._sizing.upper_bound_bytes(record))
        self.bytes += record_bytes
        self.records.append(record)
        self.futures.append(future)
        self.last_append_ms = now_ms
        return True

    def waited_ms(self, now_ms: int) -> int:
        """Since it was created or last came back, at least 0 (A12; Kafka: ``waitedTimeMs``)."""
        return max(0, now_ms - self.last_attempt_ms)

    def note_leader_epoch(self, epoch: int | None) -> None:
        """Take over a higher epoch and note at which attempt (A15; Kafka: ``maybeUpdateLeaderEpoch``)."""
        if epoch is not None and (self.leader_epoch is None or self.leader_epoch < epoch):
            self.leader_epoch, self.attempts_at_leader_change = epoch, self.attempts

    def is_backing_off(self, now_ms: int) -> bool:
        """Whether it is to be tried again, but not yet, and the leader is the same (A15; Kafka: ``shouldBackoff``)."""
        if self.attempts == 0 or self.attempts == self.attempts_at_leader_change:
            return False
        return self.waited_ms(now_ms) < self.backoff_ms

    def note_retry(self, now_ms: int, backoff_ms: int) -> None:
        """It came back and waits ``backoff_ms`` from now (A23; Kafka: ``reenqueued``)."""
        self.attempts += 1
        self.backoff_ms = backoff_ms
        self.last_attempt_ms = self.last_append_ms = max(self.last_append_ms, now_ms)

    def note_drained(self, now_ms: int) -> None:
        """It was handed out to be sent (Kafka: ``drained``)."""
        self.drained_ms = now_ms if self.drained_ms is None else max(self.drained_ms, now_ms)

    def has_reached(self, timeout_ms: int, now_ms: int) -> bool:
        """Whether ``timeout_ms`` have passed since it was created (A24; Kafka: ``hasReachedDeliveryTimeout``)."""
        return now_ms - self.created_ms >= timeout_ms

    def __repr__(self) -> str:
        return f"batch {self.number} ({len(self.records)} records, {self.bytes:,} bytes, attempt {self.attempts})"


def split_batch(batch: Batch[P, R, V], sizing: Sizing[R], batch_bytes: int, first_number: int) -> list[Batch[P, R, V]]:
    """The batches that a split of ``batch`` makes, closed, with its futures (A26; Kafka: ``ProducerBatch.split``).

    A normal batch is cut at ``batch_bytes``, so that one that was not larger gives one equal batch. One that came out
    of a split is cut at half its size, or its largest record if that is more.
    """
    cut_bytes = max(batch.largest_bound_bytes, batch.bytes // 2) if batch.is_split else batch_bytes
    parts: list[Batch[P, R, V]] = []
    for record, future in zip(batch.records, batch.futures, strict=True):
        if not parts or not parts[-1].try_append(record, future, batch.created_ms):
            capacity_bytes = max(cut_bytes, sizing.upper_bound_bytes(record))
            number = first_number + len(parts)
            parts.append(Batch(number, batch.partition, capacity_bytes, batch.created_ms, sizing, is_split=True))
            parts[-1].try_append(record, future, batch.created_ms)
    for part in parts:
        part.apply(BatchEvent.CLOSE)
    return parts
