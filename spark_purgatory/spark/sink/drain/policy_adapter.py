"""Staged pieces as records of `AccumulatorPolicy`: a queue for each table partition."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from spark_purgatory.accumulator.batch import ProducerBatch
from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.accumulator.policy import AccumulatorPolicy, AccumulatorSettings, ExponentialBackoff
from spark_purgatory.accumulator.sizing import SizeCalibration
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BugError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.staging.backlog import Backlog
from spark_purgatory.spark.sink.staging.ledger import Failed, Ledger
from spark_purgatory.spark.sink.staging.pieces import Piece, StagedBatch, by_partition
from spark_purgatory.spark.sink.table.history import DrainCommit

LOG = logging.getLogger(__name__)
R = TypeVar("R")
WARN_AT = 0.8  # Part of buffer_memory; a warning is logged once so much is staged.
MAX_BACKOFF_FACTOR = 10
FIRST_DRAIN_MS = 8000  # The estimate for the first drain of a run; at most half of linger.
MAX_FILES_PER_DRAIN = 64  # Each file is a branch of the query that writes them. Planning takes about 10 ms a branch.
KEPT_FUTURES = 100
MAX_FULL = 1.25  # A file may be larger than batch_size by this factor before it is cut.
TOTALS = ("drains_total", "drained_rows_total", "drained_files_total", "drained_bytes_total", "drain_retries_total")


@dataclass(frozen=True)
class Delivery:
    """The delivery of rows, which is the value of their future (Kafka: ``RecordMetadata``)."""

    table: str
    version: int
    """The version of the table that has the rows; -1 where its history was cut."""
    rows: int
    bytes: int
    """Bytes in the table's files, as a share of the drain's; 0 where Delta does not report them."""
    queued_ms: int
    """Milliseconds from the staging of the rows to the end of their drain."""


@dataclass
class _FileSizing:
    """The bytes that a piece should add to any file. A batch keeps the estimate that was made at the append."""

    sizes: SizeCalibration[str]
    header_bytes = 0

    def record_bytes(self, record: Piece, batch: Sequence[Piece]) -> int:
        return self.upper_bound_bytes(record)

    def upper_bound_bytes(self, record: Piece) -> int:
        return self.sizes.file_bytes(record.partition, record.staged_bytes)


class PolicyAdapter:
    """The policy of one query's sink, with its estimates of sizes and its futures."""

    def __init__(self, options: SinkOptions, table: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.table = table
        self.linger_ms, self.batch_bytes = options.ms_of("linger"), options.bytes_of("batch_size")
        self.buffer_bytes, self.request_bytes = options.bytes_of("buffer_memory"), options.bytes_of("max_request_size")
        self.max_block_ms, self.backoff_ms = options.ms_of("max_block"), options.ms_of("retry_backoff")
        self.delivery_timeout_ms = options.ms_of("delivery_timeout")
        self.on_delivery: Callback[Delivery] = on_delivery or (lambda delivery, error: None)
        self.sizes: SizeCalibration[str] = SizeCalibration()
        self.backlog = Backlog()
        settings = AccumulatorSettings(
            batch_bytes=self.batch_bytes, linger_ms=self.linger_ms, delivery_timeout_ms=self.delivery_timeout_ms
        )
        backoff = ExponentialBackoff(self.backoff_ms, self.backoff_ms * MAX_BACKOFF_FACTOR)
        self.policy = AccumulatorPolicy[str, Piece, Delivery](settings, _FileSizing(self.sizes), backoff)
        # By micro-batch: all that wait, and the last `KEPT_FUTURES` that were delivered.
        self.futures: dict[int, tuple[RecordFuture[Delivery], ...]] = {}
        self.totals = Counter[str]()  # Metrics of this run that only grow, and the time of the last drain.
        self.is_out_of_time = False  # A file has waited for delivery_timeout, and the table does not take it.
        self.progress_ms = 0  # When the table last took something.
        self.drain_ms = min(FIRST_DRAIN_MS, self.linger_ms // 2)  # The time that the last drain took.
        self.every_ms = 0  # The time from one micro-batch to the next.
        self._micro_batch_ms: int | None = None  # When the last micro-batch began.
        # The batches of the running drain; after a failure they are queued again.
        self.in_drain: tuple[ProducerBatch[str, Piece, Delivery], ...] = ()
        self._began_ms: int | None = None  # When the running drain began; None if an earlier run began it.
        self._made_ms, self._made_at_ms = time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000

    def now(self) -> int:
        """Return the wall clock of the run's start plus the time since, in ms: setting the clock moves no linger."""
        return self._made_ms + time.monotonic_ns() // 1_000_000 - self._made_at_ms

    def must_count(self, uncounted: Mapping[int, StagedBatch], now_ms: int) -> bool:
        """Return True if micro-batches that are not counted yet could change what is ready."""
        batches, now_ms = uncounted.values(), now_ms + self._ahead_ms
        if now_ms - min(staged.staged_ms for staged in batches) >= self.linger_ms or self.policy.ripe(now_ms):
            return True
        open_bytes = {queue.partition: queue.batches[-1].bytes for queue in self.policy.queues if queue.batches}
        return self.backlog.could_fill(batches, open_bytes, self.sizes.ratio(""), self.batch_bytes)

    def next_pieces(self, now_ms: int, everything: bool) -> tuple[Piece, ...]:
        """Return the pieces of the files that should go to the table now."""
        ripe = self.policy.ripe(now_ms + self._ahead_ms, everything)[:MAX_FILES_PER_DRAIN]
        return _pieces_in(self.policy.peek(set(ripe), self.request_bytes, now_ms, everything))

    @property
    def _ahead_ms(self) -> int:
        """Files are drained this early: drains begin only with micro-batches, and take time themselves."""
        return self.drain_ms + min(self.every_ms, self.linger_ms // 2)

    def begin(self, work: do.Work) -> None:
        """Note that a call of the loop begins."""
        work.begun_ms = self.now()
        if work.batch_id is not None:
            self.every_ms = 0 if self._micro_batch_ms is None else work.begun_ms - self._micro_batch_ms
            self._micro_batch_ms = work.begun_ms

    def is_backing_off(self, now_ms: int) -> bool:
        """Return True if the running drain failed and it is too early to try it again."""
        return any(batch.is_backing_off(now_ms) for batch in self.in_drain)

    def cut_rows(self, pieces: Iterable[Piece]) -> int:
        """Return the rows at which files of these pieces are cut, because one would be too large; 0: no cut."""
        most = []
        for partition, found in by_partition(pieces).items():
            file_bytes = self.sizes.file_bytes(partition, sum(piece.staged_bytes for piece in found))
            if file_bytes > self.batch_bytes * MAX_FULL:
                rows = sum(piece.rows for piece in found)
                most.append(math.ceil(rows / math.ceil(file_bytes / self.batch_bytes)))
        return min(most, default=0)

    def take_in(self, ledger: Ledger, action: do.Action, result: do.Result) -> None:
        """Take in the result of an action and log it, after `protocol.apply` did."""
        match result:
            case do.Looked(_, commit) | do.Found(_, commit) if commit is not None and ledger.fault is None:
                self._settle(ledger, commit)
            case do.Looked() if ledger.intent is not None and not ledger.is_done:
                # A drain that an earlier run left is tried as long as any other. Nothing else is queued yet.
                self.append(ledger.intent.taken, self.now())
                self._take(ledger.intent.taken)
            case do.Adopted():
                now_ms = self.now()
                self.append(list(ledger.pieces.values()), now_ms - self.linger_ms)
                for batch in (batch for queue in self.policy.queues for batch in queue.batches):
                    batch.created_ms = now_ms  # Else rows older than delivery_timeout could never leave.
            case do.Counted(pieces) if isinstance(action, do.Count) and not ledger.is_incoming(pieces):
                self._counted(action.batches, pieces)
                if (staged := ledger.staged_bytes) >= self.buffer_bytes * WARN_AT:
                    part = f"{100 * staged // self.buffer_bytes} % of buffer_memory ({self.buffer_bytes} bytes)"
                    LOG.warning(f"{staged} bytes are staged for table {self.table}, {part}")
            case do.Intended(intent):
                self._began_ms = self.now()
                self._take(intent.taken)
            case Failed() if isinstance(action, do.Intend):
                self._take(action.taken)
                self._retry(result.said)
            case do.NotThere() if ledger.failure is not None:
                self._retry(ledger.failure.said)
            case _ if isinstance(action, do.Commit):
                self._take(action.intent.taken)

    def append(self, pieces: Sequence[Piece], since_ms: int) -> list[RecordFuture[Delivery]]:
        """Queue pieces. Their linger begins when they were staged, but not before ``since_ms``."""
        now_ms = self.now()
        return [
            self.policy.append(piece.partition, piece, min(max(piece.staged_ms, since_ms), now_ms)).future
            for piece in pieces
        ]

    def _counted(self, batches: Sequence[StagedBatch], pieces: Mapping[int, Sequence[Piece]]) -> None:
        self.backlog.learn(batches, [piece for found in pieces.values() for piece in found])
        for batch_id, found in pieces.items():
            for piece in found:
                self.sizes.observe_staged(piece.partition, piece.staged_bytes, piece.rows)
            self.futures[batch_id] = tuple(self.append(found, 0))
        done = [number for number, batch in self.futures.items() if all(future.is_done for future in batch)]
        for number in done[:-KEPT_FUTURES]:
            del self.futures[number]

    def _take(self, pieces: Sequence[Piece]) -> None:
        """Put the files of these pieces in flight, for the first time or again after a failure."""
        if self._began_ms is None:
            self._began_ms = self.now()
        while partitions := {piece.partition for piece in {*pieces} - {*_pieces_in(self.policy.in_flight)}}:
            if not self.policy.drain(partitions, sys.maxsize, self.now()):
                raise BugError(f"{len(partitions)} files of a drain are not queued")
        self.in_drain = self.policy.in_flight

    def _retry(self, said: str) -> None:
        self.totals["drain_retries_total"] += 1
        error = StorageError(said)
        outcomes = [
            _logged(partial(self.policy.retry, batch, self.now(), error), if_raised=False)
            for batch in reversed(self.in_drain)
        ]
        self.is_out_of_time = not all(outcomes)
        if not self.is_out_of_time:
            attempts = max(batch.attempts for batch in self.in_drain)
            wait_ms = max(batch.backoff_ms for batch in self.in_drain)
            LOG.warning(
                f"drain of {len(self.in_drain)} files to table {self.table} failed (attempt {attempts}), next attempt "
                f"in {wait_ms} ms: {said}"
            )

    def _settle(self, ledger: Ledger, commit: DrainCommit) -> None:
        intent = ledger.intent
        assert intent is not None
        now_ms = self.progress_ms = self.now()
        rows, files, file_bytes, took_ms = commit.rows or 0, commit.files or 0, commit.bytes or 0, 0
        if self._began_ms is not None:
            took_ms = self.drain_ms = self.totals["drain_duration_ms"] = now_ms - self._began_ms
            self.totals.update(drains_total=1, drained_rows_total=rows)
            self.totals.update(drained_files_total=files, drained_bytes_total=file_bytes)
        self._deliver_files(commit, now_ms)
        self._began_ms = None
        LOG.info(
            f"drain {intent.number} to table {self.table}: {rows or intent.taken_rows} rows in {files} files, "
            f"{file_bytes} bytes, {took_ms} ms, version {commit.version}"
        )

    def _deliver_files(self, commit: DrainCommit, now_ms: int) -> None:
        """Complete the futures of the running drain and correct the estimates; a file's bytes are a share of all."""
        batches, self.in_drain = self.in_drain, ()
        staged = [sum(piece.staged_bytes for piece in batch.records) for batch in batches]
        for batch, staged_bytes in zip(batches, staged, strict=True):
            file_bytes = None if commit.bytes is None else commit.bytes * staged_bytes // max(1, sum(staged))
            if file_bytes is not None:
                self.sizes.observe_committed(batch.partition, staged_bytes, file_bytes)
            queued_ms = max(0, now_ms - min(piece.staged_ms for piece in batch.records))
            rows = sum(piece.rows for piece in batch.records)
            delivery = Delivery(self.table, commit.version, rows, file_bytes or 0, queued_ms)
            _logged(partial(self.policy.complete, batch, delivery), if_raised=None)
            self.notify(delivery, None)

    def notify(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Call the user's callback. An error that it raises is logged, as by Kafka's producer."""
        try:
            self.on_delivery(delivery, error)
        except Exception:
            LOG.exception("on_delivery raised an error, which changes nothing else")

    def measure(self, ledger: Ledger) -> dict[str, float]:
        """Return the sink's metrics, by the names of `spark_purgatory.metrics`."""
        pieces, uncounted = list(ledger.pieces.values()), list(ledger.uncounted.values())
        staged_bytes = ledger.staged_bytes + self.backlog.staged_bytes(uncounted)
        times_ms = [piece.staged_ms for piece in pieces] + [staged.staged_ms for staged in uncounted]
        values: dict[str, float] = {
            "staged_bytes": staged_bytes,
            "buffer_available_bytes": max(0, self.buffer_bytes - staged_bytes),
            "staged_age_ms": max(0, self.now() - min(times_ms)) if times_ms else 0,
            "linger_ms": self.linger_ms,
            "draining_rows": sum(piece.rows for piece in _pieces_in(self.in_drain)),
            **dict.fromkeys(TOTALS, 0),
            **self.totals,
        }
        if files := self.totals["drained_files_total"]:
            values["file_bytes_avg"] = self.totals["drained_bytes_total"] / files
        return values


def _logged(end: Callable[[], R], if_raised: R) -> R:
    """End a batch. Errors of callbacks, which come once it has ended, are logged, as by Kafka's producer."""
    try:
        return end()
    except ExceptionGroup:
        LOG.exception("a callback of a future raised an error, which changes nothing else")
        return if_raised


def _pieces_in(batches: Iterable[ProducerBatch[str, Piece, Delivery]]) -> tuple[Piece, ...]:
    return tuple(piece for batch in batches for piece in batch.records)
