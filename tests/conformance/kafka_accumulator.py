"""The policy with what only traces of Kafka's classes show: memory, leaders, mutes, flushes, splits, and the end.

The product has none of it: one table leads every partition, a micro-batch's drain is over before the next one, and the
sink bounds what is staged (`spark_purgatory.spark.sink.drain.protocol`). Whatever both do is done by the product's own
code, so that the traces replay that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, ClassVar, NamedTuple, cast

from spark_purgatory.accumulator.policy import (
    TRANSITIONS,
    AccumulatorPolicy,
    AccumulatorSettings,
    Appended,
    BatchEvent,
    BatchState,
    PartitionQueue,
    PartitionQueues,
    ProducerBatch,
    RecordFuture,
)
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import BatchStateError, BugError, PurgatoryError
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, AllocationTicket, BufferPool

# --- batches and queues ----------------------------------------------------------------------------------------------


class KafkaState(Enum):
    """States that a batch of the product does not have."""

    ABANDONED = "aborted in flight, its result and its memory are outstanding"
    ABORTED = "aborted, nothing is awaited"
    SPLIT = "its records are in other batches"


class KafkaEvent(Enum):
    """What cannot happen to a batch of the product."""

    SPLIT = "answered: too large"
    EXPIRE = "out of time in the queue"
    ABORT = "aborted"


QUEUED = frozenset[Enum]({BatchState.OPEN, BatchState.CLOSED})
UNSETTLED = QUEUED | {BatchState.IN_FLIGHT}
"""The batch has no result."""
HOLD_MEMORY = UNSETTLED | {KafkaState.ABANDONED}
KAFKA_TRANSITIONS: Mapping[tuple[Enum, Enum], Enum] = {
    **TRANSITIONS,
    **{(state, KafkaEvent.EXPIRE): BatchState.FAILED for state in QUEUED},
    **{(state, KafkaEvent.ABORT): KafkaState.ABORTED for state in QUEUED},
    (BatchState.IN_FLIGHT, KafkaEvent.SPLIT): KafkaState.SPLIT,
    (BatchState.IN_FLIGHT, KafkaEvent.ABORT): KafkaState.ABANDONED,
    # An abandoned batch has ended: its result only returns the memory.
    **{
        (KafkaState.ABANDONED, event): KafkaState.ABORTED
        for event in (BatchEvent.COMPLETE, BatchEvent.FAIL, BatchEvent.REENQUEUE, KafkaEvent.SPLIT)
    },
}


class KafkaBatch(ProducerBatch[Any, Any, Any]):
    """A batch with memory from a pool, under a leader (Kafka: ``ProducerBatch``)."""

    transitions: ClassVar[Mapping[tuple[Enum, Enum], Enum]] = KAFKA_TRANSITIONS

    def __init__(self, *given: Any, is_split: bool = False) -> None:
        super().__init__(*given)
        self.is_split = is_split
        """It came out of a split and has no memory from the pool (A26)."""
        self.largest_bound_bytes = 0
        """The largest upper bound of any of its records."""
        self.leader_epoch: int | None = None
        self.attempts_at_leader_change = 0

    @property
    def is_settled(self) -> bool:
        """The batch has its result (Kafka: ``isDone``)."""
        return self.state not in UNSETTLED

    def try_append(self, record: Any, future: RecordFuture[Any], now_ms: int) -> bool:
        is_in = super().try_append(record, future, now_ms)
        if is_in:
            self.largest_bound_bytes = max(self.largest_bound_bytes, self._sizing.upper_bound_bytes(record))
        return is_in

    def note_leader_epoch(self, epoch: int | None) -> None:
        """Take over a higher epoch and note at which attempt (A15; Kafka: ``maybeUpdateLeaderEpoch``)."""
        if epoch is not None and (self.leader_epoch is None or self.leader_epoch < epoch):
            self.leader_epoch, self.attempts_at_leader_change = epoch, self.attempts

    def is_backing_off(self, now_ms: int) -> bool:
        """As in the product, but not once the leader is another one (A15)."""
        return self.attempts != self.attempts_at_leader_change and super().is_backing_off(now_ms)

    def split(self, sizing: Sizing[Any], batch_bytes: int, first_number: int) -> list[KafkaBatch]:
        """The batches that it is split into, closed, with its futures (A26; Kafka: ``ProducerBatch.split``).

        A normal batch is cut at ``batch_bytes``, so that one that was not larger gives one equal batch. One that came
        out of a split is cut at half its size, or its largest record if that is more.
        """
        cut_bytes = max(self.largest_bound_bytes, self.bytes // 2) if self.is_split else batch_bytes
        parts: list[KafkaBatch] = []
        for record, future in zip(self.records, self.futures, strict=True):
            if not parts or not parts[-1].try_append(record, future, self.created_ms):
                capacity_bytes, number = max(cut_bytes, sizing.upper_bound_bytes(record)), first_number + len(parts)
                part = KafkaBatch(number, self.partition, capacity_bytes, self.created_ms, sizing, is_split=True)
                part.try_append(record, future, self.created_ms)
                parts.append(part)
        for part in parts:
            part.apply(BatchEvent.CLOSE)
        return parts


@dataclass(eq=False)
class KafkaQueue(PartitionQueue[Any, Any, Any]):
    """A queue with a leader, which can be muted."""

    leader: Hashable | None = None
    """The node that takes its batches; None where it is not known."""
    leader_epoch: int | None = None
    """Rises when the leader changes; None where leaders have none."""
    is_muted: bool = False
    """Nothing is drained from it, so that no batch overtakes one in flight."""

    def noted_head(self) -> KafkaBatch | None:
        """The batch that goes first, which has noted the leader's epoch."""
        head = cast("KafkaBatch | None", self.head)
        if head is not None:
            head.note_leader_epoch(self.leader_epoch)
        return head


# --- what calls answer -----------------------------------------------------------------------------------------------


class KafkaAppended(NamedTuple):
    """What an append did (Kafka: ``RecordAppendResult``)."""

    number: int
    """The batch's."""
    is_new_batch: bool
    is_full: bool
    """More than one batch waits for the partition, or the one that does is full: time to drain (A7)."""
    appended_bytes: int
    """Growth of the batch; of a new one its header too (A5)."""


@dataclass(eq=False)
class AppendTicket:
    """An append that is done, or waits for memory (Kafka: a thread inside ``append``)."""

    partition: Any
    record: Any
    allocation: AllocationTicket | None = None
    """The request that it waits for; None if it needed no memory."""
    appended: KafkaAppended | None = None
    """What it did, once it went in."""
    error: PurgatoryError | None = None
    """Why it did not: BufferExhaustedError, AccumulatorClosedError."""

    @property
    def is_done(self) -> bool:
        return self.appended is not None or self.error is not None


class ReadyCheck(NamedTuple):
    """What `ready` found (Kafka: ``ReadyCheckResult``)."""

    nodes: tuple[Hashable, ...]
    """Nodes to be drained, in the order found."""
    next_check_ms: int | None
    """Delay until something that is not ready may be; None if nothing waits for time alone."""
    has_unknown_leaders: bool
    """Some partition has batches and no leader."""


class Expiry(NamedTuple):
    """What `expire` did (Kafka: ``expiredBatches`` and ``nextExpiryTimeMs``)."""

    batches: tuple[KafkaBatch, ...]
    """Failed with DeliveryTimeoutError, by partition and in order within it."""
    next_expiry_ms: int | None
    """Absolute time at which the next of those now first in a queue is out of time; None if nothing is queued."""


class Flush:
    """Waits for the batches that were incomplete when it began, by identity (A28; Kafka: ``awaitFlushCompletion``)."""

    def __init__(self, awaits: Iterable[KafkaBatch]) -> None:
        self.awaits = tuple(awaits)
        """Queued and in flight, in order of creation."""
        self.missing = set(self.awaits)
        """Those, or the parts of those that were split, that have not ended."""


# --- the accumulator -------------------------------------------------------------------------------------------------


class KafkaAccumulator(AccumulatorPolicy[Any, Any, Any]):
    """Kafka's ``RecordAccumulator``, and of ``Sender`` what follows a response."""

    make_batch = KafkaBatch

    def __init__(
        self, settings: AccumulatorSettings, buffer_bytes: int, sizing: Sizing[Any], backoff_ms: Callable[[int], int]
    ) -> None:
        super().__init__(settings, sizing, backoff_ms)
        self.queues = PartitionQueues(KafkaQueue)
        self.pool = BufferPool(buffer_bytes, settings.batch_bytes)
        self.incomplete: dict[KafkaBatch, None] = {}
        """Batches without a result, queued or in flight, in the order of creation (Kafka: ``IncompleteBatches``)."""
        self.flushes: list[Flush] = []
        """Those under way (Kafka: ``flushInProgress``)."""
        self.is_closed = False
        self.waiting: list[AppendTicket] = []
        """Appends that wait for memory, in the order in which they came."""
        self._positions: dict[Hashable, int] = {}
        self._now_ms = 0

    def queue(self, partition: Any) -> KafkaQueue:
        return cast(KafkaQueue, self.queues.of(partition))

    def all_queues(self) -> list[KafkaQueue]:
        return [cast(KafkaQueue, queue) for queue in self.queues]

    def ready(self, now_ms: int) -> ReadyCheck:
        """Look at the first batch of each partition (A11 to A15; Kafka: ``ready``, ``partitionReady``).

        A node is ready if one of its partitions, not muted, has a batch that is not backing off and is full, has
        lingered, or is urgent (memory exhausted, flushing, closed). A partition whose node is ready already is passed
        over, so ``next_check_ms`` depends on the order of partitions.
        """
        is_urgent = self.pool.queued > 0 or self.is_closed or bool(self.flushes)
        nodes, has_unknown_leaders, next_check_ms = dict[Hashable, None](), False, None
        for queue in self.all_queues():
            head = queue.noted_head()
            has_unknown_leaders |= head is not None and queue.leader is None
            if head is None or queue.leader is None or queue.is_muted or queue.leader in nodes:
                continue
            is_backing_off = head.is_backing_off(now_ms)
            to_wait_ms = head.backoff_ms if is_backing_off else self.settings.linger_ms
            left_ms = max(to_wait_ms - head.waited_ms(now_ms), 0)
            if not is_backing_off and (is_urgent or queue.is_full or left_ms == 0):
                nodes[queue.leader] = None
            else:
                next_check_ms = left_ms if next_check_ms is None else min(next_check_ms, left_ms)
        return ReadyCheck(tuple(nodes), next_check_ms, has_unknown_leaders)

    def drain_nodes(self, nodes: Iterable[Hashable], max_bytes: int, now_ms: int) -> dict[Hashable, list[KafkaBatch]]:
        """Take at most one batch of each partition of each node, ``max_bytes`` a node (A17 to A21; Kafka: ``drain``).

        A node always gets one batch if it has any, whatever its size.
        """

        def may_go(queue: PartitionQueue[Any, Any, Any]) -> bool:
            theirs = cast(KafkaQueue, queue)
            return not theirs.is_muted and theirs.noted_head() is not None

        drained: dict[Hashable, list[KafkaBatch]] = {}
        for node in dict.fromkeys(nodes):
            queues = [queue for queue in self.all_queues() if queue.leader is not None and queue.leader == node]
            start = self._positions.get(node, 0)
            taken, self._positions[node] = self._round(queues, start, max_bytes, now_ms, may_go)
            drained[node] = [cast(KafkaBatch, batch) for batch in self._taken(taken)]
        return drained

    # --- appends -------------------------------------------------------------------------------------------------

    def append_at_once(self, partition: Any, record: Any, now_ms: int) -> KafkaAppended:
        """Append with a blocking time of 0.

        Raises AccumulatorClosedError, RecordTooLargeError (more than ``buffer_bytes``), BufferExhaustedError; then the
        record is nowhere, but the last batch, if it had no room, stays closed (A6).
        """
        appended = self._try(partition, record, now_ms)
        if appended is not None:
            return appended
        return self._open_with(partition, record, self.pool.allocate(self._wanted_bytes(record)), now_ms)

    def append_or_wait(self, partition: Any, record: Any, now_ms: int) -> AppendTicket:
        """Append, or wait for memory as long as it takes (Kafka: ``append``).

        While a ticket waits, everything that is queued is ready to be sent (A13). Raises AccumulatorClosedError and
        RecordTooLargeError at once.
        """
        ticket = AppendTicket(partition, record, appended=self._try(partition, record, now_ms))
        if ticket.appended is None:
            ticket.allocation = self.pool.allocate_or_wait(self._wanted_bytes(record))
            self.waiting.append(ticket)
            self.resume_waiting(now_ms)
        return ticket

    def _try(self, partition: Any, record: Any, now_ms: int) -> KafkaAppended | None:
        if self.is_closed:
            raise AccumulatorClosedError("a record was appended after the accumulator was closed")
        queue = self.queue(partition)
        before_bytes = queue.batches[-1].bytes if queue.batches else 0
        appended = self._join_last(queue, record, now_ms)
        return None if appended is None else _seen(queue, appended, before_bytes)

    def _open_with(self, partition: Any, record: Any, capacity_bytes: int, now_ms: int) -> KafkaAppended:
        """Open a batch for the record, now that there is memory (A10; Kafka: ``appendNewBatch``)."""
        appended = self._open(self.queue(partition), record, capacity_bytes, now_ms)
        self.incomplete[cast(KafkaBatch, appended.batch)] = None
        return _seen(self.queue(partition), appended, 0)

    def resume_waiting(self, now_ms: int) -> None:
        """Continue every waiting append whose request for memory is done, in the order in which they came."""
        while ticket := next((each for each in self.waiting if each.allocation and each.allocation.is_done), None):
            self.waiting.remove(ticket)
            self._resume(ticket, now_ms)

    def _resume(self, ticket: AppendTicket, now_ms: int) -> None:
        assert ticket.allocation is not None
        capacity_bytes = ticket.allocation.capacity_bytes
        if capacity_bytes is None:
            ticket.error = ticket.allocation.error
            return
        # Meanwhile another append may have opened a batch that has room. Then the memory is returned for the next.
        ticket.appended = self._try(ticket.partition, ticket.record, now_ms)
        if ticket.appended is None:
            ticket.appended = self._open_with(ticket.partition, ticket.record, capacity_bytes, now_ms)
        else:
            self.pool.deallocate(capacity_bytes, capacity_bytes)

    # --- results -------------------------------------------------------------------------------------------------

    def answered(self, batch: KafkaBatch, error: BaseException | None, now_ms: int) -> bool:
        """The batch has arrived, or never will; False if it had been aborted meanwhile (A22, A27).

        Its memory comes back now (Kafka: ``completeBatch``, ``failBatch``).
        """
        self._now_ms = now_ms
        return self._end(batch, BatchEvent.FAIL if error else BatchEvent.COMPLETE, None, error)

    def retried(self, batch: KafkaBatch, now_ms: int) -> str:
        """As in the product; what it came to, in the words of traces."""
        self._now_ms = now_ms
        if batch.is_settled:
            self._end(batch, BatchEvent.REENQUEUE, None, None)
            return "already_done"
        return "reenqueued" if self.retry(batch, now_ms) else "delivery_timeout"

    def split(self, batch: KafkaBatch, now_ms: int) -> list[KafkaBatch]:
        """Cut a batch that was too large to be taken, and queue its parts at the front (A26; ``splitAndReenqueue``).

        The parts have no memory from the pool; the batch's own comes back now. Futures and flushes go on with the
        parts. Empty if the batch had been aborted meanwhile. BatchStateError for a batch of one record.
        """
        self._now_ms = now_ms
        if batch.is_settled:
            self._end(batch, KafkaEvent.SPLIT, None, None)
            return []
        if len(batch.records) == 1:
            raise BatchStateError(f"{batch} cannot be {KafkaEvent.SPLIT.value}: there is nothing to cut")
        self._take_result(batch, KafkaEvent.SPLIT)
        parts = batch.split(self.sizing, self.settings.batch_bytes, self._next_number)
        self._next_number += len(parts)
        self.incomplete |= dict.fromkeys(parts)
        self._leave(batch, parts)
        self.queues.of(batch.partition).batches.extendleft(reversed(parts))
        self.return_memory([batch])
        return parts

    def expire(self, now_ms: int) -> Expiry:
        """Fail queued batches that are out of time, from the front of each queue (A25; Kafka: ``expiredBatches``).

        Muting and backoff do not protect a batch; those in flight are left alone.
        """
        self._now_ms, timeout_ms = now_ms, self.settings.delivery_timeout_ms
        expired: list[KafkaBatch] = []
        for queue in self.queues:
            for batch in list(takewhile(lambda batch: batch.has_reached(timeout_ms, now_ms), queue.batches)):
                queue.batches.popleft()
                batch.apply(KafkaEvent.EXPIRE)
                expired.append(cast(KafkaBatch, batch))
        heads = [queue.head for queue in self.queues]
        left_ms = [head.created_ms + timeout_ms for head in heads if head is not None]
        for batch in expired:
            self._settle(batch, None, self._out_of_time(batch, now_ms, None))
        self.return_memory(expired)
        return Expiry(tuple(expired), min(left_ms, default=None))

    def _end(self, batch: Any, event: Enum, value: Any, error: BaseException | None) -> bool:
        """End a batch, or if it was abandoned only take its memory back; True if it ended by this."""
        was_settled = batch.is_settled
        self._take_result(batch, event)
        if not was_settled:
            self._settle(batch, value, error)
        self.return_memory([batch])
        return not was_settled

    def _settle(self, batch: KafkaBatch, value: Any, error: BaseException | None) -> None:
        for future in batch.futures:
            future.settle(value, error)
        self._leave(batch, [])

    def _leave(self, batch: KafkaBatch, parts: list[KafkaBatch]) -> None:
        """The batch has ended, or was split: flushes that wait for it wait for its parts."""
        del self.incomplete[batch]
        for flush in self.flushes:
            if batch in flush.missing:
                flush.missing = flush.missing - {batch} | {*parts}
        self.flushes = [flush for flush in self.flushes if flush.missing]

    def return_memory(self, batches: Iterable[KafkaBatch]) -> None:
        """Give the memory of batches back to the pool, and continue appends that waited for it."""
        for batch in batches:
            if not batch.is_split:
                self.pool.deallocate(batch.capacity_bytes, batch.capacity_bytes)
        self.resume_waiting(self._now_ms)

    # --- flush and end -------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush:
        """Make everything ready until all that is incomplete now has ended (A28, A29; Kafka: ``beginFlush``)."""
        flush = Flush(self.incomplete)
        self.flushes += [flush] if flush.missing else []
        return flush

    def close(self, now_ms: int) -> None:
        """Take no more records and make everything ready; nothing queued is lost (A30; Kafka: ``close``)."""
        self.is_closed = True
        self.pool.close()
        self.resume_waiting(now_ms)

    def abort_incomplete(self, now_ms: int) -> list[KafkaBatch]:
        """End every batch with AccumulatorClosedError (A31; Kafka: ``abortIncompleteBatches``); returns them.

        Memory of queued batches comes back now, that of batches in flight with their results. An append that gets
        memory by this is aborted too.
        """
        self._now_ms = now_ms
        aborted: list[KafkaBatch] = []
        while batches := list(self.incomplete):
            for queue in self.queues:
                queue.batches.clear()
            for batch in batches:
                batch.apply(KafkaEvent.ABORT)
                self._settle(batch, None, AccumulatorClosedError(f"{batch} was aborted"))
            self.return_memory([batch for batch in batches if batch.state is KafkaState.ABORTED])
            aborted += batches
        return aborted

    def validate(self) -> None:
        """Recompute what is kept twice; BugError if memory, a batch or the order of a queue is lost."""
        self.pool.validate()
        queued: list[Any] = [batch for queue in self.queues for batch in queue.batches]
        known: list[Any] = [*queued, *self._in_flight]
        held = [batch for batch in known if not batch.is_split and batch.state in HOLD_MEMORY]
        held_bytes = sum(batch.capacity_bytes for batch in held)
        unsettled = {batch for batch in known if not batch.is_settled}
        is_open_within = any(batch.state is BatchState.OPEN for q in self.queues for batch in list(q.batches)[:-1])
        for fault, is_so in {
            f"batches hold {held_bytes} bytes, not {self.pool.held_bytes}": held_bytes != self.pool.held_bytes,
            "other batches are incomplete than have no result": unsettled != {*self.incomplete},
            "a batch is there twice": len(known) != len({*known}),
            "a batch is queued and has another state": any(batch.state not in QUEUED for batch in queued),
            "a batch is in flight and has another state": any(batch.state in QUEUED for batch in self._in_flight),
            "a batch takes records that is not the last of its queue": is_open_within,
            "an append waits for memory that it has": any(
                ticket.is_done or ticket.allocation is None or ticket.allocation.is_done for ticket in self.waiting
            ),
        }.items():
            if is_so:
                raise BugError(fault)


def _seen(queue: KafkaQueue, appended: Appended[Any, Any, Any], before_bytes: int) -> KafkaAppended:
    batch = appended.batch
    return KafkaAppended(batch.number, appended.is_new_batch, queue.is_full, batch.bytes - before_bytes)
