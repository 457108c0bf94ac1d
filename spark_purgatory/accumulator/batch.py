"""Batches of records of one partition, the table of their states, and the queues of batches.

An OPEN batch takes records up to its capacity, which is larger than ``batch_bytes`` for a large first record (A3). A
batch IN_FLIGHT has been given to the sender.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from spark_purgatory.accumulator.futures import RecordFuture
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import BatchStateError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")

KEPT_PARTITIONS = 10_000  # each check for ripe ones walks over all: 10,000 take about 2 ms, and 10 MB when empty


class BatchState(Enum):
    """The state of a batch. In the first three it has no result."""

    OPEN = "queued, takes records"
    CLOSED = "queued, takes no more records"
    IN_FLIGHT = "drained, its answer is awaited"
    SUCCEEDED = "completed"
    FAILED = "failed, or out of time"


class BatchEvent(Enum):
    CLOSE = "closed for appends"
    DRAIN = "drained"
    COMPLETE = "answered: success"
    FAIL = "answered: failure for good"
    REENQUEUE = "answered: to be tried again"


_STATE, _EVENT = BatchState, BatchEvent
# (state, event) -> state; any other pair is an error and changes nothing.
TRANSITIONS: Mapping[tuple[Enum, Enum], Enum] = {
    (_STATE.OPEN, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.OPEN, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.CLOSED, _EVENT.CLOSE): _STATE.CLOSED,
    (_STATE.CLOSED, _EVENT.DRAIN): _STATE.IN_FLIGHT,
    (_STATE.IN_FLIGHT, _EVENT.COMPLETE): _STATE.SUCCEEDED,
    (_STATE.IN_FLIGHT, _EVENT.FAIL): _STATE.FAILED,
    (_STATE.IN_FLIGHT, _EVENT.REENQUEUE): _STATE.CLOSED,
}


class ProducerBatch(Generic[P, R, V]):
    """Records of one partition that go together (Kafka: ``ProducerBatch``). Compared by identity.

    Times are absolute milliseconds, sizes bytes.
    """

    transitions: ClassVar[Mapping[tuple[Enum, Enum], Enum]] = TRANSITIONS

    def __init__(self, number: int, partition: P, capacity_bytes: int, created_ms: int, sizing: Sizing[R]) -> None:
        self.number = number  # batches are numbered in the order of their creation, from 0
        self.partition = partition
        self.capacity_bytes = capacity_bytes  # the size of its buffer: it limits all records but the first
        self.created_ms = created_ms  # linger and delivery timeout count from here, also over retries and splits (A24)
        self.state: Enum = BatchState.OPEN
        self.bytes = sizing.header_bytes
        self.records: list[R] = []
        self.futures: list[RecordFuture[V]] = []  # one for each record; both in the order of appends
        self.attempts = 0
        self.backoff_ms = 0  # the wait after the last attempt, drawn once per attempt; Kafka draws at every check
        self.last_attempt_ms = created_ms
        self.last_append_ms = created_ms
        self._sizing = sizing

    @property
    def is_full(self) -> bool:
        """True if it is closed for appends, or at its limit (A4; Kafka: ``MemoryRecordsBuilder.isFull``)."""
        return self.state is not BatchState.OPEN or (bool(self.records) and self.capacity_bytes <= self.bytes)

    def apply(self, event: Enum) -> None:
        """Change the state by the table. Raises BatchStateError, with nothing changed, if the event is not allowed."""
        state = self.transitions.get((self.state, event))
        if state is None:
            raise BatchStateError(f"{self} cannot be {event.value}: it is {self.state.value}")
        self.state = state

    def try_append(self, record: R, future: RecordFuture[V], now_ms: int) -> bool:
        """Take a record if it fits; the first one always does (A4; Kafka: ``tryAppend``, ``hasRoomFor``)."""
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
        """Return the milliseconds since it was created or last came back, at least 0 (A12; Kafka: ``waitedTimeMs``)."""
        return max(0, now_ms - self.last_attempt_ms)

    def is_backing_off(self, now_ms: int) -> bool:
        """Return True if the batch must be tried again, but not yet (A15; Kafka: ``shouldBackoff``)."""
        return self.attempts > 0 and self.waited_ms(now_ms) < self.backoff_ms

    def note_retry(self, now_ms: int, backoff_ms: int) -> None:
        """Note that it came back and waits ``backoff_ms`` from now (A23; Kafka: ``reenqueued``)."""
        self.attempts += 1
        self.backoff_ms = backoff_ms
        self.last_attempt_ms = self.last_append_ms = max(self.last_append_ms, now_ms)

    def has_reached(self, timeout_ms: int, now_ms: int) -> bool:
        """Return True ``timeout_ms`` after it was created, or later (A24; Kafka: ``hasReachedDeliveryTimeout``)."""
        return now_ms - self.created_ms >= timeout_ms

    def __repr__(self) -> str:
        return f"batch {self.number} ({len(self.records)} records, {self.bytes:,} bytes, attempt {self.attempts})"


@dataclass(eq=False)
class PartitionQueue(Generic[P, R, V]):
    """The waiting batches of one partition, the oldest first."""

    partition: P
    batches: deque[ProducerBatch[P, R, V]] = field(default_factory=deque)

    @property
    def head(self) -> ProducerBatch[P, R, V] | None:
        """The batch that goes first; None if no batch waits."""
        return self.batches[0] if self.batches else None

    @property
    def is_full(self) -> bool:
        """True if several batches wait, or a full one (A7, A13)."""
        return len(self.batches) > 1 or (bool(self.batches) and self.batches[-1].is_full)

    @property
    def is_forgettable(self) -> bool:
        """True if the queue equals a new one."""
        return not self.batches


class PartitionQueues(Generic[P, R, V]):
    """All partitions in the order in which they became known and are visited."""

    def __init__(self, make: Callable[[P], PartitionQueue[P, R, V]]) -> None:
        self._make = make
        self._queues: dict[P, PartitionQueue[P, R, V]] = {}
        self._most = KEPT_PARTITIONS  # idle ones are forgotten before there are more

    def __iter__(self) -> Iterator[PartitionQueue[P, R, V]]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, partition: P) -> PartitionQueue[P, R, V]:
        queue = self._queues.get(partition)
        if queue is None:
            if len(self._queues) >= self._most:
                self._forget_idle()
            queue = self._queues[partition] = self._make(partition)
        return queue

    def _forget_idle(self) -> None:
        self._queues = {partition: queue for partition, queue in self._queues.items() if not queue.is_forgettable}
        self._most = max(self._most, 2 * len(self._queues))
