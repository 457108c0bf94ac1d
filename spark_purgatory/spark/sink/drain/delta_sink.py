"""Rows into a Delta table exactly once, by way of a staging folder: the protocol.

Terms. A *query* is a checkpoint: Spark gives it an id when it is made and keeps the id over restarts. A *micro-batch* b
of it is run again after a crash, with the same rows and number. Its rows are *staged* in *pieces* (`ledger`), and
*drain* N brings some pieces to the table in one Delta transaction: ``txnAppId`` the query and table, ``txnVersion`` N.
The *staging log* is the folder of log records beside the pieces (`staging_folder`).

What counts. Spark runs micro-batch b only once every one before it was committed in the checkpoint, that is, once the
sink had returned from it. So the checkpoint itself says that what was staged before b is whole, and nothing needs to be
written to say so; of b it says nothing. A drain in b may take b's own rows: from then on the intent says that b counts.

Protocol. A micro-batch b, in a run's first call after the settling of what the last run left (D, E, F):

1. b <= last batch of the last intent: evaluate the DataFrame into ``noop``, for Spark's state must be committed, and
   return. Else every micro-batch between that one and b must be there, as a folder with rows or in a note of those
   without; if one is not, what the query staged is lost. Stop.
2. *parts*: write the rows to a folder of this run's own, ``<epoch>/batch=<b>-<run>``, evaluating the DataFrame once,
   and then a record of how many they are. Runs are numbered; of a micro-batch that several staged the last folder
   counts that holds all the rows of its record: not what a crash left half, nor what an old query run that is still
   alive writes. Without rows: a log record says so. With a new schema: a log record comes first.

A drain, whenever the policy says so; several in one micro-batch, or none. The files staged since the last one are
counted, many micro-batches in one job, and no earlier than the policy could need it (`backlog`). Then:

3. *intent*: a log record names N, the pieces taken, all that is left, and b: everything before it is superseded.
4. *drain commit*: the rows of the pieces taken are counted once more; then they go to the table, each row compared
   with its hash, marked with N and, in userMetadata, with the intent's uuid.
5. *read-back*: find N in the table's own log, and the uuid with it; compare the rows committed with the pieces'.
6. *clean-up*: a log record "done N"; then the records before intent N, then pieces that nothing names, are removed.

A micro-batch that will fill files by itself goes direct: 3 with b in the place of pieces, 4 with its rows, 5, 6.

Invariant: a row of a micro-batch before the one that Spark runs is in a piece that the last intent left, or in a folder
of a later micro-batch (of several, the last run's), or in the table; never in two of them once the
last intent was settled. Nothing is removed before the commit that took it was read back.

| the run ended | the log says | the table says | the next run does |
| --- | --- | --- | --- |
| A. in 2, or after it, before an intent with b | less than b counts | | b again, in a folder of its own |
| B. after 3, b counting, before Spark noted b | b counts | | b again: step 1 |
| C. before the intent of 3 | no intent N | N - 1 | the policy decides anew |
| D. after 3, before the commit of 4 | intent N, not done | N - 1 | 4 with the same pieces; direct: when b comes again |
| E. after 4 | intent N, not done | N | 5, 6 |
| F. in 6 | done N | N | 6 at the next drain; what was removed is no longer named |
| G. and the table was dropped, replaced, or forgot | done N | less than N | stop: TableLostError |
| G. and the table was restored to before drain N | done N, its version | a RESTORE after it | stop: TableLostError |
| H. and another run commits as this one | intent N | another uuid, or more than N | stop: ForeignWriterError |
| I. and the checkpoint was deleted | nothing | N | a new query id: all rows of the source again, none skipped |
| J. and staged folders, or the log, were removed | a gap before b | | stop: StagingError |
| K. but lives on, and stages b beside the next run | | | nothing: one folder counts, whichever run ended first |
| L. but lives on, and both began at once | | | stop: ForeignWriterError |
| M. and a staged file was removed, emptied or damaged | its record | | stop: StagingError |

Step 5 reads the log and does not rely on step 4, because Delta *silently* skips a write whose txnVersion is not above
the last. Why 1
never leaves a micro-batch unevaluated: Spark would fail with STATE_STORE_COMMIT_VALIDATION_FAILED at every restart.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import BugError, ForeignWriterError, SkippedWriteError, StagingError, TableLostError
from spark_purgatory.spark.sink.drain.failpoints import reach
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, Intent, Piece
from spark_purgatory.spark.sink.staging.ledger_format import intent_body, replay
from spark_purgatory.spark.sink.staging.staged_files import read_files, reading
from spark_purgatory.spark.sink.staging.stager import Stager
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, local_folder
from spark_purgatory.spark.sink.table.delta_log import Commit, find_commit, find_restore, last_txn_version
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget, TableFacts
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import writing

LOG = logging.getLogger(__name__)
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
DRAIN_QUERY = {
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A file is a task of the shuffle: it may be neither split nor merged with another one.
    "spark.sql.adaptive.enabled": "false",
    # A variant is read whole anyway, and Spark's reader of parts of one fails where it generates no code.
    "spark.sql.variant.pushVariantIntoScan": "false",
}


@dataclass(frozen=True)
class Load:
    """What a drain writes: one DataFrame a file to be, or the rows of a micro-batch."""

    files: tuple[tuple[Piece, ...], ...] = ()
    direct: DataFrame | None = None
    max_file_rows: int = 0
    """Cut files at so many rows; 0 for one file each."""


class DeltaSink:
    """The durable part of a query's sink: ledger, log and table change by the steps above."""

    def __init__(self, target: DeltaTarget, checkpoint: str, now_ms: Callable[[], int]) -> None:
        self.checkpoint = checkpoint
        self.stager = Stager(checkpoint)
        self.target = target
        self.now_ms = now_ms
        self.app_id = ""
        self.table_id: str | None = None
        """Delta's id of the table; None as long as there is none."""
        self._legacy_log = False
        """The log has entries of format 1, in folders of their own."""
        self._checked: TableFacts | None = None
        """What `intend` saw, for the commit that follows it at once."""

    # --- start ---------------------------------------------------------------------------------------------------

    def recover(self, spark: SparkSession) -> Commit | None:
        """Read the log and compare it with the table; cases A to I. The commit of the last intent, if it is there."""
        self.app_id = app_id_of(spark, self.checkpoint, self.target)
        self.stager.place = StagingFolder(self.checkpoint, local_folder(spark, self.checkpoint))
        entries = self.stager.place.read_entries(spark)
        self.stager.ledger = replay(entries, self.stager.folder)
        self._legacy_log = any(body["format"] == 1 for _, body in entries)
        facts = self.target.facts(spark)
        last = last_txn_version(spark, facts.location, self.app_id, self.stager.anchor) if facts else NO_BATCH
        intent = self.stager.ledger.intent
        number = intent.number if intent else NO_BATCH
        self._compare(last, number, facts)
        self._check_restore(spark, facts)
        self.table_id = facts.id if facts else None
        if intent is None:
            LOG.info("start: table %s, checkpoint %s: no drain so far", self.target, self.checkpoint)
            return None
        if self.stager.ledger.is_done:
            LOG.info("start: drain %d of table %s is complete (case A, B, C or F)", number, self.target)
            return None
        if facts is None or last < number:
            LOG.warning("recovery: drain %d was not committed to table %s; again (case D)", number, self.target)
            return None
        LOG.warning("recovery: drain %d was committed to table %s; its clean-up follows (case E)", number, self.target)
        commit = find_commit(spark, facts.location, self.app_id, number, anchor=self.stager.anchor)
        if commit is None:
            return Commit(-1, intent.uuid, ())
        if commit.intent_uuid is not None and commit.intent_uuid != intent.uuid:
            raise self._foreign(number, number)
        self._note(commit, intent, None)
        self._check_restore(spark, facts)
        return commit

    def _compare(self, last: int, number: int, facts: TableFacts | None) -> None:
        known = self.stager.ledger.intent.table_id if self.stager.ledger.intent else None
        if known is not None and (facts is None or facts.id != known):
            raise self._lost(last, "it was dropped or replaced")
        if last < (number if self.stager.ledger.is_done else number - 1):
            raise self._lost(last, "it was dropped, replaced or restored, is another table, or forgot the query")
        if last > number:
            raise self._foreign(last, number)

    # --- steps 3 to 6 --------------------------------------------------------------------------------------------

    def intend(
        self, spark: SparkSession, taken: Sequence[Piece], batch_id: int | None = None, schema: str | None = None
    ) -> Intent:
        """Step 3; with ``batch_id`` for a micro-batch that does not count yet: its attempt, or its rows direct."""
        ledger = self.stager.ledger
        if ledger.uncounted:
            raise BugError(
                f"{len(ledger.uncounted)} micro-batches are staged that intent {ledger.next_drain} does not name"
            )
        wanted = schema or ledger.schema or ""
        facts = self._check_table(spark, self.table_id, wanted)
        keys = {piece.key for piece in taken}
        intent = Intent(
            number=ledger.next_drain,
            uuid=str(uuid4()),
            table_id=facts.id if facts else None,
            schema=wanted,
            last_batch=ledger.last_batch if batch_id is None else batch_id,
            direct=batch_id is not None and not taken,
            taken=tuple(taken),
            left=tuple(piece for piece in ledger.pieces.values() if piece.key not in keys),
            epochs=tuple(sorted(ledger.epochs | {ledger.next_drain})),
            run=ledger.run.number,
            table_version=ledger.table_version,
        )
        reach("before intent")
        # A second try would look like a second writer.
        with writing(f"intent {intent.number}", self.stager.folder):
            self.stager.place.write_entry(spark, intent.number, f"intent={intent.number}", intent_body(intent))
            check_alone(spark, self.stager.place, intent)
        reach("after intent")
        ledger.take(intent)
        self._checked = facts
        return intent

    def commit(self, spark: SparkSession, intent: Intent, load: Load, partition_by: Sequence[str]) -> Commit:
        """Steps 4 and 5; also to be called again for the same intent, in this run or a later one."""
        facts, self._checked = self._checked, None
        facts = facts or self._check_table(spark, self.table_id or intent.table_id, intent.schema)
        metadata = {"intent": intent.uuid, "drain": intent.number, "last_batch": intent.last_batch}
        started_ms = self.now_ms()
        if load.direct is None:
            self.stager.check_pieces(spark, intent.taken)
        reach("before drain commit")
        # Given twice: the write that creates a table by name reads it from the session only.
        with settings(spark, {**DRAIN_QUERY, USER_METADATA: json.dumps(metadata)}):
            rows = load.direct
            if rows is None:
                schema = T.StructType.fromJson(json.loads(intent.schema))
                rows = read_files(spark, self.stager.folder, schema, load.files, partition_by)
            with reading(f"the staged files of drain {intent.number}", self.stager.folder):
                self.target.append(rows, self.app_id, intent.number, metadata, load.max_file_rows, partition_by)
        reach("after drain commit")
        reach("before read-back")
        facts = facts or self.target.facts(spark)
        commit = self.read_back(spark, facts, intent, started_ms)
        reach("after read-back")
        return commit

    def read_back(self, spark: SparkSession, facts: TableFacts | None, intent: Intent, since_ms: int) -> Commit:
        """Step 5. SkippedWriteError, ForeignWriterError, TableLostError."""
        if facts is None:
            raise self._lost(NO_BATCH, "it is gone after a commit to it")
        commit = find_commit(spark, facts.location, self.app_id, intent.number, since_ms, self.stager.anchor)
        commit = commit or find_commit(spark, facts.location, self.app_id, intent.number, anchor=self.stager.anchor)
        if commit is None:
            last = last_txn_version(spark, facts.location, self.app_id, self.stager.anchor)
            if last > intent.number:
                raise self._foreign(last, intent.number)
            raise SkippedWriteError(
                f"drain {intent.number} was written to table {self.target} without an error, but its log has no such "
                f"transaction of app id {self.app_id!r} (the last is {last}). Staged rows wait; start again"
            )
        if commit.intent_uuid != intent.uuid:
            raise self._foreign(intent.number, intent.number)
        self.table_id = facts.id
        self._note(commit, intent, since_ms)
        return commit

    def was_committed(self, spark: SparkSession, intent: Intent) -> Commit | None:
        """After a commit that raised: did it arrive all the same?"""
        facts = self.target.facts(spark)
        commit = (
            find_commit(spark, facts.location, self.app_id, intent.number, anchor=self.stager.anchor) if facts else None
        )
        if commit is not None:
            if commit.intent_uuid != intent.uuid:
                raise self._foreign(intent.number, intent.number)
            self._note(commit, intent, None)
        return commit

    def clean_up(self, spark: SparkSession) -> None:
        """Step 6, of the last intent."""
        intent = self.stager.ledger.intent
        if intent is None:
            return
        reach("before clean-up")
        number, ledger = intent.number, self.stager.ledger
        with writing(f"the clean-up after drain {number}", self.stager.folder):
            if not ledger.is_done:
                done = {"number": number, "table_version": ledger.table_version, "committed_ms": ledger.committed_ms}
                self.stager.place.write_entry(spark, number, f"done={number}", done)
                ledger.is_done = True
            for path in self._idle_folders():
                self.stager.place.remove(spark, path)
        ledger.epochs -= ledger.idle_epochs()
        self._legacy_log = False
        reach("after clean-up")

    def _idle_folders(self) -> list[str]:
        """Folders that nothing that counts needs, the last intent being done."""
        ledger, number = self.stager.ledger, self.stager.ledger.next_drain - 1
        paths = [self.stager.place.log_path(number - 1)] if number > 0 else []
        legacy = {piece.epoch for piece in (ledger.intent.taken if ledger.intent else ()) if piece.is_legacy}
        if self._legacy_log and number > 0:
            paths += [f"log/epoch={number - 1}"]
        for epoch in sorted(ledger.idle_epochs()):
            paths.append(self.stager.place.epoch_path(epoch))
            if not ledger.has_records or epoch in legacy:
                paths.append(f"epoch={epoch}")
        generation = ledger.idle_generation()
        if generation is not None:
            paths += [f"{kind}/generation={generation}" for kind in ("rows", "log")]
        return paths

    # --- the table -----------------------------------------------------------------------------------------------

    def _check_table(self, spark: SparkSession, table_id: str | None, schema: str) -> TableFacts | None:
        facts = self.target.check(spark, table_id, T.StructType.fromJson(json.loads(schema)))
        self._check_restore(spark, facts)
        return facts

    def _check_restore(self, spark: SparkSession, facts: TableFacts | None) -> None:
        """Raise TableLostError if the table was restored to a version before the last drain's."""
        version = self.stager.ledger.table_version
        if facts is None or version is None or version < 0:
            return
        restored = find_restore(spark, facts.location, version, self.stager.ledger.committed_ms, self.stager.anchor)
        if restored is not None:
            raise TableLostError(
                f"table {self.target} was restored to {restored}, before version {version} with the last drain of this "
                f"query: rows that were delivered are gone. Nothing was written, staged rows wait. RESTORE the table "
                f"to version {version} or later and start again, or start with a new checkpoint, which reads the "
                "sources again"
            )

    def _note(self, commit: Commit, intent: Intent, committed_ms: int | None) -> None:
        """A commit was read back, made not before then. StagingError if it has other rows than its pieces had."""
        if intent.taken and commit.rows is not None and commit.files and commit.rows != intent.taken_rows:
            raise StagingError(
                f"drain {intent.number} to table {self.target} committed {commit.rows:,} rows in version "
                f"{commit.version}, and its staged files held {intent.taken_rows:,}: they were damaged while they were "
                "read. Nothing was removed, the staged files wait. Compare them with the table before you start again"
            )
        self.stager.ledger.table_version, self.stager.ledger.committed_ms = commit.version, committed_ms

    # --- errors --------------------------------------------------------------------------------------------------

    def _lost(self, last: int, why: str) -> TableLostError:
        known = self.stager.ledger.intent.number if self.stager.ledger.intent else NO_BATCH
        return TableLostError(
            f"checkpoint {self.checkpoint} has made {known + 1} drains, but table {self.target} holds them only up to "
            f"{last} (-1: none): {why} (delta.setTransactionRetentionDuration). Nothing was written, staged rows "
            "wait. Bring the table back, or start with a new checkpoint, which reads the sources again"
        )

    def _foreign(self, last: int, number: int) -> ForeignWriterError:
        return ForeignWriterError(
            f"table {self.target} holds transaction {last} of app id {self.app_id!r}, which this run did not make (its "
            f"last drain is {number}): another run of the query, or someone with its app id, writes to the table. "
            "Nothing was removed, staged rows wait. Stop the other writer and start with a new checkpoint"
        )


def app_id_of(spark: SparkSession, checkpoint: str, target: DeltaTarget | str) -> str:
    """The ``txnAppId``: Spark's id of the query, made at its first start and kept, and the table as it was named."""
    rows = spark.read.text(f"{literal(checkpoint)}/metadata").collect()
    try:
        query_id = json.loads(rows[0]["value"])["id"]
    except (IndexError, KeyError, ValueError) as error:
        raise StagingError(f"checkpoint {checkpoint} is damaged: its file 'metadata' names no query id") from error
    return f"spark_purgatory/{query_id}/{target}"


def check_alone(spark: SparkSession, place: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number."""
    replayed = replay(place.read_entries(spark), place.uri).intent
    if replayed is None or replayed.uuid != intent.uuid:
        found = "none" if replayed is None else f"number {replayed.number} of another run"
        raise ForeignWriterError(
            f"{place} was to hold intent {intent.number} and holds {found}: two runs of the query write at once. "
            "Nothing was committed by this one. Stop one of them and start again"
        )
