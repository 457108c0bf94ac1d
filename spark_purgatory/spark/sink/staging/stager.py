"""Staging: which staged micro-batches count, and the log records and jobs that establish it (`delta_sink`, steps 1,
2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import StagingError
from spark_purgatory.spark.sink.staging.ledger import Ledger, Piece, StagedBatch
from spark_purgatory.spark.sink.staging.ledger_format import record_body
from spark_purgatory.spark.sink.staging.staged_files import check_one_writer, hash_names, measured
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.storage.paths import in_checkpoint, literal
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, settings
from spark_purgatory.spark.storage.storage_errors import writing

COUNTING = {name: value for name, value in SMALL_QUERY.items() if name != "spark.sql.codegen.wholeStage"}
"""The same query for ever, of as many rows as a drain has: it is compiled once."""


class Stager:
    """The staging folder of a checkpoint, and the ledger of what counts in it."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.place = StagingFolder(checkpoint)
        self.ledger = Ledger()

    @property
    def folder(self) -> str:
        """The staging folder, as Spark reaches it."""
        return self.place.uri

    def adopt(self, spark: SparkSession, before: int) -> None:
        """Step 1: let count what was staged before ``before``. StagingError if some of it is missing."""
        pieces = pieces_below(spark, self.place, self.ledger)
        last = self.ledger.last_batch
        check_one_writer((piece for piece in pieces if last < piece.batch_id < before), self.folder)
        lost = self.ledger.adopt(pieces, before)
        if lost < before:
            raise missing(self.checkpoint, self.folder, lost, before)

    def is_replay(self, batch_id: int) -> bool:
        """Step 1. StagingError if another micro-batch was to come first."""
        last, awaited = self.ledger.last_batch, self.ledger.awaits_direct
        expected = last if awaited else last + 1
        if batch_id > expected:
            raise missing(self.checkpoint, self.folder, expected, batch_id)
        return batch_id < expected

    def note_schema(self, spark: SparkSession, batch_id: int, schema: str) -> None:
        """Step 2, of the first micro-batch of a schema; nothing of another one is staged."""
        if self.ledger.schema != schema:
            self._write(spark, f"schema={batch_id}", {"batch_id": batch_id, "schema": schema}, 0)
            self.ledger.schema = schema

    def note_empty(self, spark: SparkSession, batch_id: int) -> None:
        """Step 2, of a micro-batch without rows. Two log records, written in turn, cover all those in a row."""
        first, last = run = self.ledger.empty_run(batch_id)
        self._write(spark, f"empty={first}-{last % 2}", {"first": first, "last": last}, 0)
        self.ledger.add_empty(run)

    def record(self, spark: SparkSession, staged: StagedBatch) -> None:
        """Step 2, of a micro-batch with rows: how many its folder holds."""
        self._write(spark, self.ledger.run.batch_name(staged.batch_id), record_body(staged))

    def _write(self, spark: SparkSession, name: str, body: Mapping[str, object], note: int | None = None) -> None:
        with writing(f"{'entry' if note is None else 'note'} {name}", self.folder):
            self.place.write_entry(spark, self.ledger.next_drain, name, body, note)

    def count(self, spark: SparkSession, batches: Sequence[StagedBatch]) -> dict[int, tuple[Piece, ...]]:
        """The pieces of micro-batches that this run has staged, by micro-batch."""
        with settings(spark, COUNTING):
            try:
                paths = [literal(f"{self.folder}/{staged.path}") for staged in batches]
                found = measured(spark, paths, hash_column(self.ledger))
            except AnalysisException as error:
                raise StagingError(
                    f"one of {len(batches)} micro-batches staged below {self.folder} cannot be read: "
                    f"{str(error).splitlines()[0]}. Bring the folder back, or start with a new checkpoint, which reads "
                    "the sources again"
                ) from error
        check_one_writer(found, self.folder)
        by_batch: dict[int, tuple[Piece, ...]] = {}
        for staged in batches:
            pieces = [piece for piece in found if piece.batch_id == staged.batch_id]
            rows = sum(piece.rows for piece in pieces)
            if rows != staged.rows:
                raise StagingError(
                    f"{self.folder}/{staged.path} holds {rows:,} rows, {staged.rows:,} were written to it: someone "
                    "else wrote to the folder or removed from it. Nothing was committed. Stop them and bring the "
                    "folder back, or start with a new checkpoint, which reads the sources again"
                )
            by_batch[staged.batch_id] = tuple(replace(piece, staged_ms=staged.staged_ms) for piece in pieces)
        return by_batch

    def check_pieces(self, spark: SparkSession, pieces: Sequence[Piece]) -> None:
        """Count the rows of pieces once more. StagingError if a file is missing, damaged or has other rows."""
        if not pieces:
            return
        paths = sorted({literal(f"{self.folder}/{piece.path}") for piece in pieces})
        with settings(spark, COUNTING):
            try:
                found = measured(spark, paths, hash_column(self.ledger))
            except AnalysisException as error:
                raise StagingError(
                    f"one of {len(paths)} staged files below {self.folder} is missing: {str(error).splitlines()[0]}. "
                    "Nothing was committed. Bring the file back, or start with a new checkpoint, which reads the "
                    "sources again"
                ) from error
        rows = {piece.key: piece.rows for piece in found}
        for piece in pieces:
            if rows.get(piece.key) != piece.rows:
                raise StagingError(
                    f"{self.folder}/{piece.path} holds {rows.get(piece.key, 0):,} rows of a table partition and held "
                    f"{piece.rows:,} when it was counted: it was damaged. Nothing was committed. Bring the file back, "
                    "or start with a new checkpoint, which reads the sources again"
                )


def pieces_below(spark: SparkSession, place: StagingFolder, ledger: Ledger) -> list[Piece]:
    """Every piece of the staging folder; those of earlier versions lie in folders of their own."""
    checkpoint, _, name = place.uri.rpartition("/")
    wanted = [f"{name}/rows", *([] if ledger.has_records else [f"{name}/epoch=*"])]
    try:
        with settings(spark, COUNTING):
            return measured(spark, in_checkpoint(literal(checkpoint), *wanted), hash_column(ledger))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []


def hash_column(ledger: Ledger) -> str:
    """Name of the partition hash in staged files."""
    names = T.StructType.fromJson(json.loads(ledger.schema)).names if ledger.schema else ()
    return hash_names(names).partition


def missing(checkpoint: str, folder: str, first: int, batch_id: int) -> StagingError:
    """What a query staged is lost, from micro-batch ``first`` on."""
    return StagingError(
        f"checkpoint {checkpoint} is at micro-batch {batch_id}, but {folder} has them only up to {first - 1} (-1: "
        "none): the folder was removed, or the checkpoint was made by another sink. Nothing was written. Bring the "
        "folder back, or start with a new checkpoint, which reads the sources again"
    )
