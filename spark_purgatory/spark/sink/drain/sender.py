"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): stage, check what is ready, drain.

The protocol is `delta_sink`'s, the drains are `drain_loop`'s. Everything here can be rebuilt from the log, and is, when
a run starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BufferExhaustedError
from spark_purgatory.spark.sink.drain.delta_sink import DeltaSink, Load
from spark_purgatory.spark.sink.drain.drain_loop import DrainLoop, load_of
from spark_purgatory.spark.sink.drain.failpoints import reach
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.staging.backlog import most_bytes
from spark_purgatory.spark.sink.staging.ledger import Intent, Piece, StagedBatch
from spark_purgatory.spark.sink.staging.staged_files import (
    PIECES_PER_FILE,
    WRITE_SETTINGS,
    Rules,
    quoted,
    rules_of,
    stage,
)
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import Commit
from spark_purgatory.spark.storage.commits import next_batch
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, state_fault, writing

FILLED = 0.5
"""A direct write has filled its files where they hold so much of batch_size on average: the last one of a table
partition holds what is left over."""


class Sender:
    """One query run's sink. Called by Spark with each micro-batch, by `flush` without one."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.options = options
        self.checkpoint = checkpoint
        self.on_delivery = on_delivery
        self.adapter = PolicyAdapter(options, on_delivery)
        self.sink = DeltaSink(DeltaTarget(options), checkpoint)
        self.drains = DrainLoop(self.adapter, self.sink)
        self.flush_requested = False
        self.is_busy = False
        self.has_failed = False
        """The last micro-batch, or drain, raised: what is in memory may not be what is in the log."""
        self._started = False
        self._rules: dict[str, Rules] = {}
        """By schema."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch, then drain what is ready."""
        if self._started:
            reach("after return")
        self.is_busy = self.has_failed = True
        try:
            self._run(batch, batch_id)
            self.has_failed = False
        except SPARK_FAULTS as error:
            if state := state_fault(error):
                raise state from error
            raise
        finally:
            self.is_busy = False

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        schema = batch.schema.json()
        if not self._started:
            # The query's own session, not the user's.
            for name, value in WRITE_SETTINGS.items():
                spark.conf.set(name, value)
        self.start(spark, batch_id)
        if self.sink.stager.is_replay(batch_id):
            batch.write.format("noop").mode("overwrite").save()
        else:
            awaited = self.sink.stager.ledger.intent if self.sink.stager.ledger.awaits_direct else None
            if schema != self.sink.stager.ledger.schema:
                self.drains.flush(spark)
            if awaited is None and self.adapter.fills_files:
                self.drains.flush(spark)
            if awaited is not None or self.adapter.fills_files:
                self._write_direct(spark, batch, batch_id, awaited)
            else:
                self._stage(spark, batch, batch_id, schema)
        if self.flush_requested:
            self.drains.flush(spark)
            self.flush_requested = False
        self.drains.send_ready(spark)
        reach("before return")

    def measure(self) -> dict[str, float]:
        """The sink's metrics, by the names of `spark_purgatory.metrics`."""
        ledger, counts = self.sink.stager.ledger, self.drains.counts
        pieces, uncounted = list(ledger.pieces.values()), list(ledger.uncounted.values())
        staged_bytes = ledger.staged_bytes + self.adapter.backlog.staged_bytes(uncounted)
        times_ms = [piece.staged_ms for piece in pieces] + [staged.staged_ms for staged in uncounted]
        values: dict[str, float] = {
            "staged_bytes": staged_bytes,
            "buffer_available_bytes": max(0, self.options.bytes_of("buffer_memory") - staged_bytes),
            "staged_age_ms": max(0, self.adapter.now() - min(times_ms)) if times_ms else 0,
            "drains_total": counts.drains,
            "drained_rows_total": counts.rows,
            "drained_files_total": counts.files,
            "drained_bytes_total": counts.bytes,
            "drain_retries_total": counts.retries,
        }
        if counts.last_ms is not None:
            values["drain_duration_ms"] = counts.last_ms
        if counts.files:
            values["file_bytes_avg"] = counts.bytes / counts.files
        return values

    # --- start -------------------------------------------------------------------------------------------------

    def start(self, spark: SparkSession, batch_id: int) -> None:
        """Once in a query run, before micro-batch ``batch_id``: read the log, finish the open drain."""
        if self._started:
            return
        sink = self.sink
        commit = sink.recover(spark)
        sink.stager.adopt(spark, batch_id)
        intent = sink.stager.ledger.intent
        if intent is not None and not sink.stager.ledger.is_done and not (intent.direct and commit is None):
            if commit is None:
                load = load_of(_by_partition(intent.taken), self.adapter.sizes, self.options.bytes_of("batch_size"))
                self.drains.commit_once(spark, intent, load)
            else:
                sink.clean_up(spark)
        self._started = True
        # Lingering goes on from when they were staged; the delivery time-out begins anew, or they could never leave.
        since_ms = self.adapter.now() - self.options.ms_of("linger")
        for piece in list(sink.stager.ledger.pieces.values()):
            self.drains.append(spark, piece, max(piece.staged_ms, since_ms))

    def drain(self, spark: SparkSession) -> None:
        """Bring everything staged to the table, without a micro-batch."""
        self.has_failed = True
        if not self._started:
            self.start(spark, next_batch(spark, self.checkpoint))
        self.drains.flush(spark)
        self.has_failed = False

    # --- a micro-batch -------------------------------------------------------------------------------------------

    def _stage(self, spark: SparkSession, batch: DataFrame, batch_id: int, schema: str) -> None:
        """Step 2."""
        stager, ledger = self.sink.stager, self.sink.stager.ledger
        stager.note_schema(spark, batch_id, schema)
        epoch = ledger.writing_epoch = ledger.next_drain
        ledger.epochs.add(epoch)
        if schema not in self._rules:
            self._rules[schema] = rules_of(batch.schema, self.options, self.options.partition_by)
        max_rows = max(1, self.adapter.sizes.rows_for("", self.options.bytes_of("batch_size")) // PIECES_PER_FILE)
        reach("before parts")
        path = ledger.run.batch_path(epoch, batch_id)
        rows, plain_bytes = stage(batch, f"{stager.folder}/{path}", self._rules[schema], max_rows)
        staged = StagedBatch(batch_id, epoch, self.adapter.now(), path, rows, plain_bytes)
        if rows:
            stager.record(spark, staged)
        reach("after parts")
        if not rows:
            stager.note_empty(spark, batch_id)
        elif self._surely_fits(spark, staged) or self._make_room_for(spark, staged, schema):
            ledger.add_uncounted(staged)
        ledger.writing_epoch = None

    def _surely_fits(self, spark: SparkSession, staged: StagedBatch) -> bool:
        """Whether a micro-batch fits into buffer_memory whatever its files weigh; the others are counted first."""
        ledger, limit = self.sink.stager.ledger, self.options.bytes_of("buffer_memory")
        if ledger.staged_bytes + most_bytes([*ledger.uncounted.values(), staged]) > limit:
            self.drains.count(spark)
        return ledger.staged_bytes + most_bytes([staged]) <= limit

    def _make_room_for(self, spark: SparkSession, staged: StagedBatch, schema: str) -> bool:
        """Whether the micro-batch fits after drains, if need be; if it never could, it is drained."""
        pieces = self.sink.stager.count(spark, [staged])[staged.batch_id]
        try:
            fits = self.drains.make_room(spark, sum(piece.staged_bytes for piece in pieces))
        except BufferExhaustedError:
            with writing(f"the removal of {staged.path}", self.sink.stager.folder):
                self.sink.stager.place.remove(spark, staged.path)
            raise
        if not fits:
            self._drain_whole(spark, staged.batch_id, schema, pieces)
        return fits

    def _drain_whole(self, spark: SparkSession, batch_id: int, schema: str, pieces: Sequence[Piece]) -> None:
        """A micro-batch larger than buffer_memory: it counts with its intent, which takes all of it."""
        self.adapter.note_sizes(pieces)
        intent = self.sink.intend(spark, pieces, batch_id, schema)
        started_ms = self.adapter.now()
        load = load_of(_by_partition(pieces), self.adapter.sizes, self.options.bytes_of("batch_size"))
        commit = self.drains.commit_once(spark, intent, load)
        self._remember_settled(batch_id, commit, intent.taken_rows, started_ms)

    def _write_direct(self, spark: SparkSession, batch: DataFrame, batch_id: int, awaited: Intent | None) -> None:
        """A micro-batch of which the last one's size says that it fills files by itself."""
        started_ms = self.adapter.now()
        schema = batch.schema.json()
        intent = awaited or self.sink.intend(spark, (), batch_id, schema)
        rows = batch.repartition(*map(quoted, self.options.partition_by)) if self.options.partition_by else batch
        max_rows = self.adapter.sizes.rows_for("", self.options.bytes_of("batch_size"))
        commit = self.drains.commit_once(spark, intent, Load(direct=rows, max_file_rows=max_rows))
        # A table partition is in one file, or in several of which the last alone is not full.
        least_files = max(1, math.ceil((commit.files or 0) * FILLED)) if self.options.partition_by else 1
        self.adapter.fills_files = (commit.bytes or 0) >= least_files * self.options.bytes_of("batch_size")
        self._remember_settled(batch_id, commit, commit.rows or 0, started_ms)

    def _remember_settled(self, batch_id: int, commit: Commit, rows: int, started_ms: int) -> None:
        """The future of a micro-batch that a drain of its own has taken."""
        delivery = self.adapter.delivery_of(str(self.sink.target), commit.version, rows, commit.bytes or 0, started_ms)
        future: RecordFuture[Delivery] = RecordFuture()
        future.settle(delivery, None)
        self.adapter.remember(batch_id, [future])
        self.adapter.notify(delivery, None)


def _by_partition(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    grouped: dict[str, list[Piece]] = {}
    for piece in pieces:
        grouped.setdefault(piece.partition, []).append(piece)
    return tuple(tuple(group) for group in grouped.values())
