"""Batches and queues as Kafka has them: leaders, mutes, splits and aborts, which only traces show."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

from spark_purgatory.accumulator.policy import (
    TRANSITIONS,
    BatchEvent,
    BatchState,
    PartitionQueue,
    ProducerBatch,
    RecordFuture,
)
from spark_purgatory.accumulator.sizing import Sizing

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


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


STATES: list[Enum] = [*BatchState, *KafkaState]
EVENTS: list[Enum] = [*BatchEvent, *KafkaEvent]
KAFKA_TRANSITIONS: Mapping[tuple[Enum, Enum], Enum] = {
    **TRANSITIONS,
    **{(state, KafkaEvent.EXPIRE): BatchState.FAILED for state in (BatchState.OPEN, BatchState.CLOSED)},
    **{(state, KafkaEvent.ABORT): KafkaState.ABORTED for state in (BatchState.OPEN, BatchState.CLOSED)},
    (BatchState.IN_FLIGHT, KafkaEvent.SPLIT): KafkaState.SPLIT,
    (BatchState.IN_FLIGHT, KafkaEvent.ABORT): KafkaState.ABANDONED,
    # An abandoned batch has ended: its result only returns the memory.
    **{
        (KafkaState.ABANDONED, event): KafkaState.ABORTED
        for event in (BatchEvent.COMPLETE, BatchEvent.FAIL, BatchEvent.REENQUEUE, KafkaEvent.SPLIT)
    },
}
QUEUED = frozenset({BatchState.OPEN, BatchState.CLOSED})
SETTLED = frozenset(STATES) - QUEUED - {BatchState.IN_FLIGHT}
"""The batch has its result."""
ENDED = SETTLED - {KafkaState.ABANDONED}
"""Nothing can happen any more, and the memory has come back."""


class KafkaBatch(ProducerBatch[P, R, V]):
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
        return self.state in SETTLED

    @property
    def holds_memory(self) -> bool:
        """Whether its capacity is taken from the pool."""
        return not self.is_split and self.state not in ENDED

    def try_append(self, record: R, future: RecordFuture[V], now_ms: int) -> bool:
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


@dataclass(eq=False)
class KafkaQueue(PartitionQueue[P, R, V]):
    """A queue with a leader, which can be muted."""

    leader: Hashable | None = None
    """The node that takes its batches; None where it is not known."""
    leader_epoch: int | None = None
    """Rises when the leader changes; None where leaders have none."""
    is_muted: bool = False
    """Nothing is drained from it, so that no batch overtakes one in flight."""


def split_batch(
    batch: KafkaBatch[P, R, V], sizing: Sizing[R], batch_bytes: int, first_number: int
) -> list[KafkaBatch[P, R, V]]:
    """The batches that a split of ``batch`` makes, closed, with its futures (A26; Kafka: ``ProducerBatch.split``).

    A normal batch is cut at ``batch_bytes``, so that one that was not larger gives one equal batch. One that came out
    of a split is cut at half its size, or its largest record if that is more.
    """
    cut_bytes = max(batch.largest_bound_bytes, batch.bytes // 2) if batch.is_split else batch_bytes
    parts: list[KafkaBatch[P, R, V]] = []
    for record, future in zip(batch.records, batch.futures, strict=True):
        if not parts or not parts[-1].try_append(record, future, batch.created_ms):
            capacity_bytes = max(cut_bytes, sizing.upper_bound_bytes(record))
            number = first_number + len(parts)
            part: KafkaBatch[P, R, V] = KafkaBatch(
                number, batch.partition, capacity_bytes, batch.created_ms, sizing, is_split=True
            )
            part.try_append(record, future, batch.created_ms)
            parts.append(part)
    for part in parts:
        part.apply(BatchEvent.CLOSE)
    return parts
