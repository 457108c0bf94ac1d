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

3. *intent*: a log record names N, the pieces taken, all that is left, and b: everything before it is superseded; and
   the table's version, after which N's is to come.
4. *drain commit*: the rows of the pieces taken are counted once more; then they go to the table, each row compared
   with its hash, marked with N and, in userMetadata, with the intent's uuid.
5. *read-back*: find N in the table's history, and the uuid with it; compare the rows committed with the pieces'.
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
| D or E | intent N, not done | its history was cut since the intent | 4 again, which Delta skips in E; 6 |
| F. in 6 | done N | N | 6 at the next drain; what was removed is no longer named |
| G. and the table was dropped or replaced | its id, done N at version V | another id | stop: TableLostError |
| G. and the table is an old copy of itself | done N at version V | less than V, or V is not N | stop: TableLostError |
| G. and the table was restored to before drain N | done N at version V | a RESTORE after it | stop: TableLostError |
| H. and another run commits as this one | intent N | another uuid, or more than N | stop: ForeignWriterError |
| H. and someone has its app id without its mark | intent N | not N, and skips it | stop: SkippedWriteError |
| I. and the checkpoint was deleted | nothing | N | a new query id: all rows of the source again, none skipped |
| J. and staged folders, or the log, were removed | a gap before b | | stop: StagingError |
| K. but lives on, and stages b beside the next run | | | nothing: one folder counts, whichever run ended first |
| L. but lives on, and both began at once | | | stop: ForeignWriterError |
| M. and a staged file was removed, emptied or damaged | its record | | stop: StagingError |

Step 5 reads the history and does not rely on step 4, because Delta *silently* skips a write whose txnVersion is not
above the last. So a commit that nobody can know of is repeated (`history`). Why 1, and a direct commit that was
skipped, never leave a micro-batch unevaluated: Spark would fail with STATE_STORE_COMMIT_VALIDATION_FAILED.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import BugError, ForeignWriterError, StagingError
from spark_purgatory.spark.sink.drain.failpoints import reach
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, Intent, Piece
from spark_purgatory.spark.sink.staging.ledger_format import intent_body, replay
from spark_purgatory.spark.sink.staging.staged_files import read_files, reading
from spark_purgatory.spark.sink.staging.stager import Stager
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, local_folder
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.history import NO_VERSION, Commit
from spark_purgatory.spark.sink.table.table_truth import TableState, TableTruth, app_id_of
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import writing

LOG = logging.getLogger(__name__)
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

    def __init__(self, target: DeltaTarget, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.stager = Stager(checkpoint)
        self.target = target
        self.truth = TableTruth(target, checkpoint)
        self.table_id: str | None = None
        """Delta's id of the table; None as long as there is none."""
        self._legacy_log = False
        """The log has entries of format 1, in folders of their own."""
        self._checked: TableState | None = None
        """What `intend` saw, for the commit that follows it at once."""

    # --- start ---------------------------------------------------------------------------------------------------

    def recover(self, spark: SparkSession) -> Commit | None:
        """Read the log and compare it with the table; cases A to I. The commit of the last intent, if it is there."""
        self.truth.app_id = app_id_of(spark, self.checkpoint, self.target)
        self.stager.place = StagingFolder(self.checkpoint, local_folder(spark, self.checkpoint))
        entries = self.stager.place.read_entries(spark)
        self.stager.ledger = replay(entries, self.stager.folder)
        self._legacy_log = any(body["format"] == 1 for _, body in entries)
        state = self.truth.look(spark, self.stager.ledger)
        intent = self.stager.ledger.intent
        number = intent.number if intent else NO_BATCH
        self.truth.compare(self.stager.ledger, state)
        self.table_id = state.facts.id if state.facts else None
        if intent is None:
            LOG.info("start: table %s, checkpoint %s: no drain so far", self.target, self.checkpoint)
            return None
        if self.stager.ledger.is_done:
            LOG.info("start: drain %d of table %s is complete (case A, B, C or F)", number, self.target)
            return None
        commit = self.truth.found(state.history, intent)
        if commit is not None:
            LOG.warning(
                "recovery: drain %d was committed to table %s; its clean-up follows (case E)", number, self.target
            )
            self._note(commit, intent)
            self.truth.check_restore(self.stager.ledger, state.history)
            return commit
        if state.history.is_whole_since(intent.base_version):
            LOG.warning("recovery: drain %d was not committed to table %s; again (case D)", number, self.target)
        else:
            LOG.warning(
                "recovery: the history of table %s was cut since version %d, so whether drain %d was committed is "
                "unknown; again, and Delta skips it if it was (case D or E)",
                self.target,
                intent.base_version,
                number,
            )
        return None

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
        state = self.truth.check(spark, ledger, self.table_id, wanted)
        keys = {piece.key for piece in taken}
        intent = Intent(
            number=ledger.next_drain,
            uuid=str(uuid4()),
            table_id=state.facts.id if state.facts else None,
            base_version=state.history.version,
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
        self._checked = state
        return intent

    def commit(self, spark: SparkSession, intent: Intent, load: Load, partition_by: Sequence[str]) -> Commit:
        """Steps 4 and 5; also to be called again for the same intent, in this run or a later one."""
        state, self._checked = self._checked, None
        ledger = self.stager.ledger
        state = state or self.truth.check(spark, ledger, self.table_id or intent.table_id, intent.schema)
        if load.direct is None:
            self.stager.check_pieces(spark, intent.taken)
        reach("before drain commit")
        with settings(spark, DRAIN_QUERY):
            rows = load.direct
            if rows is None:
                schema = T.StructType.fromJson(json.loads(intent.schema))
                rows = read_files(spark, self.stager.folder, schema, load.files, partition_by)
            with reading(f"the staged files of drain {intent.number}", self.stager.folder):
                app_id = self.truth.app_id
                self.target.append(rows, app_id, intent.number, intent.uuid, load.max_file_rows, partition_by)
        reach("after drain commit")
        reach("before read-back")
        commit, self.table_id = self.truth.read_back(spark, intent, state.history.version)
        self._note(commit, intent)
        if commit.version == NO_VERSION and load.direct is not None:
            load.direct.write.format("noop").mode("overwrite").save()
        reach("after read-back")
        return commit

    def was_committed(self, spark: SparkSession, intent: Intent) -> Commit | None:
        """After a commit that raised: did it arrive all the same? None also where the history does not tell."""
        facts = self.target.facts(spark)
        commit = self.truth.found(self.target.history(spark, intent.base_version), intent) if facts else None
        if facts is not None and commit is not None:
            self.table_id = facts.id
            self._note(commit, intent)
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
                done = {"number": number, "table_version": ledger.table_version, "table_id": ledger.table_id}
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

    def _note(self, commit: Commit, intent: Intent) -> None:
        """A commit was read back. StagingError if it has other rows than its pieces had."""
        if intent.taken and commit.rows is not None and commit.rows != intent.taken_rows:
            raise StagingError(
                f"drain {intent.number} to table {self.target} committed {commit.rows:,} rows in version "
                f"{commit.version}, and its staged files held {intent.taken_rows:,}: they were damaged while they were "
                "read. Nothing was removed, the staged files wait. Compare them with the table before you start again"
            )
        ledger = self.stager.ledger
        ledger.table_version = None if commit.version == NO_VERSION else commit.version
        ledger.table_id = self.table_id


def check_alone(spark: SparkSession, place: StagingFolder, intent: Intent) -> None:
    """Raise ForeignWriterError if someone else made an intent of this number."""
    replayed = replay(place.read_entries(spark), place.uri).intent
    if replayed is None or replayed.uuid != intent.uuid:
        found = "none" if replayed is None else f"number {replayed.number} of another run"
        raise ForeignWriterError(
            f"{place} was to hold intent {intent.number} and holds {found}: two runs of the query write at once. "
            "Nothing was committed by this one. Stop one of them and start again"
        )
