"""What a drain reads back from a table that others change meanwhile, and which of two entries of one name is true."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ForeignWriterError, StagingError, StorageError, TableLostError
from spark_purgatory.spark.sink.drain import table_truth
from spark_purgatory.spark.sink.drain.actions import Found, NotThere
from spark_purgatory.spark.sink.repair import Conflict, _decided
from spark_purgatory.spark.sink.staging.ledger import (
    Contents,
    DrainState,
    Intent,
    Ledger,
    LogEntry,
    Names,
    Piece,
    TakenBack,
)
from spark_purgatory.spark.sink.table.history import Mark, TableFacts, TableLook, TableState, metadata_of, whole_history
from tests.simulation.table import Table, Target

PIECE = Piece("", "rows/part-0", 1, 100, 7, 1, 0)
FACTS = TableFacts("a table", "/table", ())


def drained(table: Table, restored_to: int | None = None, after: bool = False) -> tuple[Ledger, Intent, TableState]:
    """The second drain, in version 2, of a query whose first is in version 1; a RESTORE before or after it."""
    table.neighbour()
    table.commit([1], "app", 0, metadata_of(Mark("app", 0, "first")))
    if restored_to is not None and not after:
        table.restore(back=table.version - restored_to)
    table.commit([2], "app", 1, metadata_of(Mark("app", 1, "second")))
    if restored_to is not None and after:
        table.restore(back=table.version - restored_to)
    intent = Intent(1, "second", table.id, "", 7, Contents(), (PIECE,), (), (0, 1), 0, table_version=1, base_version=1)
    ledger = Ledger(intent=intent, names=Names("/checkpoint", "/checkpoint/staging", "/table", "app", "t"))
    history = whole_history(lambda limit: table.versions[-limit:], intent.base_version - 1)
    return ledger, intent, TableState(FACTS, history)


def written(ledger: Ledger, by_this_run: bool) -> Ledger:
    if by_this_run:
        history = whole_history(lambda limit: Table().versions)
        ledger.drain, ledger.looked = DrainState.WRITTEN, TableLook(FACTS, history, "")
    else:
        ledger.drain = DrainState.UNSURE
    return ledger


@pytest.mark.parametrize("by_this_run", [True, False])
def test_a_restore_while_a_drain_is_written_is_seen_when_it_is_read_back(by_this_run: bool) -> None:
    ledger, intent, state = drained(Table(), restored_to=0)
    with pytest.raises(
        TableLostError,
        match=r"it was restored to version 0 while a drain was written\. Rows of drain 1 may be in the table of now",
    ):
        table_truth.read_back(written(ledger, by_this_run), intent, state)
    ledger, intent, state = drained(Table())
    assert isinstance(table_truth.read_back(written(ledger, by_this_run), intent, state), Found)


@pytest.mark.parametrize("by_this_run", [True, False])
def test_a_restore_after_a_drain_was_written_takes_it_back_though_the_one_before_is_there(by_this_run: bool) -> None:
    """The run ended well, and its rows were gone."""
    ledger, intent, state = drained(Table(), restored_to=1, after=True)
    assert table_truth.read_back(written(ledger, by_this_run), intent, state) == NotThere(TakenBack(1, 3))


def test_other_rows_than_the_staged_ones_stop_the_query_until_the_owner_says_that_the_drain_is_right() -> None:
    ledger, intent, state = drained(Table())
    newest, *older = state.history.entries
    wrong = replace(newest, commit=replace(newest.commit, rows=5))
    history = replace(state.history, entries=(wrong, *older))
    for _ in range(2):
        with pytest.raises(StagingError, match=r"committed 5 rows .* files held 1") as raised:
            table_truth.read_back(written(ledger, False), intent, TableState(FACTS, history))
    name, value = re.findall(r"TBLPROPERTIES \('(.*?)' = '(.*?)'\)", str(raised.value))[0]
    told = TableState(replace(FACTS, properties={name: value}), history)
    assert table_truth.read_back(ledger, intent, told) == Found("a table", wrong.commit)


def test_a_checkpoint_that_is_older_than_the_table_is_told_the_version_that_belongs_to_it() -> None:
    table = Table()
    ledger, _, _ = drained(table)
    ledger.intent = replace(ledger.intent, number=0, uuid="first", table_version=None)
    ledger.drain, ledger.table_version, ledger.table_id = DrainState.DONE, 1, "a table"
    history = whole_history(lambda limit: table.versions[-limit:], 0)
    with pytest.raises(ForeignWriterError, match="it belongs to version 1: RESTORE the table to version 1, "):
        table_truth.look(ledger, TableState(FACTS, history))
    table.restore(back=1)
    history = whole_history(lambda limit: table.versions[-limit:], 0)
    assert table_truth.look(ledger, TableState(FACTS, history)).taken_back == TakenBack(1, 3)


def intent(uuid: str, last_batch: int, run: int) -> LogEntry:
    body = {"uuid": uuid, "base_version": 0, "last_batch": last_batch, "run": run}
    return LogEntry("intent=1", body, f"log/intent=1-{uuid}")


def decided(table: Table, entries: list[LogEntry]) -> Conflict:
    target = Target(SinkOptions(path="/table"), table, lambda point: None)
    target.exists = lambda spark: True  # type: ignore[method-assign]
    spark: Any = None
    return _decided(spark, target, "app", entries[0].name, entries)


def a_table() -> Table:
    table = Table()
    table.commit([1], "app", 0, metadata_of(Mark("app", 0, "first")))
    return table


def test_the_intent_whose_commit_the_table_has_is_true() -> None:
    table = a_table()
    table.commit([2], "app", 1, metadata_of(Mark("app", 1, "a")))
    assert decided(table, [intent("a", 3, 1), intent("b", 5, 2)]).true.body["uuid"] == "a"


def test_without_a_commit_the_intent_that_covers_more_is_true_whichever_run_is_later() -> None:
    entries = [intent("a", 5, 1), intent("b", 3, 2)]
    found = decided(a_table(), entries)
    assert (found.true.body["uuid"], found.false) == ("a", (entries[1],))
    assert decided(a_table(), [intent("a", 5, 1), intent("b", 5, 2)]).true.body["uuid"] == "b"


def test_a_commit_of_neither_and_entries_that_are_no_intents_decide_nothing() -> None:
    table = a_table()
    table.commit([2], "app", 1, metadata_of(Mark("app", 1, "another")))
    with pytest.raises(ForeignWriterError, match="neither log entry of that number made it"):
        decided(table, [intent("a", 3, 1), intent("b", 5, 2)])
    with pytest.raises(StorageError, match="was cut after drain 1 began"):
        cut = a_table()
        cut.neighbour()
        cut.neighbour()
        cut.clean_up(kept=1)
        decided(cut, [intent("a", 3, 1), intent("b", 5, 2)])
    with pytest.raises(StagingError, match="differ, and nothing shows which is true"):
        decided(table, [entry._replace(name="schema=1") for entry in (intent("a", 3, 1), intent("b", 5, 2))])
