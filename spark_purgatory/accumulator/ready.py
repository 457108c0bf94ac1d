"""Which nodes have something to be sent now, and when to look again (Kafka: ``ready``, ``partitionReady``).

Kafka sends every first batch of a ready node, however small: a request costs little. Where a request costs seconds and
leaves a small file, `ripe_partitions` says which of them are worth it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_purgatory.accumulator.partitions import PartitionQueues

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


FULL_PART, LINGERED_PART = 0.9, 0.5
"""A batch goes along with others that must go if it has so much of its size; with one that lingered, of its time."""


@dataclass(frozen=True)
class ReadyCheck(Generic[P]):
    """What `check_ready` found (Kafka: ``ReadyCheckResult``)."""

    nodes: tuple[Hashable, ...]
    """Nodes to be drained, in the order found."""
    next_check_ms: int | None
    """Delay until something that is not ready may be; None if nothing waits for time alone."""
    unknown_leaders: tuple[P, ...]
    """Partitions that have batches and no leader."""


def check_ready(queues: PartitionQueues[P, R, V], now_ms: int, linger_ms: int, is_urgent: bool) -> ReadyCheck[P]:
    """Look at the first batch of each partition (A11 to A15).

    A node is ready if one of its partitions, not muted, has a batch that is not backing off and is full, has lingered,
    or ``is_urgent`` (memory exhausted, flushing, closed). A partition whose node is ready already is passed over, so
    ``next_check_ms`` depends on the order of partitions.
    """
    nodes: dict[Hashable, None] = {}
    unknown_leaders: list[P] = []
    next_check_ms: int | None = None
    for queue in queues:
        head = queue.head
        if head is None:
            continue
        head.note_leader_epoch(queue.leader_epoch)
        if queue.leader is None:
            unknown_leaders.append(queue.partition)
            continue
        if queue.is_muted or queue.leader in nodes:
            continue
        is_backing_off = head.is_backing_off(now_ms)
        to_wait_ms = head.backoff_ms if is_backing_off else linger_ms
        left_ms = max(to_wait_ms - head.waited_ms(now_ms), 0)
        if not is_backing_off and (is_urgent or queue.is_full or left_ms == 0):
            nodes[queue.leader] = None
        else:
            next_check_ms = left_ms if next_check_ms is None else min(next_check_ms, left_ms)
    return ReadyCheck(tuple(nodes), next_check_ms, tuple(unknown_leaders))


def ripe_partitions(
    queues: PartitionQueues[P, R, V], now_ms: int, linger_ms: int, batch_bytes: int, is_urgent: bool
) -> list[P]:
    """Partitions whose first batch should go now, or goes along with one that should; empty if none should.

    A batch should go as `check_ready` says: it is not backing off and its partition not muted, and it is full, has
    lingered, or ``is_urgent``.
    """
    heads = [(queue, queue.head) for queue in queues if queue.head is not None and not queue.is_muted]
    heads = [(queue, head) for queue, head in heads if not head.is_backing_off(now_ms)]
    if is_urgent:
        return [queue.partition for queue, _ in heads]
    has_lingered = any(head.waited_ms(now_ms) >= linger_ms for _, head in heads)
    if not has_lingered and not any(queue.is_full for queue, _ in heads):
        return []
    least_ms = linger_ms * (LINGERED_PART if has_lingered else 1)
    return [
        queue.partition
        for queue, head in heads
        if queue.is_full or head.waited_ms(now_ms) >= least_ms or head.bytes >= batch_bytes * FULL_PART
    ]
