"""Staging: the jobs and log records by which micro-batches lie in the staging folder, and what is removed from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import ForeignWriterError, StagingError
from spark_purgatory.spark.sink.staging.ledger import SOURCES_AGAIN, Intent, Ledger, Piece, Run, StagedBatch
from spark_purgatory.spark.sink.staging.ledger_format import intent_body, record_body, replay
from spark_purgatory.spark.sink.staging.staged_files import Rules, check_one_writer, hash_names, measured, stage
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, local_folder
from spark_purgatory.spark.storage.paths import in_checkpoint, literal
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, settings
from spark_purgatory.spark.storage.storage_errors import said, writing

COUNTING = {name: value for name, value in SMALL_QUERY.items() if name != "spark.sql.codegen.wholeStage"}
"""The same query for ever, of as many rows as a drain has: it is compiled once."""


class Stager:
    """The staging folder of a checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.place = StagingFolder(checkpoint)

    @property
    def folder(self) -> str:
        """The staging folder, as Spark reaches it."""
        return self.place.uri

    def open(self, spark: SparkSession) -> Ledger:
        """What the log says."""
        self.place = StagingFolder(self.checkpoint, local_folder(spark, self.checkpoint))
        ledger = replay(self.place.read_entries(spark), self.folder)
        ledger.run = Run(id=uuid4().hex[:8])
        return ledger

    def find(self, spark: SparkSession, ledger: Ledger, before: int) -> list[Piece]:
        """Every piece that lies there. ForeignWriterError if two runs staged at once what is to count."""
        pieces = pieces_below(spark, self.place, ledger)
        check_one_writer((piece for piece in pieces if ledger.last_batch < piece.batch_id < before), self.folder)
        return pieces

    def stage(self, spark: SparkSession, ledger: Ledger, rows: DataFrame, batch: StagedBatch, schema: str,
              rules: Rules, max_file_rows: int) -> StagedBatch:  # fmt: skip
        """Step 2 of the protocol; returns the micro-batch with its rows and bytes."""
        if ledger.schema != schema:
            body = {"batch_id": batch.batch_id, "schema": schema}
            self._write(spark, ledger, f"schema={batch.batch_id}", body, note=0)
        count, plain_bytes = stage(rows, f"{self.folder}/{batch.path}", rules, max_file_rows)
        found = replace(batch, rows=count, plain_bytes=plain_bytes)
        if found.rows:
            self._write(spark, ledger, batch.path.rpartition("/")[2], record_body(found))
        else:
            # Two log records, written in turn, cover all micro-batches without rows that follow one another.
            first, last = ledger.empty_run(batch.batch_id)
            self._write(spark, ledger, f"empty={first}-{last % 2}", {"first": first, "last": last}, note=0)
        return found

    def intend(self, spark: SparkSession, intent: Intent) -> None:
        """Step 3. ForeignWriterError if someone else made an intent of this number."""
        # A second try would look like a second writer.
        with writing(f"intent {intent.number}", self.folder):
            self.place.write_entry(spark, intent.number, f"intent={intent.number}", intent_body(intent))
            check_alone(spark, self.place, intent)

    def clean_up(self, spark: SparkSession, ledger: Ledger) -> None:
        """Step 6, of the last intent."""
        number = ledger.next_drain - 1
        done = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
        with writing(f"the clean-up after drain {number}", self.folder):
            self.place.write_entry(spark, number, f"done={number}", done)
            for path in ledger.idle_folders():
                self.place.remove(spark, path)

    def remove(self, spark: SparkSession, batch: StagedBatch) -> None:
        """Remove a micro-batch that does not count."""
        with writing(f"the removal of {batch.path}", self.folder):
            self.place.remove(spark, batch.path)

    def _write(
        self, spark: SparkSession, ledger: Ledger, name: str, body: Mapping[str, object], note: int | None = None
    ) -> None:
        with writing(f"{'entry' if note is None else 'note'} {name}", self.folder):
            self.place.write_entry(spark, ledger.next_drain, name, body, note)

    def count(
        self, spark: SparkSession, ledger: Ledger, batches: Sequence[StagedBatch]
    ) -> dict[int, tuple[Piece, ...]]:
        """The pieces of micro-batches that this run has staged, by micro-batch."""
        found = self._measured(spark, ledger, [staged.path for staged in batches], "micro-batch staged")
        check_one_writer(found, self.folder)
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

    def check_pieces(self, spark: SparkSession, ledger: Ledger, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        found = self._measured(spark, ledger, sorted({piece.path for piece in pieces}), "staged file") if pieces else ()
        rows = {piece.key: piece.rows for piece in found}
        for piece in pieces:
            if rows.get(piece.key) != piece.rows:
                raise StagingError(
                    f"{self.folder}/{piece.path} holds {rows.get(piece.key, 0):,} rows of a table partition and held "
                    f"{piece.rows:,} when it was counted: it was damaged. Nothing was committed. Bring the file back, "
                    f"{SOURCES_AGAIN}"
                )

    def _measured(self, spark: SparkSession, ledger: Ledger, paths: Sequence[str], what: str) -> list[Piece]:
        try:
            with settings(spark, COUNTING):
                return measured(spark, [literal(f"{self.folder}/{path}") for path in paths], hash_column(ledger))
        except AnalysisException as error:
            raise StagingError(
                f"of {len(paths)} paths below {self.folder} a {what} is missing: {said(error)}. Nothing "
                f"was committed. Bring it back, {SOURCES_AGAIN}"
            ) from error


def pieces_below(spark: SparkSession, place: StagingFolder, ledger: Ledger) -> list[Piece]:
    """Every piece of the staging folder."""
    checkpoint, _, name = place.uri.rpartition("/")
    try:
        with settings(spark, COUNTING):
            return measured(spark, in_checkpoint(literal(checkpoint), f"{name}/rows"), hash_column(ledger))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def hash_column(ledger: Ledger) -> str:
    """Name of the partition hash in staged files."""
    names = T.StructType.fromJson(json.loads(ledger.schema)).names if ledger.schema else ()
    return hash_names(names).partition


def check_alone(spark: SparkSession, place: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number."""
    replayed = replay(place.read_entries(spark), place.uri).intent
    if replayed is None or replayed.uuid != intent.uuid:
        found = "none" if replayed is None else f"number {replayed.number} of another run"
        raise ForeignWriterError(
            f"{place} was to hold intent {intent.number} and holds {found}: two runs of the query write at once. "
            "Nothing was committed by this one. Stop one of them and start again"
        )
