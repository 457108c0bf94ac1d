"""``spark-purgatory report``: reads, draws and writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import log_file, place_of, settings_from
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.terminal import at_work, say


def write_report(
    checkpoint: str,
    table: str,
    output: Path,
    name: str | None,
    prefix: str,
    rows: bool,
    settings: Sequence[str],
    console: Console,
) -> int:
    """Write the page; the exit code."""

    def read() -> None:
        try:
            from spark_purgatory.job.report import read_report
            from spark_purgatory.job.report_page import page
        except ImportError as error:
            raise ConfigError("the report draws with matplotlib: pip install 'spark-purgatory[plot]'") from error
        place = place_of(table)
        sink = RecordAccumulator(path=place.get("path"), table=place.get("table"))  # before Spark: it may be refused
        with at_work(console, "Starting Spark"):
            spark = reading_session(settings_from(settings), log_file(), delta=True)
        with at_work(console, "Reading the checkpoint and the table"):
            text = page(read_report(spark, checkpoint, sink, prefix=prefix, rows=rows, name=name))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        say(console, f"Written: {output} ({len(text):,} bytes)")

    return guarded_reading(checkpoint, read)
