"""Drains of the files that are ready (Kafka: ``Sender.sendProducerData``)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.accumulator.batch_results import RetryOutcome
from spark_purgatory.accumulator.futures import RecordFuture
from spark_purgatory.accumulator.sizing import SizeCalibration
from spark_purgatory.errors import BufferExhaustedError, DeliveryTimeoutError, StorageError
from spark_purgatory.spark.sink.drain.delta_sink import DeltaSink, Load
from spark_purgatory.spark.sink.drain.policy_adapter import NODE, Delivery, FileBatch, PolicyAdapter, StagedRecord
from spark_purgatory.spark.sink.staging.ledger import Intent, Piece
from spark_purgatory.spark.sink.table.history import Commit
from spark_purgatory.spark.storage.storage_errors import (
    SPARK_FAULTS,
    is_interruption,
    is_lasting,
    said,
    state_fault,
    storage_fault,
)

LOG = logging.getLogger(__name__)
WARN_AT = 0.8
"""A warning is logged once so much of buffer_memory is staged."""
MAX_FULL = 1.25
"""A file may be so much larger than wanted before it is cut."""


@dataclass(frozen=True)
class _Open:
    """A drain whose intent is durable and whose commit was not seen."""

    intent: Intent
    batches: tuple[FileBatch, ...]


@dataclass
class DrainCounts:
    """What a run of the query has drained."""

    drains: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    retries: int = 0
    last_ms: int | None = None

    def add(self, commit: Commit, took_ms: int) -> None:
        """Count a drain."""
        self.drains += 1
        self.rows += commit.rows or 0
        self.files += commit.files or 0
        self.bytes += commit.bytes or 0
        self.last_ms = took_ms


class DrainLoop:
    """Counts staged pieces, gives them to the policy, and drains what is ready."""

    def __init__(self, adapter: PolicyAdapter, sink: DeltaSink) -> None:
        self._adapter = adapter
        self._sink = sink
        self._options = adapter.options
        self._open: _Open | None = None
        self.counts = DrainCounts()

    def make_room(self, spark: SparkSession, wanted_bytes: int) -> bool:
        """Drain until ``wanted_bytes`` more may be staged; False if they are more than the whole buffer_memory.

        BufferExhaustedError if the table does not take what is staged for ``max_block``.
        """
        self.count(spark)
        limit = self._options.bytes_of("buffer_memory")
        room = max(0, limit - wanted_bytes)
        if self._sink.stager.ledger.staged_bytes > room:
            flush = self._adapter.policy.begin_flush()
            self._send_until(spark, lambda: self._sink.stager.ledger.staged_bytes <= room or flush.is_done)
        return wanted_bytes <= limit

    def append(self, spark: SparkSession, piece: Piece, now_ms: int) -> RecordFuture[Delivery]:
        """Give a piece to the policy; drain early if the policy has no memory for its batch."""
        file_bytes = min(
            self._adapter.sizes.file_bytes(piece.partition, piece.staged_bytes), self._options.bytes_of("buffer_memory")
        )
        ticket = self._adapter.policy.append_or_wait(piece.partition, StagedRecord(piece, file_bytes), now_ms)
        if not ticket.is_done:
            self._send_until(spark, lambda: ticket.is_done)
        assert ticket.appended is not None
        return ticket.appended.future

    def count(self, spark: SparkSession) -> None:
        """Count all that is staged, and give it to the policy as records."""
        ledger = self._sink.stager.ledger
        if not ledger.uncounted:
            return
        by_batch = self._sink.stager.count(spark, list(ledger.uncounted.values()))
        counted = [piece for pieces in by_batch.values() for piece in pieces]
        self._adapter.backlog.learn(ledger.uncounted.values(), counted)
        ledger.pieces.update((piece.key, piece) for piece in counted)
        ledger.uncounted = {}
        for batch_id, pieces in by_batch.items():
            self._adapter.note_sizes(pieces)
            self._adapter.remember(batch_id, [self.append(spark, piece, piece.staged_ms) for piece in pieces])
        limit = self._options.bytes_of("buffer_memory")
        if ledger.staged_bytes >= limit * WARN_AT:
            LOG.warning(
                "%d bytes are staged for table %s, %d %% of buffer_memory (%d bytes)",
                ledger.staged_bytes,
                self._sink.target,
                100 * ledger.staged_bytes // limit,
                limit,
            )

    def flush(self, spark: SparkSession) -> None:
        """Drain everything; StorageError if the table does not take it for ``max_block``."""
        self.count(spark)
        flush = self._adapter.policy.begin_flush()
        self._send_until(spark, lambda: flush.is_done)

    def _send_until(self, spark: SparkSession, is_done: Callable[[], bool]) -> None:
        deadline_ms = self._adapter.now() + self._options.ms_of("max_block")
        while not is_done():
            self.send_ready(spark)
            if is_done():
                return
            left_ms = deadline_ms - self._adapter.now()
            if left_ms <= 0:
                staged, limit = self._sink.stager.ledger.staged_bytes, self._options.bytes_of("buffer_memory")
                raise BufferExhaustedError(
                    f"table {self._sink.target} took nothing for max_block, {self._options.ms_of('max_block'):,} ms, "
                    f"with {staged:,} of {limit:,} bytes of buffer_memory staged: {self._adapter.why_failed()}. Staged "
                    "rows wait; mend the table, raise buffer_memory, or wait longer (max_block)"
                ) from None
            time.sleep(min(left_ms, self._options.ms_of("retry_backoff"), 1000) / 1000)

    def send_ready(self, spark: SparkSession) -> None:
        """Drain until nothing is ready, or a drain fails."""
        if self._adapter.must_count(self._sink.stager.ledger.uncounted, self._adapter.now() + self._adapter.drain_ms):
            self.count(spark)
        while batches := self._take(self._adapter.now()):
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
            wanted = self._adapter.choose(now_ms + self._adapter.drain_ms)
            max_bytes = self._options.bytes_of("max_request_size")
        chosen = {batch.partition for batch in wanted}
        if not chosen:
            return []
        others = [queue.partition for queue in self._adapter.policy.queues if queue.partition not in chosen]
        for partition in others:
            self._adapter.policy.mute(partition)
        drained = self._adapter.policy.drain([NODE], max_bytes, now_ms)[NODE]
        for partition in others:
            self._adapter.policy.unmute(partition)
        return drained

    def _deliver(self, spark: SparkSession, batches: Sequence[FileBatch]) -> bool:
        """Steps 3 to 6 for batches; False if the table did not take them, and they are queued again."""
        started_ms = self._adapter.now()
        commit: Commit | None = None
        try:
            opened = self._open = self._open or self._intend(spark, batches)
            files = [tuple(record.piece for record in batch.records) for batch in opened.batches]
            load = load_of(files, self._adapter.sizes, self._options.bytes_of("batch_size"))
            commit = self._sink.commit(spark, opened.intent, load, self._options.partition_by)
        except AnalysisException as error:
            raise StorageError(
                f"table {self._sink.target} refused a drain; its rows stay staged. Mend the table and start again. "
                f"Spark says: {said(error)}"
            ) from None
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            if self._open is not None:
                commit = self._arrived(spark, self._open.intent, error)
            if commit is None and is_lasting(error):
                raise StorageError(
                    f"table {self._sink.target} cannot be written in this session, however often it is tried; its "
                    f"rows stay staged. Mend the session and start again. Spark says: {said(error)}"
                ) from None
            if commit is None:
                self._retry(batches, error)
                return False
        self._open = None
        self._sink.clean_up(spark)
        self._adapter.drain_ms = self._adapter.now() - started_ms
        self.counts.add(commit, self._adapter.drain_ms)
        LOG.info(
            "drain %d to table %s: %d rows in %d files, %d bytes, %d ms, version %d",
            opened.intent.number,
            self._sink.target,
            commit.rows or opened.intent.taken_rows,
            commit.files or 0,
            commit.bytes or 0,
            self._adapter.drain_ms,
            commit.version,
        )
        self._settle(opened.batches, commit)
        return True

    def commit_once(self, spark: SparkSession, intent: Intent, load: Load) -> Commit:
        """Steps 4 to 6, where only a restart can try again; StorageError if the table does not take it."""
        started_ms = self._adapter.now()
        try:
            commit = self._sink.commit(spark, intent, load, self._options.partition_by)
        except SPARK_FAULTS as error:
            unmendable = state_fault(error) is not None or (load.direct is not None and storage_fault(error) is None)
            if is_interruption(error) or unmendable:
                raise
            raise StorageError(
                f"table {self._sink.target} did not take drain {intent.number}: {said(error)}. Nothing was lost. Mend "
                "the table and start again"
            ) from None
        self._sink.clean_up(spark)
        self.counts.add(commit, self._adapter.now() - started_ms)
        return commit

    def _arrived(self, spark: SparkSession, intent: Intent, error: Exception) -> Commit | None:
        """The commit of a drain that raised, if it arrived all the same."""
        try:
            return self._sink.was_committed(spark, intent)
        except SPARK_FAULTS as unreadable:
            raise StorageError(
                f"drain {intent.number} to table {self._sink.target} failed ({said(error)}), and whether it arrived "
                f"cannot be read: {said(unreadable)}. Nothing was lost. Mend the table and start again"
            ) from None

    def _intend(self, spark: SparkSession, batches: Sequence[FileBatch]) -> _Open:
        pieces = [record.piece for batch in batches for record in batch.records]
        return _Open(self._sink.intend(spark, pieces), tuple(batches))

    def _retry(self, batches: Sequence[FileBatch], error: Exception) -> None:
        self._adapter.last_error = error
        self.counts.retries += 1
        outcomes = [self._adapter.policy.retry(batch, self._adapter.now(), error) for batch in reversed(batches)]
        if RetryOutcome.DELIVERY_TIMEOUT in outcomes:
            timeout = DeliveryTimeoutError(
                f"table {self._sink.target} did not take {len(batches)} files for delivery_timeout, "
                f"{self._options.ms_of('delivery_timeout'):,} ms: {self._adapter.why_failed()}. Their rows stay "
                "staged and go out after a restart"
            )
            self._adapter.notify(None, timeout)
            raise timeout from None
        wait_ms = max(batch.backoff_ms for batch in batches)
        LOG.warning(
            "drain of %d files to table %s failed (attempt %d), next attempt in %d ms: %s",
            len(batches),
            self._sink.target,
            max(batch.attempts for batch in batches),
            wait_ms,
            self._adapter.why_failed(),
        )

    def _settle(self, batches: Sequence[FileBatch], commit: Commit) -> None:
        """Futures and callbacks, and corrected estimates of sizes: a batch's bytes are its share of the drain's."""
        staged = [sum(record.piece.staged_bytes for record in batch.records) for batch in batches]
        for batch, staged_bytes in zip(batches, staged, strict=True):
            file_bytes = None if commit.bytes is None else commit.bytes * staged_bytes // max(1, sum(staged))
            if file_bytes is not None:
                self._adapter.sizes.observe_committed(batch.partition, staged_bytes, file_bytes)
            rows = sum(record.piece.rows for record in batch.records)
            delivery = self._adapter.delivery_of(
                str(self._sink.target), commit.version, rows, file_bytes or 0, batch.created_ms
            )
            self._adapter.policy.complete(batch, delivery, self._adapter.now())
            self._adapter.notify(delivery, None)


def load_of(files: Sequence[tuple[Piece, ...]], sizes: SizeCalibration[str], batch_bytes: int) -> Load:
    """One file each, but for those that are larger than they should be: then all are cut as these need it."""
    max_rows = 0
    for pieces in files:
        file_bytes = sizes.file_bytes(pieces[0].partition, sum(piece.staged_bytes for piece in pieces))
        if file_bytes > batch_bytes * MAX_FULL:
            rows = math.ceil(sum(piece.rows for piece in pieces) / math.ceil(file_bytes / batch_bytes))
            max_rows = rows if max_rows == 0 else min(max_rows, rows)
    return Load(files=tuple(files), max_file_rows=max_rows)
