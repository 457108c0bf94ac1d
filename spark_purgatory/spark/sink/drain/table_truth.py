"""A query's drains in the table, compared with those in the staging log: cases D, E, G, H of docs/protocol.md.

Nothing here reads the table; `sender` does, and hands over a `TableState`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_purgatory import errors
from spark_purgatory.errors import START_OVER
from spark_purgatory.spark.sink.drain.actions import Found, Looked, NotThere
from spark_purgatory.spark.sink.staging.ledger import NO_BATCH, DrainState, Intent, Ledger, Names, TakenBack
from spark_purgatory.spark.sink.table.history import (
    COMMITTED,
    NO_VERSION,
    SAYS,
    DrainCommit,
    History,
    TableFacts,
    TableState,
)

LOG = logging.getLogger(__name__)


def look(ledger: Ledger, state: TableState) -> Looked:
    compare(ledger, state)
    version = ledger.table_version
    if version is not None and version != NO_VERSION and not state.history.is_whole_since(version):
        LOG.warning(
            f"the history of table {ledger.names.table} was cut after the last drain: a RESTORE since then would not "
            "show. Let the table keep its history for longer"
        )
    # Without an open drain; else the search for it shows it.
    taken_back = _taken_back(ledger, state.history) if ledger.is_done else None
    return Looked(state.facts.id if state.facts else None, taken_back)


def compare(ledger: Ledger, state: TableState) -> None:
    """Raise TableLostError or ForeignWriterError in cases G and H."""
    facts, history, names = state.facts, state.history, ledger.names
    number = ledger.intent.number if ledger.intent else NO_BATCH
    if ledger.table_id is not None and (facts is None or facts.id != ledger.table_id):
        raise _lost(names, number, "it was dropped or replaced", history, is_gone=facts is None)
    last_done = number if ledger.is_done else number - 1
    if facts is None and last_done > NO_BATCH:
        raise _lost(names, number, "it was dropped, or is another table", history, is_gone=True)
    _check_query_id(ledger, last_done, history)
    version, drains = ledger.table_version, drains_in(history, names.app_id)[0]
    is_old = version is not None and history.lacks(version, names.app_id)
    if not is_old:
        check_restore(names, version, history)
    if drains and max(drains) > number:
        raise _foreign(names, drains, number, history)
    if version is None:
        return
    is_there = last_done in drains or history.is_back(version) or not history.is_whole_from(version)
    if facts is not None and is_old and not history.is_whole_since(version):
        _check_accepted(ledger, facts, history, last_done)
    elif is_old or not is_there:
        what = history.words.version
        why = f"its {what} {version} should be drain {last_done}, but it is at {what} {history.version}: it was "
        raise _lost(names, number, f"{why}replaced, is an old copy, or is another table", history)


def read_back(ledger: Ledger, intent: Intent, state: TableState) -> Found | NotThere:
    """Return the commit of an intent, if any.

    Raises SkippedWriteError, ForeignWriterError, TableLostError, StagingError.
    """
    facts, history, names = state.facts, state.history, ledger.names
    if (before := intent.table_version) not in (None, NO_VERSION) and (undone := history.undone(before)):
        raise _lost(names, intent.number, f"it was {undone.what} while a drain was written", history, intent)
    is_written = ledger.drain is DrainState.WRITTEN
    if is_written and facts is None:
        raise _lost(names, intent.number, "it is gone after a commit to it", history, intent)
    if is_written and facts is not None and intent.table_id not in (None, facts.id):
        raise _lost(names, intent.number, "it was replaced while a drain was written", history, intent)
    commit = _found(names, intent, state)
    if ledger.begun_ms is None:
        what = "is not in the table's history: its commit follows" if commit is None else "is in the table"
        LOG.warning(f"recovery: table {names.table}, drain {intent.number} of an earlier run {what}")
    if facts is not None and commit is not None:
        return Found(facts.id, commit)
    taken_back = _taken_back(ledger, history)
    if facts is None or taken_back is not None or not is_written:
        return NotThere(taken_back)
    return Found(facts.id, _skipped(names, intent, ledger.before_version, history))


def check_restore(names: Names, version: int | None, history: History) -> None:
    """Raise TableLostError if the table was restored to a version before the last drain's."""
    if version in (None, NO_VERSION):
        return
    what = history.words.version
    if (undone := history.undone(version)) is not None:
        copy = ""
        if undone.to is not None:
            copy = f", bring back a copy of the checkpoint made while the table was at {what} {undone.to}"
        raise errors.TableLostError(
            f"table {names.table} was {undone.what}, before {what} {version} with the last drain of this query: "
            "rows that were delivered are gone. Nothing was written, and staged rows wait. "
            f"{history.words.restore} {version} and start again{copy}, or {START_OVER}"
        )


def _found(names: Names, intent: Intent, state: TableState) -> DrainCommit | None:
    history, drains = state.history, drains_in(state.history, names.app_id)[0]
    commit = drains.get(intent.number)
    if drains and (max(drains) > intent.number or (commit is not None and commit.intent_uuid != intent.uuid)):
        raise _foreign(names, drains, intent.number, history)
    if commit is None:
        return None
    check_restore(names, commit.version, history)
    is_accepted = state.facts is not None and state.facts.properties.get(SAYS + intent.uuid) == COMMITTED
    if is_accepted or commit.rows in (None, intent.taken_rows):
        return commit
    raise errors.StagingError(
        f"drain {commit.number} to table {names.table} committed {commit.rows:,} rows in {history.words.version} "
        f"{commit.version}, and its staged files held {intent.taken_rows:,}: they were damaged while they were "
        "read. Nothing was removed, and the staged files wait. Compare the rows that it added with these files, "
        f"and put the table right. Then say so: ALTER TABLE {names.sql_place} SET TBLPROPERTIES "
        f"('{SAYS}{intent.uuid}' = '{COMMITTED}'), and start again"
    )


def _check_accepted(ledger: Ledger, facts: TableFacts, history: History, last_done: int) -> None:
    """Raise TableLostError for a last drain that left no trace, unless the owner has said that it is there."""
    names, intent = ledger.names, ledger.intent
    if intent is not None and facts.properties.get(SAYS + intent.uuid) == COMMITTED:
        return
    said = ""
    if intent is not None and intent.number == last_done:
        said = (
            f"If all rows are there, say so: ALTER TABLE {names.sql_place} SET TBLPROPERTIES "
            f"('{SAYS}{intent.uuid}' = '{COMMITTED}'), and start again. Otherwise bring"
        )
    raise errors.TableLostError(
        f"table {names.table} does not show whether it has drain {last_done}: the drain's {history.words.version} "
        f"{ledger.table_version} expired and the query's branch is missing, or it is another table. Nothing was "
        f"written, and staged rows wait. Compare the table with what was delivered. {said or 'Bring'} the earlier "
        f"table back from a copy and start again, or {START_OVER}"
    )


def drains_in(history: History, app_id: str) -> tuple[dict[int, DrainCommit], TakenBack | None]:
    """Return the query's drains that the table has, and those that a RESTORE to an earlier version took back."""
    found: dict[int, DrainCommit] = {}
    number = version = NO_VERSION
    for commit in history.drains(app_id).values():
        undone = None if commit.version == NO_VERSION else history.undone(commit.version)
        if undone is None or undone.to is None:
            found[commit.number] = commit
        else:
            number, version = max(number, commit.number), max(version, undone.at)
    return found, None if number == NO_VERSION else TakenBack(number, version)


def _taken_back(ledger: Ledger, history: History) -> TakenBack | None:
    """Return drains that a RESTORE took back, if the table would skip the next one for its number."""
    _, taken_back = drains_in(history, ledger.names.app_id)
    first = ledger.next_drain if ledger.is_done else ledger.next_drain - 1
    if taken_back is None or taken_back.number < first:
        return None
    LOG.warning(
        f"table {ledger.names.table} was restored in version {taken_back.version} to before drain {taken_back.number} "
        "of this query, which the checkpoint does not have or brings again, under a later number"
    )
    return taken_back


def _check_query_id(ledger: Ledger, last_done: int, history: History) -> None:
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


def _skipped(names: Names, intent: Intent, before: int, history: History) -> DrainCommit:
    """Return the commit of an intent that the table skipped; it was at version ``before`` then."""
    if history.is_whole_since(intent.base_version):
        raise errors.SkippedWriteError(
            f"drain {intent.number} was written to table {names.table} without an error, but its history has "
            f"no such commit of app id {names.app_id!r}: someone else writes with this app id, or has undone it at "
            f"once, or an old copy of the checkpoint was brought back. Staged rows wait. Stop the other writer, and "
            f"{START_OVER}"
        )
    if not history.is_whole_since(before):
        raise errors.StorageError(
            f"the history of table {names.table} was cut to versions {history.entries[-1].version} and later "
            f"while drain {intent.number} was written, so it does not show whether the drain was committed after "
            f"version {before}. Staged rows wait. Let the table keep its history for longer, and start again"
        )
    what = "was committed before the table's history was cut: the table skipped it"
    LOG.warning(f"table {names.table}, drain {intent.number} {what}")
    return DrainCommit(NO_VERSION, names.app_id, intent.number, intent.uuid)


def _lost(
    names: Names, number: int, why: str, history: History, written: Intent | None = None, is_gone: bool = False
) -> errors.TableLostError:
    """``written``: the intent whose rows may be in the table that is there now. ``is_gone``: none is there."""
    what = "Nothing was written" if written is None else f"Rows of drain {number} may be in the table of now"
    replaced = next((entry.version for entry in history.entries if entry.replaces), None)
    before = None if replaced is None else history.version_before(replaced)
    bring = "Bring the earlier table back from a copy" if before is None else f"{history.words.restore} {before}"
    if is_gone:
        bring = "If it was moved or renamed, start with its new path or name. Otherwise bring the earlier table back"
    return errors.TableLostError(
        f"checkpoint {names.checkpoint} has made {number + 1} drains, but they are missing from table {names.table}: "
        f"{why}. {what}, and staged rows wait. {bring} and start again, which writes them, or {START_OVER}"
    )


def _foreign(names: Names, drains: Mapping[int, DrainCommit], last: int, history: History) -> errors.ForeignWriterError:
    first = min((commit.version for number, commit in drains.items() if number > last), default=NO_VERSION)
    before = None if first == NO_VERSION else history.version_before(first)
    copy = ""
    if before is not None:
        copy = (
            f"If it is an old copy, and no later one is left, it belongs to {history.words.version} {before}: "
            f"{history.words.restore} {before}, which takes back what anybody wrote since, and start again. "
        )
    missing = f"the entry intent={max(drains)} was removed from {names.folder}/log, bring it"
    if last == NO_BATCH:
        missing = "files of this checkpoint, which knows no drain, are missing, bring the whole checkpoint"
    return errors.ForeignWriterError(
        f"table {names.table} holds transaction {max(drains)} of app id {names.app_id!r}, which this run did not make "
        f"(its last drain is {last}). This run removed nothing, and staged rows wait. If another run uses this "
        "checkpoint too, end one of the two, and the other goes on. If this checkpoint was moved or copied, use the "
        f"one that has written since. If {missing} back from a copy. {copy}Otherwise someone else writes with this app "
        f"id: stop the other writer, and {START_OVER}"
    )
