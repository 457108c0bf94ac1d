"""A commit beside the micro-batches, one at a time (Kafka: the ``Sender`` is a thread beside the appends).

The thread writes to the table and does nothing else: the loop takes in its result between two actions, so that the
ledger and the log have one writer. A crash leaves what it leaves of a commit that failed: an intent, and a commit that
the table has, or not. The thread has a session of its own, for the settings of a write are the session's. A process
that ends waits for the thread. Under Spark Connect the loop commits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pyspark.sql import SparkSession, is_remote

from spark_purgatory.spark.sink.drain.actions import Result
from spark_purgatory.spark.storage.spark_access import another_session


class Beside:
    """The thread of one query run."""

    def __init__(self) -> None:
        # Made when they are needed: Spark Connect sends the sink to its server, and no thread can be sent.
        self._thread: ThreadPoolExecutor | None = None
        self._session: SparkSession | None = None
        self._under_way: Future[Result] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._under_way is not None and not self._under_way.done()

    def begin(self, spark: SparkSession, commit: Callable[[SparkSession], Result]) -> bool:
        """Begin a commit in another session like this one; False where there can be none."""
        if is_remote():
            return False
        self._thread = self._thread or ThreadPoolExecutor(1, "spark_purgatory drain")
        session = self._session = self._session or another_session(spark)

        def in_thread() -> Result:
            # Makes it the session of this thread, in which Delta looks for a table's catalog; the one way without JVM.
            session.createDataFrame([], "nothing int")
            return commit(session)

        self._under_way = self._thread.submit(in_thread)
        return True

    def result(self) -> Result | None:
        """What came of a commit, once; it raises what the commit raised. None while there is nothing to be said."""
        if self._under_way is None or not self._under_way.done():
            return None
        ended, self._under_way = self._under_way, None
        return ended.result()

    def wait(self, ms: int) -> None:
        """Wait for the commit that is under way, or let the time pass."""
        wait([self._under_way or Future()], ms / 1000)
