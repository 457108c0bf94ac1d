"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): `protocol` decides, `spark_actions` do.

Everything here can be rebuilt from the log, and is, when a run starts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.accumulator.futures import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import DeliveryTimeoutError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.drain.failpoints import reach, reach_beside
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.drain.protocol import apply, next_action
from spark_purgatory.spark.sink.drain.spark_actions import SparkActions
from spark_purgatory.spark.sink.staging.ledger import DrainState, Ledger
from spark_purgatory.spark.sink.staging.staged_files import WRITE_SETTINGS
from spark_purgatory.spark.sink.table.formats import opened
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.sink.table.staged_columns import StagedColumns
from spark_purgatory.spark.storage.checkpoint_files import next_batch
from spark_purgatory.spark.storage.spark_access import another_session
from spark_purgatory.spark.storage.storage_errors import out_of_batch


class Beside:
    """A commit beside the micro-batches, one at a time (Kafka: the ``Sender`` is a thread beside the appends).

    The thread writes to the table and does nothing else: the loop takes in its result between two actions, so that the
    ledger and the log have one writer. A crash leaves what it leaves of a commit that failed: an intent, and a commit
    that the table has, or not. The thread has a session of its own, for the settings of a write are the session's. A
    process that ends waits for the thread. Under Spark Connect the loop commits by itself.
    """

    def __init__(self) -> None:
        # Made when they are needed: Spark Connect sends the sink to its server, and no thread can be sent.
        self._thread: ThreadPoolExecutor | None = None
        self._session: SparkSession | None = None
        self._under_way: Future[Result] | None = None

    @property
    def is_busy(self) -> bool:
        """True if a commit is under way."""
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


class Sender:
    """One query run's sink. Called by Spark with each micro-batch, by `flush` without one."""

    def __init__(
        self,
        options: SinkOptions,
        checkpoint: str,
        on_delivery: Callback[Delivery] | None = None,
        since: int = NO_VERSION,
    ) -> None:
        self.options, self.checkpoint, self.on_delivery = options, checkpoint, on_delivery
        self.since = since
        """The table's version whose names of columns the stream has; `NO_VERSION` without a table."""
        self.target = opened(options, since)
        self.policy = PolicyAdapter(options, str(self.target), on_delivery)
        self.actions = SparkActions(options, checkpoint, self.target)
        self.ledger = Ledger()
        self.beside = Beside()
        self.is_open = self.flush_requested = self.is_running = False
        """``is_open``: the log was read."""
        self.has_failed = False
        """The last micro-batch, or drain, raised: what is in memory may not be what is in the log."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch, then drain what is ready."""
        spark = batch.sparkSession
        if self.is_open:
            reach("after return")
        else:
            # The query's own session, not the user's.
            for name, value in WRITE_SETTINGS.items():
                spark.conf.set(name, value)
        try:
            columns = StagedColumns(batch.schema, self.since)
            work = Work(spark, batch_id, batch_id, columns.continued, flush=self.flush_requested, rows=batch)
            self._run(work)
        except Exception as error:
            raise out_of_batch(error) from None
        if work.flush:
            self.flush_requested = False
        reach("before return")

    def drain(self, spark: SparkSession) -> None:
        """Bring everything staged to the table, without a micro-batch."""
        self._run(Work(spark, next_batch(spark, self.checkpoint), flush=True))

    def end_drain(self, spark: SparkSession) -> None:
        """Wait for the drain that is under way, if there is one, and note that it is done."""
        if self.ledger.drain is DrainState.UNDERWAY and not self.has_failed:
            self._run(Work(spark, 0))

    def open(self, spark: SparkSession) -> Ledger:
        """The ledger; the first call in a run reads the log."""
        if not self.is_open:
            self.ledger = self.actions.open(spark)
            self.is_open = True
        return self.ledger

    def _run(self, work: Work) -> None:
        """Do one action after the other; failpoints lie between them."""
        self.is_running = self.has_failed = True
        try:
            self.open(work.spark)
            self.policy.begin(work)
            while not isinstance(action := self._next(work), do.Return):
                reach_beside("before", action)
                result = self._do(action, work)
                self._take_in(action, result, work)
            self.has_failed = False
        finally:
            self.is_running = False

    def is_true(self, spark: SparkSession) -> bool:
        """Return True if what is in memory counts: Spark has committed it, and no other run wrote to the log."""
        if not self.is_open or self.has_failed or self.ledger.last_batch >= next_batch(spark, self.checkpoint):
            return False
        now, run = self.actions.open(spark), self.ledger.run
        made = [path.rsplit("-", 2)[1:] for path in now.records]
        is_other = any(int(number) >= run.number and id != run.id for number, id in made)
        return now.next_drain == self.ledger.next_drain and now.intent == self.ledger.intent and not is_other

    # --- one action ----------------------------------------------------------------------------------------------

    def _next(self, work: Work) -> Action:
        """What is to be done, after the result of a commit beside the micro-batches was taken in."""
        if (result := self.beside.result()) is not None and self.ledger.intent is not None:
            self._take_in(do.Commit(self.ledger.intent), result, work)
        return next_action(self.ledger, self.policy, work, self.policy.now())

    def _do(self, action: Action, work: Work) -> Result:
        match action:
            case do.Admit():
                return action
            case do.Wait(ms):
                self.beside.wait(ms)
                return action
            case do.Stop(DeliveryTimeoutError() as error):
                self.policy.notify(None, error)
            case do.Commit():
                is_beside = work.batch_id is not None and not work.flush

                def commit(own: SparkSession) -> Result:
                    return self.actions.carry_out(action, self.ledger, replace(work, spark=own))

                if is_beside and self.beside.begin(work.spark, commit):
                    return do.Begun()
        return self.actions.carry_out(action, self.ledger, work)

    def _take_in(self, action: Action, result: Result, work: Work) -> None:
        if not isinstance(result, do.Begun):
            reach_beside("after", action)
        apply(self.ledger, result, work)
        self.policy.take_in(self.ledger, action, result)
