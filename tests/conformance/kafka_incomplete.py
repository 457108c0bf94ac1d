"""Batches that have not ended, and the flushes that wait for them (Kafka: ``IncompleteBatches``, ``beginFlush``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from spark_purgatory.accumulator.policy import CallbackQueue
from tests.conformance.kafka_batches import KafkaBatch

P = TypeVar("P", bound=Hashable)
R = TypeVar("R")
V = TypeVar("V")


class Flush(Generic[P, R, V]):
    """Waits for the batches that were incomplete when it began, by identity (A28; Kafka: ``awaitFlushCompletion``)."""

    def __init__(self, awaits: tuple[KafkaBatch[P, R, V], ...]) -> None:
        self.awaits = awaits
        """Queued and in flight, in order of creation."""
        self._missing = set(awaits)

    @property
    def is_done(self) -> bool:
        """Every batch awaited has ended, well or not, and every part of those that were split."""
        return not self._missing

    def note_end(self, batch: KafkaBatch[P, R, V], parts: list[KafkaBatch[P, R, V]]) -> None:
        """``batch`` has ended, or was split into ``parts``."""
        if batch in self._missing:
            self._missing.remove(batch)
            self._missing.update(parts)


class IncompleteBatches(Generic[P, R, V]):
    """Batches without a result, in the order of creation, and the flushes under way."""

    def __init__(self, callbacks: CallbackQueue) -> None:
        self.callbacks = callbacks
        """The callbacks of the records of batches that have ended."""
        self._batches: dict[KafkaBatch[P, R, V], None] = {}
        self._flushes: list[Flush[P, R, V]] = []

    def __iter__(self) -> Iterator[KafkaBatch[P, R, V]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, batch: KafkaBatch[P, R, V]) -> bool:
        return batch in self._batches

    @property
    def is_flushing(self) -> bool:
        """Some flush still waits (Kafka: ``flushInProgress``)."""
        return bool(self._flushes)

    def add(self, batch: KafkaBatch[P, R, V]) -> None:
        """A batch was created."""
        self._batches[batch] = None

    def settle(self, batch: KafkaBatch[P, R, V], value: V | None, error: BaseException | None) -> None:
        """The batch has ended: complete its records and flushes; callbacks are queued, not called."""
        for future in batch.futures:
            self.callbacks.add(future.settle(value, error))
        self._remove(batch, [])

    def replace(self, batch: KafkaBatch[P, R, V], parts: list[KafkaBatch[P, R, V]]) -> None:
        """The batch was split: its parts take its place, for flushes too."""
        for part in parts:
            self.add(part)
        self._remove(batch, parts)

    def begin_flush(self) -> Flush[P, R, V]:
        """A flush over all that is incomplete now; done at once if nothing is."""
        flush = Flush(tuple(self._batches))
        if not flush.is_done:
            self._flushes.append(flush)
        return flush

    def _remove(self, batch: KafkaBatch[P, R, V], parts: list[KafkaBatch[P, R, V]]) -> None:
        del self._batches[batch]
        for flush in self._flushes:
            flush.note_end(batch, parts)
        self._flushes = [flush for flush in self._flushes if not flush.is_done]
