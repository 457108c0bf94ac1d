"""Results of batches: complete, fail, retry, split, expire.

In Kafka the sender's thread does this: ``Sender`` chooses the result (``completeBatch``, ``failBatch``, ``canRetry``),
and ``RecordAccumulator`` changes the queues. The table in `batch` says which results a batch may get. Its memory is
returned with the result, and may let a waiting append continue in the same call.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Generic, TypeVar

from spark_purgatory.accumulator.appends import Appender
from spark_purgatory.accumulator.batch import Batch, BatchEvent, split_batch
from spark_purgatory.accumulator.batches import Batches
from spark_purgatory.accumulator.partitions import PartitionQueue
from spark_purgatory.errors import BatchStateError, DeliveryTimeoutError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


class RetryOutcome(Enum):
    """What `retry` did."""

    REENQUEUED = "back in the queue"
    DELIVERY_TIMEOUT = "failed: out of time"
    ALREADY_DONE = "it had ended before"


@dataclass(frozen=True)
class Expiry(Generic[P, R, V]):
    """What `expire` did (Kafka: ``expiredBatches`` and ``nextExpiryTimeMs``)."""

    batches: tuple[Batch[P, R, V], ...]
    """Failed with DeliveryTimeoutError, by partition and in order within it."""
    next_expiry_ms: int | None
    """Absolute time at which the next of those now first in a queue is out of time; None if nothing is queued."""


class BatchResults(Generic[P, R, V]):
    """Ends batches, or puts them back (Kafka: ``Sender`` and ``RecordAccumulator``, the methods that follow a
    response).

    Each raises BatchStateError for a batch that is not in flight, and then changes nothing.
    """

    def __init__(self, batches: Batches[P, R, V], appender: Appender[P, R, V]) -> None:
        self._batches = batches
        self._appender = appender

    def complete(self, batch: Batch[P, R, V], value: V, now_ms: int) -> bool:
        """The batch has arrived; its futures get ``value`` (Kafka: ``ProducerBatch.complete``).

        False if the batch had been aborted meanwhile; its memory comes back now in either case (A22, A27).
        """
        return self._end(batch, BatchEvent.COMPLETE, value, None, now_ms)

    def fail(self, batch: Batch[P, R, V], error: BaseException, now_ms: int) -> bool:
        """The batch will not arrive; its futures raise ``error``. Returns as `complete` (Kafka: ``failBatch``)."""
        return self._end(batch, BatchEvent.FAIL, None, error, now_ms)

    def retry(self, batch: Batch[P, R, V], now_ms: int, error: BaseException | None = None) -> RetryOutcome:
        """Try the batch again later, unless it is out of time (A23, A24; Kafka: ``Sender.canRetry``).

        ``error`` is why it failed; if it is out of time it becomes the cause of its DeliveryTimeoutError.
        """
        if not batch.is_settled and batch.has_reached(self._batches.settings.delivery_timeout_ms, now_ms):
            self._end(batch, BatchEvent.FAIL, None, self._out_of_time(batch, now_ms, error), now_ms)
            return RetryOutcome.DELIVERY_TIMEOUT
        return RetryOutcome.REENQUEUED if self.reenqueue(batch, now_ms) else RetryOutcome.ALREADY_DONE

    def reenqueue(self, batch: Batch[P, R, V], now_ms: int) -> bool:
        """Put the batch back at the front, backing off, however old it is (A23; Kafka: ``reenqueue``).

        False if it had been aborted meanwhile. Two batches of a partition that fail in order come back in reverse: only
        muting keeps that from happening.
        """
        if batch.is_settled:
            return self._end(batch, BatchEvent.REENQUEUE, None, None, now_ms)
        self._take_result(batch, BatchEvent.REENQUEUE)
        batch.note_retry(now_ms, self._batches.backoff_ms(batch.attempts))
        self._batches.queues.of(batch.partition).batches.appendleft(batch)
        return True

    def split(self, batch: Batch[P, R, V], now_ms: int) -> list[Batch[P, R, V]]:
        """Cut a batch that was too large to be taken, and queue its parts at the front (A26; ``splitAndReenqueue``).

        The parts have no memory from the pool; the batch's own comes back now. Futures and flushes go on with the
        parts. Empty if the batch had been aborted meanwhile. BatchStateError for a batch of one record.
        """
        if batch.is_settled:
            self._end(batch, BatchEvent.SPLIT, None, None, now_ms)
            return []
        if len(batch.records) == 1:
            raise BatchStateError(f"{batch} cannot be {BatchEvent.SPLIT.value}: there is nothing to cut")
        self._take_result(batch, BatchEvent.SPLIT)
        parts = split_batch(batch, self._batches.sizing, self._batches.settings.batch_bytes, self._batches.next_number)
        self._batches.next_number += len(parts)
        self._batches.incomplete.replace(batch, parts)
        self._batches.queues.of(batch.partition).batches.extendleft(reversed(parts))
        self.return_memory([batch], now_ms)
        return parts

    def overdue(self, now_ms: int) -> list[Batch[P, R, V]]:
        """Queued batches that `expire` would fail now; they stay where they are."""
        return [batch for queue in self._batches.queues for batch in self._overdue_of(queue, now_ms)]

    def expire(self, now_ms: int) -> Expiry[P, R, V]:
        """Fail queued batches that are out of time, from the front of each queue (A25; Kafka: ``expiredBatches``).

        Muting and backoff do not protect a batch; those in flight are left alone.
        """
        expired: list[Batch[P, R, V]] = []
        for queue in self._batches.queues:
            for batch in self._overdue_of(queue, now_ms):
                queue.batches.popleft()
                batch.apply(BatchEvent.EXPIRE)
                expired.append(batch)
        heads = [queue.head for queue in self._batches.queues]
        left_ms = [head.created_ms + self._batches.settings.delivery_timeout_ms for head in heads if head is not None]
        for batch in expired:
            self._batches.incomplete.settle(batch, None, self._out_of_time(batch, now_ms, None))
        self.return_memory(expired, now_ms)
        self._batches.incomplete.callbacks.call_all()
        return Expiry(tuple(expired), min(left_ms, default=None))

    def _take_result(self, batch: Batch[P, R, V], event: BatchEvent) -> None:
        if batch not in self._batches.in_flight:
            raise BatchStateError(f"{batch} cannot be {event.value}: it is {batch.state.value}, not in flight here")
        batch.apply(event)
        del self._batches.in_flight[batch]

    def _end(
        self, batch: Batch[P, R, V], event: BatchEvent, value: V | None, error: BaseException | None, now_ms: int
    ) -> bool:
        """End a batch, or if it was abandoned only take its memory back; True if it ended by this."""
        was_settled = batch.is_settled
        self._take_result(batch, event)
        if not was_settled:
            self._batches.incomplete.settle(batch, value, error)
        self.return_memory([batch], now_ms)
        self._batches.incomplete.callbacks.call_all()
        return not was_settled

    def return_memory(self, batches: Iterable[Batch[P, R, V]], now_ms: int) -> None:
        """Give the memory of batches back to the pool, and continue appends that waited for it."""
        for batch in batches:
            if not batch.is_split:
                self._batches.pool.deallocate(batch.capacity_bytes, batch.capacity_bytes)
        self._appender.resume_waiting(now_ms)

    def _overdue_of(self, queue: PartitionQueue[P, R, V], now_ms: int) -> list[Batch[P, R, V]]:
        """The batches at the front of one queue, up to the first that is in time."""
        timeout_ms = self._batches.settings.delivery_timeout_ms
        return list(takewhile(lambda batch: batch.has_reached(timeout_ms, now_ms), queue.batches))

    def _out_of_time(self, batch: Batch[P, R, V], now_ms: int, cause: BaseException | None) -> DeliveryTimeoutError:
        error = DeliveryTimeoutError(
            f"{batch} was not delivered: {now_ms - batch.created_ms:,} ms have passed since it was opened and "
            f"delivery_timeout is {self._batches.settings.delivery_timeout_ms:,} ms"
        )
        error.__cause__ = cause
        return error
