"""The actions of the sink on Spark: jobs, entries of the staging log, transactions of the table.

Nothing here changes the ledger or decides what comes next (`protocol`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory import errors
from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, BugError, StagingError, StorageError, is_interruption, sentence_of
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain import table_truth
from spark_purgatory.spark.sink.staging import staged_files, staging_folder
from spark_purgatory.spark.sink.staging.ledger import (
    Contents,
    DrainState,
    EmptyRun,
    Failed,
    Intent,
    Ledger,
    Names,
    Piece,
    StagedBatch,
    TakenBack,
    by_partition,
)
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.column_rules import StagedColumns
from spark_purgatory.spark.sink.table.table_place import app_id_of
from spark_purgatory.spark.sink.table.target import TableLook, Target
from spark_purgatory.spark.storage.checkpoint_files import repartitions_in
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, lasting_remedy, without_reach, writing

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
        self.options, self.checkpoint, self.target = options, checkpoint, target
        self.folder = StagingFolder(checkpoint)
        self.looked: TableLook | None = None  # The table before the commit that follows, or is under way.
        self.rules = staged_files.RulesOfSchemas(options, target.partition_by)

    def open(self, spark: SparkSession) -> Ledger:
        self.folder = StagingFolder.of(spark, self.checkpoint)
        self.folder.synchronise()
        ledger = staging_folder.read_ledger(spark, self.folder)
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
                return self.look(spark, ledger)
            case do.Renumber(taken_back):
                return do.Renumbered(self._renumber(spark, ledger, taken_back))
            case do.Adopt():
                pieces = self.find(spark, ledger, work.before)
                return do.Adopted(pieces, self._repartitions(spark, ledger, pieces, work.before))
            case do.Skip():
                return do.Skipped(staged_files.evaluate(work.rows, self.rules))
            case do.Stage():
                return do.Staged(self._stage(ledger, action, work))
            case do.Count(batches):
                return do.Counted(batches, self.count(spark, ledger, batches))
            case do.Intend():
                return self._intend(ledger, action, work)
            case do.Check(intent):
                table_id = ledger.table_id or intent.table_id
                return do.Checked(self.check_table(spark, ledger, table_id, intent.schema or "").history.version)
            case do.Commit():
                return self.commit(ledger, action, work)
            case do.ReadBack(intent):
                found = self.read_back(spark, ledger, intent)
                if isinstance(found, do.Found):
                    self.target.keep(spark, ledger.names.app_id, found.commit.version)
                return found
            case do.CleanUp():
                self.clean_up(spark, ledger)
                return action
            case do.Stop(error):
                if ledger.incoming is not None:
                    self.folder.remove(spark, ledger.incoming.path)
                raise error from None
        raise BugError(f"{action!r} is not done on Spark")

    def look(self, spark: SparkSession, ledger: Ledger) -> do.Looked:
        return table_truth.look(ledger, self.target.state(spark, ledger.first_needed_version, ledger.names.app_id))

    def read_back(self, spark: SparkSession, ledger: Ledger, intent: Intent) -> do.Found | do.NotThere:
        """Do step 6, and change nothing."""
        state = self.looked and self.target.state_after(spark, self.looked, intent)
        state = state or self.target.state(spark, intent.base_version, ledger.names.app_id, intent)
        found = table_truth.read_back(ledger, intent, state)
        if isinstance(found, do.Found):
            before = ledger.before_version if ledger.drain is DrainState.WRITTEN else intent.base_version
            self.target.check_written(state, before, found.commit.version)
        return found

    def find(self, spark: SparkSession, ledger: Ledger, before: int) -> list[Piece]:
        return staged_files.pieces_below(spark, self.folder.uri, ledger, before)

    def _repartitions(self, spark: SparkSession, ledger: Ledger, pieces: Sequence[Piece], before: int) -> list[int]:
        """Return the micro-batches that Spark's ``repartition`` made, and note that they have no rows."""
        found = repartitions_in(spark, self.checkpoint, ledger.unknown(pieces, before))
        for number in found:
            note = EmptyRun(number, number, ledger.run.number)
            self.folder.write_entry(spark, ledger.next_drain, *staging_folder.empty_entry(note))
        return found

    def _stage(self, ledger: Ledger, action: do.Stage, work: do.Work) -> StagedBatch:
        """Do step 3 of the protocol."""
        epoch, number = ledger.next_drain, work.before
        if (schema := work.schema_after(ledger.schema)) != ledger.schema:
            self.folder.write_entry(work.spark, epoch, *staging_folder.schema_entry(number, schema))
        path = ledger.run.batch_path(epoch, number)
        found = staged_files.stage(work.rows, f"{self.folder}/{path}", self.rules, action.max_file_rows)
        staged = StagedBatch(number, epoch, action.now_ms, path, *found)
        empty = staging_folder.empty_entry(ledger.empty_run(number))
        self.folder.write_entry(work.spark, epoch, *(staging_folder.record_entry(staged) if found[0].rows else empty))
        return staged

    def count(
        self, spark: SparkSession, ledger: Ledger, batches: Sequence[StagedBatch]
    ) -> Mapping[int, tuple[Piece, ...]]:
        """Return the pieces of micro-batches that this run has staged, by micro-batch."""
        found = self._measured(spark, ledger, [staged.path for staged in batches], "staged micro-batch")
        by_batch: dict[int, tuple[Piece, ...]] = {}
        for staged in batches:
            pieces = [piece for piece in found if piece.batch_id == staged.batch_id]
            self._check_rows(staged.path, Contents.of(pieces), staged.contents)
            by_batch[staged.batch_id] = tuple(replace(piece, staged_ms=staged.staged_ms) for piece in pieces)
        return by_batch

    def check_pieces(self, spark: SparkSession, ledger: Ledger, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        measured_again = self._measured(spark, ledger, sorted({piece.path for piece in pieces}), "staged file")
        found = {piece.key: Contents.of([piece]) for piece in measured_again}
        for piece in pieces:
            now, then = found.get(piece.key, Contents()), Contents.of([piece])
            self._check_rows(piece.path, now, then, " of a table partition")

    def _check_rows(self, path: str, now: Contents, then: Contents, which: str = "") -> None:
        if now != then:
            raise StagingError(
                f"{self.folder}/{path} holds {now}{which}, but held {then} when it was staged: it was damaged or "
                "replaced, or someone else wrote to it or removed a file. Nothing was committed. Stop other "
                f"writers and bring the file back from a copy, or {START_OVER}"
            )

    def _measured(self, spark: SparkSession, ledger: Ledger, paths: Sequence[str], what: str) -> list[Piece]:
        try:
            return staged_files.measured(spark, [literal(f"{self.folder}/{path}") for path in paths], ledger.schema)
        except AnalysisException as error:
            raise StagingError(
                f"a {what} is missing below {self.folder}, one of {len(paths)}: {sentence_of(error)}. Nothing was "
                f"committed. Bring it back from a copy, or {START_OVER}"
            ) from error

    def _intend(self, ledger: Ledger, action: do.Intend, work: do.Work) -> do.Result:
        """Do step 4. ForeignWriterError if someone else made an intent of this number."""
        looked = self.check_table(work.spark, ledger, ledger.table_id, ledger.schema or "")
        keys = {piece.key for piece in action.taken}
        intent = Intent(
            number=ledger.next_drain,
            uuid=str(uuid4()),
            table_id=looked.facts.id if looked.facts else None,
            schema=looked.columns,
            last_batch=ledger.last_batch,
            last_contents=ledger.last_contents,
            taken=action.taken,
            left=tuple(piece for piece in ledger.pieces.values() if piece.key not in keys),
            epochs=tuple(sorted(ledger.epochs | {ledger.next_drain})),
            run=ledger.run.number,
            table_version=ledger.table_version,
            base_version=looked.history.version,
        )
        return do.Intended(self._durable(work.spark, intent))

    def _durable(self, spark: SparkSession, intent: Intent) -> Intent:
        # A second try would look like a second writer.
        self.folder.write_entry(spark, intent.number, *staging_folder.intent_entry(intent))
        with writing(f"intent {intent.number}", self.folder.uri):
            staging_folder.check_alone(spark, self.folder, intent)
        return intent

    def _renumber(self, spark: SparkSession, ledger: Ledger, taken_back: TakenBack) -> Intent:
        """Write the last intent again, above the drains that were taken back; without rows if it is done."""
        number = max(taken_back.number, ledger.next_drain - 1) + 1
        last = ledger.intent or Intent(number, uuid="", table_id=None, schema=ledger.schema, run=ledger.run.number)
        renumbered = replace(
            last,
            number=number,
            uuid=str(uuid4()),
            table_id=ledger.table_id,
            taken=() if ledger.is_done else last.taken,
            epochs=tuple(sorted(ledger.epochs | {number})),
            table_version=taken_back.version,
            base_version=taken_back.version,
        )
        return self._durable(spark, renumbered)

    def check_table(self, spark: SparkSession, ledger: Ledger, table_id: str | None, schema: str) -> TableLook:
        looked = self.looked = self.target.check(spark, table_id, schema, ledger.table_version)
        table_truth.check_restore(ledger.names, ledger.table_version, looked.history)
        return looked

    def commit(self, ledger: Ledger, action: do.Commit, work: do.Work) -> do.Result:
        """Do step 5."""
        spark, intent, looked = work.spark, action.intent, self.looked
        assert looked is not None, "bug: a commit that no look at the table precedes"
        if action.to_count:
            self.check_pieces(spark, ledger, action.to_count)
        schema, files = StagedColumns.of(intent.schema or "").rows, [*by_partition(intent.taken).values()]
        with settings(spark, DRAIN_QUERY):
            folders = self.target.folders_of(schema, looked.facts)
            rows = staged_files.read_files(spark, self.folder.uri, schema, files, folders)
            mark = ledger.names.app_id, intent.number, intent.uuid
            with staged_files.reading(f"the staged files of drain {intent.number}", self.folder.uri):
                self.target.append(rows, looked, *mark, max_file_rows=action.max_file_rows)
        if self.target.publishes:
            # Another run may have ended the drain meanwhile, and the table may have forgotten it since.
            staging_folder.check_alone(spark, self.folder, intent)
            self.target.publish(spark, intent.uuid, looked.facts)
        return do.Committed()

    def clean_up(self, spark: SparkSession, ledger: Ledger) -> None:
        """Do step 7 for the last intent."""
        self.folder.write_entry(spark, ledger.next_drain - 1, *staging_folder.done_entry(ledger))
        for path in ledger.idle_folders():
            self.folder.remove(spark, path)
