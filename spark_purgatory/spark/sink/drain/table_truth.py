"""A query's drains in the table, compared with those in the staging log: cases D, E, G, H of docs/protocol.md.

Nothing here reads the table; `spark_actions` does, and hands over a `TableState`.
"""

from __future__ import annotations

import logging

from spark_purgatory import errors
from spark_purgatory.errors import START_OVER
from spark_purgatory.spark.sink.drain.actions import Found, Looked, NotThere
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, DrainState, Ledger, Names
from spark_purgatory.spark.sink.staging.pieces import Intent
from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit, History, TableState

LOG = logging.getLogger(__name__)


class TableTruth:
    """Compares the table with a query's ledger, and changes neither."""

    def __init__(self) -> None:
        self._said_cut = False

    def look(self, ledger: Ledger, state: TableState) -> Looked:
        """Compare the table with the log at a start. TableLostError, ForeignWriterError."""
        self.compare(ledger, state)
        intent, names, history = None if ledger.is_done else ledger.intent, ledger.names, state.history
        commit = None if intent is None else _found(names, history, intent)
        if commit is not None:
            self.check_restore(names, commit.version, history)
        if intent is None:
            drains = f"drain {ledger.next_drain - 1} is complete" if ledger.intent else "there was no drain yet"
            LOG.info("start: table %s, checkpoint %s: %s", names.table, names.checkpoint, drains)
        else:
            what = "was not committed: its commit follows"
            if commit is not None:
                what = "was committed: its clean-up follows"
            elif not history.is_whole_since(intent.base_version):
                what = "was decided before the table's history was cut: it follows, and a table that has it skips it"
            LOG.warning(f"recovery: table {names.table}, drain {intent.number} {what}")
        return Looked(state.facts.id if state.facts else None, commit)

    def compare(self, ledger: Ledger, state: TableState) -> None:
        """Raise TableLostError or ForeignWriterError in cases G and H."""
        facts, history, names = state.facts, state.history, ledger.names
        number = ledger.intent.number if ledger.intent else NO_BATCH
        if ledger.table_id is not None and (facts is None or facts.id != ledger.table_id):
            raise _lost(names, number, "it was dropped or replaced")
        last_done = number if ledger.is_done else number - 1
        if facts is None and last_done > NO_BATCH:
            raise _lost(names, number, "it was dropped, or is another table")
        _check_query_id(ledger, last_done, history)
        drains = history.drains(names.app_id)
        if drains and max(drains) > number:
            raise _foreign(names, max(drains), number)
        if (version := ledger.table_version) is None:
            return
        is_there = last_done in drains or not history.is_whole_from(version)
        if history.lacks(version, names.app_id) or not is_there:
            what = history.words.version
            why = f"its {what} {version} should be drain {last_done}, but it is at {what} {history.version}: it was "
            raise _lost(names, number, f"{why}replaced, is an old copy, or is another table")
        self.check_restore(names, version, history)

    def read_back(self, ledger: Ledger, intent: Intent, state: TableState) -> Found | NotThere:
        """Return the commit of an intent, if any. SkippedWriteError, ForeignWriterError, TableLostError."""
        if (before := intent.table_version) not in (None, NO_VERSION) and (undone := state.history.undone(before)):
            raise _lost(ledger.names, intent.number, f"it was {undone} while a drain was written")
        if ledger.drain is DrainState.WRITTEN and ledger.before_version is not None:
            return _read_written(ledger.names, intent, ledger.before_version, state)
        commit = _found(ledger.names, state.history, intent)
        return NotThere() if commit is None or state.facts is None else Found(state.facts.id, commit)

    def check_restore(self, names: Names, version: int | None, history: History) -> None:
        """Raise TableLostError if the table was restored to a version before the last drain's."""
        if version in (None, NO_VERSION):
            return
        if (undone := history.undone(version)) is not None:
            raise errors.TableLostError(
                f"table {names.table} was {undone}, before {history.words.version} {version} with the last drain of "
                "this query: rows that were delivered are gone. Nothing was written, and staged rows wait. "
                f"{history.words.restore} {version} or later and start again, or {START_OVER}"
            )
        if not history.is_whole_since(version) and not self._said_cut:
            self._said_cut = True
            LOG.warning(
                f"the history of table {names.table} was cut after the last drain ({history.words.version} {version}): "
                f"a RESTORE since then would not show. {history.words.keep}"
            )


def _check_query_id(ledger: Ledger, last_done: int, history: History) -> None:
    """Raise StagingError if the table holds this checkpoint's drains under another query's id."""
    for entry in history.entries:
        commit, names = entry.commit, ledger.names
        if commit is None or ledger.intent is None or commit.app_id == names.app_id:
            continue
        is_last = entry.version == ledger.table_version and commit.number == last_done
        if is_last or commit.intent_uuid == ledger.intent.uuid:
            raise errors.StagingError(
                f"{names.checkpoint}/metadata names the query {names.app_id}, but drain {commit.number} of this "
                f"checkpoint is version {entry.version} of table {names.table} under the query {commit.app_id}: the "
                "file was damaged or changed. Nothing was written, and staged rows wait. Bring it back from a copy, or "
                f'write that id into it: {{"id":"{commit.app_id.rpartition("/")[2]}"}}'
            )


def since(ledger: Ledger) -> int | None:
    """Return the version from which the table's history is read at a start; the last drain's own is included."""
    if ledger.table_version is not None:
        return ledger.table_version
    return None if ledger.intent is None or ledger.is_done else ledger.intent.base_version


def _read_written(names: Names, intent: Intent, before: int, state: TableState) -> Found:
    """Return the commit of an intent whose write returned; the table was at version ``before`` before it."""
    facts, history = state.facts, state.history
    if facts is None:
        raise _lost(names, intent.number, "it is gone after a commit to it")
    if intent.table_id not in (None, facts.id):
        raise _lost(names, intent.number, "it was replaced while a drain was written")
    commit = _found(names, history, intent)
    if commit is None:
        if history.is_whole_since(intent.base_version):
            raise errors.SkippedWriteError(
                f"drain {intent.number} was written to table {names.table} without an error, but its history has "
                f"no such commit of app id {names.app_id!r}: {history.words.skips}, so someone else writes with this "
                f"app id, or an old copy of the checkpoint was brought back. Staged rows wait. Stop the other writer, "
                f"and {START_OVER}"
            )
        if not history.is_whole_since(before):
            raise errors.StorageError(
                f"the history of table {names.table} was cut to versions {history.entries[-1].version} and later "
                f"while drain {intent.number} was written, so it does not show whether the drain was committed after "
                f"version {before}. Staged rows wait. {history.words.keep}, and start again"
            )
        what = "was committed before the table's history was cut: the table skipped it"
        LOG.warning(f"table {names.table}, drain {intent.number} {what}")
        commit = DrainCommit(NO_VERSION, names.app_id, intent.number, intent.uuid)
    return Found(facts.id, commit)


def _found(names: Names, history: History, intent: Intent) -> DrainCommit | None:
    """Return the commit of an intent in the table's history. ForeignWriterError if it is another run's."""
    drains = history.drains(names.app_id)
    commit = drains.get(intent.number)
    if drains and (max(drains) > intent.number or (commit is not None and commit.intent_uuid != intent.uuid)):
        raise _foreign(names, max(drains), intent.number)
    return commit


def _lost(names: Names, number: int, why: str) -> errors.TableLostError:
    return errors.TableLostError(
        f"checkpoint {names.checkpoint} has made {number + 1} drains, but they are missing from table {names.table}: "
        f"{why}. Nothing was written, and staged rows wait. Bring the table back, or {START_OVER}"
    )


def _foreign(names: Names, last: int, number: int) -> errors.ForeignWriterError:
    return errors.ForeignWriterError(
        f"table {names.table} holds transaction {last} of app id {names.app_id!r}, which this run did not make (its "
        f"last drain is {number}). Another run of the query, or someone with its app id, writes to the table, or the "
        f"entry intent={last} was removed from {names.folder}/log. This run removed nothing, and staged rows wait. "
        "If the entry was removed, bring it back from a copy. If this checkpoint was moved (spark-purgatory move), use "
        f"the new one. Otherwise stop the other writer, and {START_OVER}"
    )
