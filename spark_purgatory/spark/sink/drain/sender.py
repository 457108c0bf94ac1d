"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): `protocol` decides, `spark_actions` act.

A run rebuilds all state here from the log when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.accumulator.policy import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ForeignWriterError, is_interruption, without_login
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.drain.protocol import apply, next_action
from spark_purgatory.spark.sink.drain.spark_actions import SparkActions
from spark_purgatory.spark.sink.staging.ledger import DrainState, Ledger
from spark_purgatory.spark.sink.staging.staged_files import WRITE_SETTINGS
from spark_purgatory.spark.sink.table.column_rules import StagedColumns
from spark_purgatory.spark.sink.table.formats import opened
from spark_purgatory.spark.sink.table.history import NO_VERSION
from spark_purgatory.spark.storage.checkpoint_files import moved_to, next_batch
from spark_purgatory.spark.storage.spark_access import copied_session
from spark_purgatory.spark.storage.storage_errors import out_of_batch


class Beside:
    """Runs one commit at a time in a thread, next to the micro-batches (Kafka: the ``Sender`` thread).

    The thread writes to the table and does nothing else. The loop takes in its result between two actions, so that the
    ledger and the log have one writer. The thread has its own session, because the settings of a write belong to the
    session. Under Spark Connect the loop commits by itself.
    """

    def __init__(self) -> None:
        # Made when needed: Spark Connect pickles the sink for its server, and a thread cannot be pickled.
        self._thread: ThreadPoolExecutor | None = None
        self._session: SparkSession | None = None
        self._under_way: Future[do.Result] | None = None

    @property
    def is_busy(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    def begin(self, spark: SparkSession, commit: Callable[[SparkSession], do.Result]) -> bool:
        """Begin a commit in another session like this one. Return False under Spark Connect, which has none."""
        if is_remote():
            return False
        self._thread = self._thread or ThreadPoolExecutor(1, "spark_purgatory drain")
        session = self._session = self._session or copied_session(spark) or spark.newSession()

        def in_thread() -> do.Result:
            # Makes it the session of this thread, where Delta looks up catalogs. There is no other way without the JVM.
            session.createDataFrame([], "nothing int")
            return commit(session)

        self._under_way = self._thread.submit(in_thread)
        return True

    def result(self) -> do.Result | None:
        """Return the result of a commit that ended, once, or raise its error. None otherwise."""
        if self._under_way is None or not self._under_way.done():
            return None
        ended, self._under_way = self._under_way, None
        return ended.result()

    def wait(self, ms: int) -> None:
        wait([self._under_way or Future()], ms / 1000)


class Sender:
    """The sink of one run of a query. Spark calls it with each micro-batch, `flush` without one."""

    def __init__(
        self,
        options: SinkOptions,
        checkpoint: str,
        on_delivery: Callback[Delivery] | None = None,
        names_version: int = NO_VERSION,
    ) -> None:
        self.options, self.checkpoint, self.on_delivery = options, checkpoint, on_delivery
        self.names_version = names_version  # The table's version whose column names the stream has.
        self.target = opened(options)
        self.policy = PolicyAdapter(options, str(self.target), on_delivery)
        self.actions = SparkActions(options, checkpoint, self.target)
        self.ledger = Ledger()
        self.beside = Beside()
        self.is_open = self.flush_requested = self.is_running = False  # Open: the log was read.
        self.has_failed = False  # The last call raised: memory and log may differ.

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        if self.is_open:
            do.reach("after return")
        else:
            # The query's own session, not the user's.
            for name, value in WRITE_SETTINGS.items():
                spark.conf.set(name, value)
        try:
            columns = StagedColumns(batch.schema, self.names_version)
            work = do.Work(spark, batch_id, batch_id, columns.continued, flush=self.flush_requested, rows=batch)
            self._run(work)
        except Exception as error:
            raise out_of_batch(error) from None
        if work.flush:
            self.flush_requested = False
        do.reach("before return")

    def drain(self, spark: SparkSession, everything: bool = True) -> None:
        """Bring everything staged to the table, or what is ripe, without a micro-batch."""
        if (moved := moved_to(spark, self.checkpoint)) is not None:
            raise ForeignWriterError(
                f"checkpoint {without_login(self.checkpoint)} was moved to {without_login(moved)}, whose query has the "
                "staged rows now. Nothing was written. Call close() for that query"
            )
        self._run(do.Work(spark, next_batch(spark, self.checkpoint), flush=everything, ripe=not everything))

    def end_drain(self, spark: SparkSession) -> None:
        """Wait for a running drain to end, and note that it is done."""
        if self.ledger.drain is DrainState.UNDERWAY and not self.has_failed:
            self._run(do.Work(spark, 0))

    def open(self, spark: SparkSession) -> Ledger:
        """Return the ledger; the first call in a run reads the log."""
        if not self.is_open:
            self.ledger = self.actions.open(spark)
            self.is_open = True
        return self.ledger

    def _run(self, work: do.Work) -> None:
        self.is_running = self.has_failed = True
        try:
            self.open(work.spark)
            self.policy.begin(work)
            result: do.Result | None = None
            while not isinstance(action := self._next(result, work), do.Return):
                result = self._do(action, work)
            self.has_failed = False
        except Exception as error:
            if not is_interruption(error):
                self.policy.notify(None, out_of_batch(error))
            raise
        finally:
            self.is_running = False

    def is_true(self, spark: SparkSession) -> bool:
        """Return True if the state in memory is current: Spark has committed it, and no other run wrote to the log."""
        if not self.is_open or self.has_failed or self.ledger.last_batch >= next_batch(spark, self.checkpoint):
            return False
        now, run = self.actions.open(spark), self.ledger.run
        made = [path.rsplit("-", 2)[1:] for path in now.records]
        is_other = any(int(number) >= run.number and id != run.id for number, id in made)
        return now.next_drain == self.ledger.next_drain and now.intent == self.ledger.intent and not is_other

    def _next(self, result: do.Result | None, work: do.Work) -> do.Action:
        """Take in an action's result, then that of a commit in the thread if it ended, and return the next action."""
        if result is not None:
            self._take_in(result, work)
        if (ended := self.beside.result()) is not None:
            do.reach("after commit")
            self._take_in(ended, work)
        return next_action(self.ledger, self.policy, work, self.policy.now())

    def _take_in(self, result: do.Result, work: do.Work) -> None:
        apply(self.ledger, result, work, self.policy.now())
        self.policy.learn(self.ledger, result)

    def _do(self, action: do.Action, work: do.Work) -> do.Result:
        if isinstance(action, do.Wait):
            self.beside.wait(action.ms)
        if isinstance(action, do.Wait | do.Admit):
            return action
        step = do.STEPS.get(type(action))
        if step is not None:
            do.reach(f"before {step}")

        def carried_out(own: SparkSession) -> do.Result:
            return self.actions.carry_out(action, self.ledger, replace(work, spark=own))

        # Without a micro-batch the session is the user's, and partitions may need another time zone.
        in_thread = bool(self.target.partition_by) if work.batch_id is None else not work.flush
        if isinstance(action, do.Commit) and in_thread and self.beside.begin(work.spark, carried_out):
            return do.Begun()
        result = carried_out(work.spark)
        if step is not None:
            do.reach(f"after {step}")
        return result
