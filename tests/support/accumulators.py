"""Batches and policies of the accumulator, for its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_purgatory.accumulator.policy import AccumulatorSettings, ExponentialBackoff
from tests.conformance.kafka_accumulator import KafkaAccumulator, KafkaAppended
from tests.conformance.kafka_batches import KafkaBatch

NODE = "node"


AMPLE = 10**9


class PartSizing:
    """A batch is as large as its parts together: no header, and a part's size does not depend on its neighbours."""

    header_bytes = 0

    def record_bytes(self, record: Part, batch: Sequence[Part]) -> int:
        return record.bytes

    def upper_bound_bytes(self, record: Part) -> int:
        return record.bytes


@dataclass(frozen=True)
class Part:
    """A record."""

    name: str
    bytes: int


def policy(
    batch: int = 100,
    memory: int = 1000,
    linger: int = 10,
    timeout: int = 1000,
    leader: str | None = NODE,
    backoff: Any = None,
    sizing: Any = None,
) -> KafkaAccumulator[Any, Any, Any]:
    """An empty accumulator."""
    settings = AccumulatorSettings(batch_bytes=batch, linger_ms=linger, delivery_timeout_ms=timeout)
    return KafkaAccumulator(settings, memory, sizing or PartSizing(), backoff or ExponentialBackoff(5, 40), leader)


def put(
    accumulator: KafkaAccumulator[Any, Any, Any], size: int, partition: str = "x", at: int = 0, name: str = ""
) -> KafkaAppended[Any, Any, Any]:
    """Append a record of ``size`` bytes."""
    return accumulator.append(partition, Part(name or f"{size} bytes", size), at)


def take(
    accumulator: KafkaAccumulator[Any, Any, Any], at: int = 0, node: str = NODE, size: int = AMPLE
) -> list[KafkaBatch[Any, Any, Any]]:
    """Drain one node."""
    accumulator.validate()
    return accumulator.drain_nodes([node], size, at)[node]


def numbers(batches: Any) -> list[int]:
    return [batch.number for batch in batches]


def queued(accumulator: KafkaAccumulator[Any, Any, Any], partition: str = "x") -> list[int]:
    """Numbers of the batches that wait for a partition."""
    accumulator.validate()
    return numbers(accumulator.queues.of(partition).batches)


def available(accumulator: KafkaAccumulator[Any, Any, Any]) -> int:
    accumulator.validate()
    return accumulator.pool.available_bytes
