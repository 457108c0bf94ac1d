"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): stage, ask the policy what is ready, drain.

The protocol is `delta_sink`'s, the drains are `drain_loop`'s. Everything here can be rebuilt from the log, and is, when
a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.accumulator.futures import Callback, RecordFuture
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BufferExhaustedError
from spark_purgatory.spark.delta_log import Commit
from spark_purgatory.spark.delta_sink import Load
from spark_purgatory.spark.drain_loop import Delivery, DrainLoop, load_of
from spark_purgatory.spark.entries import wipe
from spark_purgatory.spark.failpoints import reach
from spark_purgatory.spark.ledger import Attempt, Intent, Piece
from spark_purgatory.spark.staging import PIECES_PER_FILE, attempt_path, quoted, stage

KEPT_FUTURES = 100
MAX_GROWTH = 2
MAX_OVERHEAD_BYTES = 1 << 20
"""What Parquet can make of rows at the very worst: twice their bytes, and the footers. Where that does not fit into
buffer_memory for sure, the attempt is measured before it counts, at the price of another job."""


class Sender(DrainLoop):
    """One run of a query's sink. Called by Spark with each micro-batch, by `flush` without one."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        super().__init__(options, checkpoint, on_delivery)
        self.flush_requested = False
        self.futures: dict[int, tuple[RecordFuture[Delivery], ...]] = {}
        """By micro-batch; of those delivered the last `KEPT_FUTURES`."""
        self.is_busy = False
        self.has_failed = False
        """The last micro-batch raised: what is in memory may not be what is in the log."""
        self._started = False
        self._fills_files = False
        """The last micro-batch filled a file in each of its partitions."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch, then drain what is ready."""
        if self._started:
            reach("after return")
        self.is_busy = self.has_failed = True
        try:
            self._run(batch, batch_id)
            self.has_failed = False
        finally:
            self.is_busy = False

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        schema = batch.schema.json()
        self.start(spark)
        if self.sink.is_replay(batch_id):
            batch.write.format("noop").mode("overwrite").save()
        else:
            awaited = self.sink.ledger.intent if self.sink.ledger.last_batch == batch_id else None
            if self.sink.ledger.pieces and schema != self.sink.ledger.schema:
                self.flush(spark)
            if awaited is None and self._fills_files:
                self.flush(spark)
            if awaited is not None or self._fills_files:
                self._write_direct(spark, batch, batch_id, awaited)
            else:
                self._stage(spark, batch, batch_id)
        if self.flush_requested:
            self.flush(spark)
            self.flush_requested = False
        self.send_ready(spark)
        reach("before return")

    # --- start -------------------------------------------------------------------------------------------------

    def start(self, spark: SparkSession) -> None:
        """Once a run: read the log, settle the open intent, tell the policy what is staged."""
        if self._started:
            return
        commit = self.sink.recover(spark)
        facts = self.target.facts(spark)
        if facts is not None and not self.partition_by:
            self.partition_by = facts.partition_by
        intent = self.sink.ledger.intent
        if intent is not None and not self.sink.ledger.is_done and not (intent.direct and commit is None):
            if commit is None:
                self.sink.commit(
                    spark,
                    intent,
                    load_of(_by_partition(intent.taken), self.sizes, self.options.bytes_of("batch_size")),
                    self.partition_by,
                )
            self.sink.clean_up(spark)
        self._started = True
        # Lingering goes on from when they were staged; the delivery time-out begins anew, or they could never leave.
        since_ms = self.now() - self.options.ms_of("linger")
        for piece in list(self.sink.ledger.pieces.values()):
            self.append(spark, piece, max(piece.staged_ms, since_ms))

    def drain(self, spark: SparkSession) -> None:
        """Bring everything staged to the table, without a micro-batch."""
        self.start(spark)
        self.flush(spark)

    # --- a micro-batch -------------------------------------------------------------------------------------------

    def _stage(self, spark: SparkSession, batch: DataFrame, batch_id: int) -> None:
        """Steps 2 and 3."""
        ledger = self.sink.ledger
        epoch = ledger.writing_epoch = ledger.next_drain
        ledger.epochs.add(epoch)
        attempt = Attempt(batch_id, batch.schema.json(), attempt_path(epoch, batch_id, 0), epoch, self.now())
        max_rows = max(1, self.sizes.rows_for("", self.options.bytes_of("batch_size")) // PIECES_PER_FILE)
        reach("before parts")
        plain_bytes = stage(batch, f"{self.sink.folder}/{attempt.path}", self.options, self.partition_by, max_rows)
        reach("after parts")
        room = self.options.bytes_of("buffer_memory") - ledger.staged_bytes
        surely_fits = not plain_bytes or plain_bytes * MAX_GROWTH + MAX_OVERHEAD_BYTES <= room
        if surely_fits or self._make_room_for(spark, attempt):
            pieces = self.sink.count(spark, attempt, plain_bytes > 0)
            self._note_sizes(pieces)
            self._remember(batch_id, [self.append(spark, piece, self.now()) for piece in pieces])
        ledger.writing_epoch = None

    def _make_room_for(self, spark: SparkSession, attempt: Attempt) -> bool:
        """Whether the attempt fits into buffer_memory, after drains if need be; if it never could, it is drained."""
        pieces = self.sink.measure(spark, attempt)
        try:
            fits = self.make_room(spark, sum(piece.staged_bytes for piece in pieces))
        except BufferExhaustedError:
            wipe(spark, f"{self.sink.folder}/{attempt.path}")
            raise
        if not fits:
            self._drain_whole(spark, attempt, pieces)
        return fits

    def _note_sizes(self, pieces: Sequence[Piece]) -> None:
        sizes: dict[str, int] = {}
        for piece in pieces:
            self.sizes.observe_staged(piece.partition, piece.staged_bytes, piece.rows)
            sizes[piece.partition] = sizes.get(piece.partition, 0) + self.sizes.file_bytes(
                piece.partition, piece.staged_bytes
            )
        self._fills_files = bool(sizes) and min(sizes.values()) >= self.options.bytes_of("batch_size")

    def _drain_whole(self, spark: SparkSession, attempt: Attempt, pieces: Sequence[Piece]) -> None:
        """A micro-batch larger than buffer_memory: the intent is its manifest."""
        self._note_sizes(pieces)
        intent = self.sink.intend(spark, pieces, attempt.batch_id, attempt.schema)
        files = _by_partition(pieces)
        started_ms = self.now()
        load = load_of(files, self.sizes, self.options.bytes_of("batch_size"))
        commit = self._commit_once(spark, intent, load)
        self._remember(attempt.batch_id, [self._settled(self.delivery_of(commit, commit.files, started_ms))])

    def _write_direct(self, spark: SparkSession, batch: DataFrame, batch_id: int, awaited: Intent | None) -> None:
        """A micro-batch of which the last one's size says that it fills files by itself."""
        started_ms = self.now()
        schema = batch.schema.json()
        intent = awaited or self.sink.intend(spark, (), batch_id, schema)
        rows = batch.repartition(*map(quoted, self.partition_by)) if self.partition_by else batch
        max_rows = self.sizes.rows_for("", self.options.bytes_of("batch_size"))
        commit = self._commit_once(spark, intent, Load(direct=rows, max_file_rows=max_rows))
        sizes: dict[object, int] = {}
        for file in commit.files:
            sizes[file.partition_values] = sizes.get(file.partition_values, 0) + file.bytes
        self._fills_files = bool(sizes) and min(sizes.values()) >= self.options.bytes_of("batch_size")
        self._remember(batch_id, [self._settled(self.delivery_of(commit, commit.files, started_ms))])

    def _commit_once(self, spark: SparkSession, intent: Intent, load: Load) -> Commit:
        """A commit whose failure fails the micro-batch; a restart settles it."""
        commit = self.sink.commit(spark, intent, load, self.partition_by)
        self.sink.clean_up(spark)
        return commit

    def _settled(self, delivery: Delivery) -> RecordFuture[Delivery]:
        """A future that has its value already."""
        future: RecordFuture[Delivery] = RecordFuture()
        future.settle(delivery, None)
        self.tell(delivery, None)
        return future

    def _remember(self, batch_id: int, futures: Sequence[RecordFuture[Delivery]]) -> None:
        """Keep futures for whoever asks."""
        self.futures[batch_id] = tuple(futures)
        done = [number for number, batch in self.futures.items() if all(future.is_done for future in batch)]
        for number in done[:-KEPT_FUTURES]:
            del self.futures[number]


def _by_partition(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    grouped: dict[str, list[Piece]] = {}
    for piece in pieces:
        grouped.setdefault(piece.partition, []).append(piece)
    return tuple(tuple(group) for group in grouped.values())
