"""Warnings about a query: a still watermark, late or rejected rows, no operation that completes, state partitions.

`Purgatory.resolve` adds one listener to the session. Spark reports each micro-batch to it, with the counters of every
purgatory in the query. Each warning is logged once for a query. Spark Connect gets no listener, because it would be a
thread of the client that keeps its process alive.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.schema import COUNTERS, rejected_text
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.operator.stream_plan import Query, queries_in
from spark_purgatory.spark.placement import PARTITIONS, state_partitions, too_many
from spark_purgatory.spark.query_listener import QueryListener, plan_of_query
from spark_purgatory.spark.storage.spark_access import cores_of

LOG = logging.getLogger(__name__)
STUCK_BATCHES = 3  # The watermark is of earlier micro-batches: the first has none, the second may miss an input.
LATE_SHARE = 0.05
FEWEST = 10  # The fewest late rows of a micro-batch, rejected or expired operations of a run, to warn of.
BACKLOG = ". After downtime with idle_after=, first read the backlog with resolve(..., heartbeats=False)"
STUCK = (
    "query %s: %d micro-batches brought rows, but there is no watermark after January 1970, so nothing expires. An "
    "input has had no row with a time so far, or its times are seconds that were read as milliseconds. If it may be "
    "silent for long, set its idle_after= before the first start of the query, or give resolve() checkpoint= and "
    "complete_until=. If its times are in the future, look at max_future="
)
LATE = (
    "query %s, purgatory %s: %d of %d rows of micro-batch %d arrived behind the watermark (%s) and may be decided "
    "wrongly: an operation is EXPIRED although its event exists. Give the late input a longer delay (watermark=). An "
    "input with outcomes_of= needs at least the event time that one micro-batch spans%s"
)
REJECTED_SHARE = 0.9
REJECTED = (
    "%s: %s. Compare key=, time= and value= of Completions with the rows: they may name a wrong column, hold nulls, or "
    "lie further ahead than max_future="
)
ALL_REJECTED = (
    "%s: %d of %d operations were REJECTED; the column reason has the cause. Compare id=, keys=, created= and timeout= "
    "of Operations with the rows: times far in the future are often milliseconds that were read as seconds"
)
NONE_COMPLETES = (
    "%s: %d operations expired and none completed, although %d events came. Compare keys= with key= as text (7 is not "
    "07), and created= with time=: events count from created to the deadline, so a time zone or a unit that only one "
    'input has moves them out. See "Everything expires" in docs/looks_wrong.md'
)
CALLS_OF_FOREACH_BATCH = ("pyspark.sql.utils.call", "pyspark.sql.connect.streaming.worker.foreach_batch_worker.process")
"""Functions of PySpark that call the function given to foreachBatch."""
OF_ONE_MICRO_BATCH = (
    "resolve() is called inside foreachBatch and decides the rows of this micro-batch alone, so an operation whose "
    "event arrives in a later one is EXPIRED. Give resolve() the streams, and use foreachBatch on its outcomes"
)
PIPELINES = "pyspark.pipelines."  # The beginning of names of modules that run a pipeline's definitions.
IN_A_PIPELINE = (
    "this pipeline keeps its state in Spark's 200 partitions, because it does not set %s. Each micro-batch runs a task "
    "and commits a state store for every one of them, and the checkpoint keeps the number. Add to the configuration of "
    'the pipeline, before its first run: %s: "%d"'
)
ENDS = {  # By what is in the error that ended a query.
    "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS": requirements.PASTE,
    r"/state/\d+/\d+/\d+\.changelog does not exist": requirements.other_format("2"),
    r'For input string: "\d+_[0-9a-f-]{36}"': requirements.other_format("2"),  # The same on the log host.
    "STATE_STORE_COMMIT_VALIDATION_FAILED|CheckpointInfo length: 0": "the function given to foreachBatch did not "
    "compute all outcomes, so Spark lacks their state. Delta computes nothing if it skips a write: compute them first "
    "(docs/how-to/other_sinks.md)",
}
NO_WATERMARK = "1970-01-"  # It begins so if it is not set, or has seconds that were read as milliseconds.


def watch(options: PurgatoryOptions, stream: DataFrame) -> None:
    """Watch the session's queries. Warns of settings that delay expiry, and refuses those that make it too early."""
    spark = stream.sparkSession
    requirements.check_streaming(spark.conf.get)
    if is_remote():
        if spark.conf.get(PARTITIONS, None) is None and _is_called_from(lambda name: PIPELINES in name):
            LOG.warning(IN_A_PIPELINE, PARTITIONS, PARTITIONS, state_partitions(options.shards, cores_of(spark)))
    elif spark not in _sessions:
        _sessions.add(spark)
        _watch.cores = cores_of(spark)
        spark.streams.addListener(_watch)
    if requirements.runs_only_with_rows(spark) and not ticks(options):
        LOG.warning("%s is false: %s", requirements.NO_DATA, requirements.ONLY_WITH_ROWS)


def warn_inside_foreach_batch() -> None:
    if _is_called_from(lambda name: name in CALLS_OF_FOREACH_BATCH):
        LOG.warning(OF_ONE_MICRO_BATCH)


def _is_called_from(wanted: Callable[[str], bool]) -> bool:
    """Return True if a function with a wanted name, which includes its module, is being called now."""
    frame = inspect.currentframe()
    while frame is not None and not wanted(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"):
        frame = frame.f_back
    return frame is not None


def ticks(options: PurgatoryOptions) -> bool:
    """Return True if every micro-batch has rows: heartbeats of an input, or of an earlier purgatory's input."""
    sides = options.operations, options.completions
    firsts = (side.outcomes_of for side in sides if side.outcomes_of is not None)
    return any(side.idle_after is not None for side in sides) or any(map(ticks, firsts))


class _QueryWatch(QueryListener):
    def __init__(self) -> None:
        self.cores: int | None = None
        self._queries: dict[str, dict[str, Query]] = {}
        """By run: the purgatories of the query, by name."""
        self._seen: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        """By run and purgatory, "" for the whole run: sums of counters, micro-batches without a watermark, warnings."""

    def onQueryStarted(self, event: Any) -> None:
        self._queries[str(event.runId)] = {
            query.name: query for query in queries_in(plan_of_query([*_sessions], str(event.id)))
        }

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        counted = {
            name: counters
            for name, row in progress.observedMetrics.items()
            if "operations_late" in (counters := row.asDict())
        }
        if counted and "addBatch" in progress.durationMs:
            seen = self._seen[str(progress.runId)]
            self._look_at_partitions(progress, seen[""], counted)
            self._look_at_watermark(progress, seen[""], counted)
            for name, counters in counted.items():
                self._look_at_late_rows(progress, seen[name], name, counters)
                self._look_at_sums(progress, seen[name], name, counters)

    def onQueryTerminated(self, event: Any) -> None:
        for remedy in (remedy for pattern, remedy in ENDS.items() if re.search(pattern, event.exception or "")):
            LOG.error("query %s: %s", event.id, remedy)
        for known in (self._seen, self._queries):
            known.pop(str(event.runId), None)

    def _look_at_partitions(self, progress: Any, seen: Counter[str], counted: dict[str, dict[str, Any]]) -> None:
        found = max((operator.numShufflePartitions for operator in progress.stateOperators), default=0)
        queries = self._queries.get(str(progress.runId), {}).values()
        shards = max((query.shards for query in queries), default=0)
        if queries and (why := too_many(found, shards, self.cores)) and _is_first(seen, "partitions"):
            LOG.warning("query %s: %s", progress.name or progress.id, why)

    def _look_at_watermark(self, progress: Any, seen: Counter[str], counted: dict[str, dict[str, Any]]) -> None:
        if not progress.eventTime.get("watermark", NO_WATERMARK).startswith(NO_WATERMARK):
            seen["stuck"] = 0
            return
        seen["stuck"] += any(_received(counters) for counters in counted.values())
        if seen["stuck"] >= STUCK_BATCHES and _is_first(seen, "watermark"):
            LOG.warning(STUCK, progress.name or progress.id, seen["stuck"])

    def _look_at_late_rows(self, progress: Any, seen: Counter[str], name: str, counters: dict[str, Any]) -> None:
        late = (counters["events_late"] or 0) + (counters["operations_late"] or 0)
        received, queries = _received(counters), self._queries.get(str(progress.runId), {})
        has_ticks = name in queries and queries[name].ticks
        if late >= max(1 if has_ticks else FEWEST, LATE_SHARE * received) and _is_first(seen, "late"):
            at, text, query = progress.eventTime, LATE + BACKLOG * has_ticks, progress.name or progress.id
            times = f" (the times of this one are between {at['min']} and {at['max']})" if "min" in at else ""
            LOG.warning(text, query, name, late, received, progress.batchId, at.get("watermark"), times)

    def _look_at_sums(self, progress: Any, sums: Counter[str], name: str, counters: dict[str, Any]) -> None:
        sums.update({each: counters[each] or 0 for each in COUNTERS}, **(counters.get("rejections") or {}))
        where = f"query {progress.name or progress.id}, purgatory {name}, up to micro-batch {progress.batchId}"
        rejected, events, operations = sums["events_rejected"], sums["events_received"], sums["received"]
        if rejected and rejected >= REJECTED_SHARE * events and _is_first(sums, "events"):
            LOG.warning(REJECTED, where, rejected_text(rejected, events, sums))
        if sums["rejected"] >= max(FEWEST, REJECTED_SHARE * operations) and _is_first(sums, "operations"):
            LOG.warning(ALL_REJECTED, where, sums["rejected"], operations)
        ended = sums["completed"] + sums["failed"] + sums["cancelled"]
        is_silent = not (ended or sums["late"]) and min(sums["expired"], events - rejected) >= FEWEST
        if is_silent and _is_first(sums, "ends"):
            LOG.warning(NONE_COMPLETES, where, sums["expired"], events - rejected)


def _is_first(seen: Counter[str], warning: str) -> bool:
    seen[warning] += 1
    return seen[warning] == 1


def _received(counters: dict[str, Any]) -> int:
    return (counters["received"] or 0) + (counters["events_received"] or 0)


_watch = _QueryWatch()
_sessions: WeakSet[SparkSession] = WeakSet()  # Sessions whose queries are watched
