"""``spark-purgatory repair``: says which entry of a staging log is the true one, and removes the others."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from spark_purgatory.job.arguments import Consent, log_file, settings_from
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.sink.repair import conflicts, repair
from spark_purgatory.terminal import at_work, say


def show_repair(checkpoint: str, consent: Consent, settings: Sequence[str], console: Console) -> int:
    """Say what repairs a checkpoint, and do it if a person agrees; the exit code."""

    def read() -> None:
        consent.check()
        with at_work(console, "Starting Spark"):
            spark = reading_session(settings_from(settings), log_file(), delta=True)
        with at_work(console, "Reading the staging log and the table"):
            found = conflicts(spark, checkpoint)
        for conflict in found:
            say(console, str(conflict))
        if not found:
            say(console, "No two entries of the staging log differ: there is nothing to repair")
        elif consent.given(console, "All runs of the query must be stopped. Remove the entries that are not true?"):
            repair(spark, checkpoint, found)
            say(console, "Removed what is not true: start the query again")

    return guarded_reading(checkpoint, read)
