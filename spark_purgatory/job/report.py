"""``spark-purgatory report``: what the page on a query shows, read from its checkpoint and its table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.job.summary import Summary, file_sizes, summarise
from spark_purgatory.job.tally import JobTally, state_tally
from spark_purgatory.spark.checkpoint.gauges import Gauges, gauges
from spark_purgatory.spark.checkpoint.pending import pending
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.storage.commits import committed_batches
from spark_purgatory.spark.storage.paths import in_checkpoint, literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

TRIES = 3
BOUNDS_MS = tuple(
    1000 * seconds
    for seconds in (1, 10, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400)
)
"""Between the bars of pictures of ages and waits."""
NEWER = -1
"""The bin of what is negative: operations that were created after the watermark."""
REASONS_SHOWN = 10
ROWS_SHOWN = 10
MS = 1000.0


@dataclass(frozen=True)
class MicroBatch:
    """When a micro-batch began, and the watermark that it had; 0: none yet."""

    batch_id: int
    began_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class EndsNext:
    """An operation that waits."""

    keys: str
    missing: str
    progress: str
    deadline_ms: int


@dataclass(frozen=True)
class Report:
    """What the page shows, in numbers."""

    table: str
    checkpoint: str
    made_ms: int
    summary: Summary
    """The summary of the table and of what is staged for it."""
    in_table: int
    """Rows of the table."""
    gauges: Gauges
    by_hour: dict[str, dict[int, int]] = field(default_factory=dict)
    """Outcomes by status and by hour of ``resolved_at``, in hours since 1970."""
    waits: dict[str, dict[int, int]] = field(default_factory=dict)
    """Outcomes by status and by bin of ``wait_ms`` (`BOUNDS_MS`)."""
    ages: dict[int, int] = field(default_factory=dict)
    """Pending operations by bin of ``age_ms``; `NEWER`: those created after the watermark."""
    remaining: dict[int, int] = field(default_factory=dict)
    """Pending operations by bin of ``remaining_ms``."""
    criteria: dict[str, int] = field(default_factory=dict)
    """Pending operations by criterion."""
    reasons: dict[str, int] = field(default_factory=dict)
    """REJECTED operations by reason, the most frequent first."""
    ends_next: tuple[EndsNext, ...] = ()
    """The operations whose deadlines come first; empty if no rows were asked for."""
    missed: dict[str, int] = field(default_factory=dict)
    """Keys for which more than one operation waits, and how many do, the most first; empty as `ends_next` is."""
    history: tuple[MicroBatch, ...] = ()
    """The micro-batches that the checkpoint still lists."""
    moved_on: bool = False
    """The query committed a micro-batch while the numbers were read: they may differ by its rows."""


def read_report(
    spark: SparkSession, checkpoint: str, sink: RecordAccumulator, prefix: str = "", rows: bool = False
) -> Report:
    """Read everything that the page shows; again if the query has gone on meanwhile, up to `TRIES` times.

    ``rows``: with some of the operations that wait, which a page for others may not show.
    """
    for left in range(TRIES - 1, -1, -1):
        try:
            report = _read(spark, checkpoint, sink, prefix, rows)
        except SPARK_FAULTS as error:
            # A drain that ended meanwhile has removed staged files.
            if "FILE_NOT_EXIST" not in str(error) or not left:
                raise
            continue
        if not report.moved_on or not left:
            break
    return report


def _read(spark: SparkSession, checkpoint: str, sink: RecordAccumulator, prefix: str, rows: bool) -> Report:
    table = sink.read(spark, staged=True, checkpoint=checkpoint)
    tally = state_tally(spark, checkpoint)
    found = gauges(spark, checkpoint)
    ages, remaining, criteria = _of_pending(spark, checkpoint, found["batch_id"])
    ends_next, missed = _rows_of_pending(spark, checkpoint, found["batch_id"]) if rows else ((), {})
    by_hour: dict[str, dict[int, int]] = {}
    waits: dict[str, dict[int, int]] = {}
    hour = F.floor(F.unix_millis(f"{prefix}resolved_at") / 3_600_000)
    for column, into in (
        (hour, by_hour),
        (F.when(F.col(f"{prefix}wait_ms").isNotNull(), _bin(F.col(f"{prefix}wait_ms"))), waits),
    ):
        counted = table.groupBy(F.col(f"{prefix}status").alias("status"), column.alias("at")).count()
        for row in counted.where("at IS NOT NULL").collect():
            into.setdefault(row["status"], {})[int(row["at"])] = row["count"]
    by_reason = table.groupBy(f"{prefix}status", f"{prefix}reason").count().collect()
    reasons = sorted(((n, reason) for status, reason, n in by_reason if status == "REJECTED"), reverse=True)
    in_table, file_bytes = 0, list[int]()
    if sink.table_exists(spark):
        written = sink.read(spark)
        in_table = written.count()
        file_bytes = file_sizes(written)
    last = committed_batches(spark, checkpoint)
    return Report(
        table=str(sink),
        checkpoint=checkpoint,
        made_ms=int(datetime.now(UTC).timestamp() * MS),
        summary=summarise(table, tally or JobTally(), file_bytes, prefix),
        in_table=in_table,
        gauges=found,
        by_hour=by_hour,
        waits=waits,
        ages=ages,
        remaining=remaining,
        criteria=criteria,
        reasons={reason: n for n, reason in reasons[:REASONS_SHOWN]},
        ends_next=ends_next,
        missed=missed,
        history=_history(spark, checkpoint),
        moved_on=found["batch_id"] != (last[-1] if last else None),
    )


def _of_pending(
    spark: SparkSession, checkpoint: str, batch_id: int | None
) -> tuple[dict[int, int], dict[int, int], dict[str, int]]:
    asked = ["report_age_ms", "report_remaining_ms", "report_criterion"]
    waits = pending(spark, checkpoint, batch_id=batch_id, columns=asked, prefix="report_")
    bins = [F.when(F.col(name) < 0, NEWER).when(F.col(name).isNotNull(), _bin(F.col(name))) for name in asked[:2]]
    rows = waits.groupBy(bins[0].alias("age"), bins[1].alias("left"), asked[2]).count().collect()
    ages: dict[int, int] = {}
    remaining: dict[int, int] = {}
    criteria: dict[str, int] = {}
    for age, left, criterion, count in rows:
        criteria[criterion] = criteria.get(criterion, 0) + count
        for at, into in ((age, ages), (left, remaining)):
            if at is not None:
                into[at] = into.get(at, 0) + count
    return ages, remaining, criteria


def _rows_of_pending(
    spark: SparkSession, checkpoint: str, batch_id: int | None
) -> tuple[tuple[EndsNext, ...], dict[str, int]]:
    columns = ["report_watch_keys", "report_missing_keys", "report_progress", "report_deadline_at"]
    waits = pending(spark, checkpoint, batch_id=batch_id, columns=columns, prefix="report_")
    keys, missing = (F.array_join(name, ", ") for name in columns[:2])
    ends = waits.select(keys, missing, columns[2], F.unix_millis(columns[3]).alias("at")).orderBy("at")
    missed = waits.select(F.explode(columns[1]).alias("key")).groupBy("key").count().where("count > 1")
    most = missed.orderBy(F.desc("count"), "key").limit(ROWS_SHOWN).collect()
    return tuple(EndsNext(*row) for row in ends.limit(ROWS_SHOWN).collect()), {row["key"]: row["count"] for row in most}


def _bin(ms: Column) -> Column:
    """How many of `BOUNDS_MS` are at or below."""
    return sum(((ms >= bound).cast("int") for bound in BOUNDS_MS), F.lit(0))


def _history(spark: SparkSession, checkpoint: str) -> tuple[MicroBatch, ...]:
    """The micro-batches that Spark has begun, from the files that it keeps of each: the last hundred."""
    reader = spark.read.text(in_checkpoint(literal(checkpoint.rstrip("/")), "offsets"), wholetext=True)
    found = []
    for text, name in reader.select("value", "_metadata.file_name").collect():
        if name.isdigit():
            facts = json.loads(text.splitlines()[1])
            found.append(MicroBatch(int(name), facts["batchTimestampMs"], facts["batchWatermarkMs"]))
    return tuple(sorted(found, key=lambda batch: batch.batch_id))
