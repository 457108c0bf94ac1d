"""What the table holds of a query's drains, beside what the staging log says of them: cases D, E, G, H of `protocol`.

The table is asked in Delta's own words (`history`), by path or by name.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.errors import ForeignWriterError, SkippedWriteError, StagingError, StorageError, TableLostError
from spark_purgatory.spark.sink.drain.actions import Found, Looked, NotThere
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, DrainState, Intent, Ledger
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget, TableFacts
from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit, History
from spark_purgatory.spark.storage.paths import literal

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableState:
    """What there is of the table."""

    facts: TableFacts | None
    """None if there is none."""
    history: History
    """Whole since the last drain, or since the open intent, as far as it was not cut; empty if there is none."""


class TableTruth:
    """Compares the table with a query's ledger; it changes neither."""

    def __init__(self, target: DeltaTarget, checkpoint: str) -> None:
        self.target = target
        self.checkpoint = checkpoint
        self.app_id = ""
        """The query's; known once it has begun."""
        self._said_cut = False
        self._checked: TableState | None = None
        """The table as an intent saw it, for the commit that follows at once."""

    def look(self, spark: SparkSession, ledger: Ledger) -> Looked:
        """Compare the table with the log. TableLostError, ForeignWriterError."""
        state = self._state(spark, ledger)
        self.compare(ledger, state)
        intent = None if ledger.is_done else ledger.intent
        commit = None if intent is None else self._found(state.history, intent)
        if commit is not None:
            self._check_restore(commit.version, state.history)
        self._log_case(ledger, intent, commit, state.history)
        return Looked(state.facts.id if state.facts else None, commit)

    def _state(self, spark: SparkSession, ledger: Ledger) -> TableState:
        """The table, and what it says of everything since the last drain, or since the open intent."""
        facts = self.target.facts(spark)
        if facts is None:
            return TableState(None, History(()))
        since = ledger.table_version
        if since is not None:
            since -= 1  # That of the drain itself is looked at.
        elif ledger.intent is not None and not ledger.is_done:
            since = ledger.intent.base_version
        return TableState(facts, self.target.history(spark, since))

    def _log_case(self, ledger: Ledger, intent: Intent | None, commit: DrainCommit | None, history: History) -> None:
        """Which case of `protocol` this start is."""
        if intent is None:
            drains = f"drain {ledger.next_drain - 1} is complete" if ledger.intent else "no drain so far"
            LOG.info("start: table %s, checkpoint %s: %s (case A, B, C or F)", self.target, self.checkpoint, drains)
        elif commit is not None:
            said = "recovery: drain %d was committed to table %s; its clean-up follows (case E)"
            LOG.warning(said, intent.number, self.target)
        elif history.is_whole_since(intent.base_version):
            LOG.warning("recovery: drain %d was not committed to table %s; again (case D)", intent.number, self.target)
        else:
            LOG.warning(
                "recovery: the history of table %s was cut since version %d, so whether drain %d was committed is "
                "unknown; again, and Delta skips it if it was (case D or E)",
                self.target,
                intent.base_version,
                intent.number,
            )

    def compare(self, ledger: Ledger, state: TableState) -> None:
        """Cases G and H. TableLostError, ForeignWriterError."""
        facts, history = state.facts, state.history
        number = ledger.intent.number if ledger.intent else NO_BATCH
        if ledger.table_id is not None and (facts is None or facts.id != ledger.table_id):
            raise self._lost(number, "it was dropped or replaced")
        last_done = number if ledger.is_done else number - 1
        if facts is None and last_done > NO_BATCH:
            raise self._lost(number, "it was dropped, or is another table")
        drains = history.drains(self.app_id)
        if drains and max(drains) > number:
            raise self._foreign(max(drains), number)
        version = ledger.table_version
        if version is None:
            return
        is_there = last_done in drains or not history.is_whole_since(version - 1)
        if history.version < version or not is_there:
            raise self._lost(
                number,
                f"its version {version} is to be drain {last_done}, and it is at version {history.version}: it was "
                "replaced, is an old copy, or is another table",
            )
        self._check_restore(version, history)

    def check(self, spark: SparkSession, ledger: Ledger, table_id: str | None, schema: str) -> TableState:
        """The table before an intent: TableLostError, SchemaMismatchError."""
        facts = self.target.check(spark, table_id, T.StructType.fromJson(json.loads(schema)))
        history = History(()) if facts is None else self.target.history(spark, ledger.table_version)
        self._check_restore(ledger.table_version if facts else None, history)
        self._checked = TableState(facts, history)
        return self._checked

    def check_intended(self, spark: SparkSession, ledger: Ledger, intent: Intent) -> TableState:
        """The table before a commit, which its intent may have seen just now."""
        state = self._checked or self.check(spark, ledger, ledger.table_id or intent.table_id, intent.schema)
        self._checked = None
        return state

    def read_back(self, spark: SparkSession, ledger: Ledger, intent: Intent) -> Found | NotThere:
        """The commit of an intent. SkippedWriteError, ForeignWriterError, TableLostError."""
        if ledger.drain is DrainState.WRITTEN and ledger.before_version is not None:
            return self._read_written(spark, intent, ledger.before_version)
        facts = self.target.facts(spark)
        commit = self._found(self.target.history(spark, intent.base_version) if facts else History(()), intent)
        return NotThere() if commit is None or facts is None else Found(facts.id, commit)

    def _read_written(self, spark: SparkSession, intent: Intent, before: int) -> Found:
        """The commit of an intent whose write returned; the table was at version ``before`` before it."""
        facts = self.target.facts(spark)
        if facts is None:
            raise self._lost(intent.number, "it is gone after a commit to it")
        if intent.table_id not in (None, facts.id):
            raise self._lost(intent.number, "it was replaced while a drain was written")
        history = self.target.history(spark, intent.base_version)
        commit = self._found(history, intent)
        if commit is None:
            if history.is_whole_since(intent.base_version):
                raise SkippedWriteError(
                    f"drain {intent.number} was written to table {self.target} without an error, but its history has "
                    f"no such commit of app id {self.app_id!r}: Delta skips a txnVersion that is not above the app "
                    "id's last, so someone else writes with this app id, or an old copy of the checkpoint was "
                    "brought back. Staged rows wait. Stop the other writer and start with a new checkpoint"
                )
            if not history.is_whole_since(before):
                raise StorageError(
                    f"the history of table {self.target} was cut to versions {history.entries[-1].version} and later "
                    f"while drain {intent.number} was written, which is the version after {before} or none. Staged "
                    "rows wait. Raise delta.logRetentionDuration, and start again"
                )
            LOG.warning(
                "drain %d had been committed to table %s before its history was cut: Delta skipped it (case E)",
                intent.number,
                self.target,
            )
            commit = DrainCommit(NO_VERSION, self.app_id, intent.number, intent.uuid)
        return Found(facts.id, commit)

    def _found(self, history: History, intent: Intent) -> DrainCommit | None:
        """The commit of an intent in the table's history. ForeignWriterError if it is another run's."""
        drains = history.drains(self.app_id)
        commit = drains.get(intent.number)
        if drains and (max(drains) > intent.number or (commit is not None and commit.intent_uuid != intent.uuid)):
            raise self._foreign(max(drains), intent.number)
        return commit

    def _check_restore(self, version: int | None, history: History) -> None:
        """Raise TableLostError if the table was restored to a version before ``version``, the last drain's."""
        if version is None:
            return
        if (undone := history.undone(version)) is not None:
            raise TableLostError(
                f"table {self.target} was {undone}, before version {version} with the last drain of this query: rows "
                f"that were delivered are gone. Nothing was written, staged rows wait. RESTORE the table to version "
                f"{version} or later and start again, or start with a new checkpoint, which reads the sources again"
            )
        if not history.is_whole_since(version) and not self._said_cut:
            self._said_cut = True
            LOG.warning(
                "the history of table %s was cut since the last drain (version %d): a RESTORE in that time would not "
                "show. Raise delta.logRetentionDuration",
                self.target,
                version,
            )

    def _lost(self, number: int, why: str) -> TableLostError:
        return TableLostError(
            f"checkpoint {self.checkpoint} has made {number + 1} drains, but table {self.target} does not hold them: "
            f"{why}. Nothing was written, staged rows wait. Bring the table back, or start with a new checkpoint, "
            "which reads the sources again"
        )

    def _foreign(self, last: int, number: int) -> ForeignWriterError:
        return ForeignWriterError(
            f"table {self.target} holds transaction {last} of app id {self.app_id!r}, which this run did not make (its "
            f"last drain is {number}): another run of the query, or someone with its app id, writes to the table. "
            "Nothing was removed, staged rows wait. If this checkpoint was moved (spark-purgatory move), go on with "
            "the one that it was moved to. Otherwise stop the other writer and start with a new checkpoint"
        )


def app_id_of(spark: SparkSession, checkpoint: str) -> str:
    """The ``txnAppId``: Spark's id of the query, made at its first start and kept. A table may get another name."""
    rows = spark.read.text(f"{literal(checkpoint)}/metadata").collect()
    try:
        query_id = json.loads(rows[0]["value"])["id"]
    except (IndexError, KeyError, ValueError) as error:
        raise StagingError(f"checkpoint {checkpoint} is damaged: its file 'metadata' names no query id") from error
    return f"spark_purgatory/{query_id}"
