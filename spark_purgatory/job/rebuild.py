"""``spark-purgatory rebuild``: a job's outcomes decided again, from all rows of its sources, in the job's own table.

A source file was wrong, and the query has read it: its checkpoint cannot take the rows back. But the outcomes are a
function of the sources and the watermark. So a batch query decides them again at the watermark of the checkpoint, and
one transaction of the table replaces the old ones. The query continues afterwards as if nothing had happened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import Consent, log_file
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.session import build_session
from spark_purgatory.job.source_config import DeltaSource, KafkaSource
from spark_purgatory.job.sources import newest_version, purgatory_of, read_input
from spark_purgatory.job.status import instant
from spark_purgatory.job.summary import REBUILD
from spark_purgatory.spark.checkpoint.pending import pending
from spark_purgatory.spark.heartbeat import NEWEST
from spark_purgatory.spark.operator.inputs import instant_ms
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.formats import with_format
from spark_purgatory.spark.storage.checkpoint_files import entry_of, is_within_a_batch, next_batch
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal
from spark_purgatory.terminal import at_work, say, table

OPEN_ID = "spark_purgatory_open_id"
PREFIX = "spark_purgatory_waiting_"
RUN_FIRST = "run the job once, and rebuild again. Nothing was written"


@dataclass(frozen=True)
class RebuildRequest:
    event_time_start: str | None = None
    event_time_end: str | None = None
    """Only outcomes of operations that were created in this time: the end is not included."""
    missing_files_ok: bool = False
    """Decide without files that the job has read and that are gone."""


@dataclass(frozen=True)
class Rebuild:
    """Outcomes that are decided again, and the rows of the table that they replace."""

    decided: DataFrame
    replaced: DataFrame
    kept: DataFrame
    """Rows of the table that stay, of operations that wait in the query or in the batch query."""
    condition: str
    """SQL for the rows that are replaced; empty for all of them."""
    options: SinkOptions
    status: str
    """The name of the status column."""
    as_of_ms: int
    next_batch: int
    """The micro-batch with which the job continues."""
    waiting: int
    """Ids of operations that wait, whose rows stay."""

    @cached_property
    def counts(self) -> dict[str, tuple[int, int]]:
        before, after = (
            {row[0]: row[1] for row in rows.groupBy(f"`{self.status}`").count().collect()}
            for rows in (self.replaced, self.decided)
        )
        return {name: (before.get(name, 0), after.get(name, 0)) for name in sorted({*before, *after})}

    def write(self) -> None:
        outcomes = [rows for status, rows in self.counts.items() if status != "ORPHAN"]
        noted = json.dumps({REBUILD: [sum(before for before, _ in outcomes), sum(after for _, after in outcomes)]})
        rows = self.decided.unionByName(self.kept, allowMissingColumns=True)
        writer = rows.write.format("delta").mode("overwrite").option("userMetadata", noted)
        if self.condition:
            writer = writer.option("replaceWhere", self.condition)
        if self.options.path is None:
            writer.saveAsTable(str(self.options.table))
        else:
            writer.save(self.options.path)


def planned(spark: SparkSession, config: JobConfig, request: RebuildRequest) -> Rebuild:
    """Return what would be rebuilt. Raises ConfigError if the job cannot be."""
    sink = _sink(spark, config)
    begins = next_batch(spark, config.checkpoint)
    as_of_ms = _as_of_ms(spark, config, begins - 1)
    inputs = (
        read_input(spark, config.operations, "operations", is_batch=True),
        read_input(spark, config.completions, "completions", is_batch=True),
    )
    _check_read(spark, config, sink, inputs, begins - 1, missing_ok=request.missing_files_ok)
    decided = purgatory_of(config).resolve(*inputs, as_of=datetime.fromtimestamp(as_of_ms / 1000, UTC))
    decided = decided.localCheckpoint()  # It is counted, compared and written.
    table, condition = sink.read(spark), _condition(spark, config, request, decided.columns)
    status = config.options().prefix + "status"
    waiting = pending(spark, checkpoint=config.checkpoint, prefix=PREFIX)
    open_ids = _open_ids(config, inputs[0], decided.where(f"`{status}` <> 'ORPHAN'"), waiting)
    if condition:
        decided, table = decided.where(condition), table.where(condition)
    is_open = _id_of(config, table.columns) == open_ids[OPEN_ID]
    return Rebuild(
        decided=decided.join(open_ids, _id_of(config, decided.columns) == open_ids[OPEN_ID], "left_anti"),
        replaced=table.join(open_ids, is_open, "left_anti"),
        kept=table.join(open_ids, is_open, "left_semi"),
        condition=condition,
        options=sink.options,
        status=status,
        as_of_ms=as_of_ms,
        next_batch=begins,
        waiting=open_ids.count(),
    )


def _open_ids(config: JobConfig, operations: DataFrame, outcomes: DataFrame, waiting: DataFrame) -> DataFrame:
    """Return the ids of operations that wait in the query, or for which the batch query has no outcome yet.

    After late rows these differ: the query has forgotten what the batch query reads. The rows of such an id are those
    that the query has written and will write, until it waits in neither.
    """
    received, decided = (
        rows.groupBy(_id_of(config, rows.columns).alias(name)).agg(F.count("*").alias(f"{name}_rows"))
        for rows, name in ((operations, OPEN_ID), (outcomes, "decided"))
    )
    both = received.join(decided, F.col(OPEN_ID) == F.col("decided"), "left")
    found = both.where(f"coalesce(decided_rows, 0) < {OPEN_ID}_rows").select(OPEN_ID)
    found = found.union(waiting.select(_id_of(config, waiting.columns).alias(OPEN_ID)))
    return found.dropna().distinct().localCheckpoint()


def _id_of(config: JobConfig, columns: list[str]) -> Column:
    return F.col(_named(str(config.operations.made().id), columns))


def _named(name: str, columns: list[str]) -> str:
    """Return a column in SQL. A field of a struct is named as Spark names it."""
    return f"`{name}`" if name in columns else name


def _check_read(
    spark: SparkSession,
    config: JobConfig,
    sink: RecordAccumulator,
    inputs: tuple[DataFrame, DataFrame],
    batch_id: int,
    missing_ok: bool,
) -> None:
    """Raise ConfigError unless the batch query reads what the job has read: it would decide the rest once more."""
    checkpoint = config.checkpoint
    if staged := sink.read(spark, staged=True, checkpoint=checkpoint).count() - sink.read(spark).count():
        raise ConfigError(
            f"checkpoint={checkpoint!r} has {staged:,} staged rows, which would come into the table twice: run the job "
            "until it has brought them to the table, stop it, and rebuild then"
        )
    if is_within_a_batch(spark, checkpoint):
        raise ConfigError(f"checkpoint={checkpoint!r} has a micro-batch that is not finished: {RUN_FIRST}")
    offsets = [json.loads(line) for line in entry_of(spark, checkpoint, f"offsets/{batch_id}")[1] if line[:1] == "{"]
    log = spark.read.text(in_checkpoint(literal(checkpoint.rstrip("/")), "sources/*/*"))
    entries = log.select(F.get_json_object("value", "$.path").alias("path")).where("path is not null")
    own = f"/{checkpoint.rstrip('/').rpartition('/')[2]}/{NEWEST}/"  # However the checkpoint's path is written.
    read, found = {row.path for row in entries.collect() if own not in row.path}, set[str]()
    for name, rows in zip(("operations", "completions"), inputs, strict=True):
        given = getattr(config, name)
        if isinstance(given.source, DeltaSource):
            new = _new_versions(spark, given.source, offsets)
        else:
            files = set(rows.inputFiles())
            found |= files
            new = len(files - read)
        if new:
            what = "versions" if isinstance(given.source, DeltaSource) else "files"
            raise ConfigError(f"{name}.source has {new:,} {what} that the job has not read: {RUN_FIRST}")
    if (gone := sorted(read - found)) and not missing_ok:
        raise ConfigError(
            f"{len(gone):,} files that the job has read are gone, such as {gone[0]}: without their rows an "
            "operation may have another outcome or none. Nothing was written. Bring the files back, or, if their rows "
            "were wrong, add --missing-files-ok"
        )


def _new_versions(spark: SparkSession, source: DeltaSource, offsets: list[dict[str, Any]]) -> int:
    """Return the number of versions of a Delta table that a job has not read whole."""
    [detail] = spark.sql(f"DESCRIBE DETAIL {source.sql_place}").collect()
    # An offset names the next file: before the first file of a version, its index is negative.
    ends = [
        each["reservoirVersion"] - (each["index"] < 0) for each in offsets if each.get("reservoirId") == detail["id"]
    ]
    return newest_version(spark, source) - max(ends, default=-1)


def _sink(spark: SparkSession, config: JobConfig) -> RecordAccumulator:
    """Return the job's table. Raises ConfigError unless it can be rebuilt."""
    if config.output.topic is not None:
        raise ConfigError(f"output.topic={config.output.topic!r}: only a table can be rebuilt, and this is a topic")
    for name, given in (("operations", config.operations), ("completions", config.completions)):
        if isinstance(given.source, KafkaSource):
            raise ConfigError(f"{name}.source is kafka: only files and Delta tables are read again as a batch")
    sink = RecordAccumulator(**vars(config.output.made()))
    if with_format(spark, sink.options).format != "delta":
        raise ConfigError(f"table {sink} is an Iceberg table: only a Delta table can be rebuilt in one transaction")
    if not sink.table_exists(spark):
        raise ConfigError(f"table {sink} does not exist yet: run the job, which makes it")
    return sink


def _as_of_ms(spark: SparkSession, config: JobConfig, batch_id: int) -> int:
    offsets = f"offsets/{batch_id}"
    watermark_ms = entry_of(spark, config.checkpoint, offsets)[0]["batchWatermarkMs"] if batch_id >= 0 else 0
    if not watermark_ms:
        raise ConfigError(
            f"checkpoint={config.checkpoint!r} has no watermark yet, at which the outcomes could be decided again: "
            "run the job first"
        )
    return int(watermark_ms)


def _condition(spark: SparkSession, config: JobConfig, request: RebuildRequest, columns: list[str]) -> str:
    """Return the condition of the rows in the window. A row without a created time, such as an ORPHAN, has its own."""
    given = {">=": ("--event-time-start", request.event_time_start), "<": ("--event-time-end", request.event_time_end)}
    limits = {sign: instant_ms(spark, text, name) for sign, (name, text) in given.items() if text is not None}
    if not limits:
        return ""
    created, exclude = config.operations.made().created, config.operations.made().names_of("exclude")
    if created in exclude:
        raise ConfigError(f"operations.exclude has {created!r}, by which rows are chosen: rebuild the whole table")
    time = f"coalesce(cast({_named(str(created), columns)} as timestamp), `{config.options().prefix}resolved_at`)"
    return " and ".join(f"{time} {sign} timestamp_millis({ms})" for sign, ms in limits.items())


def show_rebuild(
    job_file: Path, changes: Sequence[str], request: RebuildRequest, consent: Consent, console: Console
) -> None:
    config = load_config(job_file, changes)
    consent.check()
    with only_run(config.checkpoint):
        if _show(config, request, consent, console):
            say(console, f"Rebuilt. The job continues: spark-purgatory run {job_file}")


def _show(config: JobConfig, request: RebuildRequest, consent: Consent, console: Console) -> bool:
    """Return True if the table was rebuilt."""
    with at_work(console, "Starting Spark"):
        spark = build_session(config, log_file(), short=True)
    with at_work(console, "Deciding all rows of the sources again"):
        rebuild = planned(spark, config, request)
        counts = rebuild.counts
    rows = [(status, f"{before:,}", f"{after:,}") for status, (before, after) in counts.items()]
    title = f"Outcomes as of watermark {instant(rebuild.as_of_ms)}"
    console.print(table(title, ("status", "in the table", "decided again"), rows))
    if rebuild.waiting:
        say(
            console,
            f"Rows of {rebuild.waiting:,} operations that wait stay as the job has read them: when they have ended, "
            "rebuild again",
        )
    if not consent.given(console, "The job must be stopped. Replace these rows of its table?"):
        return False
    with at_work(console, "Writing the table"):
        if next_batch(spark, config.checkpoint) != rebuild.next_batch:
            raise ConfigError(
                f"checkpoint={config.checkpoint!r}: the job has run since the rows were decided, and nothing was "
                "written: stop it, and rebuild again"
            )
        rebuild.write()
    return True
