"""What is read of a table without it: drains and RESTOREs in its history, what a cut one leaves open, padded texts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_purgatory.errors import StagingError
from spark_purgatory.spark.sink.drain import table_truth
from spark_purgatory.spark.sink.staging.ledger import DrainState, Intent, Ledger, Names
from spark_purgatory.spark.sink.table.history import NO_VERSION, DrainCommit, TableFacts, TableState, TableVersion
from spark_purgatory.spark.sink.table.history import DeltaHistory as History

OURS, THEIRS = "spark_purgatory/1/t", "spark_purgatory/2/t"


def write(version: int, app_id: str = "", number: int = 0, uuid: str = "u") -> TableVersion:
    commit = DrainCommit(version, app_id, number, uuid) if app_id else None
    return TableVersion(version, "WRITE", {}, commit)


def restore(version: int, to: int | str) -> TableVersion:
    time = f'"{to}"' if isinstance(to, str) else None
    return TableVersion(version, "RESTORE", {"version": None if time else str(to), "timestamp": time}, None)


def history(*entries: TableVersion) -> History:
    """Of entries in the order of their versions."""
    return History(tuple(reversed(entries)))


def test_a_table_that_is_not_there_has_no_version_and_nothing_is_left_out() -> None:
    nothing = History(())
    assert nothing.version == NO_VERSION
    assert nothing.is_whole_since(NO_VERSION)
    assert nothing.drains(OURS) == {}


@pytest.mark.parametrize(("since", "is_whole"), [(3, False), (4, True), (5, True), (9, True)])
def test_a_history_is_whole_since_the_version_before_its_oldest(since: int, is_whole: bool) -> None:
    assert history(write(5), write(6)).is_whole_since(since) is is_whole


def test_drains_are_those_of_the_app_id_and_a_compaction_with_its_mark_is_not_the_drain() -> None:
    found = history(write(0, OURS, 0), write(1, OURS, 1), write(2, OURS, 1), write(3, THEIRS, 7), write(4)).drains(OURS)
    assert {number: commit.version for number, commit in found.items()} == {0: 0, 1: 1}


@pytest.mark.parametrize("operation", ["CREATE OR REPLACE TABLE AS SELECT", "CLONE"])
def test_queries_that_filled_a_table_are_told_the_latest_first_and_not_those_before_it_was_replaced(
    operation: str,
) -> None:
    replaced = TableVersion(1, operation, {}, None)
    found = history(write(0, "gone", 0), replaced, write(2, OURS, 0), write(3, THEIRS, 0), write(4, OURS, 1), write(5))
    drains = [(app_id, [version.version for version in versions]) for app_id, versions in found.queries().items()]
    assert drains == [(OURS, [4, 2]), (THEIRS, [3])]


def test_a_metadata_file_of_another_query_id_is_known_by_the_checkpoints_own_drain() -> None:
    ledger = Ledger(names=Names("/c", "/c/staging", "t", "spark_purgatory/flipped"), table_version=1)
    ledger.take(Intent(1, "u1", "id", "", 5, False, (), (), (), run=0))
    ledger.drain = DrainState.UNSURE
    facts = TableFacts("id", "/t", ())
    before = write(1, "spark_purgatory/true", 0, "u0")
    for entries in ([before], [write(0), write(2, "spark_purgatory/true", 1, "u1")]):
        with pytest.raises(StagingError, match=r'/c/metadata names the query .*write that id .*\{"id":"true"\}'):
            table_truth.compare(ledger, TableState(facts, history(*entries)))
    others = history(write(0, THEIRS, 0, "v"), write(1, "spark_purgatory/flipped", 0, "u0"))
    table_truth.compare(ledger, TableState(facts, others))


@pytest.mark.parametrize(
    ("entries", "undone"),
    [
        ([write(3), write(4)], None),
        ([write(3), restore(4, 3)], None),
        ([write(3), write(4), restore(5, 4)], None),
        ([write(3), restore(4, 2)], "restored to version 2"),
        ([write(3), restore(4, 2), write(5)], "restored to version 2"),
        ([write(3), restore(4, 2), restore(5, 3)], None),
        ([write(3), restore(4, 2), restore(5, 3), restore(6, 4)], "restored to version 2"),
        ([write(3), restore(4, "2026-01-01"), write(5)], "restored to time 2026-01-01"),
        ([write(3), TableVersion(4, "CREATE OR REPLACE TABLE AS SELECT", {}, None), write(5)], "replaced in version 4"),
        ([write(3), TableVersion(4, "CREATE OR REPLACE TABLE", {}, None), restore(5, 3)], None),
        ([write(3), TableVersion(4, "CLONE", {}, None), write(5)], "replaced in version 4"),
        ([write(3), TableVersion(4, "CLONE", {}, None), restore(5, 3)], None),
        ([TableVersion(2, "CLONE", {}, None), write(3)], None),
        ([restore(2, 0), write(3)], None),
    ],
)
def test_version_3_is_undone_where_the_table_is_no_longer_made_of_it(
    entries: list[TableVersion], undone: str | None
) -> None:
    found = history(*entries).undone(3)
    assert (found and found.what) == undone


Step = tuple[str, Mapping[str, str | None]]


def renamed(old: str, new: str) -> Step:
    return "RENAME COLUMN", {"oldColumnPath": old, "newColumnPath": new}


def restored(to: int) -> Step:
    return "RESTORE", {"version": str(to)}


WRITE: Step = ("WRITE", {"mode": "Append"})
ADD: Step = ("ADD COLUMNS", {"columns": '[{"column":{"name":"a","type":"string"}}]'})
SWAP = renamed("a", "t"), renamed("b", "a"), renamed("t", "b")


@pytest.mark.parametrize(
    ("steps", "version"),
    [
        ([WRITE, ADD, ("OPTIMIZE", {}), ("CHANGE COLUMN", {})], None),
        ([renamed("a", "b"), WRITE], 4),
        ([renamed("a", "b"), WRITE, renamed("b", "A")], None),
        ([renamed("at.x", "at.`a.b`"), renamed("at.`a.b`", "at.x")], None),
        ([*SWAP], 6),
        ([*SWAP, renamed("b", "t"), renamed("a", "b"), renamed("t", "a")], None),
        ([renamed("a", "t"), renamed("b", "a"), renamed("t", "a")], 6),
        ([renamed("a", "b"), ADD, ("DROP COLUMNS", {"columns": '["a"]'}), renamed("b", "a")], 7),
        ([("RENAME COLUMN", {}), ("RENAME COLUMN", {})], 5),  # Their parameters are lost.
        ([("REPLACE COLUMNS", {})], 4),
        ([("CREATE OR REPLACE TABLE AS SELECT", {})], 4),
        ([("WRITE", {"mode": "Overwrite", "canOverwriteSchema": "true"})], 4),
        ([("CLONE", {})], 4),
        ([renamed("a", "b"), restored(3)], None),
        ([renamed("a", "b"), WRITE, restored(4)], 4),
        ([WRITE, restored(2)], 5),  # To before the rows: their names may be newer.
        ([WRITE, ("RESTORE", {"timestamp": "2026-01-01"}), WRITE], 5),
    ],
)
def test_names_of_version_3_are_those_of_now_unless_a_column_was_renamed_dropped_or_replaced(
    steps: list[Step], version: int | None
) -> None:
    entries = [TableVersion(number, name, said, None) for number, (name, said) in enumerate([WRITE, WRITE, *steps], 2)]
    assert history(*entries).renamed(3) == version


def test_names_are_known_since_the_version_before_the_oldest_and_of_a_table_that_was_made_meanwhile() -> None:
    assert history(write(7), write(8)).renamed(6) is None
    assert history(write(7), write(8)).renamed(5) == 7
    assert history(TableVersion(0, "CLONE", {}, None), write(1)).renamed(NO_VERSION) is None
    assert history(write(1), write(2)).renamed(5) == 2, "the table is an older copy"
