"""Which nodes have something to be sent now, and when to look again (Kafka: ``ready``, ``partitionReady``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from tests.conformance.kafka_batches import KafkaBatch, KafkaQueue

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class ReadyCheck(Generic[P]):
    """What `check_ready` found (Kafka: ``ReadyCheckResult``)."""

    nodes: tuple[Hashable, ...]
    """Nodes to be drained, in the order found."""
    next_check_ms: int | None
    """Delay until something that is not ready may be; None if nothing waits for time alone."""
    unknown_leaders: tuple[P, ...]
    """Partitions that have batches and no leader."""


def check_ready(queues: Iterable[KafkaQueue[P, R, V]], now_ms: int, linger_ms: int, is_urgent: bool) -> ReadyCheck[P]:
    """Look at the first batch of each partition (A11 to A15).

    A node is ready if one of its partitions, not muted, has a batch that is not backing off and is full, has lingered,
    or ``is_urgent`` (memory exhausted, flushing, closed). A partition whose node is ready already is passed over, so
    ``next_check_ms`` depends on the order of partitions.
    """
    nodes: dict[Hashable, None] = {}
    unknown_leaders: list[P] = []
    next_check_ms: int | None = None
    for queue in queues:
        if queue.head is None:
            continue
        head = cast(KafkaBatch[P, R, V], queue.head)
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
