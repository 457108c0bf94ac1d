"""The policy with what only traces of Kafka's classes show: memory, leaders, mutes, flushes, splits, and the end.

The product has none of it: one table leads every partition, a micro-batch's drain is over before the next one, and the
sink bounds what is staged (`spark_purgatory.spark.sink.drain.protocol`). Whatever both do is done by the product's own
code, so that the traces replay that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import Any, Generic, TypeVar, cast

from spark_purgatory.accumulator.policy import (
    AccumulatorPolicy,
    AccumulatorSettings,
    Appended,
    BatchEvent,
    BatchState,
    PartitionQueue,
    PartitionQueues,
    ProducerBatch,
)
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import BatchStateError, BugError, PurgatoryError
from tests.conformance.kafka_batches import QUEUED, KafkaBatch, KafkaEvent, KafkaQueue, KafkaState, split_batch
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, AllocationTicket, BufferPool
from tests.conformance.kafka_incomplete import Flush, IncompleteBatches
from tests.conformance.kafka_ready import ReadyCheck, check_ready

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class KafkaAppended(Appended[P, R, V]):
    """What an append did (Kafka: ``RecordAppendResult``)."""

    is_full: bool
    """More than one batch waits for the partition, or the one that does is full: time to drain (A7)."""
    appended_bytes: int
    """Growth of the batch; of a new one its header too (A5)."""


@dataclass(eq=False)
class AppendTicket(Generic[P, R, V]):
    """An append that is done, or waits for memory (Kafka: a thread inside ``append``)."""

    partition: P
    record: R
    allocation: AllocationTicket | None = None
    """The request that it waits for; None if it needed no memory."""
    appended: KafkaAppended[P, R, V] | None = None
    """What it did, once it went in."""
    error: PurgatoryError | None = None
    """Why it did not: BufferExhaustedError, AccumulatorClosedError."""

    @property
    def is_done(self) -> bool:
        """Gone in, or ended with an error."""
        return self.appended is not None or self.error is not None


class RetryOutcome(Enum):
    """What `retried` did."""

    REENQUEUED = "back in the queue"
    DELIVERY_TIMEOUT = "failed: out of time"
    ALREADY_DONE = "it had ended before"


@dataclass(frozen=True)
class Expiry(Generic[P, R, V]):
    """What `expire` did (Kafka: ``expiredBatches`` and ``nextExpiryTimeMs``)."""

    batches: tuple[KafkaBatch[P, R, V], ...]
    """Failed with DeliveryTimeoutError, by partition and in order within it."""
    next_expiry_ms: int | None
    """Absolute time at which the next of those now first in a queue is out of time; None if nothing is queued."""


class KafkaAccumulator(AccumulatorPolicy[P, R, V]):
    """Kafka's ``RecordAccumulator``, and of ``Sender`` what follows a response."""

    make_batch = KafkaBatch

    def __init__(
        self, settings: AccumulatorSettings, buffer_bytes: int, sizing: Sizing[R], backoff_ms: Callable[[int], int],
        default_leader: Hashable | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, sizing, backoff_ms)
        self.queues = PartitionQueues(partial(KafkaQueue, leader=default_leader))
        self.pool = BufferPool(buffer_bytes, settings.batch_bytes)
        self.incomplete: IncompleteBatches[P, R, V] = IncompleteBatches(self._callbacks)
        self.is_closed = False
        self.waiting: list[AppendTicket[P, R, V]] = []
        """Appends that wait for memory, in the order in which they came."""
        self._positions: dict[Hashable, int] = {}
        self._now_ms = 0

    def queue(self, partition: P) -> KafkaQueue[P, R, V]:
        """The queue of a partition."""
        return as_kafka(self.queues.of(partition))

    # --- leaders and mutes ---------------------------------------------------------------------------------------

    def set_leader(self, partition: P, node: Hashable | None, epoch: int | None = None) -> None:
        """Say which node leads a partition, if any, and in which epoch (Kafka: the cluster's metadata)."""
        queue = self.queue(partition)
        queue.leader, queue.leader_epoch = node, epoch

    def mute(self, partition: P) -> None:
        """Drain nothing from a partition till `unmute` (Kafka: ``mutePartition``)."""
        self.queue(partition).is_muted = True

    def unmute(self, partition: P) -> None:
        """Let a partition be drained again (Kafka: ``unmutePartition``)."""
        self.queue(partition).is_muted = False

    def ready(self, now_ms: int) -> ReadyCheck[P]:
        """Nodes that have something to be sent, and when to check again (A11 to A15; Kafka: ``ready``)."""
        is_urgent = self.pool.queued > 0 or self.is_closed or self.is_flushing
        return check_ready(map(as_kafka, self.queues), now_ms, self.settings.linger_ms, is_urgent)

    def drain_nodes(
        self, nodes: Iterable[Hashable], max_bytes: int, now_ms: int
    ) -> dict[Hashable, list[KafkaBatch[P, R, V]]]:
        """Take at most one batch of each partition of each node, ``max_bytes`` a node (A17 to A21; Kafka: ``drain``).

        A node always gets one batch if it has any, whatever its size.
        """

        def may_go(queue: PartitionQueue[P, R, V]) -> bool:
            theirs = as_kafka(queue)
            if not theirs.is_muted and theirs.head is not None:
                cast(KafkaBatch[P, R, V], theirs.head).note_leader_epoch(theirs.leader_epoch)
            return not theirs.is_muted

        drained: dict[Hashable, list[KafkaBatch[P, R, V]]] = {}
        for node in dict.fromkeys(nodes):
            queues = [
                queue for queue in map(as_kafka, self.queues) if queue.leader is not None and queue.leader == node
            ]
            start = self._positions.get(node, 0)
            taken, self._positions[node] = self._round(queues, start, max_bytes, now_ms, may_go)
            self._taken(taken)
            drained[node] = [cast(KafkaBatch[P, R, V], batch) for batch in taken]
        return drained

    # --- appends -------------------------------------------------------------------------------------------------

    def append(self, partition: P, record: R, now_ms: int) -> KafkaAppended[P, R, V]:
        """Append with a blocking time of 0.

        Raises AccumulatorClosedError, RecordTooLargeError (more than ``buffer_bytes``), BufferExhaustedError; then the
        record is nowhere, but the last batch, if it had no room, stays closed (A6).
        """
        queue, appended = self._try(partition, record, now_ms)
        if appended is not None:
            return appended
        return self._open_with(queue, record, self.pool.allocate(self._wanted_bytes(record)), now_ms)

    def append_or_wait(
        self, partition: P, record: R, now_ms: int, max_block_ms: int | None = None
    ) -> AppendTicket[P, R, V]:
        """Append, or wait for memory, at most ``max_block_ms`` (None: for ever) (Kafka: ``append``).

        While a ticket waits, everything that is queued is ready to be sent (A13). Raises AccumulatorClosedError and
        RecordTooLargeError at once.
        """
        ticket: AppendTicket[P, R, V] = AppendTicket(partition, record)
        _, ticket.appended = self._try(partition, record, now_ms)
        if ticket.appended is None:
            ticket.allocation = self.pool.allocate_or_wait(self._wanted_bytes(record), now_ms, max_block_ms)
            self.waiting.append(ticket)
            self.resume_waiting(now_ms)
        return ticket

    def expire_waiters(self, now_ms: int) -> list[AppendTicket[P, R, V]]:
        """End every waiting append whose ``max_block_ms`` are over with BufferExhaustedError; returns those ended."""
        waiting = list(self.waiting)
        self.pool.expire_waiters(now_ms)
        self.resume_waiting(now_ms)
        return [ticket for ticket in waiting if ticket.error is not None]

    def _try(
        self, partition: P, record: R, now_ms: int
    ) -> tuple[PartitionQueue[P, R, V], KafkaAppended[P, R, V] | None]:
        if self.is_closed:
            raise AccumulatorClosedError("a record was appended after the accumulator was closed")
        queue = self.queues.of(partition)
        before_bytes = queue.batches[-1].bytes if queue.batches else 0
        appended = self._join_last(queue, record, now_ms)
        return queue, None if appended is None else self._seen(queue, appended, before_bytes)

    def _open_with(
        self, queue: PartitionQueue[P, R, V], record: R, capacity_bytes: int, now_ms: int
    ) -> KafkaAppended[P, R, V]:
        """Open a batch for the record, now that there is memory (A10; Kafka: ``appendNewBatch``)."""
        try:
            appended = self._open(queue, record, capacity_bytes, now_ms)
        except BaseException:
            self.pool.deallocate(capacity_bytes, capacity_bytes)
            raise
        self.incomplete.add(cast(KafkaBatch[P, R, V], appended.batch))
        return self._seen(queue, appended, 0)

    def _seen(
        self, queue: PartitionQueue[P, R, V], appended: Appended[P, R, V], before_bytes: int
    ) -> KafkaAppended[P, R, V]:
        batch = appended.batch
        return KafkaAppended(
            appended.future, batch, appended.is_new_batch, queue.is_full, appended_bytes=batch.bytes - before_bytes
        )

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
        queue, ticket.appended = self._try(ticket.partition, ticket.record, now_ms)
        if ticket.appended is None:
            ticket.appended = self._open_with(queue, ticket.record, capacity_bytes, now_ms)
        else:
            self.pool.deallocate(capacity_bytes, capacity_bytes)

    # --- results -------------------------------------------------------------------------------------------------

    def complete(self, batch: ProducerBatch[P, R, V], value: V, now_ms: int = 0) -> bool:
        """The batch has arrived; False if it had been aborted meanwhile. Its memory comes back now (A22, A27)."""
        self._now_ms = now_ms
        return super().complete(batch, value)

    def fail(self, batch: ProducerBatch[P, R, V], error: BaseException, now_ms: int) -> bool:
        """The batch will not arrive; its futures raise ``error``. Returns as `complete` (Kafka: ``failBatch``)."""
        self._now_ms = now_ms
        return self._end(batch, BatchEvent.FAIL, None, error)

    def retry(self, batch: ProducerBatch[P, R, V], now_ms: int, error: BaseException | None = None) -> bool:
        """As in the product; False, too, if the batch had been aborted meanwhile."""
        return self.retried(batch, now_ms, error) is RetryOutcome.REENQUEUED

    def retried(self, batch: ProducerBatch[P, R, V], now_ms: int, error: BaseException | None = None) -> RetryOutcome:
        """What `retry` did."""
        self._now_ms = now_ms
        if self._is_settled(batch):
            self._end(batch, BatchEvent.REENQUEUE, None, None)
            return RetryOutcome.ALREADY_DONE
        return RetryOutcome.REENQUEUED if super().retry(batch, now_ms, error) else RetryOutcome.DELIVERY_TIMEOUT

    def reenqueue(self, batch: ProducerBatch[P, R, V], now_ms: int) -> bool:
        """Put the batch back at the front, however old it is (A23; Kafka: ``reenqueue``); False as in `complete`."""
        self._now_ms = now_ms
        if self._is_settled(batch):
            return self._end(batch, BatchEvent.REENQUEUE, None, None)
        self._put_back(batch, now_ms)
        return True

    def split(self, batch: ProducerBatch[P, R, V], now_ms: int) -> list[KafkaBatch[P, R, V]]:
        """Cut a batch that was too large to be taken, and queue its parts at the front (A26; ``splitAndReenqueue``).

        The parts have no memory from the pool; the batch's own comes back now. Futures and flushes go on with the
        parts. Empty if the batch had been aborted meanwhile. BatchStateError for a batch of one record.
        """
        self._now_ms = now_ms
        if self._is_settled(batch):
            self._end(batch, KafkaEvent.SPLIT, None, None)
            return []
        if len(batch.records) == 1:
            raise BatchStateError(f"{batch} cannot be {KafkaEvent.SPLIT.value}: there is nothing to cut")
        self._take_result(batch, KafkaEvent.SPLIT)
        whole = cast(KafkaBatch[P, R, V], batch)
        parts = split_batch(whole, self.sizing, self.settings.batch_bytes, self._next_number)
        self._next_number += len(parts)
        self.incomplete.replace(whole, parts)
        self.queues.of(batch.partition).batches.extendleft(reversed(parts))
        self.return_memory([whole])
        return parts

    def expire(self, now_ms: int) -> Expiry[P, R, V]:
        """Fail queued batches that are out of time, from the front of each queue (A25; Kafka: ``expiredBatches``).

        Muting and backoff do not protect a batch; those in flight are left alone.
        """
        self._now_ms, timeout_ms = now_ms, self.settings.delivery_timeout_ms
        expired: list[KafkaBatch[P, R, V]] = []
        for queue in self.queues:
            for batch in list(takewhile(lambda batch: batch.has_reached(timeout_ms, now_ms), queue.batches)):
                queue.batches.popleft()
                batch.apply(KafkaEvent.EXPIRE)
                expired.append(cast(KafkaBatch[P, R, V], batch))
        heads = [queue.head for queue in self.queues]
        left_ms = [head.created_ms + timeout_ms for head in heads if head is not None]
        for batch in expired:
            self.incomplete.settle(batch, None, self._out_of_time(batch, now_ms, None))
        self.return_memory(expired)
        self._callbacks.call_all()
        return Expiry(tuple(expired), min(left_ms, default=None))

    def _is_settled(self, batch: ProducerBatch[P, R, V]) -> bool:
        return cast(KafkaBatch[P, R, V], batch).is_settled

    def _end(self, batch: ProducerBatch[P, R, V], event: Enum, value: V | None, error: BaseException | None) -> bool:
        """End a batch, or if it was abandoned only take its memory back; True if it ended by this."""
        theirs = cast(KafkaBatch[P, R, V], batch)
        was_settled = theirs.is_settled
        self._take_result(batch, event)
        if not was_settled:
            self.incomplete.settle(theirs, value, error)
        self.return_memory([theirs])
        self._callbacks.call_all()
        return not was_settled

    def return_memory(self, batches: Iterable[KafkaBatch[P, R, V]]) -> None:
        """Give the memory of batches back to the pool, and continue appends that waited for it."""
        for batch in batches:
            if not batch.is_split:
                self.pool.deallocate(batch.capacity_bytes, batch.capacity_bytes)
        self.resume_waiting(self._now_ms)

    # --- flush and end -------------------------------------------------------------------------------------------

    @property
    def has_incomplete(self) -> bool:
        """Some batch, queued or in flight, has not ended (Kafka: ``hasIncomplete``)."""
        return len(self.incomplete) > 0

    @property
    def has_undrained(self) -> bool:
        """Some batch is queued (Kafka: ``hasUndrained``)."""
        return any(queue.batches for queue in self.queues)

    @property
    def is_flushing(self) -> bool:
        """A flush is under way (Kafka: ``flushInProgress``)."""
        return self.incomplete.is_flushing

    def begin_flush(self) -> Flush[P, R, V]:
        """Make everything ready until all that is incomplete now has ended (A28, A29; Kafka: ``beginFlush``)."""
        return self.incomplete.begin_flush()

    def close(self, now_ms: int) -> None:
        """Take no more records and make everything ready; nothing queued is lost (A30; Kafka: ``close``)."""
        self.is_closed = True
        self.pool.close()
        self.resume_waiting(now_ms)

    def abort_incomplete(self, now_ms: int) -> list[KafkaBatch[P, R, V]]:
        """End every batch with AccumulatorClosedError (A31; Kafka: ``abortIncompleteBatches``); returns them.

        Memory of queued batches comes back now, that of batches in flight with their results. An append that gets
        memory by this is aborted too.
        """
        self._now_ms = now_ms
        aborted: list[KafkaBatch[P, R, V]] = []
        while batches := list(self.incomplete):
            for queue in self.queues:
                queue.batches.clear()
            for batch in batches:
                batch.apply(KafkaEvent.ABORT)
                self.incomplete.settle(batch, None, AccumulatorClosedError(f"{batch} was aborted"))
            self.return_memory([batch for batch in batches if batch.state is KafkaState.ABORTED])
            aborted += batches
        self._callbacks.call_all()
        return aborted

    def validate(self) -> None:
        """Recompute what is kept twice; BugError if memory, a batch or the order of a queue is lost."""
        self.pool.validate()
        queued: list[Any] = [batch for queue in self.queues for batch in queue.batches]
        known = [*queued, *self._in_flight]
        held_bytes = sum(batch.capacity_bytes for batch in known if batch.holds_memory)
        if held_bytes != self.pool.held_bytes:
            raise BugError(f"batches hold {held_bytes} bytes, {self.pool.held_bytes} bytes were handed out")
        unsettled = {batch for batch in known if not batch.is_settled}
        if unsettled != set(self.incomplete) or len(known) != len(set(known)):
            raise BugError(f"{len(unsettled)} of {len(known)} batches are unsettled, {len(self.incomplete)} incomplete")
        if any(batch.state not in QUEUED for batch in queued) or any(
            batch.state in QUEUED for batch in self._in_flight
        ):
            raise BugError("a batch is queued and in flight, or neither")
        if any(batch.state is BatchState.OPEN for queue in self.queues for batch in list(queue.batches)[:-1]):
            raise BugError("a batch takes records that is not the last of its queue")
        if any(ticket.is_done or ticket.allocation is None or ticket.allocation.is_done for ticket in self.waiting):
            raise BugError("an append waits for memory that it has")


def as_kafka(queue: PartitionQueue[P, R, V]) -> KafkaQueue[P, R, V]:
    """A queue that `KafkaAccumulator` has made."""
    return cast(KafkaQueue[P, R, V], queue)


def _has_memory_or_error(ticket: AppendTicket[Any, Any, Any]) -> bool:
    return ticket.allocation is not None and ticket.allocation.is_done
