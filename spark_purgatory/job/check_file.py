"""``spark-purgatory check``: the faults of a job's file, or what it would run, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.options import TWICE
from spark_purgatory.core.spec.criteria import NUMBERED, ByRow
from spark_purgatory.errors import ConfigError, without_login
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import InputSection, JobConfig
from spark_purgatory.job.source_config import DeltaSource, KafkaSource
from spark_purgatory.terminal import say, terminal

EXIT_CONFIG = 2
FORGOTTEN = (
    "plain Spark forgets names of tables when the job ends, and the next run does not find them. Give path in place of "
    "table, or a persistent catalog (spark: {spark.sql.catalogImplementation: hive})"
)


def check_file(job_file: Path, changes: Sequence[str], console: Console) -> int:
    """Print what a job's file would run; return the exit code: 0, or 2 if the file is wrong."""
    try:
        config = load_config(job_file, changes)
    except ConfigError as error:
        say(terminal(stderr=True), str(error), style="red")
        return EXIT_CONFIG
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in described(config):
        table.add_row(name, without_login(text))
    console.print(table)
    console.print(f"{job_file} is right. Types, expressions and places are checked when the job starts.")
    return 0


def described(config: JobConfig) -> Iterator[tuple[str, str]]:
    """Yield the lines about a job. Values of options and of Spark settings are left out."""
    options = config.options()
    operations, completions = options.operations, options.completions
    yield "job", config.name
    yield "operations", _source_text(config.operations)
    end = f"deadline {operations.deadline}" if operations.timeout is None else f"timeout {operations.timeout}"
    end += f" {operations.timeout_unit}" if operations.timeout_unit else ""
    yield "", f"id {operations.id}, keys {names(operations.keys)}, created {operations.created}, {end}"
    yield "", _delays(operations)
    yield "completions", _source_text(config.completions)
    fields = ("value", "kind", "operation_id", "event_id", "columns")
    others = [f"{name} {names(getattr(completions, name))}" for name in fields if getattr(completions, name)]
    yield "", ", ".join([f"key {completions.key}", f"time {completions.time}", *others])
    yield "", _delays(completions)
    criterion = options.criterion
    if isinstance(criterion, ByRow):
        columns = (f"{name} {value}" for name, value in vars(criterion).items() if value is not None)
        yield "criterion", f"of each row: {', '.join(columns)}"
    else:
        yield "criterion", f"{criterion.rule}({criterion.need if criterion.rule in NUMBERED else ''})"
    if options.may_count_twice:
        yield "", TWICE
    rules = {"emit": options.emit, "shards": options.shards} | config.purgatory.options()
    yield "outcomes", ", ".join(f"{name} {value}" for name, value in rules.items())
    given = config.output.model_fields_set - {"options"}
    yield "output", ", ".join(f"{name} {names(value)}" for name, value in vars(config.output).items() if name in given)
    if forgotten := list(forgotten_names(config)):
        yield "", f"Warning: {', '.join(forgotten)}: {FORGOTTEN}"
    yield "checkpoint", config.checkpoint
    if config.dead_letters is not None:
        kind, place = next((name, place) for name, place in config.dead_letters if place)
        yield "dead letters", f"{kind} {place}, checkpoint {config.dead_letters_checkpoint}"
    if config.metrics is not None:
        shown = config.metrics.model_dump(exclude_defaults=True)
        yield "metrics", ", ".join(f"{name} {value}" for name, value in shown.items())
    trigger = config.trigger
    yield "trigger", "availableNow: until all was read" if trigger.availableNow else f"every {trigger.processingTime}"
    yield "Spark", f"state store {config.state_store}, settings: {', '.join(config.spark) or 'none of its own'}"


def forgotten_names(config: JobConfig) -> Iterator[str]:
    """Yield the names of tables that the session forgets when the job ends, as far as the file shows it."""
    settings = config.spark
    if settings.get("spark.sql.catalogImplementation") == "hive" or "spark.sql.defaultCatalog" in settings:
        return
    letters = config.dead_letters.made() if config.dead_letters else None
    for place in (None if config.output.topic else config.output.made(), letters):
        name = place.table if place else None
        catalog, *rest = (name or "").split(".")
        is_other = len(rest) > 1 and catalog != "spark_catalog"
        if name and not is_other and f"spark.sql.catalog.{catalog if rest else 'spark_catalog'}" not in settings:
            yield name


def _delays(side: Operations | Completions) -> str:
    return f"watermark {side.watermark}" + ("" if side.idle_after is None else f", idle_after {side.idle_after}")


def _source_text(given: InputSection) -> str:
    source = given.source
    if isinstance(source, KafkaSource):
        topics = f"topic {names(source.topic)}" if source.topic else f"topics {source.topic_pattern}"
        place = topics + (", Avro" if source.avro else "")
    elif isinstance(source, DeltaSource):
        place = str(source.path or source.table)
    else:
        place = source.path
    where = f", where {given.where}" if given.where else ""
    return f"{source.format} {place}{where}, select {', '.join(given.select)}"


def names(columns: object) -> str:
    several = columns if isinstance(columns, (list, tuple)) else [columns]
    return ", ".join(map(str, several))
