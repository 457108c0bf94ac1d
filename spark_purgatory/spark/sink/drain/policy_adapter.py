"""Staged pieces as records of the accumulator's policy: which files are due for a drain. Nothing here uses Spark.

A staged piece is a record of the policy (`spark_purgatory.accumulator`), with the bytes that it is expected to take in
a file. The policy's batches are the files to be; its one node is the table. Pieces are counted when the policy may need
them (`backlog`).

A drain is not made for each file that is ready: a commit costs the same for one as for many, so files that are nearly
full, or have nearly lingered, go along (``RIDES_FULL``, ``RIDES_LINGERED``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_purgatory.accumulator.backoff import ExponentialBackoff
from spark_purgatory.accumulator.batch import Batch
from spark_purgatory.accumulator.batches import AccumulatorSettings
from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.accumulator.policy import AccumulatorPolicy
from spark_purgatory.accumulator.sizing import PartSizing, SizeCalibration
from spark_purgatory.config import SinkOptions
from spark_purgatory.spark.sink.staging.backlog import Backlog
from spark_purgatory.spark.sink.staging.ledger import Piece, StagedBatch
from spark_purgatory.spark.storage.storage_errors import said

NODE = "table"
RIDES_FULL = 0.9
RIDES_LINGERED = 0.5
MAX_BACKOFF_FACTOR = 10
FIRST_DRAIN_MS = 8000
"""An estimate of the time of a query run's first drain; at most half of linger."""
MAX_FILES_PER_DRAIN = 64
"""Each is a branch of the query that writes them; planning takes about 10 ms a branch."""
KEPT_FUTURES = 100


@dataclass(frozen=True)
class Delivery:
    """What became of rows: the value of their future (Kafka: ``RecordMetadata``)."""

    table: str
    version: int
    """Of the table; -1 where its history was cut."""
    rows: int
    bytes: int
    """In the table's files, as a share of the drain's; 0 where Delta does not say."""
    queued_ms: int
    """From their staging to their drain."""


@dataclass(frozen=True)
class StagedRecord:
    """A piece as the policy sees it."""

    piece: Piece
    bytes: int
    """What it is expected to add to a file."""


FileBatch = Batch[str, StagedRecord, Delivery]


class PolicyAdapter:
    """The policy of one query's sink, with its estimates of sizes and its futures."""

    def __init__(self, options: SinkOptions, on_delivery: Callback[Delivery] | None = None) -> None:
        self.options = options
        self.on_delivery = on_delivery
        self.sizes: SizeCalibration[str] = SizeCalibration()
        self.backlog = Backlog()
        self.policy = self._new_policy()
        self.futures: dict[int, tuple[RecordFuture[Delivery], ...]] = {}
        """By micro-batch; of those delivered the last `KEPT_FUTURES`."""
        self.fills_files = False
        """The last micro-batch counted filled a file in each of its partitions."""
        self.last_error: BaseException | None = None
        self._last_now_ms = 0
        self.drain_ms = min(FIRST_DRAIN_MS, options.ms_of("linger") // 2)
        """What the last drain took; a file is drained so much before it has lingered."""

    def _new_policy(self) -> AccumulatorPolicy[str, StagedRecord, Delivery]:
        options = self.options
        settings = AccumulatorSettings(
            batch_bytes=options.bytes_of("batch_size"),
            buffer_bytes=options.bytes_of("buffer_memory"),
            linger_ms=options.ms_of("linger"),
            delivery_timeout_ms=options.ms_of("delivery_timeout"),
        )
        backoff_ms = options.ms_of("retry_backoff")
        backoff = ExponentialBackoff(backoff_ms, backoff_ms * MAX_BACKOFF_FACTOR)
        return AccumulatorPolicy(settings, PartSizing(), backoff, NODE)

    def now(self) -> int:
        """The wall clock in ms, which may not go back: what is staged outlives the process."""
        self._last_now_ms = max(self._last_now_ms, time.time_ns() // 1_000_000)
        return self._last_now_ms

    def must_count(self, uncounted: Mapping[int, StagedBatch], now_ms: int) -> bool:
        """Whether micro-batches that are not counted yet could change what is ready."""
        batches = uncounted.values()
        if not batches:
            return False
        oldest_ms = min(staged.staged_ms for staged in batches)
        if now_ms - oldest_ms >= self.options.ms_of("linger") or self.policy.ready(now_ms).nodes:
            return True
        open_bytes = {queue.partition: queue.batches[-1].bytes for queue in self.policy.queues if queue.batches}
        return self.backlog.could_fill(batches, open_bytes, self.sizes.ratio(""), self.options.bytes_of("batch_size"))

    def choose(self, now_ms: int) -> list[FileBatch]:
        """Heads of queues that are ready, and those that go along."""
        policy = self.policy
        if not policy.ready(now_ms).nodes:
            return []
        heads = [(queue, queue.head) for queue in policy.queues if queue.head is not None]
        heads = [(queue, head) for queue, head in heads if not head.is_backing_off(now_ms)]
        if policy.pool.queued or policy.is_closed or policy.is_flushing:
            return [head for _, head in heads][:MAX_FILES_PER_DRAIN]
        linger_ms, batch_bytes = self.options.ms_of("linger"), self.options.bytes_of("batch_size")
        lingered = any(head.waited_ms(now_ms) >= linger_ms for _, head in heads)
        least_ms = linger_ms * (RIDES_LINGERED if lingered else 1)
        chosen = [
            head
            for queue, head in heads
            if queue.is_full or head.waited_ms(now_ms) >= least_ms or head.bytes >= batch_bytes * RIDES_FULL
        ]
        return chosen[:MAX_FILES_PER_DRAIN]

    def note_sizes(self, pieces: Sequence[Piece]) -> None:
        """Learn from the pieces of a micro-batch."""
        sizes: dict[str, int] = {}
        for piece in pieces:
            self.sizes.observe_staged(piece.partition, piece.staged_bytes, piece.rows)
            sizes[piece.partition] = sizes.get(piece.partition, 0) + self.sizes.file_bytes(
                piece.partition, piece.staged_bytes
            )
        self.fills_files = bool(sizes) and min(sizes.values()) >= self.options.bytes_of("batch_size")

    def remember(self, batch_id: int, futures: Sequence[RecordFuture[Delivery]]) -> None:
        """Keep futures, so that `AccumulatorQuery.futures` finds them."""
        self.futures[batch_id] = tuple(futures)
        done = [number for number, batch in self.futures.items() if all(future.is_done for future in batch)]
        for number in done[:-KEPT_FUTURES]:
            del self.futures[number]

    def why_failed(self) -> str:
        """Why the last drain failed."""
        return said(self.last_error) if self.last_error is not None else "no drain was tried"

    def delivery_of(self, table: str, version: int, rows: int, file_bytes: int, since_ms: int) -> Delivery:
        """A delivery that has arrived now."""
        return Delivery(table, version, rows, file_bytes, queued_ms=self.now() - since_ms)

    def notify(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Call the user's callback, if there is one."""
        if self.on_delivery is not None:
            self.on_delivery(delivery, error)
