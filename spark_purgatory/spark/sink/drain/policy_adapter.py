"""The policy of the sink: which staged files go to the table now, and when they must be counted.

It holds no piece: what waits and what a drain has is in the `Ledger`, and every decision depends on the ledger, the
time, and the sizes seen so far. Pieces are records of an `AccumulatorPolicy`, with a queue for each table partition.

The policy needs bytes by table partition, which only the files' footers have. To count them is a job, so it is done as
late as possible, about twice a drain: a file cannot be full while its partition's counted bytes, plus its share of the
uncounted ones, are below ``batch_size``. The shares are those of the rows counted last (`Backlog`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident

from spark_purgatory.accumulator.policy import (
    AccumulatorPolicy,
    Callback,
    DecayedQuotient,
    SizeCalibration,
    exponential_backoff_ms,
)
from spark_purgatory.config import SinkOptions
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.staging.ledger import Failed, Ledger, Piece, StagedBatch, by_partition
from spark_purgatory.spark.sink.table.history import DrainCommit

LOG = logging.getLogger(__name__)
OF_CALLBACKS = (Exception, SystemExit, GeneratorExit)
"""Errors of users' callbacks: with sys.exit() in one, the thread that answers Spark would end without an answer."""
WARN_AT = 0.8  # Part of buffer_memory; a warning is logged once so much is staged.
MAX_BACKOFF_FACTOR = 10
FIRST_DRAIN_MS = 8000  # The estimate for the first drain of a run; at most half of linger.
MAX_FILES_PER_DRAIN = 64  # Each file is a branch of the query that writes them. Planning takes about 10 ms a branch.
MAX_FILES_AHEAD = 8  # So many files' bytes may stay uncounted, in case all belong to a new partition.
MAX_FULL = 1.25  # A file may be larger than batch_size by this factor before it is cut.
TOTALS = ("drains_total", "drained_rows_total", "drained_files_total", "drained_bytes_total", "drain_retries_total")


class Backlog:
    """Estimates the sizes of micro-batches before their files are counted."""

    def __init__(self) -> None:
        self._staged_a_plain: DecayedQuotient | None = None  # Bytes of files over bytes of rows.
        self._shares: defaultdict[str, float] = defaultdict(float)  # Of the bytes counted last, by partition.

    def learn(self, batches: Iterable[StagedBatch], pieces: Sequence[Piece]) -> None:
        plain_bytes = sum(staged.plain_bytes for staged in batches)
        staged_bytes = sum(piece.staged_bytes for piece in pieces)
        self._staged_a_plain = self._staged_a_plain or DecayedQuotient(0.0, 0.0)
        self._staged_a_plain.observe(staged_bytes, plain_bytes)
        self._shares.clear()
        for piece in pieces:
            self._shares[piece.partition] += piece.staged_bytes / staged_bytes

    def staged_bytes(self, batches: Iterable[StagedBatch]) -> float:
        """Return the expected bytes of micro-batches' files; the bytes of their rows before any was counted."""
        scale = 1.0 if self._staged_a_plain is None else self._staged_a_plain.value
        return scale * sum(staged.plain_bytes for staged in batches)

    def could_fill(
        self, batches: Iterable[StagedBatch], open_bytes: Mapping[str, int], ratio: float, batch_bytes: int
    ) -> bool:
        """Return True if one of the files of ``open_bytes`` may be full; ``ratio`` is file bytes to staged bytes."""
        if self._staged_a_plain is None:
            return True
        file_bytes = self.staged_bytes(batches) * ratio
        if file_bytes >= batch_bytes * MAX_FILES_AHEAD:
            return True
        return any(
            open_bytes.get(partition, 0) + file_bytes * self._shares.get(partition, 0.0) >= batch_bytes
            for partition in self._shares.keys() | open_bytes.keys()
        )


@dataclass(frozen=True)
class Delivery:
    """The delivery of rows (Kafka: ``RecordMetadata``)."""

    table: str
    version: int
    """The version of the table that has the rows; -1 where its history was cut."""
    rows: int
    bytes: int
    """Bytes in the table's files, as a share of the drain's; 0 where Delta does not report them."""
    queued_ms: int
    """Milliseconds from the staging of the rows to the end of their drain."""


class PolicyAdapter:
    """The policy of one query's sink, with its estimates of sizes."""

    def __init__(self, options: SinkOptions, table: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.table = table
        self.linger_ms, self.batch_bytes = options.ms_of("linger"), options.bytes_of("batch_size")
        self.buffer_bytes, self.request_bytes = options.bytes_of("buffer_memory"), options.bytes_of("max_request_size")
        self.max_block_ms, self.backoff_ms = options.ms_of("max_block"), options.ms_of("retry_backoff")
        self.delivery_timeout_ms = options.ms_of("delivery_timeout")
        self.on_delivery: Callback[Delivery] = on_delivery or (lambda delivery, error: None)
        self.calling: int | None = None  # The thread that is in `on_delivery`.
        self.sizes: SizeCalibration = SizeCalibration()
        self.backlog = Backlog()
        # Of the pieces in the ledger's dictionary, which is another one whenever the pieces are others.
        self._queued: tuple[Mapping[tuple[str, str], Piece], AccumulatorPolicy[str, Piece]] | None = None
        self.totals = Counter[str]()  # Metrics of this run that only grow, and the time of the last drain.
        self.drain_ms = min(FIRST_DRAIN_MS, self.linger_ms // 2)  # The time that the last drain took.
        self.every_ms = 0  # The time from one micro-batch to the next.
        self._micro_batch_ms: int | None = None  # When the last micro-batch began.
        self._made_ms, self._made_at_ms = time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000

    def now(self) -> int:
        """Return the wall clock of the run's start plus the time since, in ms: setting the clock moves no linger."""
        return self._made_ms + time.monotonic_ns() // 1_000_000 - self._made_at_ms

    def begin(self, work: do.Work) -> None:
        work.begun_ms = self.now()
        if work.batch_id is not None:
            self.every_ms = 0 if self._micro_batch_ms is None else work.begun_ms - self._micro_batch_ms
            self._micro_batch_ms = work.begun_ms

    # --- decisions -----------------------------------------------------------------------------------------------

    def must_count(self, ledger: Ledger, now_ms: int) -> bool:
        """Return True if micro-batches that are not counted yet could change what is ready."""
        batches, queued, now_ms = ledger.uncounted.values(), self._queues(ledger), now_ms + self._ahead_ms
        if now_ms - min(staged.staged_ms for staged in batches) >= self.linger_ms or queued.ripe(now_ms):
            return True
        open_bytes = {partition: queue[-1].bytes for partition, queue in queued.queues.items()}
        return self.backlog.could_fill(batches, open_bytes, self.sizes.ratio, self.batch_bytes)

    def next_pieces(self, ledger: Ledger, now_ms: int, everything: bool) -> tuple[Piece, ...]:
        queued = self._queues(ledger)
        ripe = queued.ripe(now_ms + self._ahead_ms, everything)[:MAX_FILES_PER_DRAIN]
        files = queued.peek(set(ripe), self.request_bytes, everything)
        return tuple(piece for file in files for piece in file.records)

    def is_backing_off(self, ledger: Ledger, now_ms: int) -> bool:
        return ledger.failures > 0 and now_ms < ledger.failed_ms + self._wait_ms(ledger)

    def _wait_ms(self, ledger: Ledger) -> int:
        return exponential_backoff_ms(self.backoff_ms, self.backoff_ms * MAX_BACKOFF_FACTOR, ledger.failures - 1)

    def is_out_of_time(self, ledger: Ledger) -> bool:
        """Return True if a file had waited for delivery_timeout when the table did not take it."""
        came_ms = [*map(ledger.came_ms, ledger.taken or ledger.pieces.values())]
        first_ms = min(came_ms + [batch.staged_ms for batch in ledger.uncounted.values()], default=ledger.failed_ms)
        return ledger.failures > 0 and ledger.failed_ms - first_ms >= self.delivery_timeout_ms

    def cut_rows(self, pieces: Iterable[Piece]) -> int:
        """Return the rows at which files of these pieces are cut, because one would be too large; 0: no cut."""
        most = []
        for found in by_partition(pieces).values():
            file_bytes = self.sizes.file_bytes(sum(piece.staged_bytes for piece in found))
            if file_bytes > self.batch_bytes * MAX_FULL:
                rows = sum(piece.rows for piece in found)
                most.append(math.ceil(rows / math.ceil(file_bytes / self.batch_bytes)))
        return min(most, default=0)

    @property
    def _ahead_ms(self) -> int:
        """Files are drained this early: drains begin only with micro-batches, and take time themselves."""
        return self.drain_ms + min(self.every_ms, self.linger_ms // 2)

    def _queues(self, ledger: Ledger) -> AccumulatorPolicy[str, Piece]:
        """Return what waits in queues. Linger runs on from an earlier run, whose clock may have been another one."""
        if self._queued is None or self._queued[0] is not ledger.pieces:
            # A batch keeps the estimates that are made now.
            queued = AccumulatorPolicy[str, Piece](
                self.batch_bytes, self.linger_ms, lambda piece, _: self.sizes.file_bytes(piece.staged_bytes)
            )
            for piece in ledger.pieces.values():
                since_ms = max(piece.staged_ms, ledger.adopted_ms - self.linger_ms)
                queued.append(piece.partition, piece, min(since_ms, ledger.came_ms(piece)))
            self._queued = ledger.pieces, queued
        return self._queued[1]

    # --- what it learns ------------------------------------------------------------------------------------------

    def learn(self, ledger: Ledger, result: do.Result) -> None:
        match result:
            case do.Found(_, commit):
                self._delivered(ledger, commit)
            case do.Counted(batches, pieces) if not ledger.is_incoming(pieces):
                counted = [piece for found in pieces.values() for piece in found]
                self.backlog.learn(batches, counted)
                for piece in counted:
                    self.sizes.observe_staged(piece.staged_bytes, piece.rows)
                if (staged := ledger.staged_bytes) >= self.buffer_bytes * WARN_AT:
                    part = f"{100 * staged // self.buffer_bytes} % of buffer_memory ({self.buffer_bytes} bytes)"
                    LOG.warning(f"{staged} bytes are staged for table {self.table}, {part}")
            case Failed() if ledger.is_done:
                self._note_failure(ledger, result)
            case do.NotThere() if ledger.failure is not None:
                self._note_failure(ledger, ledger.failure)

    def _note_failure(self, ledger: Ledger, failure: Failed) -> None:
        self.totals["drain_retries_total"] += 1
        if not self.is_out_of_time(ledger):
            number, wait_ms = ledger.next_drain - (not ledger.is_done), self._wait_ms(ledger)
            LOG.warning(
                f"drain {number} to table {self.table} failed (attempt {ledger.failures}), next attempt in {wait_ms} "
                f"ms: {failure.said}"
            )

    def _delivered(self, ledger: Ledger, commit: DrainCommit) -> None:
        intent, now_ms = ledger.intent, ledger.progress_ms
        assert intent is not None
        rows, files, file_bytes, took_ms = commit.rows or 0, commit.files or 0, commit.bytes or 0, 0
        if ledger.begun_ms is not None:
            took_ms = self.drain_ms = self.totals["drain_duration_ms"] = now_ms - ledger.begun_ms
            self.totals.update(drains_total=1, drained_rows_total=rows)
            self.totals.update(drained_files_total=files, drained_bytes_total=file_bytes)
        self._deliver_files([*by_partition(intent.taken).values()], commit, now_ms)
        LOG.info(
            f"drain {intent.number} to table {self.table}: {rows or intent.taken_rows} rows in {files} files, "
            f"{file_bytes} bytes, {took_ms} ms, version {commit.version}"
        )

    def _deliver_files(self, files: Sequence[list[Piece]], commit: DrainCommit, now_ms: int) -> None:
        """Correct the estimates and report each file; its bytes are a share of all."""
        staged = [sum(piece.staged_bytes for piece in pieces) for pieces in files]
        if commit.bytes is not None:
            self.sizes.observe_committed(sum(staged), commit.bytes)
        for pieces, staged_bytes in zip(files, staged, strict=True):
            file_bytes = (commit.bytes or 0) * staged_bytes // max(1, sum(staged))
            queued_ms = max(0, now_ms - min(piece.staged_ms for piece in pieces))
            rows = sum(piece.rows for piece in pieces)
            self.notify(Delivery(self.table, commit.version, rows, file_bytes, queued_ms), None)

    def notify(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Call the user's callback. An error that it raises is logged, as by Kafka's producer."""
        self.calling = get_ident()
        try:
            self.on_delivery(delivery, error)
        except OF_CALLBACKS:
            LOG.exception("on_delivery raised an error, which changes nothing else")
        finally:
            self.calling = None

    def measure(self, ledger: Ledger) -> dict[str, float]:
        pieces, uncounted = list(ledger.pieces.values()), list(ledger.uncounted.values())
        staged_bytes = ledger.staged_bytes + self.backlog.staged_bytes(uncounted)
        times_ms = [piece.staged_ms for piece in pieces] + [staged.staged_ms for staged in uncounted]
        values: dict[str, float] = {
            "staged_bytes": staged_bytes,
            "buffer_available_bytes": max(0, self.buffer_bytes - staged_bytes),
            "staged_age_ms": max(0, self.now() - min(times_ms)) if times_ms else 0,
            "linger_ms": self.linger_ms,
            "draining_rows": sum(piece.rows for piece in ledger.taken),
            **dict.fromkeys(TOTALS, 0),
            **self.totals,
        }
        if files := self.totals["drained_files_total"]:
            values["file_bytes_avg"] = self.totals["drained_bytes_total"] / files
        return values
