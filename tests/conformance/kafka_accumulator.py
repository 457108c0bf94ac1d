"""The policy with what only traces of Kafka's classes show: results, memory, leaders, mutes, flushes, splits, the end.

The product has none of it: one table leads every partition, a micro-batch's drain is over before the next one, what it
took stays with it, and the sink bounds what is staged (`spark_purgatory.spark.sink.drain.protocol`). Whatever both do
is done by the product's own code, so that the traces replay that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, cast

from spark_purgatory.accumulator.policy import AccumulatorPolicy, PartitionQueue, ProducerBatch, first_that_fit
from spark_purgatory.errors import BatchStateError, BugError, PurgatoryError
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, AllocationTicket, BufferPool

# --- batches and queues ----------------------------------------------------------------------------------------------


class BatchState(Enum):
    """The state of a batch. In the first three it has no result."""

    OPEN = "queued, takes records"
    CLOSED = "queued, takes no more records"
    IN_FLIGHT = "drained, its answer is awaited"
    SUCCEEDED = "completed"
    FAILED = "failed, or out of time"
    ABANDONED = "aborted in flight, its result and its memory are outstanding"
    ABORTED = "aborted, nothing is awaited"
    SPLIT = "its records are in other batches"


class BatchEvent(Enum):
    CLOSE = "closed for appends"
    DRAIN = "drained"
    COMPLETE = "answered: success"
    FAIL = "answered: failure for good"
    REENQUEUE = "answered: to be tried again"
    SPLIT = "answered: too large"
    EXPIRE = "out of time in the queue"
    ABORT = "aborted"


_STATE, _EVENT = BatchState, BatchEvent
QUEUED = frozenset({_STATE.OPEN, _STATE.CLOSED})
UNSETTLED = QUEUED | {_STATE.IN_FLIGHT}
"""The batch has no result."""
HOLD_MEMORY = UNSETTLED | {_STATE.ABANDONED}
TRANSITIONS: Mapping[tuple[BatchState, BatchEvent], BatchState] = {
    **{(state, _EVENT.CLOSE): _STATE.CLOSED for state in QUEUED},
    **{(state, _EVENT.DRAIN): _STATE.IN_FLIGHT for state in QUEUED},
    **{(state, _EVENT.EXPIRE): _STATE.FAILED for state in QUEUED},
    **{(state, _EVENT.ABORT): _STATE.ABORTED for state in QUEUED},
    (_STATE.IN_FLIGHT, _EVENT.COMPLETE): _STATE.SUCCEEDED,
    (_STATE.IN_FLIGHT, _EVENT.FAIL): _STATE.FAILED,
    (_STATE.IN_FLIGHT, _EVENT.REENQUEUE): _STATE.CLOSED,
    (_STATE.IN_FLIGHT, _EVENT.SPLIT): _STATE.SPLIT,
    (_STATE.IN_FLIGHT, _EVENT.ABORT): _STATE.ABANDONED,
    # An abandoned batch has ended: its result only returns the memory.
    **{
        (_STATE.ABANDONED, event): _STATE.ABORTED
        for event in (_EVENT.COMPLETE, _EVENT.FAIL, _EVENT.REENQUEUE, _EVENT.SPLIT)
    },
}
"""(state, event) -> state; any other pair is an error and changes nothing."""


class Sizing(Protocol):
    """Sizes of records, which depend on the records before them: varints of offsets and times."""

    header_bytes: int

    def record_bytes(self, record: Any, batch: Sequence[Any]) -> int:
        """Bytes that ``record`` adds to a batch with the records ``batch`` (Kafka: ``sizeInBytes``)."""

    def upper_bound_bytes(self, record: Any) -> int:
        """The least buffer of a batch with this record (Kafka: ``estimateSizeInBytesUpperBound``)."""


class KafkaBatch(ProducerBatch[Any]):
    """A batch with memory from a pool, under a leader (Kafka: ``ProducerBatch``)."""

    def __init__(
        self, number: int, partition: Any, capacity_bytes: int, created_ms: int, sizing: Sizing, is_split: bool = False
    ) -> None:
        super().__init__(capacity_bytes, created_ms, bytes=sizing.header_bytes)
        self.number, self.partition, self.sizing = number, partition, sizing
        self.is_split = is_split
        """It came out of a split and has no memory from the pool (A26)."""
        self.state = BatchState.OPEN
        self.largest_bound_bytes = 0
        """The largest upper bound of any of its records."""
        self.leader_epoch: int | None = None
        self.attempts = self.attempts_at_leader_change = 0
        self.backoff_ms = 0
        """The wait after the last attempt, drawn once per attempt; Kafka draws at every check."""
        self.last_attempt_ms = self.last_append_ms = created_ms

    @property
    def is_settled(self) -> bool:
        """The batch has its result (Kafka: ``isDone``)."""
        return self.state not in UNSETTLED

    def apply(self, event: BatchEvent) -> None:
        """Change the state by the table. Raises BatchStateError, with nothing changed, if the event is not allowed."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise BatchStateError(f"{self} cannot be {event.value}: it is {self.state.value}")
        self.state, self.is_closed = state, state is not BatchState.OPEN

    def close(self) -> None:
        self.apply(BatchEvent.CLOSE)

    def try_append(self, record: Any, record_bytes: int) -> bool:
        is_in = super().try_append(record, record_bytes)
        if is_in:
            self.largest_bound_bytes = max(self.largest_bound_bytes, self.sizing.upper_bound_bytes(record))
        return is_in

    def note_leader_epoch(self, epoch: int | None) -> None:
        """Take over a higher epoch and note at which attempt (A15; Kafka: ``maybeUpdateLeaderEpoch``)."""
        if epoch is not None and (self.leader_epoch is None or self.leader_epoch < epoch):
            self.leader_epoch, self.attempts_at_leader_change = epoch, self.attempts

    def waited_ms(self, now_ms: int) -> int:
        """As in the product, but from its last return on (A12)."""
        return max(0, now_ms - self.last_attempt_ms)

    def is_backing_off(self, now_ms: int) -> bool:
        """It must be tried again, but not yet, unless the leader is another one (A15; Kafka: ``shouldBackoff``)."""
        return self.attempts != self.attempts_at_leader_change and self.waited_ms(now_ms) < self.backoff_ms

    def note_retry(self, now_ms: int, backoff_ms: int) -> None:
        """It came back and waits ``backoff_ms`` from now (A23; Kafka: ``reenqueued``)."""
        self.attempts += 1
        self.backoff_ms = backoff_ms
        self.last_attempt_ms = self.last_append_ms = max(self.last_append_ms, now_ms)

    def has_reached(self, timeout_ms: int, now_ms: int) -> bool:
        """Its creation is ``timeout_ms`` ago, or longer (A24; Kafka: ``hasReachedDeliveryTimeout``)."""
        return now_ms - self.created_ms >= timeout_ms

    def split(self, batch_bytes: int, first_number: int) -> list[KafkaBatch]:
        """The batches that it is split into, closed (A26; Kafka: ``ProducerBatch.split``).

        A normal batch is cut at ``batch_bytes``, so that one that was not larger gives one equal batch. One that came
        out of a split is cut at half its size, or its largest record if that is more.
        """
        cut_bytes = max(self.largest_bound_bytes, self.bytes // 2) if self.is_split else batch_bytes
        parts: list[KafkaBatch] = []
        sizing = self.sizing
        for record in self.records:
            if not parts or not parts[-1].try_append(record, sizing.record_bytes(record, parts[-1].records)):
                capacity_bytes, number = max(cut_bytes, sizing.upper_bound_bytes(record)), first_number + len(parts)
                part = KafkaBatch(number, self.partition, capacity_bytes, self.created_ms, sizing, is_split=True)
                part.try_append(record, sizing.record_bytes(record, []))
                parts.append(part)
        for part in parts:
            part.close()
        return parts

    def __repr__(self) -> str:
        return f"batch {self.number} ({len(self.records)} records, {self.bytes:,} bytes, attempt {self.attempts})"


class KafkaQueue(PartitionQueue[Any]):
    """A queue with a leader, which can be muted."""

    leader: Hashable | None = None
    """The node that takes its batches; None where it is not known."""
    leader_epoch: int | None = None
    """Rises when the leader changes; None where leaders have none."""
    is_muted: bool = False
    """Nothing is drained from it, so that no batch overtakes one in flight."""

    def all(self) -> list[KafkaBatch]:
        return cast("list[KafkaBatch]", list(self))

    def noted_head(self) -> KafkaBatch | None:
        """The batch that goes first, which has noted the leader's epoch."""
        head = self.all()[0] if self else None
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
    """Failed, by partition and in order within it."""
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


class KafkaAccumulator(AccumulatorPolicy[Any, Any]):
    """Kafka's ``RecordAccumulator``, and of ``Sender`` what follows a response."""

    def __init__(
        self, *, batch_bytes: int, linger_ms: int, delivery_timeout_ms: int, buffer_bytes: int, sizing: Sizing,
        backoff_ms: Callable[[int], int],
    ) -> None:  # fmt: skip
        super().__init__(batch_bytes, linger_ms, sizing.record_bytes)
        self.delivery_timeout_ms, self.sizing, self.backoff_ms = delivery_timeout_ms, sizing, backoff_ms
        self.pool = BufferPool(buffer_bytes, batch_bytes)
        self.in_flight: dict[KafkaBatch, None] = {}
        """The batches that were drained and have no result yet, in the order of the drains."""
        self.incomplete: dict[KafkaBatch, None] = {}
        """Batches without a result, queued or in flight, in the order of creation (Kafka: ``IncompleteBatches``)."""
        self.flushes: list[Flush] = []
        """Those under way (Kafka: ``flushInProgress``)."""
        self.is_closed = False
        self.waiting: list[AppendTicket] = []
        """Appends that wait for memory, in the order in which they came."""
        self._next_number = 0
        self._positions: dict[Hashable, int] = {}
        """By node, the start of the next round of drains (Kafka: ``nodesDrainIndex``)."""
        self._now_ms = 0

    def queue(self, partition: Any) -> KafkaQueue:
        return cast(KafkaQueue, self.queues.setdefault(partition, KafkaQueue()))

    def all_queues(self) -> list[KafkaQueue]:
        return [cast(KafkaQueue, queue) for queue in self.queues.values()]

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
            to_wait_ms = head.backoff_ms if is_backing_off else self.linger_ms
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
        drained = {node: first_that_fit(self._heads(node, now_ms), max_bytes) for node in dict.fromkeys(nodes)}
        for batch in (batch for batches in drained.values() for batch in batches):
            self.queue(batch.partition).popleft()
            batch.apply(BatchEvent.DRAIN)
            self.in_flight[batch] = None
        return drained

    def _heads(self, node: Hashable, now_ms: int) -> Iterator[KafkaBatch]:
        """Do one round robin over a node's queues, ripe or not (Kafka: ``drainBatchesForOneNode``)."""
        queues = [queue for queue in self.all_queues() if queue.leader is not None and queue.leader == node]
        start = self._positions.get(node, 0)
        for step in range(len(queues)):
            self._positions[node] = position = (start + step) % len(queues)
            head = None if queues[position].is_muted else queues[position].noted_head()
            if head is not None and not head.is_backing_off(now_ms):
                yield head

    # --- appends -------------------------------------------------------------------------------------------------

    def append_at_once(self, partition: Any, record: Any, now_ms: int) -> KafkaAppended:
        """Append with a blocking time of 0.

        Raises AccumulatorClosedError, RecordTooLargeError (more than ``buffer_bytes``), BufferExhaustedError; then the
        record is nowhere, but the last batch, if it had no room, stays closed (A6).
        """
        appended = self._try(partition, record, now_ms)
        if appended is not None:
            return appended
        return self._open(partition, record, self.pool.allocate(self._wanted_bytes(record)), now_ms)

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

    def _wanted_bytes(self, record: Any) -> int:
        return max(self.batch_bytes, self.sizing.upper_bound_bytes(record))

    def _try(self, partition: Any, record: Any, now_ms: int) -> KafkaAppended | None:
        if self.is_closed:
            raise AccumulatorClosedError("a record was appended after the accumulator was closed")
        queue = self.queue(partition)
        before_bytes = queue[-1].bytes if queue else 0
        if not self.join_last(partition, record):
            return None
        cast(KafkaBatch, queue[-1]).last_append_ms = now_ms
        return _seen(queue, False, before_bytes)

    def _open(self, partition: Any, record: Any, capacity_bytes: int, now_ms: int) -> KafkaAppended:
        """Open a batch for the record, now that there is memory (A10; Kafka: ``appendNewBatch``)."""
        batch = KafkaBatch(self._next_number, partition, capacity_bytes, now_ms, self.sizing)
        batch.try_append(record, self.sizing.record_bytes(record, []))
        self._next_number += 1
        self.queue(partition).append(batch)
        self.incomplete[batch] = None
        return _seen(self.queue(partition), True, 0)

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
            ticket.appended = self._open(ticket.partition, ticket.record, capacity_bytes, now_ms)
        else:
            self.pool.deallocate(capacity_bytes, capacity_bytes)

    # --- results -------------------------------------------------------------------------------------------------

    def answered(self, batch: KafkaBatch, error: BaseException | None, now_ms: int) -> bool:
        """The batch has arrived, or never will; False if it had been aborted meanwhile (A22, A27).

        Its memory comes back now (Kafka: ``completeBatch``, ``failBatch``).
        """
        self._now_ms = now_ms
        return self._end(batch, BatchEvent.FAIL if error else BatchEvent.COMPLETE)

    def retried(self, batch: KafkaBatch, now_ms: int) -> str:
        """Try the batch again later, unless it is out of time; what it came to (A23, A24; Kafka: ``canRetry``)."""
        self._now_ms = now_ms
        if batch.is_settled:
            self._end(batch, BatchEvent.REENQUEUE)
            return "already_done"
        if batch.has_reached(self.delivery_timeout_ms, now_ms):
            self._end(batch, BatchEvent.FAIL)
            return "delivery_timeout"
        self._take_result(batch, BatchEvent.REENQUEUE)
        batch.note_retry(now_ms, self.backoff_ms(batch.attempts))
        self.queue(batch.partition).appendleft(batch)
        return "reenqueued"

    def split(self, batch: KafkaBatch, now_ms: int) -> list[KafkaBatch]:
        """Cut a batch that was too large to be taken, and queue its parts at the front (A26; ``splitAndReenqueue``).

        The parts have no memory from the pool; the batch's own comes back now. Flushes go on with the parts.
        Empty if the batch had been aborted meanwhile. BatchStateError for a batch of one record.
        """
        self._now_ms = now_ms
        if batch.is_settled:
            self._end(batch, BatchEvent.SPLIT)
            return []
        if len(batch.records) == 1:
            raise BatchStateError(f"{batch} cannot be {BatchEvent.SPLIT.value}: there is nothing to cut")
        self._take_result(batch, BatchEvent.SPLIT)
        parts = batch.split(self.batch_bytes, self._next_number)
        self._next_number += len(parts)
        self.incomplete |= dict.fromkeys(parts)
        self._leave(batch, parts)
        self.queue(batch.partition).extendleft(reversed(parts))
        self.return_memory([batch])
        return parts

    def expire(self, now_ms: int) -> Expiry:
        """Fail queued batches that are out of time, from the front of each queue (A25; Kafka: ``expiredBatches``).

        Muting and backoff do not protect a batch; those in flight are left alone.
        """
        self._now_ms, timeout_ms = now_ms, self.delivery_timeout_ms
        expired: list[KafkaBatch] = []
        for queue in self.all_queues():
            for batch in list(takewhile(lambda batch: batch.has_reached(timeout_ms, now_ms), queue.all())):
                queue.popleft()
                batch.apply(BatchEvent.EXPIRE)
                expired.append(batch)
        left_ms = [queue[0].created_ms + timeout_ms for queue in self.queues.values() if queue]
        for batch in expired:
            self._leave(batch, [])
        self.return_memory(expired)
        return Expiry(tuple(expired), min(left_ms, default=None))

    def _take_result(self, batch: KafkaBatch, event: BatchEvent) -> None:
        if batch not in self.in_flight:
            raise BatchStateError(f"{batch} cannot be {event.value}: it is {batch.state.value}, not in flight here")
        batch.apply(event)
        del self.in_flight[batch]

    def _end(self, batch: KafkaBatch, event: BatchEvent) -> bool:
        """End a batch, or if it was abandoned only take its memory back; True if it ended by this."""
        was_settled = batch.is_settled
        self._take_result(batch, event)
        if not was_settled:
            self._leave(batch, [])
        self.return_memory([batch])
        return not was_settled

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
        """End every batch (A31; Kafka: ``abortIncompleteBatches``); returns them.

        Memory of queued batches comes back now, that of batches in flight with their results. An append that gets
        memory by this is aborted too.
        """
        self._now_ms = now_ms
        aborted: list[KafkaBatch] = []
        while batches := list(self.incomplete):
            for queue in self.queues.values():
                queue.clear()
            for batch in batches:
                batch.apply(BatchEvent.ABORT)
                self._leave(batch, [])
            self.return_memory([batch for batch in batches if batch.state is BatchState.ABORTED])
            aborted += batches
        return aborted

    def validate(self) -> None:
        """Recompute what is kept twice; BugError if memory, a batch or the order of a queue is lost."""
        self.pool.validate()
        queued: list[Any] = [batch for queue in self.queues.values() for batch in queue]
        known: list[Any] = [*queued, *self.in_flight]
        held = [batch for batch in known if not batch.is_split and batch.state in HOLD_MEMORY]
        held_bytes = sum(batch.capacity_bytes for batch in held)
        unsettled = {batch for batch in known if not batch.is_settled}
        is_open_within = any(batch.state is BatchState.OPEN for q in self.all_queues() for batch in q.all()[:-1])
        for fault, is_so in {
            f"batches hold {held_bytes} bytes, not {self.pool.held_bytes}": held_bytes != self.pool.held_bytes,
            "other batches are incomplete than have no result": unsettled != {*self.incomplete},
            "a batch is there twice": len(known) != len({*known}),
            "a batch is queued and has another state": any(batch.state not in QUEUED for batch in queued),
            "a batch is in flight and has another state": any(batch.state in QUEUED for batch in self.in_flight),
            "a batch takes records that is not the last of its queue": is_open_within,
            "an append waits for memory that it has": any(
                ticket.is_done or ticket.allocation is None or ticket.allocation.is_done for ticket in self.waiting
            ),
        }.items():
            if is_so:
                raise BugError(fault)


def _seen(queue: KafkaQueue, is_new_batch: bool, before_bytes: int) -> KafkaAppended:
    batch = cast(KafkaBatch, queue[-1])
    return KafkaAppended(batch.number, is_new_batch, queue.is_full, batch.bytes - before_bytes)
