"""Small requests to Spark: settings for a short time, reads that skip nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

NO_SUCCESS_FILE = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
SMALL_QUERY: Mapping[str, str] = {
    # A handful of rows: compiling and re-planning the query costs more than to run it (110 ms instead of 300).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # Listing more than 32 folders is a job of one task for each folder, where 8 do.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
STRICT_FILES: Mapping[str, str] = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of a reader, which come before the session's settings of the same names: nothing is skipped silently."""


def another_session(spark: SparkSession) -> SparkSession:
    """A session with the settings of this one, for another thread: what one sets then is not the other's."""
    new = spark.newSession()
    known = new.conf.getAll
    for name, value in spark.conf.getAll.items():
        if known.get(name) != value:
            # What Spark refuses to set is the application's, and so the new session's too.
            with suppress(AnalysisException):
                new.conf.set(name, value)
    return new


def make_active(spark: SparkSession) -> None:
    """Make it the session of this thread: without one, Delta looks for a table's catalog in no session at all."""
    spark.createDataFrame([], "nothing int")  # The one way to do so without the JVM.


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Session settings for the duration of a block."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
