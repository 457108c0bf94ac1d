"""The drains that the policy asks for (Kafka: ``Sender.sendProducerData``)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.accumulator.batch_results import RetryOutcome
from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.accumulator.sizing import SizeCalibration
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BufferExhaustedError, DeliveryTimeoutError, StorageError
from spark_purgatory.spark.sink.delta_log import Commit
from spark_purgatory.spark.sink.delta_sink import Load
from spark_purgatory.spark.sink.ledger import Intent, Piece
from spark_purgatory.spark.sink.policy_side import NODE, Delivery, FileBatch, PolicySide, StagedRecord
from spark_purgatory.spark.sink.storage_errors import (
    SPARK_FAULTS,
    is_interruption,
    is_lasting,
    said,
    state_fault,
    storage_fault,
)

MAX_FULL = 1.25
"""A file may be so much larger than wanted before it is cut."""


@dataclass(frozen=True)
class _Open:
    """A drain whose intent is durable and whose commit was not seen."""

    intent: Intent
    batches: tuple[FileBatch, ...]


class DrainLoop(PolicySide):
    """The half of a query's sink that drains."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        super().__init__(options, checkpoint, on_delivery)
        self._open: _Open | None = None

    def make_room(self, spark: SparkSession, wanted_bytes: int) -> bool:
        """Drain until ``wanted_bytes`` more may be staged; False if they are more than the whole buffer_memory.

        BufferExhaustedError if the table does not take what is staged for ``max_block``.
        """
        self.count(spark)
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

    def count(self, spark: SparkSession) -> None:
        """Count all that is staged, and tell the policy."""
        ledger = self.sink.ledger
        if not ledger.uncounted:
            return
        by_batch = self.sink.count(spark, list(ledger.uncounted.values()))
        counted = [piece for pieces in by_batch.values() for piece in pieces]
        self.backlog.learn(ledger.uncounted.values(), counted)
        ledger.pieces.update((piece.key, piece) for piece in counted)
        ledger.uncounted = {}
        for batch_id, pieces in by_batch.items():
            self.note_sizes(pieces)
            self.remember(batch_id, [self.append(spark, piece, piece.staged_ms) for piece in pieces])

    def flush(self, spark: SparkSession) -> None:
        """Drain everything; StorageError if the table does not take it for ``max_block``."""
        self.count(spark)
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
                    f"{staged:,} of {limit:,} bytes of buffer_memory staged: {self.said()}. Staged rows wait; mend "
                    "the table, raise buffer_memory, or wait longer (max_block)"
                ) from None
            time.sleep(min(left_ms, self.options.ms_of("retry_backoff"), 1000) / 1000)

    def send_ready(self, spark: SparkSession) -> None:
        """Drain until nothing is ready, or a drain fails."""
        if self.must_count(self.now() + self.drain_ms):
            self.count(spark)
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
            wanted = self.choose(now_ms + self.drain_ms)
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

    def _deliver(self, spark: SparkSession, batches: Sequence[FileBatch]) -> bool:
        """Steps 3 to 6 for batches; False if the table did not take them, and they are queued again."""
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
                f"says: {said(error)}"
            ) from None
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            if self._open is not None:
                commit = self._arrived(spark, self._open.intent, error)
            if commit is None and is_lasting(error):
                raise StorageError(
                    f"table {self.target} cannot be written in this session, however often it is tried; its rows stay "
                    f"staged. Mend the session and start again. Spark says: {said(error)}"
                ) from None
            if commit is None:
                self._retry(batches, error)
                return False
        self._open = None
        self.sink.clean_up(spark)
        self.drain_ms = self.now() - started_ms
        self._settle(opened.batches, commit)
        return True

    def commit_once(self, spark: SparkSession, intent: Intent, load: Load) -> Commit:
        """Steps 4 to 6, where only a restart can try again; StorageError if the table does not take it."""
        try:
            commit = self.sink.commit(spark, intent, load, self.partition_by)
        except SPARK_FAULTS as error:
            unmendable = state_fault(error) is not None or (load.direct is not None and storage_fault(error) is None)
            if is_interruption(error) or unmendable:
                raise
            raise StorageError(
                f"table {self.target} did not take drain {intent.number}: {said(error)}. Nothing was lost. Mend the "
                "table and start again"
            ) from None
        self.sink.clean_up(spark)
        return commit

    def _arrived(self, spark: SparkSession, intent: Intent, error: Exception) -> Commit | None:
        """The commit of a drain that raised, if it arrived all the same."""
        try:
            return self.sink.was_committed(spark, intent)
        except SPARK_FAULTS as unreadable:
            raise StorageError(
                f"drain {intent.number} to table {self.target} failed ({said(error)}), and whether it arrived cannot "
                f"be read: {said(unreadable)}. Nothing was lost. Mend the table and start again"
            ) from None

    def _intend(self, spark: SparkSession, batches: Sequence[FileBatch]) -> _Open:
        pieces = [record.piece for batch in batches for record in batch.records]
        return _Open(self.sink.intend(spark, pieces), tuple(batches))

    def _retry(self, batches: Sequence[FileBatch], error: Exception) -> None:
        self.last_error = error
        outcomes = [self.policy.retry(batch, self.now(), error) for batch in reversed(batches)]
        if RetryOutcome.DELIVERY_TIMEOUT in outcomes:
            timeout = DeliveryTimeoutError(
                f"table {self.target} did not take {len(batches)} files for delivery_timeout, "
                f"{self.options.ms_of('delivery_timeout'):,} ms: {self.said()}. Their rows stay staged and go out "
                "after a restart"
            )
            self.tell(None, timeout)
            raise timeout from None

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


def load_of(files: Sequence[tuple[Piece, ...]], sizes: SizeCalibration[str], batch_bytes: int) -> Load:
    """One file each, but for those that are larger than they should be: then all are cut as these need it."""
    max_rows = 0
    for pieces in files:
        file_bytes = sizes.file_bytes(pieces[0].partition, sum(piece.staged_bytes for piece in pieces))
        if file_bytes > batch_bytes * MAX_FULL:
            rows = math.ceil(sum(piece.rows for piece in pieces) / math.ceil(file_bytes / batch_bytes))
            max_rows = rows if max_rows == 0 else min(max_rows, rows)
    return Load(files=tuple(files), max_file_rows=max_rows)
