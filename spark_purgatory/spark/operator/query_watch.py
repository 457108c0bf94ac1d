"""Warnings about a running query that its rows alone can show: a watermark that does not move, and many late rows.

`Purgatory.resolve` adds one listener to the session. Spark reports each micro-batch to it, with the counters of every
purgatory in the query. Each warning comes once for a query. Not under Spark Connect: a listener there is a thread of
the client that keeps its process alive until the listener is removed.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.spark.host.requirements import NO_DATA, ONLY_WITH_ROWS, check_policy, runs_only_with_rows
from spark_purgatory.spark.query_listener import QueryListener

LOG = logging.getLogger(__name__)
STUCK_BATCHES = 3
"""The watermark is made from the rows of earlier micro-batches: the first has none, the second may miss an input."""
LATE_SHARE = 0.05
FEWEST_LATE = 10
"""Late rows of a micro-batch that are worth a warning, however few rows it has."""
STUCK = (
    "query %s: %d micro-batches brought rows and there is no watermark yet, so nothing expires. An input has brought "
    "no row with a time so far. If it may be silent for long, set its idle_after=, which a query takes before its "
    "first start alone; if its times lie ahead, look at max_future="
)
LATE = (
    "query %s, purgatory %s: %d of %d rows of micro-batch %d came behind the watermark (%s), and may be decided "
    "wrongly: an operation is EXPIRED although its event exists. Give the late input a longer watermark=: how far its "
    "rows arrive out of order; for an input with outcomes_of=, as much as the watermark moves in one micro-batch (the "
    "times of this one lie between %s and %s)"
)
CALLS_OF_FOREACH_BATCH = ("pyspark.sql.utils", "pyspark.sql.connect.streaming.worker.foreach_batch_worker")
"""Modules of PySpark whose ``call`` or ``process`` calls the function given to foreachBatch."""
OF_ONE_MICRO_BATCH = (
    "resolve() is called inside foreachBatch: it decides the rows of this micro-batch by themselves, so an operation "
    "whose event comes in a later one is EXPIRED. Give resolve() the streams, and use foreachBatch on its outcomes"
)
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


def watch(options: PurgatoryOptions, stream: DataFrame) -> None:
    """Have the session's queries watched. Warn of a setting that keeps deadlines from firing, refuse early expiry."""
    spark = stream.sparkSession
    check_policy(spark.conf.get, "the session")
    if not is_remote() and spark not in _sessions:
        _sessions.add(spark)
        spark.streams.addListener(_watch)
    if runs_only_with_rows(spark) and not _ticks(options):
        LOG.warning("%s is false: %s", NO_DATA, ONLY_WITH_ROWS)


def warn_inside_foreach_batch() -> None:
    """Warn where a batch is what one micro-batch brought: where Spark's call of a user's function is being made."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in CALLS_OF_FOREACH_BATCH and frame.f_code.co_name in ("call", "process"):
            LOG.warning(OF_ONE_MICRO_BATCH)
            return
        frame = frame.f_back


def _ticks(options: PurgatoryOptions) -> bool:
    """Return True if every micro-batch has rows: heartbeats of an input, or of the purgatory whose outcomes it is."""
    for side in (options.operations, options.completions):
        first = side.outcomes_of
        if side.idle_after is not None or (isinstance(first, PurgatoryOptions) and _ticks(first)):
            return True
    return False


class _QueryWatch(QueryListener):
    """Looks at each progress report that has a purgatory's counters."""

    def __init__(self) -> None:
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
            self._look_at_watermark(progress, counted)
            for name, counters in counted.items():
                self._look_at_late_rows(progress, name, counters)

    def onQueryTerminated(self, event: Any) -> None:
        run = str(event.runId)
        self._stuck.pop(run, None)
        self._warned = {warned for warned in self._warned if warned[0] != run}

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
        """Return True if this run was not warned of it before."""
        if (run, what) in self._warned:
            return False
        self._warned.add((run, what))
        return True


def _received(counters: dict[str, Any]) -> int:
    return (counters["received"] or 0) + (counters["events_received"] or 0)


_watch = _QueryWatch()
_sessions: WeakSet[SparkSession] = WeakSet()
"""Sessions whose queries are watched."""
