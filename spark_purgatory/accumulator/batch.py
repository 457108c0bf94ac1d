"""A batch: the records of one partition that go together, and its life as a table (Kafka: ``ProducerBatch``).

A batch takes records while it is OPEN, and only up to its capacity, which a large first record makes larger than
``batch_bytes`` (A3). A batch IN_FLIGHT has been handed to whoever sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Generic, TypeVar

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
    SUCCEEDED = "completed"
    FAILED = "failed, or out of time"


class BatchEvent(Enum):
    """What can happen to a batch."""

    CLOSE = "closed for appends"
    DRAIN = "drained"
    COMPLETE = "answered: success"
    FAIL = "answered: failure for good"
    REENQUEUE = "answered: to be tried again"


_STATE, _EVENT = BatchState, BatchEvent
TRANSITIONS: Mapping[tuple[Enum, Enum], Enum] = {
    (_STATE.OPEN, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.OPEN, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.CLOSED, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.CLOSED, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.IN_FLIGHT, _EVENT.COMPLETE): _STATE.SUCCEEDED,
    (_STATE.IN_FLIGHT, _EVENT.FAIL): _STATE.FAILED,
    (_STATE.IN_FLIGHT, _EVENT.REENQUEUE): _STATE.CLOSED,
}
"""(state, event) -> state; a pair that is not here is an error and changes nothing."""


class ProducerBatch(Generic[P, R, V]):
    """Records of one partition that go together (Kafka: ``ProducerBatch``). Compared by identity.

    Times are absolute milliseconds, sizes bytes.
    """

    transitions: ClassVar[Mapping[tuple[Enum, Enum], Enum]] = TRANSITIONS

    def __init__(self, number: int, partition: P, capacity_bytes: int, created_ms: int, sizing: Sizing[R]) -> None:
        self.number = number
        """Batches are numbered in the order of their creation, from 0."""
        self.partition = partition
        self.capacity_bytes = capacity_bytes
        """The size of its buffer: it limits the size of the batch, but for the first record."""
        self.created_ms = created_ms
        """Linger and the delivery time-out count from here; kept over retries and splits (A24)."""
        self.state: Enum = BatchState.OPEN
        self.bytes = sizing.header_bytes
        self.records: list[R] = []
        self.futures: list[RecordFuture[V]] = []
        """One for each record; both in order of their appends."""
        self.attempts = 0
        self.backoff_ms = 0
        """How long to wait after the last attempt. Drawn once for each attempt; Kafka draws at every look."""
        self.last_attempt_ms = created_ms
        self.last_append_ms = created_ms
        self._sizing = sizing

    @property
    def is_full(self) -> bool:
        """Closed for appends, or at its limit (A4; Kafka: ``MemoryRecordsBuilder.isFull``)."""
        return self.state is not BatchState.OPEN or (bool(self.records) and self.capacity_bytes <= self.bytes)

    def apply(self, event: Enum) -> None:
        """Change the state by the table; BatchStateError if the event is not allowed, then nothing changes."""
        state = self.transitions.get((self.state, event))
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
        self.bytes += record_bytes
        self.records.append(record)
        self.futures.append(future)
        self.last_append_ms = now_ms
        return True

    def waited_ms(self, now_ms: int) -> int:
        """Milliseconds since it was created or last came back, at least 0 (A12; Kafka: ``waitedTimeMs``)."""
        return max(0, now_ms - self.last_attempt_ms)

    def is_backing_off(self, now_ms: int) -> bool:
        """Whether the batch is to be tried again, but not yet (A15; Kafka: ``shouldBackoff``)."""
        return self.attempts > 0 and self.waited_ms(now_ms) < self.backoff_ms

    def note_retry(self, now_ms: int, backoff_ms: int) -> None:
        """Note that it came back and waits ``backoff_ms`` from now (A23; Kafka: ``reenqueued``)."""
        self.attempts += 1
        self.backoff_ms = backoff_ms
        self.last_attempt_ms = self.last_append_ms = max(self.last_append_ms, now_ms)

    def has_reached(self, timeout_ms: int, now_ms: int) -> bool:
        """Whether ``timeout_ms`` have passed since it was created (A24; Kafka: ``hasReachedDeliveryTimeout``)."""
        return now_ms - self.created_ms >= timeout_ms

    def __repr__(self) -> str:
        return f"batch {self.number} ({len(self.records)} records, {self.bytes:,} bytes, attempt {self.attempts})"
