"""Each action of the sink on Spark, in one session: jobs, entries of the staging log, transactions of the table.

The result says what came of it. Nothing here changes the ledger or decides what comes next (`protocol`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import ForeignWriterError, StagingError, StorageError
from spark_purgatory.spark.sink.drain import actions as do
from spark_purgatory.spark.sink.drain.actions import Action, Result, Work
from spark_purgatory.spark.sink.drain.policy_adapter import PolicyAdapter
from spark_purgatory.spark.sink.drain.table_truth import TableTruth, since
from spark_purgatory.spark.sink.staging.ledger import SOURCES_AGAIN, Failed, Intent, Ledger, Names, Piece, StagedBatch
from spark_purgatory.spark.sink.staging.ledger_format import Body, intent_body, record_body, replay
from spark_purgatory.spark.sink.staging.staged_files import (
    PIECES_PER_FILE,
    WRITE_SETTINGS,
    Rules,
    check_one_writer,
    measured,
    pieces_below,
    quoted,
    read_files,
    reading,
    rules_of,
    stage,
)
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, local_folder
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import NO_VERSION, History, TableState
from spark_purgatory.spark.sink.table.table_claim import app_id_of
from spark_purgatory.spark.storage import storage_errors
from spark_purgatory.spark.storage.commits import repartitions_in
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import (
    SPARK_FAULTS,
    is_interruption,
    said,
    state_fault,
    storage_fault,
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
MAX_FULL = 1.25
"""A file may be so much larger than wanted before it is cut."""


class SparkActions:
    """What one session does for a run of the query."""

    def __init__(self, spark: SparkSession, checkpoint: str, target: DeltaTarget, policy: PolicyAdapter) -> None:
        self.spark, self.target, self.policy = spark, target, policy
        self.checkpoint = checkpoint
        self.folder = StagingFolder(checkpoint)
        self.truth = TableTruth()
        self._rules: dict[str, Rules] = {}
        """How rows are staged, by their schema."""

    def in_session(self, spark: SparkSession) -> Self:
        """The same in another session."""
        other = copy(self)
        other.spark = spark
        return other

    def open(self) -> Ledger:
        """What the log says, for a run that begins."""
        self.folder = StagingFolder(self.checkpoint, local_folder(self.spark, self.checkpoint))
        ledger = replay(self.folder.read_entries(self.spark), self.folder.uri)
        ledger.run = replace(ledger.run, id=uuid4().hex[:8])
        ledger.names = Names(self.checkpoint, self.folder.uri, str(self.target), app_id_of(self.spark, self.checkpoint))
        return ledger

    def carry_out(self, action: Action, ledger: Ledger, work: Work) -> Result:
        """Do one action; what came of it. `Stop` raises its error."""
        match action:
            case do.Look():
                return self.look(ledger)
            case do.Adopt(before):
                pieces = self.find(ledger, before)
                return do.Adopted(pieces, before, self._repartitions(ledger, pieces, before))
            case do.Skip():
                _evaluate(work.rows)
            case do.Stage():
                return do.Staged(self._stage(ledger, work), work.schema)
            case do.Count(batches):
                return do.Counted(self.count(ledger, batches))
            case do.Intend():
                return self._intend(ledger, action, work)
            case do.Commit(intent):
                return self.commit(ledger, intent, work.rows if intent.direct else None)
            case do.ReadBack(intent):
                return self._read_back(ledger, intent, work.rows)
            case do.CleanUp():
                self.clean_up(ledger)
            case do.Stop(error):
                if ledger.incoming is not None:
                    with writing(f"the removal of {ledger.incoming.path}", self.folder.uri):
                        self.folder.remove(self.spark, ledger.incoming.path)
                raise error from None
        assert isinstance(action, do.Skip | do.CleanUp)
        return action

    def look(self, ledger: Ledger) -> do.Looked:
        """Compare the table with the log, at a start; changes nothing. TableLostError, ForeignWriterError."""
        return self.truth.look(ledger, self.target.state(self.spark, since(ledger)))

    # --- staging -------------------------------------------------------------------------------------------------

    def find(self, ledger: Ledger, before: int) -> list[Piece]:
        """Every piece that lies there. ForeignWriterError if two runs staged at once what is to count."""
        pieces = pieces_below(self.spark, self.folder.uri, ledger.schema)
        check_one_writer((piece for piece in pieces if ledger.last_batch < piece.batch_id < before), self.folder.uri)
        return pieces

    def _repartitions(self, ledger: Ledger, pieces: Sequence[Piece], before: int) -> list[int]:
        """Micro-batches that Spark's ``repartition`` made, which are noted as such without rows."""
        found = repartitions_in(self.spark, self.checkpoint, ledger.unknown(pieces, before))
        for number in found:
            self._note(ledger.next_drain, f"empty={number}-{number % 2}", {"first": number, "last": number})
        return found

    def _stage(self, ledger: Ledger, work: Work) -> StagedBatch:
        """Step 2 of the protocol; the micro-batch with its rows and bytes."""
        epoch, number = ledger.next_drain, work.before
        if work.schema not in self._rules:
            options = self.policy.options
            self._rules[work.schema] = rules_of(work.rows.schema, options, self.target.partition_by)
        if ledger.schema != work.schema:
            self._note(epoch, f"schema={number}", {"batch_id": number, "schema": work.schema})
        staged = StagedBatch(number, epoch, self.policy.now(), ledger.run.batch_path(epoch, number))
        max_rows = max(1, self.policy.rows_a_file() // PIECES_PER_FILE)
        rows, plain_bytes = stage(
            work.rows, f"{self.folder}/{staged.path}", self._rules[work.schema], max_file_rows=max_rows
        )
        staged = replace(staged, rows=rows, plain_bytes=plain_bytes)
        if rows:
            name = staged.path.rpartition("/")[2]
            with writing(f"entry {name}", self.folder.uri):
                self.folder.write_entry(self.spark, epoch, name, record_body(staged))
        else:
            # Two log records, written in turn, cover all micro-batches without rows that follow one another.
            first, last = ledger.empty_run(number)
            self._note(epoch, f"empty={first}-{last % 2}", {"first": first, "last": last})
        return replace(staged, staged_ms=self.policy.now())

    def _note(self, epoch: int, name: str, body: Body) -> None:
        with writing(f"note {name}", self.folder.uri):
            self.folder.write_entry(self.spark, epoch, name, body, note=0)

    def count(self, ledger: Ledger, batches: Sequence[StagedBatch]) -> Mapping[int, tuple[Piece, ...]]:
        """The pieces of micro-batches that this run has staged, by micro-batch."""
        found = self._measured(ledger, [staged.path for staged in batches], "micro-batch staged")
        check_one_writer(found, self.folder.uri)
        by_batch: dict[int, tuple[Piece, ...]] = {}
        for staged in batches:
            pieces = [piece for piece in found if piece.batch_id == staged.batch_id]
            rows = sum(piece.rows for piece in pieces)
            if rows != staged.rows:
                raise StagingError(
                    f"{self.folder}/{staged.path} holds {rows:,} rows, {staged.rows:,} were written to it: someone "
                    "else wrote to the folder or removed from it. Nothing was committed. Stop them and bring the "
                    f"folder back, {SOURCES_AGAIN}"
                )
            by_batch[staged.batch_id] = tuple(replace(piece, staged_ms=staged.staged_ms) for piece in pieces)
        return by_batch

    def check_pieces(self, ledger: Ledger, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        found = self._measured(ledger, sorted({piece.path for piece in pieces}), "staged file") if pieces else ()
        rows = {piece.key: piece.rows for piece in found}
        for piece in pieces:
            if rows.get(piece.key) != piece.rows:
                raise StagingError(
                    f"{self.folder}/{piece.path} holds {rows.get(piece.key, 0):,} rows of a table partition and held "
                    f"{piece.rows:,} when it was counted: it was damaged. Nothing was committed. Bring the file back, "
                    f"{SOURCES_AGAIN}"
                )

    def _measured(self, ledger: Ledger, paths: Sequence[str], what: str) -> list[Piece]:
        try:
            return measured(self.spark, [literal(f"{self.folder}/{path}") for path in paths], ledger.schema)
        except AnalysisException as error:
            raise StagingError(
                f"of {len(paths)} paths below {self.folder} a {what} is missing: {said(error)}. Nothing "
                f"was committed. Bring it back, {SOURCES_AGAIN}"
            ) from error

    # --- a drain -------------------------------------------------------------------------------------------------

    def _intend(self, ledger: Ledger, action: do.Intend, work: Work) -> Result:
        """Step 3. ForeignWriterError if someone else made an intent of this number."""
        schema = (ledger.schema if action.taken else work.schema) or ""
        try:
            state = self.truth.checked = self.check_table(ledger, ledger.table_id, schema)
        except SPARK_FAULTS as error:
            if action.batch_id is not None or is_interruption(error):
                raise
            return _failed(error)
        intent = ledger.intent_of(
            action.taken,
            action.batch_id,
            schema,
            table_id=state.facts.id if state.facts else None,
            base_version=state.history.version,
            uuid=str(uuid4()),
        )
        # A second try would look like a second writer.
        with writing(f"intent {intent.number}", self.folder.uri):
            self.folder.write_entry(self.spark, intent.number, f"intent={intent.number}", intent_body(intent))
            check_alone(self.spark, self.folder, intent)
        return do.Intended(intent)

    def check_table(self, ledger: Ledger, table_id: str | None, schema: str) -> TableState:
        """The table before a drain: TableLostError, SchemaMismatchError."""
        facts = self.target.check(self.spark, table_id, T.StructType.fromJson(json.loads(schema)))
        if facts is None:
            return TableState(None, History(()))
        history = self.target.history(self.spark, ledger.table_version)
        self.truth.check_restore(ledger.names, ledger.table_version, history)
        return TableState(facts, history)

    def commit(self, ledger: Ledger, intent: Intent, direct: DataFrame | None) -> Result:
        """Step 4, of staged pieces or of the rows of a micro-batch that goes direct."""
        target = self.target
        try:
            state, self.truth.checked = self.truth.checked, None
            state = state or self.check_table(ledger, ledger.table_id or intent.table_id, intent.schema)
            self.check_pieces(ledger, intent.taken)
            with settings(self.spark, DRAIN_QUERY):
                if direct is not None:
                    by = target.partition_by
                    rows, max_rows = direct.repartition(*map(quoted, by)) if by else direct, self.policy.rows_a_file()
                else:
                    rows, max_rows = self._staged_rows(intent)
                with reading(f"the staged files of drain {intent.number}", self.folder.uri):
                    target.append(rows, ledger.names.app_id, intent.number, intent.uuid, max_file_rows=max_rows)
        except SPARK_FAULTS as error:
            is_of_rows = direct is not None and storage_fault(error) is None and not storage_errors.is_of_table(error)
            if is_interruption(error) or is_of_rows or state_fault(error) is not None:
                raise
            return _failed(error)
        return do.Committed(state.history.version)

    def _staged_rows(self, intent: Intent) -> tuple[DataFrame, int]:
        """What an intent takes, a task for each file to be, and how many rows a file may have; 0: all of its task."""
        grouped: dict[str, list[Piece]] = {}
        for piece in intent.taken:
            grouped.setdefault(piece.partition, []).append(piece)
        schema = T.StructType.fromJson(json.loads(intent.schema))
        sorted_by = self.target.names_in_rows(self.target.partition_by, schema)
        rows = read_files(self.spark, self.folder.uri, schema, list(grouped.values()), sorted_by)
        # Those that are larger than they should be are cut, and then all are, as these need it.
        most = []
        for partition, pieces in grouped.items():
            file_bytes = self.policy.sizes.file_bytes(partition, sum(piece.staged_bytes for piece in pieces))
            if file_bytes > self.policy.batch_bytes * MAX_FULL:
                files = math.ceil(file_bytes / self.policy.batch_bytes)
                most.append(math.ceil(sum(piece.rows for piece in pieces) / files))
        return rows, min(most, default=0)

    def _read_back(self, ledger: Ledger, intent: Intent, rows: DataFrame | None) -> Result:
        """Step 5. SkippedWriteError, ForeignWriterError, TableLostError."""
        try:
            result = self.truth.read_back(ledger, intent, self.target.state(self.spark, intent.base_version))
        except SPARK_FAULTS as error:
            if is_interruption(error):
                raise
            raise StorageError(
                f"drain {intent.number} to table {self.target} "
                f"{f'failed ({ledger.failure.said})' if ledger.failure else 'ended'}, and whether it arrived cannot be "
                f"read: {said(error)}. Nothing was lost. Mend the table and start again"
            ) from None
        if isinstance(result, do.Found) and result.commit.version == NO_VERSION and intent.direct:
            _evaluate(rows)
        return result

    def clean_up(self, ledger: Ledger) -> None:
        """Step 6, of the last intent."""
        number = ledger.next_drain - 1
        done = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
        with writing(f"the clean-up after drain {number}", self.folder.uri):
            self.folder.write_entry(self.spark, number, f"done={number}", done)
            for path in ledger.idle_folders():
                self.folder.remove(self.spark, path)


def check_alone(spark: SparkSession, folder: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number."""
    replayed = replay(folder.read_entries(spark), folder.uri).intent
    if replayed is None or replayed.uuid != intent.uuid:
        found = "none" if replayed is None else f"number {replayed.number} of another run"
        raise ForeignWriterError(
            f"{folder} was to hold intent {intent.number} and holds {found}: two runs of the query write at once. "
            "Nothing was committed by this one. Stop one of them and start again"
        )


def _evaluate(rows: Any) -> None:
    """Run a micro-batch whose rows are not wanted: Spark's state must be committed."""
    if rows is not None:
        rows.write.format("noop").mode("overwrite").save()


def _failed(error: Exception) -> Failed:
    return Failed(
        said(error), is_refused=isinstance(error, AnalysisException), is_lasting=storage_errors.is_lasting(error)
    )
