"""Appending records: which batch a record joins, and where a new batch gets its memory.

In Kafka the threads of the producer's callers do this (``RecordAccumulator.append``); they block when memory is short.
Here an append that has to wait is an `AppendTicket`. It continues as soon as its memory is free, inside the call that
returned the memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import Batch, BatchEvent
from spark_purgatory.accumulator.batches import Batches
from spark_purgatory.accumulator.buffer_pool import AllocationTicket
from spark_purgatory.accumulator.futures import RecordFuture
from spark_purgatory.accumulator.partitions import PartitionQueue
from spark_purgatory.errors import AccumulatorClosedError, PurgatoryError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


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


class Appender(Generic[P, R, V]):
    """Puts records into batches (Kafka: ``RecordAccumulator``, the methods for callers of ``send``)."""

    def __init__(self, batches: Batches[P, R, V]) -> None:
        self._batches = batches
        self.waiting: list[AppendTicket[P, R, V]] = []
        """Appends that wait for memory, in the order in which they came."""

    def append(self, partition: P, record: R, now_ms: int) -> Appended[P, R, V]:
        """Put a record into the partition's last batch, or into a new one (Kafka: ``append``, blocking time 0).

        Raises AccumulatorClosedError, RecordTooLargeError (more than ``buffer_bytes``), BufferExhaustedError; then the
        record is nowhere, but the last batch, if it had no room, stays closed (A6).
        """
        queue, appended = self._try_append(partition, record, now_ms)
        if appended is not None:
            return appended
        return self._append_with_memory(queue, record, self._batches.pool.allocate(self._needed_bytes(record)), now_ms)

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
            ticket.allocation = self._batches.pool.allocate_or_wait(self._needed_bytes(record), now_ms, max_block_ms)
            self.waiting.append(ticket)
            self.resume_waiting(now_ms)
        return ticket

    def expire_waiters(self, now_ms: int) -> list[AppendTicket[P, R, V]]:
        """End every waiting append whose ``max_block_ms`` are over with BufferExhaustedError; returns those ended."""
        waiting = list(self.waiting)
        self._batches.pool.expire_waiters(now_ms)
        self.resume_waiting(now_ms)
        return [ticket for ticket in waiting if ticket.error is not None]

    def _needed_bytes(self, record: R) -> int:
        """The memory that a new batch requests: an upper bound, so it may be more than the record needs (A2)."""
        return max(self._batches.settings.batch_bytes, self._batches.sizing.upper_bound_bytes(record))

    def _try_append(
        self, partition: P, record: R, now_ms: int
    ) -> tuple[PartitionQueue[P, R, V], Appended[P, R, V] | None]:
        """Try the last batch; without room for the record it is closed for good (A6; Kafka: ``tryAppend``)."""
        if self._batches.is_closed:
            raise AccumulatorClosedError("a record was appended after the accumulator was closed")
        queue = self._batches.queues.of(partition)
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
        number = self._batches.next_number
        batch: Batch[P, R, V] = Batch(number, queue.partition, capacity_bytes, now_ms, self._batches.sizing)
        future: RecordFuture[V] = RecordFuture()
        try:
            batch.try_append(record, future, now_ms)
        except BaseException:
            self._batches.pool.deallocate(capacity_bytes, capacity_bytes)
            raise
        self._batches.next_number += 1
        queue.batches.append(batch)
        self._batches.incomplete.add(batch)
        return Appended(future, batch, queue.is_full, True, batch.bytes)

    def resume_waiting(self, now_ms: int) -> None:
        """Continue every waiting append whose request for memory is done, in the order in which they came."""
        while ticket := next((ticket for ticket in self.waiting if _has_memory_or_error(ticket)), None):
            self.waiting.remove(ticket)
            self._resume(ticket, now_ms)

    def _resume(self, ticket: AppendTicket[P, R, V], now_ms: int) -> None:
        assert ticket.allocation is not None
        capacity_bytes = ticket.allocation.capacity_bytes
        if capacity_bytes is None:
            ticket.error = ticket.allocation.error
            return
        # Meanwhile another append may have opened a batch that has room. Then the memory is returned for the next.
        queue, ticket.appended = self._try_append(ticket.partition, ticket.record, now_ms)
        if ticket.appended is None:
            ticket.appended = self._append_with_memory(queue, ticket.record, capacity_bytes, now_ms)
        else:
            self._batches.pool.deallocate(capacity_bytes, capacity_bytes)


def _has_memory_or_error(ticket: AppendTicket[P, R, V]) -> bool:
    return ticket.allocation is not None and ticket.allocation.is_done
