"""`AccumulatorQuery`: a running query with a `RecordAccumulator`, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession, is_remote
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory.errors import ConfigError, ForeignWriterError, StorageError, sentence_of
from spark_purgatory.spark.heartbeat import is_theirs
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.table.formats import opened
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import moved_to
from spark_purgatory.spark.storage.spark_access import own_session

POLL_SECONDS = 0.05
STOP_POLLS = 1200  # A minute for the last micro-batch to notice that its query was stopped.
PAUSE_POLLS = 200  # Ten seconds for a query to pause between two micro-batches.


class AccumulatorQuery:
    """The running query that `RecordAccumulator.write_stream` returns.

    It has attributes of a `StreamingQuery` under Spark's names; ``query`` is Spark's own object. Use this one to wait
    and to stop, because only `awaitTermination`, `flush`, ``stop(drain=True)`` and the query's own
    micro-batches bring rows to the table.
    """

    def __init__(
        self,
        query: StreamingQuery,
        sender: Sender,
        spark: SparkSession,
        trigger: Mapping[str, Any],
        waiting_at_start: int = 0,
    ) -> None:
        self._query, self._sender, self._spark = query, sender, spark
        self.waiting_at_start = waiting_at_start
        """The operations that waited in the checkpoint when the query was started."""
        self._drains_at_end = "availableNow" in trigger
        # Called with `metrics` when a drain after the query's end begins, and when it ends.
        self._listeners: list[Callable[[Mapping[str, float]], None]] = []

    def __repr__(self) -> str:
        error = self.exception()
        state = "runs" if self.isActive else "has ended" if error is None else f"failed: {sentence_of(error)}"
        return f"<AccumulatorQuery: {self.name or 'query'} into {self.target} {state}>"

    @property
    def query(self) -> StreamingQuery:
        """Spark's own `StreamingQuery`."""
        return self._query

    @property
    def checkpoint(self) -> str:
        """Folder of the query's checkpoint."""
        return self._sender.checkpoint

    @property
    def id(self) -> str:
        """Id of the query, the same after each restart from its checkpoint."""
        return str(self._query.id)

    @property
    def runId(self) -> str:
        """Id of this run."""
        return str(self._query.runId)

    @property
    def name(self) -> str | None:
        """The ``query_name`` of `write_stream`."""
        return self._query.name

    @property
    def status(self) -> dict[str, Any]:
        """``message``, ``isDataAvailable`` and ``isTriggerActive``."""
        return self._query.status

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last micro-batch."""
        return self._query.lastProgress

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's reports of recent micro-batches."""
        return self._query.recentProgress

    def exception(self) -> StreamingQueryException | None:
        """Return the error that ended the query; None if it is running or ended by itself."""
        return self._query.exception()

    def explain(self, extended: bool = False) -> None:
        """Print the plan of the last micro-batch."""
        self._query.explain(extended)

    @property
    def target(self) -> Target:
        """The table that the query was started for. The sink's own object has facts that only its thread may read."""
        return opened(self._sender.options)

    def metrics(self) -> dict[str, float]:
        """Return the sink's metrics, by the names of `spark_purgatory.metrics`; none under Spark Connect."""
        return {} if is_remote() else self._sender.policy.measure(self._sender.ledger)

    @property
    def isActive(self) -> bool:
        """True if the query is still running. Rows may still be staged after its end."""
        return bool(self._query.isActive)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the query's end. If it ended by itself (availableNow), bring its staged rows to the table.

        With ``drain_at_end=False`` only files that are full or have lingered go, and the rest waits for later runs.

        Raises:
            StreamingQueryException: The query failed.
            StorageError: The query ended, but the table cannot be written. The rows stay staged; call it again.
        """
        ended = self._query.awaitTermination() if timeout is None else self._query.awaitTermination(timeout)
        if (timeout is None or ended) and self._drains_at_end and self._query.exception() is None:
            self._drain(everything=self._sender.options.drain_at_end)
            self._drains_at_end = False
        return ended

    def processAllAvailable(self) -> None:
        """Wait until all rows that the sources have now are staged. `flush` brings them to the table.

        Raises the error that ended the query. Spark's own method would wait for ever, because the heartbeat of
        `write_stream` always has something new.
        """
        before = self._query.lastProgress
        # The current micro-batch may not have seen the newest rows; the next one has.
        last = None if before is None else before["batchId"] + 1
        while self.isActive:
            if (progress := self._query.lastProgress) is not None:
                last = progress["batchId"] if last is None else last
                theirs = [source for source in progress["sources"] if is_theirs(source["description"])]
                has_new = (each["startOffset"] != each["endOffset"] or each["numInputRows"] > 0 for each in theirs)
                if progress["batchId"] > last and not any(has_new):
                    return
            time.sleep(POLL_SECONDS)
        if (error := self._query.exception()) is not None:
            raise error

    def flush(self) -> None:
        """Bring everything staged to the table.

        Raises:
            ConfigError: The query runs under Spark Connect.
            StorageError: The query ended before its rows were in the table.
            ForeignWriterError: Another run of the query uses the checkpoint now.
        """
        self._refuse_callback("flush")
        if not self.isActive:
            self._drain()
            return
        if is_remote():
            raise ConfigError(
                "Spark Connect has no flush() of a running query: the sink runs in the server. Call close(), or "
                "shorten linger"
            )
        self._sender.flush_requested = True
        while self._sender.flush_requested:
            if not self.isActive:
                error = self._query.exception()
                said = "it was stopped" if error is None else sentence_of(error)
                raise StorageError(f"the query ended before it was flushed: {said}")
            time.sleep(POLL_SECONDS)

    def stop(self, drain: bool = False) -> None:
        """Stop the query and wait for a running drain to end. Staged rows wait for the next run.

        It waits up to ten seconds for a pause between micro-batches. A query that is stopped within a micro-batch
        leaves pages of stack traces in Spark's log, and keeps running for a while under Spark Connect.

        Args:
            drain: Bring the staged rows to the table, too.

        Raises:
            StorageError: The table cannot be written, or its history not be read. The rows stay staged; call it again.
            ForeignWriterError: With ``drain``, if another run of the query uses the checkpoint now.
        """
        self._refuse_callback("stop")
        for _ in range(PAUSE_POLLS):
            if not self.isActive or not self._query.status["isTriggerActive"]:
                break
            time.sleep(POLL_SECONDS)
        self._query.stop()
        if drain:
            self._drain()
        elif not is_remote():
            self._await_sender()
            with own_session(self._spark) as own:
                self._sender.end_drain(own)

    def _refuse_callback(self, call: str) -> None:
        if self._sender.policy.calling == get_ident():
            raise ConfigError(f"{call}() in on_delivery would wait for itself: call it in another thread")

    def _await_sender(self) -> None:
        """Wait for the last micro-batch and drain of a query that was stopped. The log is right even without."""
        for _ in range(STOP_POLLS):
            if not (self._sender.is_running or self._sender.beside.is_busy):
                break
            time.sleep(POLL_SECONDS)

    def _drain(self, everything: bool = True) -> None:
        """Bring everything staged to the table, or what is ripe, after the query has ended."""
        if self.isActive:
            raise ConfigError(f"query run {self.runId} is still running: call flush(), or end it by stop(drain=True)")
        self._await_sender()
        is_moved = moved_to(self._spark, self.checkpoint) is not None  # The sender says more.
        for other in [] if is_moved else self._spark.streams.active:
            if other.id == self._query.id:
                raise ForeignWriterError(
                    f"checkpoint {self.checkpoint} is used by query run {other.runId} now, which brings the "
                    f"staged rows to the table. This run, {self._query.runId}, has ended: call flush() or close() on "
                    "the accumulator of the other run"
                )
        with own_session(self._spark) as own:
            if not self._sender.is_true(own):
                last = self._sender
                self._sender = Sender(last.options, last.checkpoint, last.on_delivery, last.names_version)
            if self._listeners and not is_remote():
                ledger = self._sender.open(own)
                counted = sum(piece.rows for piece in ledger.pieces.values())
                self._notify(draining_rows=counted + sum(staged.contents.rows for staged in ledger.uncounted.values()))
            self._sender.drain(own, everything)
        self.target.refresh(self._spark)
        self._notify(draining_rows=0)

    def _notify(self, draining_rows: int) -> None:
        for listener in self._listeners:
            listener({**self.metrics(), "draining_rows": draining_rows})
