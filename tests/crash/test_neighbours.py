"""Who else may touch the table: other writers, OPTIMIZE, a twin of the query; what they do is harmless, or named."""

from __future__ import annotations

import re
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import (
    BufferExhaustedError,
    ForeignWriterError,
    SchemaMismatchError,
    StorageError,
    TableForgetsError,
    TableLostError,
    sentence_of,
)
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from tests.support.delta_files import closed
from tests.support.sink_queries import HOUR, accumulator, staged_files, staged_for, start, wait_until
from tests.support.sink_streams import Stream, every

pytestmark = pytest.mark.long

FORGETS = "delta.setTransactionRetentionDuration"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    stream = Stream(spark, tmp_path)
    accumulator(stream)
    return stream


def staged(stream: Stream, **options: Any) -> Any:
    """A query that ended with one micro-batch staged and not drained."""
    stream.add(1)
    query = start(stream, accumulator(stream, **{**HOUR, **options}))
    wait_until(lambda: (stream.checkpoint / "commits" / str(stream.files - 1)).exists(), query)
    query.stop()
    return query


@contextmanager
def meanwhile(failpoint: str, action: Callable[[], object]) -> Iterator[None]:
    """Do something once, when a failpoint is reached."""

    def hook(reached: str) -> None:
        if reached == failpoint:
            actions.hook = None
            action()

    actions.hook = hook
    try:
        yield
    finally:
        actions.hook = None


def test_what_is_done_to_the_table_between_stage_and_drain_is_named_and_once_undone_the_rows_arrive(
    stream: Stream,
) -> None:
    stream.add(1).run(stream.rows())
    query = staged(stream, max_block="1 second", retry_backoff="100 milliseconds")
    table, aside = stream.folder / "table", stream.folder / "aside"
    alter = f"ALTER TABLE delta.`{table}` "

    def refused(error: type[StorageError | BufferExhaustedError], said: str, undo: Callable[[], object]) -> None:
        with pytest.raises(error, match=said) as raised:
            query.flush()
        assert " - n : " not in "".join(traceback.format_exception(raised.value)), "Delta names values"
        assert staged_files(stream)
        undo()

    def sql(what: str) -> None:
        stream.spark.sql(alter + what)

    sql(f"SET TBLPROPERTIES ('{FORGETS}' = 'interval 1 day')")
    refused(TableForgetsError, "UNSET", lambda: sql(f"UNSET TBLPROPERTIES ('{FORGETS}')"))
    sql("ADD CONSTRAINT few CHECK (n < 15)")
    refused(StorageError, r"CHECK constraint few \(n < 15\).*DROP CONSTRAINT", lambda: sql("DROP CONSTRAINT few"))
    with closed(stream.spark, table):
        refused(BufferExhaustedError, "max_block", lambda: None)
    sql(
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')"
    )
    sql("RENAME COLUMN n TO m")
    sql("RENAME COLUMN m TO n")
    table.rename(aside)
    refused(TableLostError, "is gone|was dropped", lambda: None)
    foreign = stream.spark.range(0).selectExpr("id AS n", "id AS part").write.format("delta")
    foreign.partitionBy("part").save(str(table))
    refused(TableLostError, "was replaced|dropped or replaced", lambda: (shutil.rmtree(table), aside.rename(table)))
    sql("ADD COLUMNS (later string)")
    query.flush()
    assert stream.numbers() == every(2)
    assert staged_files(stream) == []


@pytest.mark.parametrize(
    ("columns", "rule", "said", "undo"),
    [
        ("n bigint NOT NULL", "", "NOT NULL constraint violated for column: n", "ALTER COLUMN n DROP NOT NULL"),
        ("n bigint", "CHECK (1 / (n - 15) < 2)", "DIVIDE_BY_ZERO", "DROP CONSTRAINT rule"),
    ],
)
def test_rows_that_break_a_rule_of_the_table_stop_the_query_at_once_and_arrive_without_it(
    stream: Stream, columns: str, rule: str, said: str, undo: str
) -> None:
    """Both rules break at n = 15, which the second file has."""
    table = f"delta.`{stream.folder / 'table'}`"
    stream.spark.sql(f"CREATE TABLE {table} ({columns}, part bigint) USING delta PARTITIONED BY (part)")
    if rule:
        stream.spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT rule {rule}")
    rows = stream.rows() if rule else stream.rows().selectExpr("nullif(n, 15) AS n", "part")
    stream.add(2)
    with pytest.raises(Exception, match=said) as raised:
        stream.run(rows)  # delivery_timeout is half an hour.
    found = sentence_of(raised.value)
    assert "however often it is tried" in found and "stay staged" in found and "start again" in found, found
    stream.spark.sql(f"ALTER TABLE {table} {undo}")
    assert stream.run(rows).numbers() == (every(2) if rule else every(2) - Counter([15]) + Counter([None]))


def test_a_rename_between_the_look_at_the_table_and_the_write_to_it_is_named_until_the_rows_are_put_right(
    stream: Stream,
) -> None:
    stream.add(1).run(stream.rows())
    alter = f"ALTER TABLE delta.`{stream.folder / 'table'}` "

    def sql(*whats: str) -> None:
        for what in whats:
            stream.spark.sql(alter + what)

    sql(
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')"
    )
    query = staged(stream)
    said = "version 2 of table .* renamed.* version 4, may be in columns"
    with (
        meanwhile("before commit", lambda: sql("RENAME COLUMN n TO m", "ADD COLUMNS (n bigint)")),
        pytest.raises(SchemaMismatchError, match=said),
    ):
        query.flush()
    for _ in range(2):
        with pytest.raises(SchemaMismatchError, match=said):
            Sender(stream.sink.options, str(stream.checkpoint)).drain(stream.spark)
    stream.spark.sql(f"UPDATE delta.`{stream.folder / 'table'}` SET m = n WHERE m IS NULL")
    sql("SET TBLPROPERTIES ('spark_purgatory.columnsAsOf' = '4')")
    Sender(stream.sink.options, str(stream.checkpoint)).drain(stream.spark)
    assert staged_files(stream) == []


def test_a_dropped_column_is_named_with_all_that_the_rows_need(stream: Stream) -> None:
    stream.add(1).run(stream.rows())
    table = f"delta.`{stream.folder / 'table'}`"
    stream.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    query = staged(stream)
    stream.spark.sql(f"ALTER TABLE {table} DROP COLUMN n")
    with pytest.raises(SchemaMismatchError, match="renamed, dropped or replaced columns after") as told:
        query.flush()
    for statement in re.findall(r"ALTER TABLE .*?\)(?=, and)", str(told.value)):
        stream.spark.sql(statement)
    query.flush()
    assert stream.numbers() == every(2) - every(1) + Counter({None: 10})


def test_a_rename_between_the_looks_at_columns_and_history_is_seen(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add(1).run(stream.rows())
    table = f"delta.`{stream.folder / 'table'}`"
    stream.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    query = staged(stream)
    look = DeltaTarget.history_of_names

    def late(target: DeltaTarget, *given: Any) -> Any:
        stream.spark.sql(f"ALTER TABLE {table} RENAME COLUMN n TO m")
        return look(target, *given)

    monkeypatch.setattr(DeltaTarget, "history_of_names", late)
    with pytest.raises(SchemaMismatchError, match="renamed, dropped or replaced columns after rows were staged"):
        query.flush()


def test_a_table_that_someone_makes_before_the_first_drain_cuts_no_number(stream: Stream) -> None:
    name, settings = "made_meanwhile", stream.spark.conf
    stream.sink = RecordAccumulator(table=name, **HOUR)
    stream.add(1)
    staged_for(stream, stream.sink, stream.rows().selectExpr("n + 3000000000 AS n"))
    settings.set("spark.sql.storeAssignmentPolicy", "LEGACY")
    try:
        made = meanwhile("before commit", lambda: stream.spark.sql(f"CREATE TABLE {name} (n int) USING delta"))
        with made, pytest.raises(StorageError, match="CAST_OVERFLOW_IN_TABLE_INSERT"):
            Sender(stream.sink.options, str(stream.checkpoint)).drain(stream.spark)
        assert stream.spark.table(name).collect() == []
    finally:
        settings.unset("spark.sql.storeAssignmentPolicy")
        stream.spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_of_two_accumulators_on_one_app_id_one_writes_and_the_other_is_told(stream: Stream) -> None:
    """A copy of the checkpoint: the twin intends the same drain, and commits first."""
    query = staged(stream)
    copy = stream.folder / "copy"
    shutil.copytree(stream.checkpoint, copy)
    twin = Sender(stream.sink.options, str(copy))
    with (
        meanwhile("before commit", lambda: twin.drain(stream.spark)),
        pytest.raises(ForeignWriterError, match="transaction 0 of app id"),
    ):
        query.flush()
    assert stream.numbers() == every(1), "the twin's"
    assert staged_files(stream), "nothing was removed"
    with pytest.raises(ForeignWriterError, match="transaction 0 of app id"):
        Sender(stream.sink.options, str(stream.checkpoint)).drain(stream.spark)
    assert stream.numbers() == every(1)


def test_of_two_runs_on_one_checkpoint_the_one_that_is_left_goes_on(stream: Stream) -> None:
    query = staged(stream)
    other = Sender(stream.sink.options, str(stream.checkpoint))
    other.open(stream.spark)
    query.flush()
    with pytest.raises(ForeignWriterError, match=r"end one of the two, and the other goes on"):
        other.drain(stream.spark)
    assert stream.add(1).run(stream.rows()).numbers() == every(2)
