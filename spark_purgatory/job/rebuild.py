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

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import Consent, log_file
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.session import build_session
from spark_purgatory.job.source_config import KafkaSource
from spark_purgatory.job.sources import purgatory_of, read_input
from spark_purgatory.job.status import instant
from spark_purgatory.job.table_changes import REBUILD
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.operator.inputs import instant_ms
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.formats import with_format
from spark_purgatory.spark.storage.checkpoint_files import committed_batches, entry_of
from spark_purgatory.terminal import at_work, say


@dataclass(frozen=True)
class RebuildRequest:
    as_of: str | None = None
    """The watermark at which everything is decided; None: that of the job's checkpoint."""
    event_time_start: str | None = None
    event_time_end: str | None = None
    """Only outcomes of operations that were created in this time: the end is not included."""


@dataclass(frozen=True)
class Rebuild:
    """Outcomes that are decided again, and the rows of the table that they replace."""

    decided: DataFrame
    replaced: DataFrame
    condition: str
    """SQL for the rows that are replaced; empty for all of them."""
    options: SinkOptions
    status: str
    """The name of the status column."""

    @cached_property
    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the rows of each status before and after."""
        before, after = (
            {row[0]: row[1] for row in rows.groupBy(f"`{self.status}`").count().collect()}
            for rows in (self.replaced, self.decided)
        )
        return {name: (before.get(name, 0), after.get(name, 0)) for name in sorted({*before, *after})}

    def write(self) -> None:
        """Replace the rows in one transaction of the table."""
        outcomes = [rows for status, rows in self.counts.items() if status != "ORPHAN"]
        noted = json.dumps({REBUILD: [sum(before for before, _ in outcomes), sum(after for _, after in outcomes)]})
        writer = self.decided.write.format("delta").mode("overwrite").option("userMetadata", noted)
        if self.condition:
            writer = writer.option("replaceWhere", self.condition)
        if self.options.path is None:
            writer.saveAsTable(str(self.options.table))
        else:
            writer.save(self.options.path)


def planned(spark: SparkSession, config: JobConfig, request: RebuildRequest) -> tuple[Rebuild, int]:
    """Return what would be rebuilt, and the watermark in milliseconds. Raises ConfigError if the job cannot be."""
    sink = _sink(spark, config)
    as_of_ms = _as_of_ms(spark, config, request)
    inputs = (
        read_input(spark, config.operations, "operations", is_batch=True),
        read_input(spark, config.completions, "completions", is_batch=True),
    )
    decided = purgatory_of(config).resolve(*inputs, as_of=datetime.fromtimestamp(as_of_ms / 1000, UTC))
    table, condition = sink.read(spark), _condition(spark, config, request, decided.columns)
    if condition:
        decided, table = decided.where(condition), table.where(condition)
    return Rebuild(decided, table, condition, sink.options, config.options().prefix + "status"), as_of_ms


def _sink(spark: SparkSession, config: JobConfig) -> RecordAccumulator:
    """Return the job's table. Raises ConfigError unless all that the job has decided is in it."""
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
    if is_checkpoint(spark, config.checkpoint):
        whole = sink.read(spark, staged=True, checkpoint=config.checkpoint)
        if staged := whole.count() - sink.read(spark).count():
            raise ConfigError(
                f"checkpoint={config.checkpoint!r} has {staged:,} staged rows, which would come into the table twice: "
                "run the job until it has brought them to the table, stop it, and rebuild then"
            )
    return sink


def _as_of_ms(spark: SparkSession, config: JobConfig, request: RebuildRequest) -> int:
    if request.as_of is not None:
        return instant_ms(spark, request.as_of, "--as-of")
    batches = committed_batches(spark, config.checkpoint) if is_checkpoint(spark, config.checkpoint) else []
    watermark_ms = entry_of(spark, config.checkpoint, f"offsets/{batches[-1]}")[0]["batchWatermarkMs"] if batches else 0
    if not watermark_ms:
        raise ConfigError(
            f"checkpoint={config.checkpoint!r} has no watermark yet, at which the outcomes could be decided again: "
            "run the job first, or give --as-of"
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
    name = f"`{created}`" if created in columns else created  # A field of a struct is named as Spark names it.
    time = f"coalesce(cast({name} as timestamp), `{config.options().prefix}resolved_at`)"
    return " and ".join(f"{time} {sign} timestamp_millis({ms})" for sign, ms in limits.items())


def show_rebuild(
    job_file: Path, changes: Sequence[str], request: RebuildRequest, consent: Consent, console: Console
) -> None:
    """Show what a rebuild would change, and make the change if a person agrees."""
    config = load_config(job_file, changes)
    consent.check()
    with at_work(console, "Starting Spark"):
        spark = build_session(config, log_file(), short=True)
    with at_work(console, "Deciding all rows of the sources again"):
        rebuild, as_of_ms = planned(spark, config, request)
        counts = rebuild.counts
    table = Table(title=f"Outcomes as of watermark {instant(as_of_ms)}", title_justify="left")
    table.add_column("status")
    for name in ("in the table", "decided again"):
        table.add_column(name, justify="right")
    for status, rows in counts.items():
        table.add_row(status, *(f"{count:,}" for count in rows))
    console.print(table)
    if consent.given(console, "The job must be stopped. Replace these rows of its table?"):
        with at_work(console, "Writing the table"):
            rebuild.write()
        say(console, f"Rebuilt. The job continues: spark-purgatory run {job_file}")
