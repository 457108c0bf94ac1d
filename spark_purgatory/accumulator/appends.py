"""The half of the policy that takes records in: which batch a record joins, and where a new batch gets its memory.

Kafka runs this half in the threads of the producer's callers (``RecordAccumulator.append``), which block when memory is
out. Here an append that has to wait is an `AppendTicket`; it goes on as soon as its memory is there, inside the call
that returned the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import Batch, BatchEvent
from spark_purgatory.accumulator.buffer_pool import AllocationTicket, BufferPool
from spark_purgatory.accumulator.futures import RecordFuture
from spark_purgatory.accumulator.incomplete import IncompleteBatches
from spark_purgatory.accumulator.partitions import PartitionQueue, PartitionQueues
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import AccumulatorClosedError, ConfigError, PurgatoryError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class AccumulatorSettings:
    """What the policy goes by; sizes in bytes, times in milliseconds. ConfigError names a field out of bounds."""

    batch_bytes: int
    """Memory of a normal batch, and so its size when it is full (Kafka: ``batch.size``)."""
    buffer_bytes: int
    """Memory of all batches that are not done (Kafka: ``buffer.memory``)."""
    linger_ms: int = 0
    """How long a batch may wait for more records (Kafka: ``linger.ms``)."""
    delivery_timeout_ms: int = 120_000
    """How long a batch may take from its creation to its end (Kafka: ``delivery.timeout.ms``)."""

    def __post_init__(self) -> None:
        """Check every field."""
        least = {"batch_bytes": 1, "buffer_bytes": 1, "linger_ms": 0, "delivery_timeout_ms": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Appended(Generic[P, R, V]):
    """What an append did (Kafka: ``RecordAppendResult``)."""

    future: RecordFuture[V]
    batch: Batch[P, R, V]
    """Where the record is."""
    is_full: bool
    """More than one batch waits for the partition, or the one that does is full: time to drain (A7)."""
    is_new_batch: bool
    """The batch was opened for this record."""
    appended_bytes: int
    """Growth of the batch; of a new one its header too (A5)."""


@dataclass(eq=False)
class AppendTicket(Generic[P, R, V]):
    """An append that is done, or waits for memory (Kafka: a thread inside ``append``)."""

    partition: P
    record: R
    allocation: AllocationTicket | None = None
    """The request that it waits for; None if it needed no memory."""
    appended: Appended[P, R, V] | None = None
    """What it did, once it went in."""
    error: PurgatoryError | None = None
    """Why it did not: BufferExhaustedError, AccumulatorClosedError."""

    @property
    def is_done(self) -> bool:
        """Gone in, or ended with an error."""
        return self.appended is not None or self.error is not None


class AppendSide(Generic[P, R, V]):
    """Takes records into batches (Kafka: ``RecordAccumulator``, the methods for callers of ``send``)."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        sizing: Sizing[R],
        backoff_ms: Callable[[int], int],
        default_leader: Hashable | None = None,
    ) -> None:
        self.settings = settings
        self.sizing = sizing
        self.backoff_ms = backoff_ms
        """Milliseconds to wait before retry number n, from 0; ``ExponentialBackoff`` is Kafka's."""
        self.pool = BufferPool(settings.buffer_bytes, settings.batch_bytes)
        self.queues: PartitionQueues[P, R, V] = PartitionQueues(default_leader)
        self.is_closed = False
        self._incomplete: IncompleteBatches[P, R, V] = IncompleteBatches()
        self._in_flight: dict[Batch[P, R, V], None] = {}
        """Drained and not answered, abandoned ones too."""
        self._waiting: list[AppendTicket[P, R, V]] = []
        self._next_number = 0

    def append(self, partition: P, record: R, now_ms: int) -> Appended[P, R, V]:
        """Put a record into the partition's last batch, or into a new one (Kafka: ``append``, blocking time 0).

        Raises AccumulatorClosedError, RecordTooLargeError (more than ``buffer_bytes``), BufferExhaustedError; then the
        record is nowhere, but the last batch, if it had no room, stays closed (A6).
        """
        queue, appended = self._try_append(partition, record, now_ms)
        if appended is not None:
            return appended
        return self._append_with_memory(queue, record, self.pool.allocate(self._needed_bytes(record)), now_ms)

    def append_or_wait(
        self, partition: P, record: R, now_ms: int, max_block_ms: int | None = None
    ) -> AppendTicket[P, R, V]:
        """Append, or wait for memory, at most ``max_block_ms`` (None: for ever) (Kafka: ``append``).

        While a ticket waits, everything that is queued is ready to be sent (A13). Raises AccumulatorClosedError and
        RecordTooLargeError at once.
        """
        ticket: AppendTicket[P, R, V] = AppendTicket(partition, record)
        _, ticket.appended = self._try_append(partition, record, now_ms)
        if ticket.appended is None:
            ticket.allocation = self.pool.allocate_or_wait(self._needed_bytes(record), now_ms, max_block_ms)
            self._waiting.append(ticket)
            self._resume_waiting(now_ms)
        return ticket

    def expire_waiters(self, now_ms: int) -> list[AppendTicket[P, R, V]]:
        """End every waiting append whose ``max_block_ms`` are over with BufferExhaustedError; returns those ended."""
        waiting = list(self._waiting)
        self.pool.expire_waiters(now_ms)
        self._resume_waiting(now_ms)
        return [ticket for ticket in waiting if ticket.error is not None]

    # --- below: straight lines ---------------------------------------------------------------------------------------

    def _needed_bytes(self, record: R) -> int:
        """What a new batch asks the pool for: an upper bound, so it may be more than the record takes (A2)."""
        return max(self.settings.batch_bytes, self.sizing.upper_bound_bytes(record))

    def _try_append(
        self, partition: P, record: R, now_ms: int
    ) -> tuple[PartitionQueue[P, R, V], Appended[P, R, V] | None]:
        """Try the last batch; without room for the record it is closed for good (A6; Kafka: ``tryAppend``)."""
        if self.is_closed:
            raise AccumulatorClosedError("a record was appended after the accumulator was closed")
        queue = self.queues.of(partition)
        if not queue.batches:
            return queue, None
        last = queue.batches[-1]
        before_bytes = last.bytes
        future: RecordFuture[V] = RecordFuture()
        if last.try_append(record, future, now_ms):
            return queue, Appended(future, last, queue.is_full, False, last.bytes - before_bytes)
        last.apply(BatchEvent.CLOSE)
        return queue, None

    def _append_with_memory(
        self, queue: PartitionQueue[P, R, V], record: R, capacity_bytes: int, now_ms: int
    ) -> Appended[P, R, V]:
        """Open a batch for the record, now that there is memory (A10; Kafka: ``appendNewBatch``)."""
        batch: Batch[P, R, V] = Batch(self._next_number, queue.partition, capacity_bytes, now_ms, self.sizing)
        future: RecordFuture[V] = RecordFuture()
        try:
            batch.try_append(record, future, now_ms)
        except BaseException:
            self.pool.deallocate(capacity_bytes, capacity_bytes)
            raise
        self._next_number += 1
        queue.batches.append(batch)
        self._incomplete.add(batch)
        return Appended(future, batch, queue.is_full, True, batch.bytes)

    def _resume_waiting(self, now_ms: int) -> None:
        """Go on with every waiting append whose request for memory has been answered, in the order they came."""
        while ticket := next((ticket for ticket in self._waiting if _is_answered(ticket)), None):
            self._waiting.remove(ticket)
            self._resume(ticket, now_ms)

    def _resume(self, ticket: AppendTicket[P, R, V], now_ms: int) -> None:
        assert ticket.allocation is not None
        capacity_bytes = ticket.allocation.capacity_bytes
        if capacity_bytes is None:
            ticket.error = ticket.allocation.error
            return
        # Meanwhile someone else may have opened a batch that has room: then the memory goes back, perhaps to the next.
        queue, ticket.appended = self._try_append(ticket.partition, ticket.record, now_ms)
        if ticket.appended is None:
            ticket.appended = self._append_with_memory(queue, ticket.record, capacity_bytes, now_ms)
        else:
            self.pool.deallocate(capacity_bytes, capacity_bytes)


def _is_answered(ticket: AppendTicket[P, R, V]) -> bool:
    return ticket.allocation is not None and ticket.allocation.is_done
