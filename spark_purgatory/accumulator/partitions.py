"""The queue of batches of each partition (Kafka: ``TopicInfo``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import ProducerBatch
from spark_purgatory.errors import LimitError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")

MAX_PARTITIONS = 10_000
"""Each look at what is ready walks over all partitions: 10,000 take about 2 ms, and 10 MB while they are empty."""


@dataclass(eq=False)
class PartitionQueue(Generic[P, R, V]):
    """What waits for one partition, oldest first."""

    partition: P
    batches: deque[ProducerBatch[P, R, V]] = field(default_factory=deque)

    @property
    def head(self) -> ProducerBatch[P, R, V] | None:
        """The batch that goes first; None if nothing waits."""
        return self.batches[0] if self.batches else None

    @property
    def is_full(self) -> bool:
        """More than one batch waits, or the one that does is full (A7, A13)."""
        return len(self.batches) > 1 or (bool(self.batches) and self.batches[-1].is_full)

    @property
    def is_forgettable(self) -> bool:
        """The queue says nothing that a new one would not."""
        return not self.batches


class PartitionQueues(Generic[P, R, V]):
    """All partitions, in the order in which they became known, which is the order in which they are visited."""

    def __init__(self, make: Callable[[P], PartitionQueue[P, R, V]]) -> None:
        self._make = make
        self._queues: dict[P, PartitionQueue[P, R, V]] = {}

    def __iter__(self) -> Iterator[PartitionQueue[P, R, V]]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def of(self, partition: P) -> PartitionQueue[P, R, V]:
        """The partition's queue; a new partition becomes known. LimitError at ``MAX_PARTITIONS`` with work to do."""
        queue = self._queues.get(partition)
        if queue is None:
            if len(self._queues) >= MAX_PARTITIONS:
                self._forget_idle()
            queue = self._queues[partition] = self._make(partition)
        return queue

    def _forget_idle(self) -> None:
        self._queues = {partition: queue for partition, queue in self._queues.items() if not queue.is_forgettable}
        if len(self._queues) >= MAX_PARTITIONS:
            raise LimitError(
                f"at most {MAX_PARTITIONS:,} partitions can have batches waiting at a time: use a coarser partition_by"
            )
