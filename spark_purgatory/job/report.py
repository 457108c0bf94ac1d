"""``spark-purgatory report``: what the page on a query shows, read from its checkpoint and its table."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.job.status import MicroBatch
from spark_purgatory.job.summary import JobTally, Summary, summarise
from spark_purgatory.spark.checkpoint.gauges import Gauges, counted
from spark_purgatory.spark.checkpoint.pending import pending_in
from spark_purgatory.spark.checkpoint.shard_states import shard_states
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.storage.checkpoint_files import committed_batches
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

TRIES = 3
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
BOUNDS_MS = (  # Between the bars of pictures of ages and waits that range widely
    *(SECOND, 10 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 3 * DAY, 7 * DAY, 30 * DAY, 365 * DAY),
)
STEPS_MS = tuple(  # Widths of the bars of a narrow range
    times * unit
    for unit, several in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (SECOND, (1, 2, 5, 10, 15, 30)),
        (MINUTE, (1, 2, 5, 10, 15, 30)),
        (HOUR, (1, 2, 3, 6, 12)),
        (DAY, (1, 2, 5, 10, 30, 100, 1000, 10_000, 10_000_000)),
    )
    for times in several
)
BARS, FEW_BOUNDS = 10, 4
NEWER = -1  # The bin of negative values: of ages, operations that were created after the watermark
REASONS_SHOWN = ROWS_SHOWN = 10
OF_WAITING = ["report_age_ms", "report_remaining_ms", "report_criterion"]
OF_ROWS = ["report_watch_keys", "report_missing_keys", "report_progress", "report_deadline_at"]


@dataclass(frozen=True)
class EndsNext:
    """An operation that waits."""

    keys: str
    missing: str
    progress: str
    deadline_ms: int


@dataclass(frozen=True)
class Report:
    """The numbers of the page."""

    name: str
    table: str
    checkpoint: str
    made_ms: int
    summary: Summary  # The summary of the table and of what is staged for it
    in_table: int
    gauges: Gauges
    by_hour: dict[str, dict[int, int]] = field(default_factory=dict)  # By status, then by hour since 1970
    # Outcomes by status, pending operations; then by bin: the number of the column's ``bounds_ms`` at or below, `NEWER`
    waits: dict[str, dict[int, int]] = field(default_factory=dict)
    ages: dict[int, int] = field(default_factory=dict)
    remaining: dict[int, int] = field(default_factory=dict)
    bounds_ms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    criteria: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)  # REJECTED operations by reason, the most frequent first
    ends_next: tuple[EndsNext, ...] = ()  # The operations whose deadlines come first; empty if no rows were asked for
    missed: dict[str, int] = field(default_factory=dict)  # Operations by key that several miss, the most first
    history: tuple[MicroBatch, ...] = ()
    moved_on: bool = False  # The query committed a micro-batch while the numbers were read: they may differ by its rows


def read_report(
    spark: SparkSession,
    checkpoint: str,
    sink: RecordAccumulator,
    prefix: str = "",
    rows: bool = False,
    name: str | None = None,
) -> Report:
    """Read what the page shows, up to `TRIES` times if the query runs on meanwhile; ``rows``: also values of rows."""
    for left in range(TRIES - 1, -1, -1):
        try:
            report = _read(spark, checkpoint, sink, prefix, rows)
        except SPARK_FAULTS as error:
            if "FILE_NOT_EXIST" not in str(error) or not left:  # A drain that ended meanwhile removes staged files
                raise
        else:
            if not report.moved_on or not left:
                break
    return replace(report, name=name or report.table.rstrip("/").rpartition("/")[2])


def _read(spark: SparkSession, checkpoint: str, sink: RecordAccumulator, prefix: str, rows: bool) -> Report:
    table = sink.read(spark, staged=True, checkpoint=checkpoint)
    states = shard_states(spark, checkpoint)
    found, received, decided = counted(states)
    waits = pending_in(spark, states, OF_WAITING + OF_ROWS * rows, "report_").persist()  # Decoded once
    try:
        (ages, remaining, criteria), bounds_ms = _of_pending(waits)
        ends_next, missed = _rows_of_pending(waits) if rows else ((), {})
    finally:
        waits.unpersist()
    written = sink.read(spark) if sink.table_exists(spark) else None
    file_bytes = [] if written is None else opened(with_format(spark, sink.options)).file_sizes(spark)
    tally = JobTally(received, decided, criteria.total())
    summary = summarise(table, tally, file_bytes, prefix)
    bounds_ms["wait_ms"] = bounds_of(min(summary.ends_ms, default=0), max(summary.ends_ms, default=0))
    by = _of_table(table, prefix, bounds_ms["wait_ms"])
    reasons = sorted(by["reason"].get("REJECTED", {}).items(), key=lambda each: (each[1], each[0]), reverse=True)
    last = committed_batches(spark, checkpoint)
    return Report(
        name="",
        table=str(sink),
        checkpoint=checkpoint,
        made_ms=time.time_ns() // 1_000_000,
        summary=summary,
        in_table=0 if written is None else written.count(),
        gauges=found,
        by_hour=by["hour"],
        waits=by["wait"],
        ages=ages,
        remaining=remaining,
        bounds_ms=bounds_ms,
        criteria=criteria,
        reasons=dict(reasons[:REASONS_SHOWN]),
        ends_next=ends_next,
        missed=missed,
        history=_history(spark, checkpoint),
        moved_on=found["batch_id"] != (last[-1] if last else None),
    )


def _of_pending(waits: DataFrame) -> tuple[list[Counter[Any]], dict[str, tuple[int, ...]]]:
    """Count what waits by the bins of its age and of its time left, and by criterion; also return the bins' bounds."""
    ends = waits.agg(*(F.array_compact(F.array(F.min(name), F.max(name))) for name in OF_WAITING[:2])).first() or ()
    bounds = [bounds_of(*each) if each else () for each in ends]
    bins = [_bin(F.col(name), each) for name, each in zip(OF_WAITING, bounds, strict=False)]
    counts: list[Counter[Any]] = [Counter(), Counter(), Counter()]
    for *found, count in waits.groupBy(*bins, OF_WAITING[2]).count().collect():
        for at, into in zip(found, counts, strict=True):
            into.update({} if at is None else {at: count})
    return counts, {"age_ms": bounds[0], "remaining_ms": bounds[1]}


def _of_table(table: DataFrame, prefix: str, bounds_ms: tuple[int, ...]) -> dict[str, dict[str, dict[Any, int]]]:
    """Count the outcomes by status, each by its hour, by the bin of its wait, and by the reason if it was REJECTED."""
    status, resolved, wait, reason = (F.col(prefix + name) for name in ("status", "resolved_at", "wait_ms", "reason"))
    by = {
        "hour": F.floor(F.unix_millis(resolved) / HOUR),
        "wait": _bin(wait, bounds_ms),
        "reason": F.when(status == "REJECTED", reason),
    }
    pairs = (F.struct(F.lit(name).alias("by"), column.cast("string").alias("at")) for name, column in by.items())
    each = table.select(status.alias("status"), F.inline(F.array(*pairs))).where("at IS NOT NULL")
    found: dict[str, dict[str, dict[Any, int]]] = {name: {} for name in by}
    for of, name, at, n in each.groupBy("status", "by", "at").count().collect():
        found[name].setdefault(of, {})[at if name == "reason" else int(at)] = n
    return found


def _rows_of_pending(waits: DataFrame) -> tuple[tuple[EndsNext, ...], dict[str, int]]:
    keys, missing = (F.array_join(name, ", ") for name in OF_ROWS[:2])
    ends = waits.select(keys, missing, OF_ROWS[2], F.unix_millis(OF_ROWS[3]).alias("at")).orderBy("at")
    missed = waits.select(F.explode(OF_ROWS[1]).alias("key")).groupBy("key").count().where("count > 1")
    most = missed.orderBy(F.desc("count"), "key").limit(ROWS_SHOWN).collect()
    return tuple(EndsNext(*row) for row in ends.limit(ROWS_SHOWN).collect()), {row["key"]: row["count"] for row in most}


def _bin(column: Column, bounds_ms: tuple[int, ...]) -> Column:
    """Return the number of bounds at or below a value, `NEWER` below 0."""
    count = sum(((column >= bound).cast("int") for bound in bounds_ms), F.lit(0))
    return F.when(column < 0, NEWER).when(column.isNotNull(), count)


def bounds_of(least_ms: int, most_ms: int) -> tuple[int, ...]:
    """Bounds between the bars of values in this range: those of `BOUNDS_MS` within it if several, else equal steps."""
    least_ms, most_ms = max(0, least_ms), max(0, most_ms)
    inside = tuple(bound for bound in BOUNDS_MS if least_ms < bound <= most_ms)
    if len(inside) >= FEW_BOUNDS:
        return inside
    step_ms = next(step for step in STEPS_MS if (most_ms - least_ms) / step <= BARS or step == STEPS_MS[-1])
    return tuple(range((least_ms // step_ms + 1) * step_ms, most_ms + 1, step_ms))


def _history(spark: SparkSession, checkpoint: str) -> tuple[MicroBatch, ...]:
    """The last hundred micro-batches, from Spark's log of offsets."""
    reader = spark.read.text(in_checkpoint(literal(checkpoint.rstrip("/")), "offsets"), wholetext=True)
    rows = reader.select("value", "_metadata.file_name").collect()
    found = (MicroBatch.read(int(name), text) for text, name in rows if name.isdigit())
    return tuple(sorted(found, key=lambda batch: batch.batch_id))
