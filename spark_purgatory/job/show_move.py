"""``spark-purgatory move`` and ``export-state``: what waits goes to another checkpoint, or into tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import Consent, log_file, settings_from
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.session import build_session, reading_session
from spark_purgatory.job.sources import outcomes_of
from spark_purgatory.spark.move.move import move_checkpoint
from spark_purgatory.spark.move.tables import export_state
from spark_purgatory.terminal import at_work, say


@dataclass(frozen=True)
class MoveRequest:
    """What was asked for on the command line."""

    job_file: Path
    source: str
    partitions: int | None
    tables: str | None
    removed: Sequence[str]
    consent: Consent
    sets: Sequence[str]


def show_move(request: MoveRequest, console: Console) -> int:
    """Move to the checkpoint of a job's file; the exit code."""

    def move() -> None:
        config = load_config(request.job_file, request.sets)
        request.consent.check()
        with at_work(console, "Starting Spark"):
            spark = build_session(config, log_file())
        step = partial(
            move_checkpoint,
            spark,
            outcomes_of(spark, config),
            source=request.source,
            target=config.checkpoint,
            partitions=request.partitions,
            tables=request.tables,
            removed=_removed(request.removed),
            progress=lambda line: say(console, line),
        )
        if not request.consent.yes:
            with at_work(console, "Looking at what waits"):
                say(console, str(step(dry_run=True)))
        if request.consent.given(console, "Move it?"):
            with at_work(console, "Moving what waits"):
                say(console, str(step()))
            say(console, f"Start it: spark-purgatory run {request.job_file}")

    return guarded_reading(request.source, move)


def _removed(given: Sequence[str]) -> dict[str, int]:
    """What ``--removed`` states, by table."""
    pairs = {name: rows for name, _, rows in (each.partition("=") for each in given)}
    if wrong := [name for name, rows in pairs.items() if not rows.isdecimal()]:
        raise ConfigError(f"--removed {wrong[0]}: give a table and how many rows you removed, such as operations=4")
    return {name: int(rows) for name, rows in pairs.items()}


def show_export(checkpoint: str, folder: str, settings: Sequence[str], console: Console) -> int:
    """Write the tables of a checkpoint; the exit code."""

    def export() -> None:
        with at_work(console, "Starting Spark"):
            spark = reading_session(settings_from(settings), log_file())
        with at_work(console, "Reading the checkpoint"):
            counts = export_state(spark, checkpoint=checkpoint, folder=folder)
        told = ", ".join(f"{counts[name]:,} {name}" for name in ("operations", "events", "ids"))
        say(console, f"{folder}: {told}, as micro-batch {counts['batch_id']} left them")

    return guarded_reading(checkpoint, export)
