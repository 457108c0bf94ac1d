"""``spark-purgatory repair``: says which entry of a staging log is the true one, and removes the others if asked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.sink.repair import conflicts, repair
from spark_purgatory.terminal import at_work, say


def show_repair(checkpoint: str, applies: bool, settings: Sequence[str], console: Console) -> int:
    """Say, and with ``applies`` do, what repairs a checkpoint; the exit code."""

    def read() -> None:
        with at_work(console, "Starting Spark"):
            spark = reading_session(settings_from(settings), log_file(), delta=True)
        with at_work(console, "Reading the staging log and the table"):
            found = conflicts(spark, checkpoint)
        for conflict in found:
            say(console, str(conflict))
        if not found:
            say(console, "No two entries of the staging log differ: there is nothing to repair")
        elif applies:
            repair(spark, checkpoint, found)
            say(console, "Removed what is not true: start the query again")
        else:
            say(console, "Nothing was changed. Stop all runs of the query, then add --apply")

    return guarded_reading(checkpoint, read)
