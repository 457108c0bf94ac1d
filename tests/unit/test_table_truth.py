"""What a drain reads back from a table that others change meanwhile."""

from __future__ import annotations

import pytest

from spark_purgatory.errors import TableLostError
from spark_purgatory.spark.sink.drain.actions import Found
from spark_purgatory.spark.sink.drain.table_truth import TableTruth
from spark_purgatory.spark.sink.staging.ledger import DrainState, Ledger, Names
from spark_purgatory.spark.sink.staging.pieces import Contents, Intent
from spark_purgatory.spark.sink.table.delta_history import mark, whole_history
from spark_purgatory.spark.sink.table.history import TableFacts, TableState
from tests.simulation.table import Table


@pytest.mark.parametrize("is_written_by_this_run", [True, False])
@pytest.mark.parametrize("restores", [True, False])
def test_a_restore_while_a_drain_is_written_is_seen_when_it_is_read_back(
    restores: bool, is_written_by_this_run: bool
) -> None:
    table = Table()
    table.neighbour()
    table.commit([1], "app", 0, mark("app", 0, "first"))
    if restores:
        table.restore(back=1)
    table.commit([2], "app", 1, mark("app", 1, "second"))
    intent = Intent(1, "second", table.id, "", 7, Contents(), (), (), (0, 1), 0, table_version=1, base_version=1)
    ledger = Ledger(intent=intent, names=Names("/checkpoint", "/checkpoint/staging", "/table", "app"))
    if is_written_by_this_run:
        ledger.drain, ledger.before_version = DrainState.WRITTEN, 1
    history = whole_history(lambda limit: table.versions[-limit:], intent.base_version - 1)
    state = TableState(TableFacts("a table", "/table", ()), history)
    if restores:
        with pytest.raises(
            TableLostError,
            match=r"drains, but they are missing .*: it was restored to version 0 while a drain was written",
        ):
            TableTruth().read_back(ledger, intent, state)
    else:
        assert isinstance(TableTruth().read_back(ledger, intent, state), Found)
