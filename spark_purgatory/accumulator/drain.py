"""Taking batches out of the queues, round robin over the partitions of a node (Kafka: ``drainBatchesForOneNode``)."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import Batch, BatchEvent
from spark_purgatory.accumulator.partitions import PartitionQueues

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


class Drainer(Generic[P, R, V]):
    """Remembers for each node where its next round begins (Kafka: ``nodesDrainIndex``)."""

    def __init__(self, queues: PartitionQueues[P, R, V]) -> None:
        self._queues = queues
        self._position_of: dict[Hashable, int] = {}

    def drain_node(
        self, node: Hashable, max_bytes: int, now_ms: int, only: Collection[P] | None = None
    ) -> list[Batch[P, R, V]]:
        """At most one batch a partition, together at most ``max_bytes`` unless it is only one (A17 to A21).

        Readiness is not checked; muted partitions, batches backing off, and partitions that ``only`` lacks are passed
        over. The next round begins at the position looked at last, which is one that gave nothing if the round stopped
        for size.
        """
        queues = self._queues.of_node(node)
        taken: list[Batch[P, R, V]] = []
        taken_bytes = 0
        start = self._position_of.get(node, 0)
        for step in range(len(queues)):
            position = (start + step) % len(queues)
            queue = queues[position]
            self._position_of[node] = position
            head = queue.head
            if queue.is_muted or head is None or (only is not None and queue.partition not in only):
                continue
            head.note_leader_epoch(queue.leader_epoch)
            if head.is_backing_off(now_ms):
                continue
            if taken and taken_bytes + head.bytes > max_bytes:
                break
            queue.batches.popleft()
            head.apply(BatchEvent.DRAIN)
            head.note_drained(now_ms)
            taken.append(head)
            taken_bytes += head.bytes
        return taken
