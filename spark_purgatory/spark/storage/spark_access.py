"""Small requests to Spark: settings and their values, and a session of the library's own that may have others."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any, cast
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, is_remote

NO_SUCCESS_FILE = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
SMALL_QUERY: Mapping[str, str] = {
    # For a few rows, compiling and re-planning the query costs more than running it (110 ms instead of 300).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    # Listing more than 32 folders is a job of one task for each folder, but 8 tasks are enough.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
"""With format 2 each state has a name that only one run of the query uses, and Spark's commit lists those that count.
With format 1 a run that has ended may still overwrite the state of the next run, in the background."""
STRICT_FILES: Mapping[str, str] = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""Options of a reader that replace the session's settings of the same names, so that nothing is skipped silently."""


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for the duration of a block. Blocks of several threads may overlap.

    The last block to end restores the value from before the first, unless somebody has set another one meanwhile.
    """
    changes = {name: (value,) for name, value in wanted.items()}
    held = _held.setdefault(spark, {})
    try:
        with _changing:
            for name, value in changes.items():
                held.setdefault(name, (spark.conf.get(name, None), []))[1].append(value)
                spark.conf.set(name, value[0])
        yield
    finally:
        with _changing:
            for name, value in changes.items():
                before, values = held.get(name, (None, []))
                if not any(other is value for other in values):
                    continue  # Spark refused one before it.
                values[:] = [other for other in values if other is not value]
                if not values:
                    del held[name]
                if spark.conf.get(name, None) != value[0]:
                    continue
                after = values[-1][0] if values else before
                if after is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, after)


def cores_of(spark: SparkSession) -> int | None:
    """Return the most cores that a session's tasks may have; None if that is not known.

    For a local master a plan shows them, under Spark Connect too. A cluster has its configured maximum.
    """
    if re.match(r"local(\[|$)", setting_of(spark, "spark.master")):
        plan = spark.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
        found = re.search(r"splits=(?:Some\()?(\d+)", plan)
        return int(found[1]) if found else None
    grows = setting_of(spark, "spark.dynamicAllocation.enabled").lower() == "true"
    most = setting_of(spark, "spark.dynamicAllocation.maxExecutors" if grows else "spark.executor.instances")
    each = setting_of(spark, "spark.executor.cores")
    return int(most) * int(each) if most.isdigit() and each.isdigit() else None


def setting_of(spark: SparkSession, name: str) -> str:
    """Return a setting, "" if it is not set or this session may not read it."""
    try:
        return spark.conf.get(name, None) or ""
    except PySparkException:
        return ""


_changing = RLock()
_held: WeakKeyDictionary[SparkSession, dict[str, tuple[str | None, list[tuple[str]]]]] = WeakKeyDictionary()
"""The settings that blocks have changed now, by session: the value before them, and the blocks' values."""


LOG = logging.getLogger(__name__)


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a copy of a session, in which settings can change without the user or another thread seeing it.

    If the platform cannot copy it, as Spark Connect before 4.1, this is the session itself.
    """
    own = copied_session(spark)
    try:
        yield own or spark
    finally:
        if own is not None and is_remote():
            with suppress(Exception):  # The server forgets it later.
                own.client.release_session()
                own.client.close()


def copied_session(spark: SparkSession) -> SparkSession | None:
    """Return a copy of a session; None if the platform has none."""
    try:
        if is_remote():
            return cast("Any", spark).cloneSession()
        from pyspark import RDD  # the client of Spark Connect has none

        to_df = getattr(RDD, "toDF", None)  # Each new session takes the place of the user's there.
        try:
            return SparkSession(spark._sc, cast("Any", spark)._jsparkSession.cloneSession())
        finally:
            if to_df is not None:
                RDD.toDF = to_df  # type: ignore[method-assign]
    except Exception:  # Platforms refuse it in their own ways.
        LOG.debug("this platform does not copy a session", exc_info=True)
        return None


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return the same rows as a DataFrame of another session, which may be the frame's own."""
    if frame.sparkSession is session:
        return frame
    of, to = cast("Any", frame), cast("Any", session)
    if is_remote():
        return cast("DataFrame", type(of)(of._plan, session))
    rows = to._jvm.org.apache.spark.sql.classic.Dataset.ofRows(to._jsparkSession, of._jdf.queryExecution().analyzed())
    return DataFrame(rows, session)
