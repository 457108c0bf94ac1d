"""Each action of the sink on Spark, in one session: jobs, entries of the staging log, transactions of the table.

The result says what came of it. Nothing here changes the ledger or decides what comes next (`protocol`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import (
    BugError,
    ForeignWriterError,
    StagingError,
    StorageError,
    is_interruption,
    sentence_of,
)
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.drain.table_truth import TableTruth, since
from spark_purgatory.spark.sink.staging import ledger_format
from spark_purgatory.spark.sink.staging.ledger import SOURCES_AGAIN, Failed, Ledger, Names
from spark_purgatory.spark.sink.staging.pieces import Contents, EmptyRun, Intent, Piece, StagedBatch, by_partition
from spark_purgatory.spark.sink.staging.staged_files import (
    WRITE_SETTINGS,
    Rules,
    check_one_writer,
    evaluate,
    measured,
    pieces_below,
    read_files,
    reading,
    rules_of,
    stage,
)
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import History, TableState
from spark_purgatory.spark.sink.table.table_claim import app_id_of
from spark_purgatory.spark.storage import storage_errors
from spark_purgatory.spark.storage.commits import repartitions_in
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import (
    SPARK_FAULTS,
    writing,
)

DRAIN_QUERY = {
    **WRITE_SETTINGS,
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A file is a task of the shuffle: it may be neither split nor merged with another one.
    "spark.sql.adaptive.enabled": "false",
    # A variant is read whole anyway, and Spark's reader of parts of one fails where it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
}


class SparkActions:
    """What a run of the query does, in the session of its micro-batches and in that of a drain beside them."""

    def __init__(self, options: SinkOptions, checkpoint: str, target: DeltaTarget) -> None:
        self.options, self.checkpoint, self.target = options, checkpoint, target
        self.folder = StagingFolder(checkpoint)
        self.truth = TableTruth()
        self._rules: dict[str, Rules] = {}
        """How rows are staged, by their columns."""
        self._checked: TableState | None = None
        """The table as an intent saw it, for the commit that follows at once."""

    def open(self, spark: SparkSession) -> Ledger:
        """What the log says, for a run that begins."""
        self.folder = StagingFolder.of(spark, self.checkpoint)
        ledger = ledger_format.read_ledger(spark, self.folder)
        ledger.run = replace(ledger.run, id=uuid4().hex[:8])
        ledger.names = Names(self.checkpoint, self.folder.uri, str(self.target), app_id_of(spark, self.checkpoint))
        return ledger

    def carry_out(self, action: Action, ledger: Ledger, work: Work) -> Result:
        """Do one action; what came of it. `Stop` raises its error."""
        spark = work.spark
        match action:
            case do.Look():
                return self.look(spark, ledger)
            case do.Adopt():
                pieces = self.find(spark, ledger, work.before)
                return do.Adopted(pieces, self._repartitions(spark, ledger, pieces, work.before))
            case do.Skip():
                return do.Skipped(evaluate(work.rows, self._rules_of(work)))
            case do.Stage():
                return do.Staged(self._stage(ledger, action, work))
            case do.Count(batches):
                return do.Counted(self.count(spark, ledger, batches))
            case do.Intend():
                return self._intend(ledger, action, work)
            case do.Commit():
                return self.commit(ledger, action, work)
            case do.ReadBack(intent):
                return self._read_back(ledger, intent, work)
            case do.CleanUp():
                self.clean_up(spark, ledger)
                return do.CleanedUp()
            case do.Stop(error):
                if ledger.incoming is not None:
                    self.folder.remove(spark, ledger.incoming.path)
                raise error from None
        raise BugError(f"{action!r} is not done on Spark")

    def look(self, spark: SparkSession, ledger: Ledger) -> do.Looked:
        """Compare the table with the log, at a start; changes nothing. TableLostError, ForeignWriterError."""
        return self.truth.look(ledger, self.target.state(spark, since(ledger)))

    # --- staging -------------------------------------------------------------------------------------------------

    def find(self, spark: SparkSession, ledger: Ledger, before: int) -> list[Piece]:
        """Every piece that lies there. ForeignWriterError if two runs staged at once what is to count."""
        pieces = pieces_below(spark, self.folder.uri, ledger.schema)
        check_one_writer((piece for piece in pieces if ledger.last_batch < piece.batch_id < before), self.folder.uri)
        return pieces

    def _repartitions(self, spark: SparkSession, ledger: Ledger, pieces: Sequence[Piece], before: int) -> list[int]:
        """Micro-batches that Spark's ``repartition`` made, which are noted as such without rows."""
        found = repartitions_in(spark, self.checkpoint, ledger.unknown(pieces, before))
        for number in found:
            note = EmptyRun(number, number, ledger.run.number)
            self.folder.write_entry(spark, ledger.next_drain, *ledger_format.empty_entry(note))
        return found

    def _stage(self, ledger: Ledger, action: do.Stage, work: Work) -> StagedBatch:
        """Step 3 of the protocol; the micro-batch with its contents and bytes."""
        epoch, number = ledger.next_drain, work.before
        if work.brings_schema_other_than(ledger.schema):
            entry = ledger_format.schema_entry(number, work.schema_after(ledger.schema))
            self.folder.write_entry(work.spark, epoch, *entry)
        path = ledger.run.batch_path(epoch, number)
        place, rules = f"{self.folder}/{path}", self._rules_of(work)
        contents, plain_bytes = stage(work.rows, place, rules, action.max_file_rows)
        staged = StagedBatch(number, epoch, action.now_ms, path, contents, plain_bytes=plain_bytes)
        has_rows = contents.rows > 0
        entry = ledger_format.record_entry(staged) if has_rows else ledger_format.empty_entry(ledger.empty_run(number))
        self.folder.write_entry(work.spark, epoch, *entry)
        return staged

    def _rules_of(self, work: Work) -> Rules:
        kinds = work.rows.schema.simpleString()
        if kinds not in self._rules:
            self._rules[kinds] = rules_of(work.rows.schema, self.options, self.target.partition_by)
        return self._rules[kinds]

    def count(
        self, spark: SparkSession, ledger: Ledger, batches: Sequence[StagedBatch]
    ) -> Mapping[int, tuple[Piece, ...]]:
        """The pieces of micro-batches that this run has staged, by micro-batch."""
        found = self._measured(spark, ledger, [staged.path for staged in batches], "micro-batch staged")
        check_one_writer(found, self.folder.uri)
        by_batch: dict[int, tuple[Piece, ...]] = {}
        for staged in batches:
            pieces = [piece for piece in found if piece.batch_id == staged.batch_id]
            if (found_rows := Contents.of(pieces)) != staged.contents:
                raise StagingError(
                    f"{self.folder}/{staged.path} holds {found_rows}, but {staged.contents} was written to it: someone "
                    "else wrote to the folder, replaced a file in it or removed one. Nothing was committed. Stop them "
                    f"and bring the folder back, {SOURCES_AGAIN}"
                )
            by_batch[staged.batch_id] = tuple(replace(piece, staged_ms=staged.staged_ms) for piece in pieces)
        return by_batch

    def check_pieces(self, spark: SparkSession, ledger: Ledger, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        measured_again = self._measured(spark, ledger, sorted({piece.path for piece in pieces}), "staged file")
        found = {piece.key: Contents.of([piece]) for piece in measured_again}
        for piece in pieces:
            now, then = found.get(piece.key, Contents()), Contents.of([piece])
            if now != then:
                raise StagingError(
                    f"{self.folder}/{piece.path} holds {now} of a table partition, but held {then} when it was "
                    f"counted: it was damaged or replaced. Nothing was committed. Bring the file back, {SOURCES_AGAIN}"
                )

    def _measured(self, spark: SparkSession, ledger: Ledger, paths: Sequence[str], what: str) -> list[Piece]:
        try:
            return measured(spark, [literal(f"{self.folder}/{path}") for path in paths], ledger.schema)
        except AnalysisException as error:
            raise StagingError(
                f"of {len(paths)} paths below {self.folder} a {what} is missing: {sentence_of(error)}. Nothing "
                f"was committed. Bring it back, {SOURCES_AGAIN}"
            ) from error

    # --- a drain -------------------------------------------------------------------------------------------------

    def _intend(self, ledger: Ledger, action: do.Intend, work: Work) -> Result:
        """Step 4. ForeignWriterError if someone else made an intent of this number."""
        try:
            state = self._checked = self.check_table(work.spark, ledger, ledger.table_id, ledger.schema or "")
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            return _failed(error)
        intent = ledger.intent_of(
            action.taken,
            self.target.noted(ledger.schema or "", state.history.version),
            table_id=state.facts.id if state.facts else None,
            base_version=state.history.version,
            uuid=str(uuid4()),
        )
        # A second try would look like a second writer.
        self.folder.write_entry(work.spark, intent.number, *ledger_format.intent_entry(intent))
        with writing(f"intent {intent.number}", self.folder.uri):
            check_alone(work.spark, self.folder, intent)
        return do.Intended(intent)

    def check_table(self, spark: SparkSession, ledger: Ledger, table_id: str | None, schema: str) -> TableState:
        """The table before a drain: TableLostError, SchemaMismatchError."""
        facts = self.target.check(spark, table_id, schema)
        if facts is None:
            return TableState(None, History(()))
        history = self.target.history(spark, ledger.table_version)
        self.truth.check_restore(ledger.names, ledger.table_version, history)
        return TableState(facts, history)

    def commit(self, ledger: Ledger, action: do.Commit, work: Work) -> Result:
        """Step 5."""
        spark, intent = work.spark, action.intent
        try:
            state, self._checked = self._checked, None
            state = state or self.check_table(spark, ledger, ledger.table_id or intent.table_id, intent.schema)
            self.check_pieces(spark, ledger, intent.taken)
            with settings(spark, DRAIN_QUERY):
                rows = self._staged_rows(spark, intent)
                mark = ledger.names.app_id, intent.number, intent.uuid
                with reading(f"the staged files of drain {intent.number}", self.folder.uri):
                    self.target.append(rows, *mark, max_file_rows=action.max_file_rows)
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            return _failed(error)
        return do.Committed(state.history.version)

    def _staged_rows(self, spark: SparkSession, intent: Intent) -> DataFrame:
        """What an intent takes, a task for each file to be."""
        schema = T.StructType.fromJson(json.loads(intent.schema))
        sorted_by = self.target.names_in_rows(self.target.partition_by, schema)
        return read_files(spark, self.folder.uri, schema, [*by_partition(intent.taken).values()], sorted_by)

    def _read_back(self, ledger: Ledger, intent: Intent, work: Work) -> Result:
        """Step 6. SkippedWriteError, ForeignWriterError, TableLostError."""
        try:
            return self.truth.read_back(ledger, intent, self.target.state(work.spark, intent.base_version))
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            raise StorageError(
                f"drain {intent.number} to table {self.target} "
                f"{f'failed ({ledger.failure.said})' if ledger.failure else 'ended'}, and whether it arrived cannot be "
                f"read: {sentence_of(error)}. Nothing was lost. Mend the table and start again"
            ) from None

    def clean_up(self, spark: SparkSession, ledger: Ledger) -> None:
        """Step 7, of the last intent."""
        self.folder.write_entry(spark, ledger.next_drain - 1, *ledger_format.done_entry(ledger))
        for path in ledger.idle_folders():
            self.folder.remove(spark, path)


def check_alone(spark: SparkSession, folder: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number."""
    replayed = ledger_format.read_ledger(spark, folder).intent
    if replayed is None or replayed.uuid != intent.uuid:
        found = "none" if replayed is None else f"number {replayed.number} of another run"
        raise ForeignWriterError(
            f"{folder} was to hold intent {intent.number} and holds {found}: two runs of the query write at once. "
            "Nothing was committed by this one. Stop one of them and start again"
        )


def _failed(error: Exception) -> Failed:
    return Failed(
        sentence_of(error), is_refused=isinstance(error, AnalysisException), is_lasting=storage_errors.is_lasting(error)
    )
