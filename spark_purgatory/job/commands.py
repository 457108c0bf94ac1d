"""Commands on what a job has written: ``repair``, ``move``, ``export-state``, ``report``, and what all share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ParamSpec

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.errors import ConfigError, PurgatoryError, sentence_of
from spark_purgatory.job.arguments import Consent, log_file, place_of, settings_from, writing_to
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.session import build_session, reading_session
from spark_purgatory.job.sources import outcomes_of
from spark_purgatory.spark.move.move import move_checkpoint
from spark_purgatory.spark.move.tables import export_state
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.repair import conflicts, repair
from spark_purgatory.terminal import at_work, say, terminal

EXIT_FAILED, EXIT_WRONG = 1, 2
P = ParamSpec("P")


def guarded_reading(place: str, read: Callable[P, None], *given: P.args, **named: P.kwargs) -> int:
    """Call ``read`` and return the exit code. An error goes to stderr in one line, a job file's in several."""
    errors = terminal(stderr=True)
    try:
        read(*given, **named)
    except (PurgatoryError, AnalysisException) as error:
        text = sentence_of(error)
        say(errors, text if isinstance(error, JobConfigError) else text.splitlines()[0])
        return EXIT_WRONG
    except PySparkException as error:
        say(errors, f"Spark could not read {place}: {sentence_of(error)}")
        return EXIT_FAILED
    return 0


def started(settings: Sequence[str], console: Console, delta: bool = False) -> SparkSession:
    """Start a session that reads; ``settings``: NAME=VALUE each."""
    with at_work(console, "Starting Spark"):
        return reading_session(settings_from(settings), log_file(), delta=delta)


def show_repair(checkpoint: str, consent: Consent, settings: Sequence[str], console: Console) -> None:
    """Show which entries of a staging log are not true, and remove them if a person agrees."""
    consent.check()
    spark = started(settings, console, delta=True)
    with at_work(console, "Reading the staging log and the table"):
        found = conflicts(spark, checkpoint)
    for conflict in found:
        say(console, str(conflict))
    if not found:
        say(console, "No two entries of the staging log differ: there is nothing to repair")
    elif consent.given(console, "All runs of the query must be stopped. Remove the entries that are not true?"):
        repair(spark, checkpoint, found)
        say(console, "Removed what is not true: start the query again")


def show_move(job_file: Path, changes: Sequence[str], consent: Consent, console: Console, **how: Any) -> None:
    """Move what waits to the checkpoint of a job's file; ``how``: arguments of `move_checkpoint`."""
    config = load_config(job_file, changes)
    consent.check()
    with at_work(console, "Starting Spark"):
        spark = build_session(config, log_file(), short=True)
    how |= {"target": config.checkpoint, "progress": partial(say, console)}
    step = partial(move_checkpoint, spark, outcomes_of(spark, config), **how)
    if not consent.yes:
        with at_work(console, "Looking at what waits"):
            say(console, str(step(dry_run=True)))
    if consent.given(console, "Move it?"):
        with only_run(str(how["source"])), at_work(console, "Moving what waits"):
            say(console, str(step()))
        say(console, f"Start it: spark-purgatory run {job_file}")


def show_export(checkpoint: str, folder: str, settings: Sequence[str], console: Console) -> None:
    spark = started(settings, console)
    with at_work(console, "Reading the checkpoint"):
        counts = export_state(spark, checkpoint=checkpoint, folder=folder)
    written = ", ".join(f"{counts[name]:,} {name}" for name in ("operations", "events", "ids"))
    say(console, f"{folder}: {written}, as of micro-batch {counts['batch_id']}")


def write_report(
    checkpoint: str, table: str, output: Path, settings: Sequence[str], console: Console, **shown: Any
) -> None:
    try:
        from spark_purgatory.job.report import page, read_report
    except ImportError as error:
        raise ConfigError("the report draws with matplotlib: pip install 'spark-purgatory[plot]'") from error
    place = place_of(table)
    sink = RecordAccumulator(path=place.get("path"), table=place.get("table"))
    with writing_to("--output", output):  # Before Spark, as is the table: reading takes a minute
        output.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output.parent).close()
    spark = started(settings, console, delta=True)
    with at_work(console, "Reading the checkpoint and the table"):
        text = page(read_report(spark, checkpoint, sink, **shown))
    with writing_to("--output", output):
        output.write_text(text, encoding="utf-8")
    say(console, f"Written: {output} ({len(text):,} bytes)")
