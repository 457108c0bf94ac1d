"""`monitor`: samples of a running query for reporters.

Spark calls the listener after each micro-batch. Its report has no totals, because a micro-batch calls only the shards
that it touches. `gauges` reads them from the checkpoint at intervals, in a thread of its own.
"""

from __future__ import annotations

import ast
import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.sql import SparkSession, is_remote
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory.config.units import Duration, parse_duration
from spark_purgatory.errors import ConfigError, PurgatoryError, sentence_of
from spark_purgatory.metrics import Reporter, Sample
from spark_purgatory.metrics.catalog import BY_NAME, Labels
from spark_purgatory.schema import EVENT_REJECTIONS, REJECTION_COUNTERS, REJECTIONS
from spark_purgatory.spark.checkpoint.pending import Gauges, gauges
from spark_purgatory.spark.heartbeat import is_theirs
from spark_purgatory.spark.query_listener import QueryListener
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)
FAULTS: tuple[type[Exception], ...] = (PurgatoryError, *SPARK_FAULTS)
"""Errors in reading the state that stop neither the query nor its other metrics."""
COUNTED: dict[str, tuple[str, Labels]] = {
    "batches": ("batches_total", ()),
    "received": ("operations_received_total", ()),
    **{status: ("outcomes_total", (status,)) for status in BY_NAME["outcomes_total"].labels[0][1]},
    **{f"rejected_{reason}": ("rejected_total", (reason,)) for reason in REJECTIONS},
    **{name: (f"{name}_total", ()) for name in ("events_received", "events_late", "operations_late")},
    **{f"events_rejected_{reason}": ("events_rejected_total", (reason,)) for reason in EVENT_REJECTIONS},
}
"""Counters of a micro-batch, and the metric that adds them up. "batches" is 1 in each micro-batch."""


def monitor(
    query: StreamingQuery | AccumulatorQuery,
    *reporters: Reporter,
    checkpoint: str | None = None,
    gauges_every: Duration = "1 minute",
    name: str = "spark_purgatory",
) -> QueryMonitor:
    """Give a sample of a running query to each reporter after every micro-batch, until the query ends.

    Counters include earlier micro-batches that Spark still reports: the last 100
    (``spark.sql.streaming.numRecentProgressUpdates``). If there is one, the first sample is given at once.

    Args:
        query: The query that ``write_stream`` or ``writeStream.start()`` returned.
        reporters: Functions that take a `Sample`: `metrics.prometheus`, `metrics.opentelemetry`, `metrics.progress`,
            or your own. An error in one is logged, and the query continues.
        checkpoint: The query's ``checkpointLocation``, from which the metrics of the state are read. That of a
            `RecordAccumulator` is known. Without one these metrics are left out.
        gauges_every: The interval between reads of these metrics, which are Spark jobs over the whole state.
        name: The purgatory's ``name``, under which its counters are observed.

    Returns:
        The monitor: ``last`` is its last sample, and ``stop()`` ends it.

    Raises:
        ConfigError: There is no reporter.

    Example::

        query_monitor = monitor(query, print)
    """
    if not reporters:
        raise ConfigError("monitor(query) has no reporter: give metrics.prometheus(port=9108), or a function")
    if checkpoint is None and isinstance(query, AccumulatorQuery):
        checkpoint = query.checkpoint
    every_ms = parse_duration(gauges_every, "gauges_every") // 1000
    return QueryMonitor(query, reporters, checkpoint, every_ms, name)


class QueryMonitor(QueryListener):
    """Takes the samples of one query. `monitor` makes it."""

    def __init__(
        self,
        query: StreamingQuery | AccumulatorQuery,
        reporters: tuple[Reporter, ...],
        checkpoint: str | None,
        gauges_every_ms: int,
        counters: str,
    ) -> None:
        self.last: Sample | None = None
        """The last sample; None before the first micro-batch."""
        self._label, self._run_id, self._counters = query.name or str(query.id), str(query.runId), counters
        self._spark, self._query, self._reporters = _session_of(query), query, reporters
        self._checkpoint, self._gauges_every_ms = checkpoint, gauges_every_ms
        self._totals: dict[str, dict[Labels, float]] = {}
        self._gauges: Gauges | None = None
        self._gauges_ms, self._last_batch, self._stopped = 0, -1, False
        self._reading, self._taking = threading.Lock(), threading.Lock()
        if isinstance(query, AccumulatorQuery) and not is_remote():
            # A drain reports since the last micro-batch, perhaps after the query's end.
            query._listeners.append(partial(self._report_more, at_end=True))
        with self._taking:
            self._spark.streams.addListener(self)
            # This is read before the reports, which are complete if the query has ended by now.
            has_ended = not query.isActive
            earlier = [progress for progress in query.recentProgress if _ran(progress)]
            for progress in earlier[:-1]:
                self._add(progress)
            for progress in earlier[-1:]:
                self._sample(progress)
        if has_ended:
            self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "listens"
        return f"<QueryMonitor of {self._label}: {state}, last micro-batch {self._last_batch}>"

    def stop(self) -> None:
        """Take no more samples. The end of the query calls it too."""
        if self._stopped:
            return
        self._stopped = True
        # A thread of its own, because Spark waits for its listeners, and cannot remove one that is being called.
        threading.Thread(target=self._spark.streams.removeListener, args=(self,), daemon=True).start()

    def onQueryProgress(self, event: Any) -> None:
        """Take in the report of a micro-batch once."""
        progress = event.progress
        if str(progress.runId) == self._run_id and _ran(progress):
            with self._taking:
                if progress.batchId > self._last_batch:
                    self._sample(progress)

    def onQueryTerminated(self, event: Any) -> None:
        if str(event.runId) == self._run_id:
            self.stop()

    def _sample(self, progress: Any) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._add(progress)
        theirs = (source for source in progress.sources if is_theirs(source.description))
        last: dict[str, float] = {
            "batch_duration_ms": progress.durationMs["triggerExecution"],
            "batch_input_rows": sum(max(0, source.numInputRows) for source in theirs),
        }
        if (lag := lag_records(progress.sources)) is not None:
            last["source_lag_records"] = lag
        if (watermark_ms := watermark_ms_of(progress.eventTime.get("watermark"))) is not None:
            last["watermark_lag_ms"] = now_ms - watermark_ms
        if isinstance(self._query, AccumulatorQuery):
            last |= self._query.metrics()
        self._read_gauges(now_ms)
        if self._gauges is not None:
            last |= _of_gauges(self._gauges)
        totals = {metric: dict(by_labels) for metric, by_labels in self._totals.items()}
        self._report(now_ms, {**totals, **_unlabelled(last)})

    def _add(self, progress: Any) -> None:
        self._last_batch = progress.batchId
        observed = progress.observedMetrics.get(self._counters)
        counters = {} if observed is None else observed.asDict()
        if counters:
            counters |= {**dict.fromkeys(REJECTION_COUNTERS, 0), **(counters.pop("rejections", None) or {})}
        for name, added in {**counters, "batches": 1}.items():
            if name in COUNTED:
                metric, labels = COUNTED[name]
                by_labels = self._totals.setdefault(metric, {})
                by_labels[labels] = by_labels.get(labels, 0) + (added or 0)
        if counters:
            self._totals["state_bytes_written"] = {(): counters.get("state_bytes_written") or 0}

    def _report_more(self, values: Mapping[str, float], at_end: bool = False) -> None:
        with self._taking:
            if self.last is not None:
                self._report(time.time_ns() // 1_000_000, dict(self.last.values) | _unlabelled(values), at_end)

    def _report(self, now_ms: int, values: Mapping[str, Mapping[Labels, float]], at_end: bool = False) -> None:
        if self._stopped and not at_end:
            return
        self.last = sample = Sample(self._label, now_ms, values, self._last_batch)
        for reporter in self._reporters:
            try:
                reporter(sample)
            except Exception:
                LOG.warning("a reporter of query %s raised; the query goes on", self._label, exc_info=True)

    def _read_gauges(self, now_ms: int) -> None:
        if self._checkpoint is None or now_ms - self._gauges_ms < self._gauges_every_ms:
            return
        if self._reading.acquire(blocking=False):
            self._gauges_ms = now_ms
            threading.Thread(target=self._read, args=(self._checkpoint,), daemon=True).start()

    def _read(self, checkpoint: str) -> None:
        try:
            self._gauges = gauges(self._spark, checkpoint=checkpoint)
            self._report_more(_of_gauges(self._gauges))
        except FAULTS as error:
            said = "the state of query %s could not be read for its metrics: %s"
            LOG.warning(said, self._label, sentence_of(error))
        finally:
            self._reading.release()


def _session_of(query: StreamingQuery | AccumulatorQuery) -> SparkSession:
    """Return the session that runs the query, because a listener of another one, such as a drain's, is not called."""
    active, usual = SparkSession.getActiveSession(), SparkSession.builder.getOrCreate()
    known = [session for session in (active, usual) if session is not None]
    return next((each for each in known if str(query.id) in (str(one.id) for one in each.streams.active)), known[0])


def _unlabelled(values: Mapping[str, float]) -> dict[str, Mapping[Labels, float]]:
    return {name: {(): value} for name, value in values.items()}


def _of_gauges(found: Gauges) -> dict[str, float]:
    """Return the metrics of the state. Ages and times are measured at the watermark."""
    values: dict[str, float] = {
        name: found[name] for name in ("pending", "watched", "state_bytes", "shards", "largest_shard_state_bytes")
    }
    if found["pending"]:
        values["shard_skew"] = found["largest_shard_pending"] * found["shards"] / found["pending"]
    if found["watermark_ms"] and found["oldest_created_ms"] is not None:
        values["oldest_pending_age_ms"] = max(0, found["watermark_ms"] - found["oldest_created_ms"])
    if found["watermark_ms"] and found["next_due_ms"] is not None:
        values["next_deadline_ms"] = max(0, found["next_due_ms"] - found["watermark_ms"])
    return values


def _ran(progress: Any) -> bool:
    """Return True for a report of a micro-batch. Spark also reports that there was nothing to do."""
    return "addBatch" in progress.durationMs


def lag_records(sources: Iterable[Any]) -> int | None:
    """Return Kafka's records that a micro-batch left unread when it was planned; None without Kafka."""
    behind = None
    for source in sources:
        if str(source.description).startswith("Kafka") and source.latestOffset and source.endOffset:
            read = offset_of(source.endOffset) or {}
            for topic, partitions in (offset_of(source.latestOffset) or {}).items():
                for partition, latest in partitions.items():
                    behind = (behind or 0) + max(0, latest - read.get(topic, {}).get(partition, 0))
    return behind


def offset_of(text: str) -> Any:
    """Return a source's offset. In a report from JSON, PySpark 4.0 and 4.1 write offsets as Python does."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return ast.literal_eval(text)


def watermark_ms_of(text: str | None) -> int | None:
    """Return the watermark of a progress report; None if there is none yet, which Spark writes as 1970."""
    if not text or text.startswith("1970-01-01T00:00:00.000"):
        return None
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
