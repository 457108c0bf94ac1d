"""A session of the library's own: a copy of the user's, which can have other settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession, is_remote

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
