"""What commands share that read what a job has written."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import AnalysisException, PySparkException

from spark_purgatory.errors import PurgatoryError, sentence_of
from spark_purgatory.job.config_file import JobConfigError
from spark_purgatory.terminal import say, terminal

EXIT_FAILED, EXIT_WRONG = 1, 2


def guarded_reading(place: str, read: Callable[[], None]) -> int:
    """Call ``read``; the exit code, 0 if it raised nothing, with the error on stderr if it did: in one line, but a
    job file's problems are one a line.
    """
    errors = terminal(stderr=True)
    try:
        read()
    except (PurgatoryError, AnalysisException) as error:
        text = sentence_of(error)
        say(errors, text if isinstance(error, JobConfigError) else text.splitlines()[0])
        return EXIT_WRONG
    except PySparkException as error:
        say(errors, f"Spark could not read {place}: {sentence_of(error)}")
        return EXIT_FAILED
    return 0
