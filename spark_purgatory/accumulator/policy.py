"""Kafka's producer accumulation as a policy (Kafka: ``RecordAccumulator``); docs/accumulator.md has a worked example.

Terms. A *record* joins the last *batch* of its *partition*. A batch without room for it is closed, and a new one is
opened. The sender (Kafka: ``Sender``) asks which partitions are *ripe*, *drains* their first batches, and gives each a
result: `complete` or `retry`. Until then a batch is *in flight*. The partitions are those of the table, a record is a
staged piece, and a batch becomes a file. Codes such as A13 are facts about Kafka (docs/kafka_facts.md), each with a
trace in ``tests/conformance``.

A batch goes when it is full, has lingered, or everything must go, but not while it backs off from a failure. Kafka then
also sends the first batches of all other partitions of a node, because a request costs little. A commit costs seconds
and leaves small files, so only batches go along that are nearly full or have nearly lingered.

The sink appends what its ledger has and asks `ripe` and `peek`. What a drain took stays with the drain
(`spark_purgatory.spark.sink.drain.protocol`), and so is neither in flight nor retried here, as in Kafka.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar, cast

from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import BatchStateError, DeliveryTimeoutError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")

FULL_PART, LINGERED_PART = 0.9, 0.5  # the part of its size, or of its linger, with which a batch goes along
MULTIPLIER = 2  # Kafka's RETRY_BACKOFF_EXP_BASE

Callback = Callable[[V | None, BaseException | None], None]  # takes the batch's value or error; the other is None


class RecordFuture(Generic[V]):
    """The result of one record (Kafka: ``FutureRecordMetadata`` and its ``Callback``).

    There are no threads: it never blocks, and reading it too early is an error.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._value: V | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callback[V]] = []

    def result(self) -> V:
        """Return the batch's value. Raises the error that it failed with, or BatchStateError if it has not ended."""
        if self._error is not None:
            raise self._error
        if not self.is_done:
            raise BatchStateError("the record's batch has not ended yet: drain it and complete it first")
        return cast(V, self._value)

    def exception(self) -> BaseException | None:
        """Return the error that the batch failed with; None if it was completed or has not ended."""
        return self._error

    def add_done_callback(self, callback: Callback[V]) -> None:
        """Call ``callback(value, error)`` when the batch ends; at once if it has ended."""
        if self.is_done:
            callback(self._value, self._error)
        else:
            self._callbacks.append(callback)

    def settle(self, value: V | None, error: BaseException | None) -> list[Callable[[], None]]:
        """End with a value or an error, and return the callbacks to call, in the order in which they were added."""
        self.is_done, self._value, self._error = True, value, error
        callbacks, self._callbacks = self._callbacks, []
        return [partial(callback, value, error) for callback in callbacks]


class CallbackQueue:
    """Callbacks of batches that have ended. They are called when the accumulator is consistent, so they may use it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, callbacks: list[Callable[[], None]]) -> None:
        """Queue callbacks in this order."""
        self._waiting.extend(callbacks)

    def call_all(self) -> None:
        """Call every queued callback, then raise their errors as one group; Kafka logs them."""
        errors: list[Exception] = []
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} callbacks of records raised; their batches have ended", errors)


# --- batches of one partition, the table of their states, and the queues of batches -----------------------------------


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
        return self.batches[0] if self.batches else None

    @property
    def is_full(self) -> bool:
        """True if several batches wait, or a full one (A7, A13)."""
        return len(self.batches) > 1 or (bool(self.batches) and self.batches[-1].is_full)


class PartitionQueues(Generic[P, R, V]):
    """All partitions in the order in which they became known and are visited."""

    def __init__(self, make: Callable[[P], PartitionQueue[P, R, V]]) -> None:
        self._make = make
        self._queues: dict[P, PartitionQueue[P, R, V]] = {}

    def __iter__(self) -> Iterator[PartitionQueue[P, R, V]]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, partition: P) -> PartitionQueue[P, R, V]:
        if partition not in self._queues:
            self._queues[partition] = self._make(partition)
        return self._queues[partition]


# --- when they go -----------------------------------------------------------------------------------------------------


class ExponentialBackoff:
    """``initial_ms * 2 ** retry``, at most ``max_ms`` (Kafka: ``ExponentialBackoff`` with base 2).

    Kafka multiplies by a random number between 0.8 and 1.2, so that producers that failed together do not retry
    together; a table has one sink. Example, 100 ms up to 1 s: 100, 200, 400, 800, 1000, 1000, ...
    """

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        self.initial_ms, self.max_ms = min(initial_ms, max_ms), max_ms
        self._max_exponent = math.log(max(max_ms, 1) / max(self.initial_ms, 1)) / math.log(MULTIPLIER)

    def __call__(self, retry: int) -> int:
        """Return the milliseconds to wait before retry number ``retry``, from 0 (Kafka: ``backoff``)."""
        return min(int(self.initial_ms * math.pow(MULTIPLIER, min(retry, self._max_exponent))), self.max_ms)


@dataclass(frozen=True, kw_only=True)
class AccumulatorSettings:
    """The numbers of the policy: sizes in bytes, times in milliseconds, none of them negative."""

    batch_bytes: int  # the capacity of a normal batch (Kafka: ``batch.size``)
    linger_ms: int  # the longest wait of a batch for more records (Kafka: ``linger.ms``)
    delivery_timeout_ms: int  # the longest time from a batch's creation to its end (Kafka: ``delivery.timeout.ms``)


@dataclass(frozen=True)
class Appended(Generic[P, R, V]):
    """The result of an append (Kafka: ``RecordAppendResult``)."""

    future: RecordFuture[V]
    batch: ProducerBatch[P, R, V]
    is_new_batch: bool  # the batch was opened for this record


class AccumulatorPolicy(Generic[P, R, V]):
    """Decides when batches go (Kafka: ``RecordAccumulator``, and the part of ``Sender`` after a response).

    ``P`` is a partition, ``R`` a record, ``V`` the value that completes a batch. The caller's times do not decrease.
    """

    make_batch: ClassVar[type[ProducerBatch[Any, Any, Any]]] = ProducerBatch

    def __init__(self, settings: AccumulatorSettings, sizing: Sizing[R], backoff_ms: Callable[[int], int]) -> None:
        self.settings = settings
        self.sizing = sizing
        self.backoff_ms = backoff_ms  # milliseconds before retry number n, from 0; ``ExponentialBackoff`` is Kafka's
        self.queues: PartitionQueues[P, R, V] = PartitionQueues(PartitionQueue)
        self._in_flight: dict[ProducerBatch[P, R, V], None] = {}
        self._callbacks = CallbackQueue()
        self._next_number = 0
        self._position = 0  # the start of the next round of drains (Kafka: ``nodesDrainIndex``)

    @property
    def in_flight(self) -> tuple[ProducerBatch[P, R, V], ...]:
        """The batches that were drained and have no result yet, in the order of the drains."""
        return tuple(self._in_flight)

    # --- appends -------------------------------------------------------------------------------------------------

    def append(self, partition: P, record: R, now_ms: int) -> Appended[P, R, V]:
        """Put a record into the partition's last batch, or into a new one (Kafka: ``append``)."""
        queue = self.queues.of(partition)
        return self._join_last(queue, record, now_ms) or self._open(queue, record, self._wanted_bytes(record), now_ms)

    def _wanted_bytes(self, record: R) -> int:
        return max(self.settings.batch_bytes, self.sizing.upper_bound_bytes(record))

    def _join_last(self, queue: PartitionQueue[P, R, V], record: R, now_ms: int) -> Appended[P, R, V] | None:
        """Try the last batch; without room for the record it is closed for good (A6; Kafka: ``tryAppend``)."""
        if not queue.batches:
            return None
        last = queue.batches[-1]
        future: RecordFuture[V] = RecordFuture()
        if last.try_append(record, future, now_ms):
            return Appended(future, last, is_new_batch=False)
        last.apply(BatchEvent.CLOSE)
        return None

    def _open(self, queue: PartitionQueue[P, R, V], record: R, capacity_bytes: int, now_ms: int) -> Appended[P, R, V]:
        """Open a batch for a record (A10; Kafka: ``appendNewBatch``)."""
        batch = self.make_batch(self._next_number, queue.partition, capacity_bytes, now_ms, self.sizing)
        future: RecordFuture[V] = RecordFuture()
        batch.try_append(record, future, now_ms)
        self._next_number += 1
        queue.batches.append(batch)
        return Appended(future, batch, is_new_batch=True)

    # --- drains --------------------------------------------------------------------------------------------------

    def ripe(self, now_ms: int, everything: bool = False) -> list[P]:
        """Return the partitions whose first batch should go now, with those that go along.

        A batch should go if it is full or has lingered, or if ``everything`` must go, but not while it backs off.
        """
        heads = [(queue, queue.head) for queue in self.queues if queue.head is not None]
        heads = [(queue, head) for queue, head in heads if not head.is_backing_off(now_ms)]
        if everything:
            return [queue.partition for queue, _ in heads]
        linger_ms = self.settings.linger_ms
        has_lingered = any(head.waited_ms(now_ms) >= linger_ms for _, head in heads)
        if not has_lingered and not any(queue.is_full for queue, _ in heads):
            return []
        least_ms = linger_ms * (LINGERED_PART if has_lingered else 1)
        least_bytes = self.settings.batch_bytes * FULL_PART
        return [
            queue.partition
            for queue, head in heads
            if queue.is_full or head.waited_ms(now_ms) >= least_ms or head.bytes >= least_bytes
        ]

    def drain(self, only: Collection[P], max_bytes: int, now_ms: int) -> list[ProducerBatch[P, R, V]]:
        """Take the first batch of some partitions, together at most ``max_bytes``, or a single larger one.

        Every batch must get a result: `complete` or `retry`.
        """
        taken, self._position = self._chosen(only, max_bytes, now_ms)
        return self._taken(taken)

    def peek(
        self, only: Collection[P], max_bytes: int, now_ms: int, everything: bool = False
    ) -> list[ProducerBatch[P, R, V]]:
        """Return the batches that `drain` would take, and full ones after them that fit into ``max_bytes``.

        With ``everything`` they need not be full. Unlike a request of Kafka, a transaction takes more at no cost.
        """
        chosen, _ = self._chosen(only, max_bytes, now_ms)
        left_bytes = max_bytes - sum(batch.bytes for batch in chosen)
        for head in tuple(chosen):
            for batch in islice(self.queues.of(head.partition).batches, 1, None):
                left_bytes -= batch.bytes
                if left_bytes < 0 or batch.is_backing_off(now_ms) or not (everything or batch.is_full):
                    left_bytes += batch.bytes
                    break
                chosen.append(batch)
        return chosen

    def _chosen(self, only: Collection[P], max_bytes: int, now_ms: int) -> tuple[list[ProducerBatch[P, R, V]], int]:
        return self._round(list(self.queues), self._position, max_bytes, now_ms, lambda queue: queue.partition in only)

    def _taken(self, batches: list[ProducerBatch[P, R, V]]) -> list[ProducerBatch[P, R, V]]:
        """Take the first batches of some queues, and put them in flight."""
        for batch in batches:
            self.queues.of(batch.partition).batches.popleft()
            batch.apply(BatchEvent.DRAIN)
            self._in_flight[batch] = None
        return batches

    def _round(
        self, queues: Sequence[PartitionQueue[P, R, V]], start: int, max_bytes: int, now_ms: int,
        may_go: Callable[[PartitionQueue[P, R, V]], bool],
    ) -> tuple[list[ProducerBatch[P, R, V]], int]:  # fmt: skip
        """Do one round robin over queues, ripe or not (A17 to A21; Kafka: ``drainBatchesForOneNode``).

        It also returns the position where the next round begins.
        """
        taken: list[ProducerBatch[P, R, V]] = []
        position = start
        for step in range(len(queues)):
            position = (start + step) % len(queues)
            queue = queues[position]
            head = queue.head
            if head is None or not may_go(queue) or head.is_backing_off(now_ms):
                continue
            if taken and sum(batch.bytes for batch in taken) + head.bytes > max_bytes:
                break
            taken.append(head)
        return taken, position

    # --- results -------------------------------------------------------------------------------------------------

    def complete(self, batch: ProducerBatch[P, R, V], value: V) -> bool:
        """Complete a batch and its futures (Kafka: ``ProducerBatch.complete``). BatchStateError if not in flight."""
        return self._end(batch, BatchEvent.COMPLETE, value, None)

    def retry(self, batch: ProducerBatch[P, R, V], now_ms: int, error: BaseException | None = None) -> bool:
        """Try the batch again later, unless it is out of time (A23, A24; Kafka: ``Sender.canRetry``).

        Returns True if it is queued again, at the front of its partition. False: it has failed with
        DeliveryTimeoutError, whose cause is ``error``. Raises BatchStateError like `complete`.
        """
        if batch.has_reached(self.settings.delivery_timeout_ms, now_ms):
            self._end(batch, BatchEvent.FAIL, None, self._out_of_time(batch, now_ms, error))
            return False
        self._put_back(batch, now_ms)
        return True

    def _put_back(self, batch: ProducerBatch[P, R, V], now_ms: int) -> None:
        self._take_result(batch, BatchEvent.REENQUEUE)
        batch.note_retry(now_ms, self.backoff_ms(batch.attempts))
        self.queues.of(batch.partition).batches.appendleft(batch)

    def _take_result(self, batch: ProducerBatch[P, R, V], event: Enum) -> None:
        if batch not in self._in_flight:
            raise BatchStateError(f"{batch} cannot be {event.value}: it is {batch.state.value}, not in flight here")
        batch.apply(event)
        del self._in_flight[batch]

    def _end(self, batch: ProducerBatch[P, R, V], event: Enum, value: V | None, error: BaseException | None) -> bool:
        self._take_result(batch, event)
        for future in batch.futures:
            self._callbacks.add(future.settle(value, error))
        self._callbacks.call_all()
        return True

    def _out_of_time(
        self, batch: ProducerBatch[P, R, V], now_ms: int, cause: BaseException | None
    ) -> DeliveryTimeoutError:
        error = DeliveryTimeoutError(
            f"{batch} was not delivered: {now_ms - batch.created_ms:,} ms have passed since it was opened and "
            f"delivery_timeout is {self.settings.delivery_timeout_ms:,} ms"
        )
        error.__cause__ = cause
        return error
