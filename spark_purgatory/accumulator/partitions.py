"""The queue of batches of each partition, its leader, and whether it is muted (Kafka: ``TopicInfo``, ``muted``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import Batch
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
    leader: Hashable | None
    """The node that takes its batches; None where it is not known."""
    leader_epoch: int | None = None
    """Rises when the leader changes; None where leaders have none."""
    is_muted: bool = False
    """Nothing is drained from it, so that no batch overtakes one in flight."""
    batches: deque[Batch[P, R, V]] = field(default_factory=deque)
    has_given_leader: bool = False
    """The leader was set, so it may not be forgotten."""

    @property
    def head(self) -> Batch[P, R, V] | None:
        """The batch that goes first; None if nothing waits."""
        return self.batches[0] if self.batches else None

    @property
    def is_full(self) -> bool:
        """More than one batch waits, or the one that does is full (A7, A13)."""
        return len(self.batches) > 1 or (bool(self.batches) and self.batches[-1].is_full)

    @property
    def is_forgettable(self) -> bool:
        """It says nothing that a new one would not."""
        return not (self.batches or self.is_muted or self.has_given_leader)


class PartitionQueues(Generic[P, R, V]):
    """All partitions, in the order in which they became known, which is the order in which they are visited."""

    def __init__(self, default_leader: Hashable | None = None) -> None:
        self.default_leader = default_leader
        """Leader of partitions for which none was given."""
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
            queue = self._queues[partition] = PartitionQueue(partition, self.default_leader)
        return queue

    def of_node(self, node: Hashable) -> list[PartitionQueue[P, R, V]]:
        """Queues of all partitions that ``node`` leads."""
        return [queue for queue in self._queues.values() if queue.leader is not None and queue.leader == node]

    def _forget_idle(self) -> None:
        self._queues = {partition: queue for partition, queue in self._queues.items() if not queue.is_forgettable}
        if len(self._queues) >= MAX_PARTITIONS:
            raise LimitError(
                f"at most {MAX_PARTITIONS:,} partitions can have batches waiting at a time: use a coarser partition_by"
            )
