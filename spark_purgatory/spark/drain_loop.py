"""The policy's view of what is staged, and the drains that it asks for (Kafka: ``Sender.sendProducerData``).

The policy (`spark_purgatory.accumulator`) is told of staged pieces as records, with the bytes that they are expected to
take in a file; its batches are the files to be, its one node is the table.

A drain is not made for each file that is ready: a commit costs the same for one as for many, so files that are nearly
full, or have nearly lingered, go along (``RIDES_FULL``, ``RIDES_LINGERED``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from spark_purgatory.accumulator.answers import RetryOutcome
from spark_purgatory.accumulator.appends import AccumulatorSettings
from spark_purgatory.accumulator.backoff import ExponentialBackoff
from spark_purgatory.accumulator.batch import Batch
from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.accumulator.record_accumulator import AccumulatorPolicy
from spark_purgatory.accumulator.sizing import PartSizing, SizeCalibration
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BufferExhaustedError, DeliveryTimeoutError, StorageError
from spark_purgatory.spark.delta_log import Commit
from spark_purgatory.spark.delta_sink import DeltaSink, Load
from spark_purgatory.spark.delta_target import DeltaTarget
from spark_purgatory.spark.ledger import Intent, Piece

NODE = "table"
RIDES_FULL = 0.9
RIDES_LINGERED = 0.5
MAX_FULL = 1.25
"""A file may be so much larger than wanted before it is cut."""
MAX_BACKOFF_FACTOR = 10
FIRST_DRAIN_MS = 5000
"""A guess at what a run's first drain takes, before any was seen; at most a quarter of linger."""
MAX_FILES_PER_DRAIN = 64
"""Each is a branch of the query that writes them; planning takes about 10 ms a branch."""


@dataclass(frozen=True)
class Delivery:
    """What became of rows: the value of their future (Kafka: ``RecordMetadata``)."""

    table: str
    version: int
    """Of the table; -1 where the log has forgotten it."""
    files: tuple[str, ...]
    """Below the table's folder."""
    rows: int
    bytes: int
    queued_ms: int
    """From their staging to their drain."""


@dataclass(frozen=True)
class StagedRecord:
    """A piece as the policy sees it."""

    piece: Piece
    bytes: int
    """What it is expected to add to a file."""


FileBatch = Batch[str, StagedRecord, Delivery]


@dataclass(frozen=True)
class _Open:
    """A drain whose intent is durable and whose commit was not seen."""

    intent: Intent
    batches: tuple[FileBatch, ...]


class DrainLoop:
    """The half of a query's sink that drains."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.options = options
        self.checkpoint = checkpoint
        self.on_delivery = on_delivery
        self.target = DeltaTarget(options)
        self.partition_by = options.partition_by
        self.sink = DeltaSink(self.target, checkpoint, self.now)
        self.sizes: SizeCalibration[str] = SizeCalibration()
        self.policy = self._new_policy()
        self._open: _Open | None = None
        self._last_error: BaseException | None = None
        self._last_now_ms = 0
        self._drain_ms = min(FIRST_DRAIN_MS, options.ms_of("linger") // 4)
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

    def make_room(self, spark: SparkSession, wanted_bytes: int) -> bool:
        """Drain until ``wanted_bytes`` more may be staged; False if they are more than the whole buffer_memory.

        BufferExhaustedError if the table does not take what is staged for ``max_block``.
        """
        limit = self.options.bytes_of("buffer_memory")
        room = max(0, limit - wanted_bytes)
        if self.sink.ledger.staged_bytes > room:
            flush = self.policy.begin_flush()
            self._send_until(spark, lambda: self.sink.ledger.staged_bytes <= room or flush.is_done)
        return wanted_bytes <= limit

    def append(self, spark: SparkSession, piece: Piece, now_ms: int) -> RecordFuture[Delivery]:
        """Tell the policy of a piece that counts; drain early if the policy has no memory for its batch."""
        file_bytes = min(
            self.sizes.file_bytes(piece.partition, piece.staged_bytes), self.options.bytes_of("buffer_memory")
        )
        ticket = self.policy.append_or_wait(piece.partition, StagedRecord(piece, file_bytes), now_ms)
        if not ticket.is_done:
            self._send_until(spark, lambda: ticket.is_done)
        assert ticket.appended is not None
        return ticket.appended.future

    def flush(self, spark: SparkSession) -> None:
        """Drain everything; StorageError if the table does not take it for ``max_block``."""
        flush = self.policy.begin_flush()
        self._send_until(spark, lambda: flush.is_done)

    def _send_until(self, spark: SparkSession, is_done: Callable[[], bool]) -> None:
        deadline_ms = self.now() + self.options.ms_of("max_block")
        while not is_done():
            self.send_ready(spark)
            if is_done():
                return
            left_ms = deadline_ms - self.now()
            if left_ms <= 0:
                staged, limit = self.sink.ledger.staged_bytes, self.options.bytes_of("buffer_memory")
                raise BufferExhaustedError(
                    f"table {self.target} took nothing for max_block, {self.options.ms_of('max_block'):,} ms, with "
                    f"{staged:,} of {limit:,} bytes of buffer_memory staged: {self._said()}. Staged rows wait; mend "
                    "the table, raise buffer_memory, or wait longer (max_block)"
                ) from self._last_error
            time.sleep(min(left_ms, self.options.ms_of("retry_backoff"), 1000) / 1000)

    def _said(self) -> str:
        """The first line of what the table said."""
        first_line = str(self._last_error).partition("\n")[0]
        return f"{type(self._last_error).__name__}: {first_line[:200]}"

    def send_ready(self, spark: SparkSession) -> None:
        """Drain until nothing is ready, or a drain fails."""
        while batches := self._take(self.now()):
            if not self._deliver(spark, batches):
                return

    def _take(self, now_ms: int) -> list[FileBatch]:
        """The batches of the next drain, in flight; those of an intent that is open before all others."""
        if self._open is not None:
            wanted = list(self._open.batches)
            if any(batch.is_backing_off(now_ms) for batch in wanted):
                return []
            max_bytes = 1 << 62
        else:
            wanted = self._choose(now_ms + self._drain_ms)
            max_bytes = self.options.bytes_of("max_request_size")
        chosen = {batch.partition for batch in wanted}
        if not chosen:
            return []
        others = [queue.partition for queue in self.policy.queues if queue.partition not in chosen]
        for partition in others:
            self.policy.mute(partition)
        drained = self.policy.drain([NODE], max_bytes, now_ms)[NODE]
        for partition in others:
            self.policy.unmute(partition)
        return drained

    def _choose(self, now_ms: int) -> list[FileBatch]:
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

    def _deliver(self, spark: SparkSession, batches: Sequence[FileBatch]) -> bool:
        """Steps 4 to 7 for batches; False if the table did not take them, and they are queued again."""
        started_ms = self.now()
        commit: Commit | None = None
        try:
            opened = self._open = self._open or self._intend(spark, batches)
            files = [tuple(record.piece for record in batch.records) for batch in opened.batches]
            load = load_of(files, self.sizes, self.options.bytes_of("batch_size"))
            commit = self.sink.commit(spark, opened.intent, load, self.partition_by)
        except AnalysisException as error:
            raise StorageError(
                f"table {self.target} refused a drain; its rows stay staged. Mend the table and start again. Spark "
                f"says: {str(error).splitlines()[0]}"
            ) from error
        except PySparkException as error:
            if self._open is not None:
                commit = self.sink.was_committed(spark, self._open.intent)
            if commit is None:
                self._retry(batches, error)
                return False
        self._open = None
        self.sink.clean_up(spark)
        self._drain_ms = self.now() - started_ms
        self._settle(opened.batches, commit)
        return True

    def _intend(self, spark: SparkSession, batches: Sequence[FileBatch]) -> _Open:
        pieces = [record.piece for batch in batches for record in batch.records]
        return _Open(self.sink.intend(spark, pieces), tuple(batches))

    def _retry(self, batches: Sequence[FileBatch], error: Exception) -> None:
        self._last_error = error
        outcomes = [self.policy.retry(batch, self.now(), error) for batch in reversed(batches)]
        if RetryOutcome.DELIVERY_TIMEOUT in outcomes:
            timeout = DeliveryTimeoutError(
                f"table {self.target} did not take {len(batches)} files for delivery_timeout, "
                f"{self.options.ms_of('delivery_timeout'):,} ms: {self._said()}. Their rows stay staged and go out "
                "after a restart"
            )
            self.tell(None, timeout)
            raise timeout from error

    def _settle(self, batches: Sequence[FileBatch], commit: Commit) -> None:
        """Futures and callbacks, and what the files tell about sizes; file n is of batch n."""
        for number, batch in enumerate(batches):
            mine = [file for file in commit.files if file.path.rsplit("/", 1)[-1].startswith(f"part-{number:05d}-")]
            if mine:
                staged_bytes = sum(record.piece.staged_bytes for record in batch.records)
                self.sizes.observe_committed(batch.partition, staged_bytes, sum(file.bytes for file in mine))
            delivery = self.delivery_of(commit, mine or commit.files, batch.created_ms)
            self.policy.complete(batch, delivery, self.now())
            self.tell(delivery, None)

    def delivery_of(self, commit: Commit, files: Sequence[object], since_ms: int) -> Delivery:
        """What a commit did with some of its files."""
        mine = [file for file in commit.files if file in files]
        return Delivery(
            table=str(self.target),
            version=commit.version,
            files=tuple(file.path for file in mine),
            rows=sum(file.rows for file in mine),
            bytes=sum(file.bytes for file in mine),
            queued_ms=self.now() - since_ms,
        )

    def tell(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Call the user's callback, if there is one."""
        if self.on_delivery is not None:
            self.on_delivery(delivery, error)


def load_of(files: Sequence[tuple[Piece, ...]], sizes: SizeCalibration[str], batch_bytes: int) -> Load:
    """One file each, but for those that are larger than they should be: then all are cut as these need it."""
    max_rows = 0
    for pieces in files:
        file_bytes = sizes.file_bytes(pieces[0].partition, sum(piece.staged_bytes for piece in pieces))
        if file_bytes > batch_bytes * MAX_FULL:
            rows = math.ceil(sum(piece.rows for piece in pieces) / math.ceil(file_bytes / batch_bytes))
            max_rows = rows if max_rows == 0 else min(max_rows, rows)
    return Load(files=tuple(files), max_file_rows=max_rows)
