"""What the parts of the policy share: settings, memory, queues, and the batches that have not ended."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_purgatory.accumulator.batch import Batch
from spark_purgatory.accumulator.buffer_pool import BufferPool
from spark_purgatory.accumulator.incomplete import IncompleteBatches
from spark_purgatory.accumulator.partitions import PartitionQueues
from spark_purgatory.accumulator.sizing import Sizing
from spark_purgatory.errors import ConfigError

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True)
class AccumulatorSettings:
    """What the policy goes by; sizes in bytes, times in milliseconds. ConfigError names a field out of bounds."""

    batch_bytes: int
    """Memory of a normal batch, and so its size when it is full (Kafka: ``batch.size``)."""
    buffer_bytes: int
    """Memory of all batches that are not done (Kafka: ``buffer.memory``)."""
    linger_ms: int = 0
    """How long a batch may wait for more records (Kafka: ``linger.ms``)."""
    delivery_timeout_ms: int = 120_000
    """How long a batch may take from its creation to its end (Kafka: ``delivery.timeout.ms``)."""

    def __post_init__(self) -> None:
        """Check every field."""
        least = {"batch_bytes": 1, "buffer_bytes": 1, "linger_ms": 0, "delivery_timeout_ms": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} must be at least {low}, got {getattr(self, name)}")


class Batches(Generic[P, R, V]):
    """All batches of a policy and the memory that they hold."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        sizing: Sizing[R],
        backoff_ms: Callable[[int], int],
        default_leader: Hashable | None = None,
    ) -> None:
        self.settings = settings
        self.sizing = sizing
        self.backoff_ms = backoff_ms
        """Milliseconds to wait before retry number n, from 0; ``ExponentialBackoff`` is Kafka's."""
        self.pool = BufferPool(settings.buffer_bytes, settings.batch_bytes)
        self.queues: PartitionQueues[P, R, V] = PartitionQueues(default_leader)
        self.incomplete: IncompleteBatches[P, R, V] = IncompleteBatches()
        self.in_flight: dict[Batch[P, R, V], None] = {}
        """Batches that were drained and have no result yet, abandoned ones too."""
        self.next_number = 0
        self.is_closed = False
