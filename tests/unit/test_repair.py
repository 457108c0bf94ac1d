"""Which of two entries of one name is the true one."""

from __future__ import annotations

from typing import Any

import pytest

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ForeignWriterError, StagingError, StorageError
from spark_purgatory.spark.sink.repair import Conflict, _decided
from spark_purgatory.spark.sink.staging.staging_folder import LogEntry
from spark_purgatory.spark.sink.table.delta_history import mark
from tests.simulation.table import Table, Target


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
    table.commit([1], "app", 0, mark("app", 0, "first"))
    return table


def test_the_intent_whose_commit_the_table_has_is_true() -> None:
    table = a_table()
    table.commit([2], "app", 1, mark("app", 1, "a"))
    assert decided(table, [intent("a", 3, 1), intent("b", 5, 2)]).true.body["uuid"] == "a"


def test_without_a_commit_the_intent_that_covers_more_is_true_whichever_run_is_later() -> None:
    entries = [intent("a", 5, 1), intent("b", 3, 2)]
    found = decided(a_table(), entries)
    assert (found.true.body["uuid"], found.false) == ("a", (entries[1],))
    assert decided(a_table(), [intent("a", 5, 1), intent("b", 5, 2)]).true.body["uuid"] == "b"


def test_a_commit_of_neither_and_entries_that_are_no_intents_decide_nothing() -> None:
    table = a_table()
    table.commit([2], "app", 1, mark("app", 1, "another"))
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
