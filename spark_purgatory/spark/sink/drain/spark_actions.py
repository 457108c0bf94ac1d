"""The actions of the sink on Spark: jobs, entries of the staging log, transactions of the table.

Nothing here changes the ledger or decides what comes next (`protocol`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from spark_purgatory import errors
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import BugError, StorageError, is_interruption, sentence_of
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import table_truth
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
from spark_purgatory.spark.sink.staging.staged_files import StagedFiles
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.column_rules import StagedColumns
from spark_purgatory.spark.sink.table.history import Mark, TableLook
from spark_purgatory.spark.sink.table.table_place import app_id_of
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import repartitions_in
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, lasting_remedy, without_reach

DRAIN_QUERY = {
    **staged_files.WRITE_SETTINGS,
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A file is a task of the shuffle: it may be neither split nor merged with another one.
    "spark.sql.adaptive.enabled": "false",
    # Another policy would cut numbers if someone creates the table meanwhile, with narrower columns.
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # A variant is read whole anyway, and Spark's reader of parts of one fails where it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
}


class SparkActions:
    """The actions of a run, in the session of its micro-batches or in that of a drain in the thread."""

    def __init__(self, options: SinkOptions, checkpoint: str, target: Target) -> None:
        self.checkpoint, self.target = checkpoint, target
        self.folder = StagingFolder(checkpoint)
        self.files = StagedFiles(self.folder.uri, options, target.partition_by)

    def open(self, spark: SparkSession) -> Ledger:
        self.folder = StagingFolder.of(spark, self.checkpoint)
        self.folder.synchronise()
        ledger = read_ledger(spark, self.folder)
        ledger.run = replace(ledger.run, id=uuid4().hex[:8])
        checkpoint, app_id = errors.without_login(self.checkpoint), app_id_of(spark, self.checkpoint)
        ledger.names = Names(checkpoint, self.folder.uri, str(self.target), app_id, self.target.sql_place)
        return ledger

    def carry_out(self, action: do.Action, ledger: Ledger, work: do.Work) -> do.Result:
        """Do one action and return its result. `Stop` raises its error."""
        try:
            return self._carry_out(action, ledger, work)
        except SPARK_FAULTS as error:
            if is_interruption(error):
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
                return do.Counted(batches, self.files.count_batches(spark, ledger.schema, batches))
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
        """Do step 5."""
        intent, looked = action.intent, action.looked
        schema, files = StagedColumns.of(intent.schema or "").rows, [*by_partition(intent.taken).values()]
        with settings(spark, DRAIN_QUERY):
            self.files.count_again(spark, ledger.schema, action.to_count)
            folders = self.target.folders_of(schema, looked.facts)
            rows = staged_files.read_files(spark, self.folder.uri, schema, files, folders)
            mark = Mark(ledger.names.app_id, intent.number, intent.uuid)
            with staged_files.reading(f"the staged files of drain {intent.number}", f"{self.folder.uri}/rows"):
                is_alone = partial(self.folder.check_alone, spark, intent)
                self.target.append(rows, looked, mark, action.max_file_rows, is_alone)
        return do.Committed()

    def read_back(self, spark: SparkSession, ledger: Ledger, action: do.ReadBack) -> do.Found | do.NotThere:
        """Do step 6."""
        intent, looked = action
        state = self.target.state_after(spark, ledger.names.app_id, intent, looked)
        found = table_truth.read_back(ledger, intent, state)
        if isinstance(found, do.Found):
            before = ledger.before_version if ledger.drain is DrainState.WRITTEN else intent.base_version
            self.target.settle(spark, state, before, found.commit)
        return found
