"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): `protocol` decides, `SparkActions` act.

A run rebuilds all state here from the log when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, is_remote

from spark_purgatory.accumulator.policy import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import (
    BugError,
    ForeignWriterError,
    StorageError,
    is_interruption,
    sentence_of,
    without_login,
)
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import table_truth
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.drain.protocol import apply, next_action
from spark_purgatory.spark.sink.staging import staged_files
from spark_purgatory.spark.sink.staging.ledger import (
    DrainState,
    EmptyRun,
    Failed,
    Ledger,
    Names,
    StagedBatch,
    by_partition,
    done_entry,
    empty_entry,
)
from spark_purgatory.spark.sink.staging.staged_files import WRITE_SETTINGS, StagedFiles
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.column_rules import StagedColumns
from spark_purgatory.spark.sink.table.formats import opened
from spark_purgatory.spark.sink.table.history import NO_VERSION, Mark, TableLook
from spark_purgatory.spark.sink.table.table_place import app_id_of
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import moved_to, next_batch, repartitions_in
from spark_purgatory.spark.storage.spark_access import copied_session, settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, lasting_remedy, out_of_batch, without_reach

DRAIN_QUERY = {
    **WRITE_SETTINGS,
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A file is a task of the shuffle: it may be neither split nor merged with another one.
    "spark.sql.adaptive.enabled": "false",
    # Another policy would cut numbers if someone creates the table meanwhile, with narrower columns.
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # A variant is read whole anyway, and Spark's reader of parts of one fails where it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
}


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


class SparkActions:
    """The actions of a run on Spark: jobs, entries of the staging log, transactions of the table.

    Nothing here changes the ledger or decides what comes next.
    """

    def __init__(self, options: SinkOptions, checkpoint: str, target: Target) -> None:
        self.checkpoint, self.target = checkpoint, target
        self.folder = StagingFolder(checkpoint)
        self.files = StagedFiles(self.folder.uri, options, target.partition_by)

    def open(self, spark: SparkSession) -> Ledger:
        self.folder = StagingFolder.of(spark, self.checkpoint)
        self.folder.synchronise()
        ledger = read_ledger(spark, self.folder)
        ledger.run = replace(ledger.run, id=uuid4().hex[:8])
        checkpoint, app_id = without_login(self.checkpoint), app_id_of(spark, self.checkpoint)
        ledger.names = Names(checkpoint, self.folder.uri, str(self.target), app_id, self.target.sql_place)
        return ledger

    def carry_out(self, action: do.Action, ledger: Ledger, work: do.Work) -> do.Result:
        """Do one action and return its result. `Stop` raises its error."""
        try:
            return self._carry_out(action, ledger, work)
        except SPARK_FAULTS as error:
            if is_interruption(error) or isinstance(action, do.Stage | do.Skip):
                raise
            said = sentence_of(error)
            is_before_drain = isinstance(action, do.Count) and ledger.is_done and ledger.incoming is None
            if is_before_drain or isinstance(action, do.Intend | do.Check | do.Commit):
                return Failed(said, lasting_remedy(error))
            if not isinstance(action, do.ReadBack):
                if (remedy := without_reach(error)) is None:
                    raise
                raise StorageError(f"{said}. Nothing was lost. Start again; if it fails again, {remedy}") from None
            ended = f"failed ({ledger.failure.said})" if ledger.failure else "ended"
            raise StorageError(
                f"drain {action.intent.number} to table {self.target} {ended}, and the table cannot be read to see if "
                f"it was committed: {said}. Nothing was lost. Repair the table and start again"
            ) from None

    def _carry_out(self, action: do.Action, ledger: Ledger, work: do.Work) -> do.Result:
        spark = work.spark
        match action:
            case do.Look():
                return table_truth.look(ledger, self.target.state(spark, ledger.first_needed_version))
            case do.Renumber(intent):
                return do.Renumbered(self.folder.intend(spark, intent))
            case do.Adopt():
                pieces = self.files.found_before(spark, ledger, work.before)
                return do.Adopted(pieces, self._repartitions(spark, ledger, ledger.unknown(pieces, work.before)))
            case do.Skip():
                return do.Skipped(self.files.evaluate(work.rows))
            case do.Stage(now_ms, max_file_rows):
                epoch, path = ledger.next_drain, ledger.run.batch_path(ledger.next_drain, work.before)
                found = self.files.stage(work.rows, path, max_file_rows)
                staged = StagedBatch(work.before, epoch, now_ms, path, *found)
                schema = work.schema_after(ledger.schema)
                other = None if schema == ledger.schema else schema
                self.folder.record(spark, staged, ledger.empty_run(work.before), other)
                return do.Staged(staged)
            case do.Count(batches):
                return do.Counted(batches, self.files.count_batches(spark, batches))
            case do.Intend(intent):
                looked = self.check_table(spark, ledger, ledger.table_id, intent.schema)
                table_id, version = looked.facts.id if looked.facts else None, looked.history.version
                intent = replace(intent, table_id=table_id, schema=looked.columns, base_version=version)
                return do.Intended(self.folder.intend(spark, intent), looked)
            case do.Check(intent):
                return do.Checked(self.check_table(spark, ledger, ledger.table_id or intent.table_id, intent.schema))
            case do.Commit():
                return self.commit(ledger, action, spark)
            case do.ReadBack():
                return self.read_back(spark, ledger, action)
            case do.CleanUp():
                entry, idle = done_entry(ledger), ledger.idle_folders()
                self.folder.clean_up(spark, ledger.next_drain - 1, entry, idle)
                return action
            case do.Stop(error):
                if ledger.incoming is not None:
                    self.folder.remove(spark, ledger.incoming.path)
                raise error from None
        raise BugError(f"{action!r} is not done on Spark")

    def _repartitions(self, spark: SparkSession, ledger: Ledger, unknown: Sequence[int]) -> list[int]:
        """Return the micro-batches that Spark's ``repartition`` made, and note that they have no rows."""
        found = repartitions_in(spark, self.checkpoint, unknown)
        for number in found:
            note = EmptyRun(number, number, ledger.run.number)
            self.folder.write_entry(spark, ledger.next_drain, *empty_entry(note))
        return found

    def check_table(self, spark: SparkSession, ledger: Ledger, table_id: str | None, schema: str | None) -> TableLook:
        looked = self.target.check(spark, table_id, schema or "", ledger.table_version)
        table_truth.check_restore(ledger.names, ledger.table_version, looked.history)
        return looked

    def commit(self, ledger: Ledger, action: do.Commit, spark: SparkSession) -> do.Result:
        intent, looked = action.intent, action.looked
        schema, files = StagedColumns.of(intent.schema or "").rows, [*by_partition(intent.taken).values()]
        with settings(spark, DRAIN_QUERY):
            self.files.count_again(spark, action.to_count)
            partition_by = (looked.facts and looked.facts.partition_by) or self.target.partition_by
            folders = [name for name in partition_by if name in schema.names]
            rows = staged_files.read_files(spark, self.folder.uri, schema, files, folders)
            mark = Mark(ledger.names.app_id, intent.number, intent.uuid)
            with staged_files.reading(f"the staged files of drain {intent.number}", f"{self.folder.uri}/rows"):
                is_alone = partial(self.folder.check_alone, spark, intent)
                self.target.append(rows, looked, mark, action.max_file_rows, is_alone)
        return do.Committed()

    def read_back(self, spark: SparkSession, ledger: Ledger, action: do.ReadBack) -> do.Found | do.NotThere:
        intent, looked = action
        state = self.target.state_after(spark, ledger.names.app_id, intent, looked)
        found = table_truth.read_back(ledger, intent, state)
        if isinstance(found, do.Found):
            before = ledger.before_version if ledger.drain is DrainState.WRITTEN else intent.base_version
            self.target.settle(spark, state, before, found.commit)
        return found


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
