"""The Sender's loop, run by each micro-batch (Kafka: ``Sender.runOnce``): `protocol` decides, Spark does.

Everything here can be rebuilt from the log, and is, when a run starts.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.accumulator.futures import Callback
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import DeliveryTimeoutError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.drain.beside import Beside
from spark_purgatory.spark.sink.drain.failpoints import reach
from spark_purgatory.spark.sink.drain.policy_adapter import Delivery, PolicyAdapter
from spark_purgatory.spark.sink.drain.protocol import apply, next_action
from spark_purgatory.spark.sink.staging.ledger import DrainState, Failed, Intent, Ledger, Names, Piece, StagedBatch
from spark_purgatory.spark.sink.staging.staged_files import (
    PIECES_PER_FILE,
    WRITE_SETTINGS,
    Rules,
    quoted,
    read_files,
    reading,
    rules_of,
)
from spark_purgatory.spark.sink.staging.stager import Stager
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import NO_VERSION, Commit, History
from spark_purgatory.spark.sink.table.table_truth import TableState, TableTruth, app_id_of
from spark_purgatory.spark.storage import storage_errors
from spark_purgatory.spark.storage.commits import next_batch
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, is_interruption, said, state_fault, storage_fault

LOG = logging.getLogger(__name__)
DRAIN_QUERY = {
    **WRITE_SETTINGS,
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A file is a task of the shuffle: it may be neither split nor merged with another one.
    "spark.sql.adaptive.enabled": "false",
    # A variant is read whole anyway, and Spark's reader of parts of one fails where it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
}
WARN_AT = 0.8
"""A warning is logged once so much of buffer_memory is staged."""
MAX_FULL = 1.25
"""A file may be so much larger than wanted before it is cut."""


class Sender:
    """One query run's sink. Called by Spark with each micro-batch, by `flush` without one."""

    def __init__(self, options: SinkOptions, checkpoint: str, on_delivery: Callback[Delivery] | None = None) -> None:
        self.options = options
        self.checkpoint = checkpoint
        self.on_delivery = on_delivery
        self.target = DeltaTarget(options)
        self.stager = Stager(checkpoint)
        self.truth = TableTruth(self.target, checkpoint)
        self.policy = PolicyAdapter(options, str(self.target), on_delivery)
        self.ledger = Ledger()
        self.flush_requested = False
        self.is_running = False
        self.has_failed = False
        """The last micro-batch, or drain, raised: what is in memory may not be what is in the log."""
        self._is_open = False
        self._checked: TableState | None = None
        """The table as an intent saw it, for the commit that follows at once."""
        self._rules: dict[str, Rules] = {}
        """By schema."""
        self.beside = Beside()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch, then drain what is ready."""
        if self._is_open:
            reach("after return")
        else:
            # The query's own session, not the user's.
            for name, value in WRITE_SETTINGS.items():
                batch.sparkSession.conf.set(name, value)
        work = Work(batch_id, batch_id, batch.schema.json(), self.flush_requested)
        try:
            self._run(batch.sparkSession, work, batch)
        except SPARK_FAULTS as error:
            if state := state_fault(error):
                raise state from error
            raise
        if work.flush:
            self.flush_requested = False
        reach("before return")

    def drain(self, spark: SparkSession) -> None:
        """Bring everything staged to the table, without a micro-batch."""
        before = 0 if self._is_open else next_batch(spark, self.checkpoint)
        self._run(spark, Work(before, flush=True), None)

    def end_drain(self, spark: SparkSession) -> None:
        """Wait for the drain that is under way, if there is one, and note that it is done."""
        if self.ledger.drain is DrainState.UNDERWAY and not self.has_failed:
            self._run(spark, Work(0), None)

    def _run(self, spark: SparkSession, work: Work, batch: DataFrame | None) -> None:
        """Do one action after the other; failpoints lie between them."""
        self.is_running = self.has_failed = True
        try:
            self.open(spark)
            work.begun_ms = self.policy.now()
            while not isinstance(action := self._next(work), do.Return):
                if name := getattr(action, "name", None):
                    reach(f"before {name}")
                self._take_in(action, self._do(spark, action, work, batch), work)
            self.has_failed = False
        finally:
            self.is_running = False

    @property
    def is_busy(self) -> bool:
        """Whether it is in a micro-batch, or brings rows to the table beside them."""
        return self.is_running or self.beside.is_busy

    def _next(self, work: Work) -> Action:
        """What is to be done, after the result of a commit beside the micro-batches was taken in."""
        if (result := self.beside.result()) is not None and self.ledger.intent is not None:
            self._take_in(do.Commit(self.ledger.intent), result, work)
        return next_action(self.ledger, self.policy, work, self.policy.now())

    def _take_in(self, action: Action, result: Result, work: Work) -> None:
        name = getattr(action, "name", None)
        if name and not isinstance(result, do.Begun):
            reach(f"after {name}")
        apply(self.ledger, result)
        self._tell(action, result, work)

    def open(self, spark: SparkSession) -> None:
        """Once in a run: read the log."""
        if self._is_open:
            return
        self.truth.app_id = app_id_of(spark, self.checkpoint)
        self.ledger = self.stager.open(spark)
        self.ledger.names = Names(self.checkpoint, self.stager.folder, str(self.target), self.truth.app_id)
        self._is_open = True

    def is_last(self, spark: SparkSession) -> bool:
        """Whether no other run has written to the log since this one did: what is in memory is true only then."""
        if not self._is_open:
            return False
        now, run = self.stager.open(spark), self.ledger.run
        made = [path.rsplit("-", 2)[1:] for path in now.records]
        is_other = any(int(number) >= run.number and id != run.id for number, id in made)
        return now.next_drain == self.ledger.next_drain and now.intent == self.ledger.intent and not is_other

    # --- actions -------------------------------------------------------------------------------------------------

    def _do(self, spark: SparkSession, action: Action, work: Work, batch: DataFrame | None) -> Result:
        ledger = self.ledger
        match action:
            case do.Look():
                return self.look(spark)
            case do.Adopt(before):
                return do.Adopted(self.stager.find(spark, ledger, before), before)
            case do.Skip() if batch is not None:
                _evaluate(batch)
            case do.Stage() if batch is not None:
                return do.Staged(self._stage(spark, batch, work), work.schema)
            case do.Count(batches):
                return do.Counted(self.stager.count(spark, ledger, batches))
            case do.Intend():
                return self._intend(spark, action, work)
            case do.Commit(intent):
                self.policy.take_again()
                if batch is None or intent.direct or work.flush:
                    return self._commit(spark, intent, batch if intent.direct else None)
                is_begun = self.beside.begin(spark, lambda own: self._commit(own, intent, None))
                return do.Begun() if is_begun else self._commit(spark, intent, None)
            case do.ReadBack(intent):
                return self._read_back(spark, intent, batch)
            case do.CleanUp():
                self.stager.clean_up(spark, ledger)
            case do.Wait(ms):
                self.beside.wait(ms)
            case do.Stop(error):
                if isinstance(error, DeliveryTimeoutError):
                    self.policy.notify(None, error)
                if ledger.incoming is not None:
                    self.stager.remove(spark, ledger.incoming)
                raise error from None
        assert isinstance(action, do.Skip | do.Admit | do.CleanUp | do.Wait)
        return action

    def look(self, spark: SparkSession) -> do.Looked:
        """Compare the log, which is open, with the table; changes nothing. TableLostError, ForeignWriterError."""
        ledger = self.ledger
        state = self.truth.look(spark, ledger)
        self.truth.compare(ledger, state)
        intent = None if ledger.is_done else ledger.intent
        commit = None if intent is None else self.truth.found(state.history, intent)
        if commit is not None:
            self.truth.check_restore(replace(ledger, table_version=commit.version), state.history)
        if intent is None:
            drains = f"drain {ledger.next_drain - 1} is complete" if ledger.intent else "no drain so far"
            LOG.info("start: table %s, checkpoint %s: %s (case A, B, C or F)", self.target, self.checkpoint, drains)
        elif commit is not None:
            said = "drain %d was committed to table %s; its clean-up follows (case E)"
            LOG.warning(f"recovery: {said}", intent.number, self.target)
        elif state.history.is_whole_since(intent.base_version):
            LOG.warning("recovery: drain %d was not committed to table %s; again (case D)", intent.number, self.target)
        else:
            LOG.warning(
                "recovery: the history of table %s was cut since version %d, so whether drain %d was committed is "
                "unknown; again, and Delta skips it if it was (case D or E)",
                self.target,
                intent.base_version,
                intent.number,
            )
        return do.Looked(state.facts.id if state.facts else None, commit)

    def _stage(self, spark: SparkSession, batch: DataFrame, work: Work) -> StagedBatch:
        if work.schema not in self._rules:
            self._rules[work.schema] = rules_of(batch.schema, self.options, self.target.partition_by)
        epoch, number = self.ledger.next_drain, work.before
        path = self.ledger.run.batch_path(epoch, number)
        max_rows = max(1, self.policy.sizes.rows_for("", self.policy.batch_bytes) // PIECES_PER_FILE)
        staged = StagedBatch(number, epoch, self.policy.now(), path)
        rules = self._rules[work.schema]
        staged = self.stager.stage(spark, self.ledger, batch, staged, work.schema, rules, max_rows)
        return replace(staged, staged_ms=self.policy.now())

    def _intend(self, spark: SparkSession, action: do.Intend, work: Work) -> Result:
        ledger = self.ledger
        taken = self.policy.take(action.partitions) or action.taken
        schema = (ledger.schema if taken else work.schema) or ""
        try:
            state = self.truth.check(spark, ledger, ledger.table_id, schema)
        except SPARK_FAULTS as error:
            if not action.partitions or is_interruption(error):
                raise
            return _failed(error)
        table_id = state.facts.id if state.facts else None
        intent = ledger.intent_of(taken, action.batch_id, schema, table_id, state.history.version, uuid=str(uuid4()))
        self.stager.intend(spark, intent)
        self._checked = state
        return do.Intended(intent)

    def _commit(self, spark: SparkSession, intent: Intent, direct: DataFrame | None) -> Result:
        ledger, files = self.ledger, _by_partition(intent.taken)
        partition_by = self.target.partition_by
        try:
            state, self._checked = self._checked, None
            state = state or self.truth.check(spark, ledger, ledger.table_id or intent.table_id, intent.schema)
            self.stager.check_pieces(spark, ledger, intent.taken)
            with settings(spark, DRAIN_QUERY):
                if direct is not None:
                    rows = direct.repartition(*map(quoted, partition_by)) if partition_by else direct
                    max_rows = self.policy.sizes.rows_for("", self.policy.batch_bytes)
                else:
                    schema = T.StructType.fromJson(json.loads(intent.schema))
                    sorted_by = self.target.names_in_rows(partition_by, schema)
                    rows = read_files(spark, self.stager.folder, schema, files, sorted_by)
                    max_rows = self._max_file_rows(files)
                with reading(f"the staged files of drain {intent.number}", self.stager.folder):
                    app_id = self.truth.app_id
                    self.target.append(rows, app_id, intent.number, intent.uuid, max_rows, partition_by)
        except SPARK_FAULTS as error:
            is_of_rows = direct is not None and storage_fault(error) is None and not storage_errors.is_of_table(error)
            if is_interruption(error) or is_of_rows or state_fault(error) is not None:
                raise
            return replace(_failed(error), is_once=not self.policy.open)
        return do.Committed(state.history.version)

    def _max_file_rows(self, files: Sequence[Sequence[Piece]]) -> int:
        """One file each (0), but for those that are larger than they should be: then all are cut as these need it."""
        most = []
        for pieces in files:
            staged_bytes = sum(piece.staged_bytes for piece in pieces)
            file_bytes = self.policy.sizes.file_bytes(pieces[0].partition, staged_bytes)
            if file_bytes > self.policy.batch_bytes * MAX_FULL:
                rows = sum(piece.rows for piece in pieces)
                most.append(math.ceil(rows / math.ceil(file_bytes / self.policy.batch_bytes)))
        return min(most, default=0)

    def _read_back(self, spark: SparkSession, intent: Intent, batch: DataFrame | None) -> Result:
        """Step 5. SkippedWriteError, ForeignWriterError, TableLostError."""
        ledger = self.ledger
        try:
            if ledger.drain is DrainState.WRITTEN and ledger.before_version is not None:
                read, table_id = self.truth.read_back(spark, intent, ledger.before_version)
                result = do.Found(table_id, read)
            else:
                facts = self.target.facts(spark)
                history = self.target.history(spark, intent.base_version) if facts else History(())
                commit = self.truth.found(history, intent)
                if commit is None or facts is None:
                    return do.NotThere()
                result = do.Found(facts.id, commit)
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            raise StorageError(
                f"drain {intent.number} to table {self.target} "
                f"{f'failed ({ledger.failure.said})' if ledger.failure else 'ended'}, and whether it arrived cannot be "
                f"read: {said(error)}. Nothing was lost. Mend the table and start again"
            ) from None
        if result.commit.version == NO_VERSION and intent.direct and batch is not None:
            _evaluate(batch)
        return result

    # --- what follows --------------------------------------------------------------------------------------------

    def _tell(self, action: Action, result: Result, work: Work) -> None:
        """What came of an action, to the policy and to the log."""
        ledger, policy = self.ledger, self.policy
        match result:
            case do.Looked(_, commit) | do.Found(_, commit) if commit is not None and ledger.fault is None:
                self._settle(commit, work)
            case do.Adopted():
                # The delivery time-out begins anew, or rows that have waited for it could never leave.
                policy.append(list(ledger.pieces.values()), policy.now() - policy.linger_ms)
            case do.Skip() | do.Staged():
                work.is_evaluated = True
            case do.Counted(pieces) if isinstance(action, do.Count) and not ledger.incoming_pieces:
                policy.counted(action.batches, pieces)
                self._warn()
            case do.Intended(intent) if intent.last_batch == work.batch_id and not policy.open and intent.taken:
                policy.note_sizes(intent.taken)
            case do.Committed() if ledger.awaits_direct:
                work.is_evaluated = True
        is_retry = (isinstance(result, Failed) and ledger.is_done) or isinstance(result, do.NotThere)
        if is_retry and ledger.failure is not None:
            policy.retry(ledger.failure.said)
            self._log_retry(ledger.failure)

    def _settle(self, commit: Commit, work: Work) -> None:
        intent, policy = self.ledger.intent, self.policy
        assert intent is not None
        is_whole = not policy.open and intent.last_batch == work.batch_id and work.is_evaluated
        policy.settle(intent, commit, work.batch_id if is_whole else None)
        LOG.info(
            "drain %d to table %s: %d rows in %d files, %d bytes, %d ms, version %d",
            intent.number,
            self.target,
            commit.rows or intent.taken_rows,
            commit.files or 0,
            commit.bytes or 0,
            policy.drain_ms,
            commit.version,
        )

    def _log_retry(self, failure: Failed) -> None:
        batches = self.policy.open
        if batches and not self.policy.is_out_of_time:
            LOG.warning(
                "drain of %d files to table %s failed (attempt %d), next attempt in %d ms: %s",
                len(batches),
                self.target,
                max(batch.attempts for batch in batches),
                max(batch.backoff_ms for batch in batches),
                failure.said,
            )

    def _warn(self) -> None:
        staged_bytes, limit = self.ledger.staged_bytes, self.policy.buffer_bytes
        if staged_bytes >= limit * WARN_AT:
            said_part = "%d bytes are staged for table %s, %d %% of buffer_memory (%d bytes)"
            LOG.warning(said_part, staged_bytes, self.target, 100 * staged_bytes // limit, limit)

    def measure(self) -> dict[str, float]:
        """The sink's metrics, by the names of `spark_purgatory.metrics`."""
        return self.policy.measure(self.ledger)


def _evaluate(batch: DataFrame) -> None:
    """Run a micro-batch whose rows are not wanted: Spark's state must be committed."""
    batch.write.format("noop").mode("overwrite").save()


def _failed(error: Exception) -> Failed:
    return Failed(
        said(error), is_refused=isinstance(error, AnalysisException), is_lasting=storage_errors.is_lasting(error)
    )


def _by_partition(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], ...]:
    grouped: dict[str, list[Piece]] = {}
    for piece in pieces:
        grouped.setdefault(piece.partition, []).append(piece)
    return tuple(tuple(group) for group in grouped.values())
