"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): stage, ask the policy what is ready, drain.

The policy (`spark_purgatory.accumulator`) is told of staged pieces as records, with the bytes that they are expected to
take in a file; its batches are the files to be, its one node is the table. The protocol is `delta_sink`'s. Everything
here can be rebuilt from the log, and is, when a run starts.

A drain is not made for each file that is ready: a commit costs the same for one as for many, so files that are nearly
full, or have nearly lingered, go along (``RIDES_FULL``, ``RIDES_LINGERED``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

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
from spark_purgatory.spark.entries import wipe
from spark_purgatory.spark.failpoints import reach
from spark_purgatory.spark.ledger import Intent, Manifest, Piece
from spark_purgatory.spark.staging import PIECES_PER_FILE, attempt_path, measure, quoted, stage

NODE = "table"
RIDES_FULL = 0.9
RIDES_LINGERED = 0.5
MAX_BACKOFF_FACTOR = 10
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


class Sender:
    """One run of a query's sink. Called by Spark with each micro-batch, by `flush` without one."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.options = options
        self.checkpoint = checkpoint
        self.on_delivery = on_delivery
        self.flush_requested = False
        self.futures: dict[int, tuple[RecordFuture[Delivery], ...]] = {}
        """By micro-batch; the last `KEPT_FUTURES`."""
        self.target = DeltaTarget(options)
        self.sink = DeltaSink(self.target, checkpoint, self._now)
        self.sizes: SizeCalibration[str] = SizeCalibration()
        self.policy = self._new_policy()
        self.is_busy = False
        self.has_failed = False
        """The last micro-batch raised: what is in memory may not be what is in the log."""
        self._started = False
        self._open: _Open | None = None
        self._partition_by = options.partition_by
        self._last_error: BaseException | None = None
        self._last_now_ms = 0
        self._drain_ms = 0
        self._fills_files = False
        """The last micro-batch filled a file in each of its partitions."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch, then drain what is ready."""
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
            if awaited is not None or (
                self._fills_files and self._make_room(spark, self.options.bytes_of("buffer_memory"))
            ):
                self._write_direct(spark, batch, batch_id, awaited)
            else:
                self._stage(spark, batch, batch_id)
        if self.flush_requested:
            self.flush(spark)
            self.flush_requested = False
        self._send_ready(spark)
        reach("before return")

    # --- start -------------------------------------------------------------------------------------------------

    def start(self, spark: SparkSession) -> None:
        """Once a run: read the log, settle the open intent, tell the policy what is staged."""
        if self._started:
            return
        commit = self.sink.recover(spark)
        facts = self.target.facts(spark)
        if facts is not None and not self._partition_by:
            self._partition_by = facts.partition_by
        intent = self.sink.ledger.intent
        if intent is not None and not self.sink.ledger.is_done and not (intent.direct and commit is None):
            if commit is None:
                self.sink.commit(spark, intent, self._load(_by_partition(intent.taken)), self._partition_by)
            self.sink.clean_up(spark)
        self._started = True
        # Lingering goes on from when they were staged; the delivery time-out begins anew, or they could never leave.
        since_ms = self._now() - self.options.ms_of("linger")
        for piece in list(self.sink.ledger.pieces.values()):
            self._append(spark, piece, max(piece.staged_ms, since_ms))

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

    def _now(self) -> int:
        """The wall clock in ms, which may not go back: what is staged outlives the process."""
        self._last_now_ms = max(self._last_now_ms, time.time_ns() // 1_000_000)
        return self._last_now_ms

    # --- a micro-batch -------------------------------------------------------------------------------------------

    def _stage(self, spark: SparkSession, batch: DataFrame, batch_id: int) -> None:
        """Steps 2 and 3."""
        ledger = self.sink.ledger
        epoch = ledger.writing_epoch = ledger.next_drain
        ledger.epochs.add(epoch)
        attempt = attempt_path(epoch, batch_id, 0)
        max_rows = max(1, self.sizes.rows_for("", self.options.bytes_of("batch_size")) // PIECES_PER_FILE)
        reach("before parts")
        stage(batch, f"{self.sink.folder}/{attempt}", self.options, self._partition_by, max_rows)
        reach("after parts")
        pieces = measure(spark, self.sink.folder, attempt, batch.schema, batch_id, epoch, self._now())
        self._note_sizes(pieces)
        manifest = Manifest(batch_id, batch.schema.json(), pieces)
        try:
            fits = self._make_room(spark, sum(piece.staged_bytes for piece in pieces))
        except BufferExhaustedError:
            wipe(spark, f"{self.sink.folder}/{attempt}")
            raise
        if fits:
            self.sink.count(spark, manifest)
            self._remember(batch_id, [self._append(spark, piece, self._now()) for piece in pieces])
        else:
            self._drain_whole(spark, manifest)
        ledger.writing_epoch = None

    def _note_sizes(self, pieces: Sequence[Piece]) -> None:
        sizes: dict[str, int] = {}
        for piece in pieces:
            self.sizes.observe_staged("", piece.staged_bytes, piece.rows)
            sizes[piece.partition] = sizes.get(piece.partition, 0) + self.sizes.file_bytes("", piece.staged_bytes)
        self._fills_files = bool(sizes) and min(sizes.values()) >= self.options.bytes_of("batch_size")

    def _make_room(self, spark: SparkSession, wanted_bytes: int) -> bool:
        """Drain until ``wanted_bytes`` more may be staged; False if they are more than the whole buffer_memory.

        BufferExhaustedError if the table does not take what is staged for ``max_block``.
        """
        limit = self.options.bytes_of("buffer_memory")
        room = max(0, limit - wanted_bytes)
        if self.sink.ledger.staged_bytes > room:
            flush = self.policy.begin_flush()
            self._send_until(spark, lambda: self.sink.ledger.staged_bytes <= room or flush.is_done)
        return wanted_bytes <= limit

    def _drain_whole(self, spark: SparkSession, manifest: Manifest) -> None:
        """A micro-batch larger than buffer_memory: the intent is its manifest."""
        intent = self.sink.intend(spark, manifest.pieces, manifest.batch_id, manifest.schema)
        files = _by_partition(manifest.pieces)
        started_ms = self._now()
        commit = self._commit_once(spark, intent, self._load(files))
        self._remember(manifest.batch_id, [self._settled(self._delivery(commit, commit.files, started_ms))])

    def _write_direct(self, spark: SparkSession, batch: DataFrame, batch_id: int, awaited: Intent | None) -> None:
        """A micro-batch of which the last one's size says that it fills files by itself."""
        started_ms = self._now()
        schema = batch.schema.json()
        intent = awaited or self.sink.intend(spark, (), batch_id, schema)
        rows = batch.repartition(*map(quoted, self._partition_by)) if self._partition_by else batch
        max_rows = self.sizes.rows_for("", self.options.bytes_of("batch_size"))
        commit = self._commit_once(spark, intent, Load(direct=rows, max_file_rows=max_rows))
        sizes: dict[object, int] = {}
        for file in commit.files:
            sizes[file.partition_values] = sizes.get(file.partition_values, 0) + file.bytes
        self._fills_files = bool(sizes) and min(sizes.values()) >= self.options.bytes_of("batch_size")
        self._remember(batch_id, [self._settled(self._delivery(commit, commit.files, started_ms))])

    def _commit_once(self, spark: SparkSession, intent: Intent, load: Load) -> Commit:
        """A commit whose failure fails the micro-batch; a restart settles it."""
        commit = self.sink.commit(spark, intent, load, self._partition_by)
        self.sink.clean_up(spark)
        return commit

    def _settled(self, delivery: Delivery) -> RecordFuture[Delivery]:
        """A future that has its value already."""
        future: RecordFuture[Delivery] = RecordFuture()
        future.settle(delivery, None)
        self._tell(delivery, None)
        return future

    def _tell(self, delivery: Delivery | None, error: BaseException | None) -> None:
        if self.on_delivery is not None:
            self.on_delivery(delivery, error)

    def _append(self, spark: SparkSession, piece: Piece, now_ms: int) -> RecordFuture[Delivery]:
        """Tell the policy of a piece that counts; drain early if the policy has no memory for its batch."""
        file_bytes = min(self.sizes.file_bytes("", piece.staged_bytes), self.options.bytes_of("buffer_memory"))
        ticket = self.policy.append_or_wait(piece.partition, StagedRecord(piece, file_bytes), now_ms)
        if not ticket.is_done:
            self._send_until(spark, lambda: ticket.is_done)
        assert ticket.appended is not None
        return ticket.appended.future

    def _remember(self, batch_id: int, futures: Sequence[RecordFuture[Delivery]]) -> None:
        self.futures[batch_id] = tuple(futures)
        done = [number for number, batch in self.futures.items() if all(future.is_done for future in batch)]
        for number in done[:-KEPT_FUTURES]:
            del self.futures[number]

    # --- the loop ------------------------------------------------------------------------------------------------

    def flush(self, spark: SparkSession) -> None:
        """Drain everything; StorageError if the table does not take it for ``max_block``."""
        self.start(spark)
        flush = self.policy.begin_flush()
        self._send_until(spark, lambda: flush.is_done)

    def _send_until(self, spark: SparkSession, is_done: Callable[[], bool]) -> None:
        deadline_ms = self._now() + self.options.ms_of("max_block")
        while not is_done():
            self._send_ready(spark)
            if is_done():
                return
            left_ms = deadline_ms - self._now()
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

    def _send_ready(self, spark: SparkSession) -> None:
        """Drain until nothing is ready, or a drain fails."""
        while batches := self._take(self._now()):
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
        started_ms = self._now()
        opened: _Open | None = self._open
        try:
            if opened is None:
                pieces = [record.piece for batch in batches for record in batch.records]
                opened = self._open = _Open(self.sink.intend(spark, pieces), tuple(batches))
            files = tuple(tuple(record.piece for record in batch.records) for batch in opened.batches)
            commit = self.sink.commit(spark, opened.intent, self._load(files), self._partition_by)
        except AnalysisException as error:
            said = str(error).partition("\n")[0]
            raise StorageError(
                f"table {self.target} refused a drain; its rows stay staged. Spark says: {said}"
            ) from error
        except (PySparkException, Py4JError, OSError) as error:
            found = self.sink.was_committed(spark, opened.intent) if opened else None
            if found is None:
                self._retry(batches, error)
                return False
            commit = found
        self._open = None
        self.sink.clean_up(spark)
        self._drain_ms = self._now() - started_ms
        self._settle(batches, commit, started_ms)
        return True

    def _retry(self, batches: Sequence[FileBatch], error: Exception) -> None:
        self._last_error = error
        outcomes = [self.policy.retry(batch, self._now(), error) for batch in reversed(batches)]
        if RetryOutcome.DELIVERY_TIMEOUT in outcomes:
            timeout = DeliveryTimeoutError(
                f"table {self.target} did not take {len(batches)} files for delivery_timeout, "
                f"{self.options.ms_of('delivery_timeout'):,} ms: {self._said()}. Their rows stay staged and go out "
                "after a restart"
            )
            self._tell(None, timeout)
            raise timeout from error

    def _settle(self, batches: Sequence[FileBatch], commit: Commit, started_ms: int) -> None:
        """Futures and callbacks, and what the files tell about sizes."""
        staged = sum(record.piece.staged_bytes for batch in batches for record in batch.records)
        self.sizes.observe_committed("", staged, sum(file.bytes for file in commit.files))
        for number, batch in enumerate(batches):
            mine = [file for file in commit.files if file.path.rsplit("/", 1)[-1].startswith(f"part-{number:05d}-")]
            delivery = self._delivery(commit, mine or commit.files, batch.created_ms)
            self.policy.complete(batch, delivery, self._now())
            self._tell(delivery, None)

    def _delivery(self, commit: Commit, files: Sequence[object], since_ms: int) -> Delivery:
        mine = [file for file in commit.files if file in files]
        return Delivery(
            table=str(self.target),
            version=commit.version,
            files=tuple(file.path for file in mine),
            rows=sum(file.rows for file in mine),
            bytes=sum(file.bytes for file in mine),
            queued_ms=self._now() - since_ms,
        )

    def _load(self, files: Sequence[tuple[Piece, ...]]) -> Load:
        """One file each, but for those that are larger than they should be: then all are cut as these need it."""
        batch_bytes = self.options.bytes_of("batch_size")
        max_rows = 0
        for pieces in files:
            file_bytes = self.sizes.file_bytes("", sum(piece.staged_bytes for piece in pieces))
            if file_bytes > batch_bytes * 1.25:
                rows = math.ceil(sum(piece.rows for piece in pieces) / math.ceil(file_bytes / batch_bytes))
                max_rows = rows if max_rows == 0 else min(max_rows, rows)
        return Load(files=tuple(files), max_file_rows=max_rows)


KEPT_FUTURES = 100


def _by_partition(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    grouped: dict[str, list[Piece]] = {}
    for piece in pieces:
        grouped.setdefault(piece.partition, []).append(piece)
    return tuple(tuple(group) for group in grouped.values())
