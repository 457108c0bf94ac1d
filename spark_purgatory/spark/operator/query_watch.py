"""Warnings about a running query: a watermark that does not move, many late rows, state partitions that only cost.

`Purgatory.resolve` adds one listener to the session. Spark reports each micro-batch to it, with the counters of every
purgatory in the query. Each warning is logged once for a query. Spark Connect gets no listener, because it would be a
thread of the client that keeps its process alive.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.placement import PARTITIONS, most_shards, state_partitions, too_many
from spark_purgatory.spark.query_listener import QueryListener
from spark_purgatory.spark.storage.spark_access import cores_of

LOG = logging.getLogger(__name__)
STUCK_BATCHES = 3
"""The watermark is that of the rows of earlier micro-batches: the first has none, the second may miss an input."""
LATE_SHARE = 0.05
FEWEST_LATE = 10
"""The fewest late rows of a micro-batch that cause a warning."""
STUCK = (
    "query %s: %d micro-batches brought rows, but there is no watermark yet, so nothing expires. An input has had no "
    "row with a time so far. If it may be silent for long, set its idle_after= before the first start of the query. If "
    "its times are in the future, look at max_future="
)
LATE = (
    "query %s, purgatory %s: %d of %d rows of micro-batch %d arrived behind the watermark (%s) and may be decided "
    "wrongly: an operation is EXPIRED although its event exists. Give the late input a longer watermark=, the time by "
    "which its rows arrive out of order. For an input with outcomes_of= it is the time that the watermark moves in one "
    "micro-batch (the times of this one are between %s and %s)"
)
CALLS_OF_FOREACH_BATCH = ("pyspark.sql.utils.call", "pyspark.sql.connect.streaming.worker.foreach_batch_worker.process")
"""Functions of PySpark that call the function given to foreachBatch."""
OF_ONE_MICRO_BATCH = (
    "resolve() is called inside foreachBatch and decides the rows of this micro-batch alone, so an operation whose "
    "event arrives in a later one is EXPIRED. Give resolve() the streams, and use foreachBatch on its outcomes"
)
PIPELINES = "pyspark.pipelines."
"""The beginning of the names of modules that run the definitions of a declarative pipeline."""
IN_A_PIPELINE = (
    "this pipeline keeps its state in Spark's 200 partitions, because it does not set %s. Each micro-batch runs a task "
    "and commits a state store for every one of them, and the checkpoint keeps the number. Add to the configuration of "
    'the pipeline, before its first run: %s: "%d"'
)
NO_ROCKSDB = "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"
NO_CHANGELOG = re.compile(r"/state/\d+/\d+/\d+\.changelog does not exist")
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


def watch(options: PurgatoryOptions, stream: DataFrame) -> None:
    """Watch the session's queries. Warns of settings that delay expiry, and refuses those that make it too early."""
    spark = stream.sparkSession
    requirements.check_streaming(spark.conf.get)
    if not is_remote() and spark not in _sessions:
        _sessions.add(spark)
        _watch.cores = cores_of(spark)
        spark.streams.addListener(_watch)
    _watch.shards[options.name] = options.shards
    if is_remote() and spark.conf.get(PARTITIONS, None) is None and _is_called_from(lambda name: PIPELINES in name):
        LOG.warning(IN_A_PIPELINE, PARTITIONS, PARTITIONS, state_partitions(options.shards, cores_of(spark)) or 8)
    if requirements.runs_only_with_rows(spark) and not _ticks(options):
        LOG.warning("%s is false: %s", requirements.NO_DATA, requirements.ONLY_WITH_ROWS)


def warn_inside_foreach_batch() -> None:
    """Warn if Spark is calling a user's function with the rows of one micro-batch."""
    if _is_called_from(lambda name: name in CALLS_OF_FOREACH_BATCH):
        LOG.warning(OF_ONE_MICRO_BATCH)


def _is_called_from(wanted: Callable[[str], bool]) -> bool:
    """Return True if a function with a wanted name, which includes its module, is being called now."""
    frame = inspect.currentframe()
    while frame is not None:
        if wanted(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"):
            return True
        frame = frame.f_back
    return False


def _ticks(options: PurgatoryOptions) -> bool:
    """Return True if every micro-batch has rows: heartbeats of an input, or of an earlier purgatory's input."""
    for side in (options.operations, options.completions):
        first = side.outcomes_of
        if side.idle_after is not None or (isinstance(first, PurgatoryOptions) and _ticks(first)):
            return True
    return False


class _QueryWatch(QueryListener):
    def __init__(self) -> None:
        self.cores: int | None = None
        self.shards: dict[str, int | None] = {}
        """The shards of each purgatory by name. If two have one name, the last counts."""
        self._stuck: dict[str, int] = {}
        self._warned: set[tuple[str, str]] = set()

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        counted = {
            name: counters
            for name, row in progress.observedMetrics.items()
            if "operations_late" in (counters := row.asDict())
        }
        if counted and "addBatch" in progress.durationMs:
            self._look_at_partitions(progress, counted)
            self._look_at_watermark(progress, counted)
            for name, counters in counted.items():
                self._look_at_late_rows(progress, name, counters)

    def onQueryTerminated(self, event: Any) -> None:
        run = str(event.runId)
        if NO_ROCKSDB in (event.exception or ""):
            LOG.error("query %s: %s", event.id, requirements.PASTE)
        if NO_CHANGELOG.search(event.exception or ""):
            LOG.error("query %s: %s", event.id, requirements.other_format("2"))
        self._stuck.pop(run, None)
        self._warned = {warned for warned in self._warned if warned[0] != run}

    def _look_at_partitions(self, progress: Any, counted: dict[str, dict[str, Any]]) -> None:
        found = max((operator.numShufflePartitions for operator in progress.stateOperators), default=0)
        shards = most_shards(self.shards.get(name) for name in counted)
        if (why := too_many(found, shards, self.cores)) and self._is_first(str(progress.runId), "partitions"):
            LOG.warning("query %s: %s", progress.name or progress.id, why)

    def _look_at_watermark(self, progress: Any, counted: dict[str, dict[str, Any]]) -> None:
        run = str(progress.runId)
        if progress.eventTime.get("watermark", NO_WATERMARK) != NO_WATERMARK:
            self._stuck.pop(run, None)
            return
        if any(_received(counters) for counters in counted.values()):
            self._stuck[run] = self._stuck.get(run, 0) + 1
        if self._stuck.get(run, 0) >= STUCK_BATCHES and self._is_first(run, "watermark"):
            LOG.warning(STUCK, progress.name or progress.id, self._stuck[run])

    def _look_at_late_rows(self, progress: Any, name: str, counters: dict[str, Any]) -> None:
        late = (counters["events_late"] or 0) + (counters["operations_late"] or 0)
        received = _received(counters)
        if late < max(FEWEST_LATE, LATE_SHARE * received) or not self._is_first(str(progress.runId), name):
            return
        times = (progress.eventTime.get(which) for which in ("watermark", "min", "max"))
        LOG.warning(LATE, progress.name or progress.id, name, late, received, progress.batchId, *times)

    def _is_first(self, run: str, what: str) -> bool:
        if (run, what) in self._warned:
            return False
        self._warned.add((run, what))
        return True


def _received(counters: dict[str, Any]) -> int:
    return (counters["received"] or 0) + (counters["events_received"] or 0)


_watch = _QueryWatch()
_sessions: WeakSet[SparkSession] = WeakSet()
