"""The half of the sink that stages: what counts, and the notes and jobs that tell (`delta_sink`, steps 1 and 2)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import StagingError
from spark_purgatory.spark.entries import SMALL_QUERY, literal, settings, write_entry
from spark_purgatory.spark.faults import writing
from spark_purgatory.spark.ledger import NO_BATCH, Ledger, Piece, StagedBatch
from spark_purgatory.spark.paths import in_checkpoint
from spark_purgatory.spark.staging import check_one_writer, hash_name, measured

COUNTING = {name: value for name, value in SMALL_QUERY.items() if name != "spark.sql.codegen.wholeStage"}
"""The same query for ever, of as many rows as a drain has: it is compiled once."""


class StagedSide:
    """The staging folder of a checkpoint, and the ledger of what counts in it."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.folder = f"{checkpoint.rstrip('/')}/staging"
        self.anchor = f"{checkpoint.rstrip('/')}/metadata"
        """For reads of the table's log (`paths`)."""
        self.ledger = Ledger()

    def adopt(self, spark: SparkSession, before: int) -> None:
        """Step 1: let count what was staged before ``before``. StagingError if some of it is missing."""
        pieces: list[Piece] = []
        try:
            with settings(spark, COUNTING):
                paths = in_checkpoint(literal(self.checkpoint.rstrip("/")), "staging/epoch=*")
                pieces = measured(spark, paths, self._hash_column())
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
        lost = self.ledger.adopt(pieces, before)
        if lost < before:
            raise missing(self.checkpoint, self.folder, lost, before)
        check_one_writer(self.ledger.pieces.values(), self.folder)

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
            self._note(spark, f"schema={batch_id}", {"batch_id": batch_id, "schema": schema}, 0)
            self.ledger.schema = schema

    def note_empty(self, spark: SparkSession, batch_id: int) -> None:
        """Step 2, of a micro-batch without rows. Two notes in turn tell of all those in a row: one always stands."""
        first, last = run = self.ledger.empty_run(batch_id)
        self._note(spark, f"empty={first}-{last % 2}", {"first": first, "last": last}, 0)
        self.ledger.add_empty(run)

    def _note(self, spark: SparkSession, name: str, body: Mapping[str, object], number: int) -> None:
        with writing(f"note {name}", self.folder), settings(spark, SMALL_QUERY):
            write_entry(spark, self.folder, self.ledger.next_drain, name, dict(body), number)

    def _hash_column(self) -> str:
        return hash_name(T.StructType.fromJson(json.loads(self.ledger.schema)).names if self.ledger.schema else ())

    def count(self, spark: SparkSession, batches: Sequence[StagedBatch]) -> dict[int, tuple[Piece, ...]]:
        """The pieces of micro-batches that this run has staged, by micro-batch."""
        with settings(spark, COUNTING):
            try:
                paths = [literal(f"{self.folder}/{staged.path}") for staged in batches]
                found = measured(spark, paths, self._hash_column())
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


def missing(checkpoint: str, folder: str, first: int, batch_id: int) -> StagingError:
    """What a query staged is lost, from micro-batch ``first`` on."""
    return StagingError(
        f"checkpoint {checkpoint} is at micro-batch {batch_id}, but {folder} knows them only up to {first - 1} (-1: "
        "none): the folder was removed, or the checkpoint was made by another sink. Nothing was written. Bring the "
        "folder back, or start with a new checkpoint, which reads the sources again"
    )


def next_batch(spark: SparkSession, checkpoint: str) -> int:
    """The micro-batch that Spark will run next: the first that it has not committed."""
    try:
        reader = spark.read.option("recursiveFileLookup", "true")
        paths = reader.text(in_checkpoint(literal(checkpoint.rstrip("/")), "commits")).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return 0
    names = [path.rsplit("/", 1)[1] for path in paths]
    return max((int(name) for name in names if name.isdigit()), default=NO_BATCH) + 1
