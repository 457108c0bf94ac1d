"""What `write_stream` refuses before it starts a query: by name, with the remedy, and with nothing left behind."""

from __future__ import annotations

import re
import shutil
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import (
    ConfigError,
    PurgatoryError,
    SchemaMismatchError,
    StagingError,
    StorageError,
    TableForgetsError,
    TableLostError,
)
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.delta_target import check_place
from tests.support.column_types import TAKEN, listed
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import HOUR, accumulator, forget, staged_files, start, wait_until, warehouse
from tests.support.sink_streams import Stream, every
from tests.support.stream_rows import completions_with, operations_with, purgatory

FORGETS = "setTransactionRetentionDuration"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path).add(1)


def refused(
    stream: Stream, error: type[PurgatoryError], said: str, rows: DataFrame | None = None, **options: Any
) -> None:
    """`write_stream` raises, and Spark has not begun."""
    options = options or {"path": str(stream.folder / "table")}
    sink = RecordAccumulator(**options)
    metadata = stream.checkpoint / "metadata"
    before = metadata.exists() and metadata.stat().st_mtime_ns
    running = len(stream.spark.streams.active)
    with pytest.raises(error, match=said):
        sink.write_stream(
            stream.rows() if rows is None else rows,
            checkpoint=str(stream.checkpoint),
            trigger={"availableNow": True},
        )
    assert len(stream.spark.streams.active) == running
    assert (metadata.exists() and metadata.stat().st_mtime_ns) == before, "the query was not started"
    assert not staged_files(stream)


def made(stream: Stream, columns: str, more: str = "") -> str:
    """A table that somebody made."""
    path = stream.folder / "table"
    stream.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {more}")
    return str(path)


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_column_that_no_table_holds_is_named_before_anything_is_read(stream: Stream) -> None:
    for column, said in (
        ("interval '1' day AS span", "column 'span' is of type interval day, which Delta does not have: cast it"),
        ("n AS `Stage ID`", "column 'Stage ID' has in its name one of .*columnMapping"),
        ("named_struct('a;b', n) AS s", r"column 's\.a;b' has in its name"),
        ("array() AS none", r"column 'none\.element' is of type void"),
        ("'a' COLLATE UTF8_LCASE AS name", "column 'name' .* COLLATE UTF8_BINARY"),
        ("part AS N", "columns 'n' and 'N' are the same name"),
    ):
        refused(stream, ConfigError, said, stream.rows().selectExpr("n", column))
    assert not (stream.folder / "table").exists()


def test_every_type_that_a_table_holds_goes_through_the_sink(stream: Stream) -> None:
    columns = [f"{value} AS c{i}" for i, value in enumerate(listed(TAKEN))]
    stream.run(stream.rows().selectExpr("n", *columns))
    # The keys of a map are structs, of which JSON has no fixed text.
    struct_keys = next(i for i, value in enumerate(listed(TAKEN)) if value.startswith("map(named_struct"))
    texts = [f"to_json(struct(* EXCEPT (c{struct_keys}))) AS text", f"CAST(c{struct_keys} AS string) AS keys"]
    expected = stream.spark.range(1).selectExpr(*columns).selectExpr(*texts).collect()
    assert stream.table().drop("n").selectExpr(*texts).distinct().collect() == expected


@pytest.mark.long
def test_names_that_a_table_maps_and_columns_that_it_fills_pass(stream: Stream) -> None:
    columns = "`Stage ID` bigint, part bigint, next bigint GENERATED ALWAYS AS (`Stage ID` + 1), "
    columns += "number bigint GENERATED ALWAYS AS IDENTITY, kind string NOT NULL DEFAULT 'plain'"
    features = "'delta.columnMapping.mode' = 'name', 'delta.feature.allowColumnDefaults' = 'supported'"
    made(stream, columns, f"TBLPROPERTIES ({features}, 'delta.appendOnly' = 'true')")
    stream.run(stream.rows().withColumnRenamed("n", "Stage ID")).add(1)
    closed = stream.rows().selectExpr("n AS `Stage ID`", "part", "n AS number")
    refused(stream, SchemaMismatchError, "columns number .* take no values", closed)
    stream.run(stream.rows().withColumnRenamed("n", "Stage ID"))
    found = {(row["Stage ID"], row["next"] - row["Stage ID"], row["kind"]) for row in stream.table().collect()}
    assert found == {(n, 1, "plain") for n in range(20)}


FILLED = "next bigint GENERATED ALWAYS AS (n + 1)"


def test_a_table_that_does_not_take_the_stream_is_named(stream: Stream) -> None:
    tables = (
        ("part bigint", r"table .* lacks n\."),
        ("n int, part bigint", r"has other types for n \(bigint, in the table int\)"),
        ("n bigint, part bigint, must int NOT NULL", r"columns must of table .* are NOT NULL"),
        (f"n bigint, part bigint, must int NOT NULL, {FILLED}", r"columns must of table .* are NOT NULL"),
        (f"n bigint, day date, {FILLED}) USING delta PARTITIONED BY (day", "by day, which the stream lacks"),
        ("other bigint, number bigint GENERATED ALWAYS AS IDENTITY", r"table .* lacks n, part\."),
        ("n bigint GENERATED ALWAYS AS IDENTITY, part bigint", r"columns n of table .* take no values"),
    )
    for number, (columns, said) in enumerate(tables):
        path = f"{stream.folder}/{number}"
        using = "" if "USING" in columns else " USING delta"
        stream.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}){using}")
        refused(stream, SchemaMismatchError, said, path=path)


# --- the table and its place -----------------------------------------------------------------------------------------


def test_a_table_that_would_forget_is_named(stream: Stream) -> None:
    default = f"spark.databricks.delta.properties.defaults.{FORGETS}"
    stream.spark.conf.set(default, "interval 1 day")
    try:
        refused(stream, TableForgetsError, f"{FORGETS} = 'interval 1 day' is set.* Unset it")
    finally:
        stream.spark.conf.unset(default)


def test_a_place_where_no_table_can_be_made_is_named(stream: Stream) -> None:
    plain, file = stream.folder / "plain", stream.folder / "file"
    stream.spark.range(1).write.parquet(str(plain))
    file.touch()
    refused(stream, ConfigError, r"which has \d files and no Delta table", path=str(plain))
    assert not (plain / "_delta_log").exists()
    refused(stream, ConfigError, r"which has 1 files and no Delta table", path=str(file))
    refused(stream, StorageError, r"cannot be made in .*/file/below: .*", path=str(file / "below"))
    refused(stream, StorageError, r"cannot be read: .*No FileSystem for scheme", path="nowhere://lake/table")
    refused(stream, StorageError, r"cannot be read: .*S3AFileSystem", path="s3a://lake/table")


@pytest.mark.slow
def test_queries_that_look_at_one_place_at_the_same_moment_do_not_fail_each_other(stream: Stream) -> None:
    """Each writes nothing there, and Spark removes the temporary folder of both: "cannot be made ... permission"."""
    place = str(stream.folder / "of several")
    with ThreadPoolExecutor(3) as pool:
        for _ in range(20):
            list(pool.map(lambda _: check_place(stream.spark, "t", place, by_name=False, was_begun=False), range(3)))


def test_a_name_under_which_no_table_can_be_made_is_named(stream: Stream) -> None:
    spark = stream.spark
    refused(
        stream, ConfigError, r"there is no schema spark_catalog\.no_such\. .* CREATE SCHEMA", table="no_such.outcomes"
    )
    spark.sql("CREATE OR REPLACE VIEW a_view AS SELECT 1L AS n, 2L AS part")
    refused(stream, ConfigError, r"table \S+\.a_view is a view", table="a_view")
    spark.sql("DROP VIEW a_view")
    spark.range(1).write.mode("overwrite").saveAsTable("in_parquet", format="parquet")
    refused(stream, ConfigError, r"is not a Delta table", table="in_parquet")
    spark.sql("DROP TABLE in_parquet")
    spark.range(1).write.parquet(str(warehouse(stream.spark) / "left_over"))
    refused(stream, ConfigError, r"which has \d files and no Delta table", table="left_over")
    for name in ("a`b", "t; DROP TABLE t", "it's", "a.b.c.d", "`ship-to`", "`größe`"):
        refused(
            stream, ConfigError, "^table(=| has )|a table's name has only letters.* Nothing was started", table=name
        )


@pytest.mark.long
@pytest.mark.parametrize("by_name", [False, *now_and_then(True)])
def test_what_a_first_drain_left_that_was_killed_does_not_stop_the_query(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """Delta had written data files and no version 0: every restart was refused, and the advice doubled the rows."""
    folder = warehouse(stream.spark) / "killed" if by_name else stream.folder / "table"
    stream.sink = RecordAccumulator(**({"table": "killed"} if by_name else {"path": str(folder)}))

    def killed(reached: str) -> None:
        if reached == "before commit":
            raise RuntimeError("killed")

    monkeypatch.setattr(actions, "hook", killed)
    with pytest.raises(Exception, match="killed"):
        stream.run(stream.rows())
    monkeypatch.undo()
    stream.spark.range(5).selectExpr("id AS n", "id AS part").write.mode("append").parquet(str(folder))
    if by_name:
        with pytest.raises(ConfigError, match=r"and no Delta table\. .*move the folder elsewhere"):
            stream.run(stream.rows())
        shutil.move(folder, stream.folder / "elsewhere")
    assert stream.run(stream.rows()).numbers() == every(1)
    stream.spark.sql("DROP TABLE IF EXISTS killed")


@pytest.mark.connect
@pytest.mark.parametrize(("drains", "by_path"), [(1, False), *now_and_then((2, True))])
def test_a_table_whose_name_the_catalog_forgot_loses_nothing_by_any_advice(
    stream: Stream, caplog: pytest.LogCaptureFixture, drains: int, by_path: bool
) -> None:
    """Each process of plain PySpark forgets all names. It was advised to remove the folder with the delivered rows."""
    table = f"settled_{drains}"
    stream.sink = RecordAccumulator(table=table)
    for _ in range(drains):
        stream.run(stream.rows()).add(1)
    assert caplog.text.count("A later run does not find the table by its name. Give path in place") == 1
    forget(stream.spark, table, stream.folder)
    with pytest.raises(TableLostError, match=f"drains of this query up to number {drains - 1}") as told:
        stream.run(stream.rows())
    said = str(told.value)
    assert "remove" not in said.lower() and "nothing is lost" in said
    with pytest.raises(TableLostError, match="has a whole Delta table"):
        stream.sink.read(stream.spark)
    with pytest.raises(TableLostError, match=f"drains of this query up to number {drains - 1}"):
        stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
    if by_path:
        stream.sink = RecordAccumulator(path=re.findall(r"Give path='(\S+)'", said)[0])
    else:
        stream.spark.sql(said[said.index("CREATE TABLE") :])
    assert stream.run(stream.rows()).numbers() == every(drains + 1)
    stream.spark.sql(f"DROP TABLE IF EXISTS {table}")


@pytest.mark.long
def test_a_forgotten_table_of_another_warehouse_is_found_by_its_path(stream: Stream) -> None:
    stream.sink = RecordAccumulator(table="elsewhere")
    stream.run(stream.rows()).add(1)
    forget(stream.spark, "elsewhere", stream.folder)
    moved = shutil.move(warehouse(stream.spark) / "elsewhere", stream.folder / "elsewhere")
    with pytest.raises(TableLostError, match=r"has made 1 drain, and .*find its folder.*give it as path"):
        stream.run(stream.rows())
    with pytest.raises(TableLostError, match=r"find its folder.*give it as path"):
        stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
    stream.sink = RecordAccumulator(path=str(moved))
    assert stream.run(stream.rows()).numbers() == every(2)


# --- the checkpoint --------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_table_or_sink_is_named_and_its_rows_go_where_they_should(stream: Stream) -> None:
    """Rows are staged for one table, and not drained: without a claim they would all go to the other."""
    query = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    query.stop()
    sink = RecordAccumulator(path=str(stream.folder / "other"))
    with pytest.raises(ConfigError, match=r"belongs to table .*/table.* This query writes to .*/other"):
        sink.write_stream(stream.rows(), checkpoint=str(stream.checkpoint))
    accumulator(stream)
    assert stream.run(stream.rows()).numbers() == every(1)

    stream.checkpoint = stream.folder / "plain"
    writer = stream.rows().writeStream.format("delta").option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start(str(stream.folder / "plainly")).awaitTermination()
    for _ in range(2):
        refused(stream, StagingError, r"is at micro-batch 1, but nothing in it was staged: it belongs to another sink")


@pytest.mark.long
def test_a_claim_that_a_power_loss_has_emptied_lets_no_rows_go_to_another_table(stream: Stream) -> None:
    query = start(stream, accumulator(stream, **HOUR))
    wait_until(lambda: bool(staged_files(stream)), query)
    query.stop()
    for path in (stream.checkpoint / "staging" / "table").glob("*part-*"):
        path.unlink() if path.suffix == ".crc" else path.write_bytes(b"")
    for name in ("other", "table"):
        with pytest.raises(
            StagingError, match=r"staging/table should name the table .* is empty, .*remove that folder"
        ):
            RecordAccumulator(path=str(stream.folder / name)).write_stream(
                stream.rows(), checkpoint=str(stream.checkpoint)
            )
    shutil.rmtree(stream.checkpoint / "staging" / "table")
    assert stream.run(stream.rows()).numbers() == every(1)


def test_a_checkpoint_that_cannot_be_written_is_named_and_a_refused_query_has_no_claim(stream: Stream) -> None:
    checkpoint = stream.checkpoint
    (stream.folder / "file").touch()
    stream.checkpoint = stream.folder / "file" / "checkpoint"
    refused(stream, StorageError, r"checkpoint='.*' cannot be written: ")
    stream.checkpoint = checkpoint
    spans = stream.rows().selectExpr("n", "interval '1' day AS span")
    refused(stream, ConfigError, "span", spans, path=str(stream.folder / "first"))
    assert stream.run(stream.rows()).numbers() == every(1)


# --- partition columns -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("partition_by", [(), ("part",), ("Part", "tens")])
def test_a_table_partitioned_by_a_column_of_another_case_and_one_that_it_computes(
    stream: Stream, partition_by: tuple[str, ...]
) -> None:
    tens = "tens bigint GENERATED ALWAYS AS (CAST(n / 10 AS bigint))"
    columns = "PARTITIONED BY (PART, tens)" if len(partition_by) != 1 else "PARTITIONED BY (PART)"
    path = made(stream, f"n bigint, PART bigint, {tens}", columns)
    stream.add(1)
    stream.sink = RecordAccumulator(path=path, partition_by=partition_by)
    stream.run(stream.rows()).forget_last_commit().add(1).run(stream.rows())
    assert stream.numbers() == every(3)
    assert stream.table().where("part <> n % 2 OR tens <> n DIV 10").isEmpty()
    assert {path.name for path in (stream.folder / "table").glob("PART=*")} == {"PART=0", "PART=1"}


def test_partition_columns_that_the_stream_lacks_are_named(stream: Stream) -> None:
    refused(
        stream, ConfigError, "partition_by='day' is not a column", path=str(stream.folder / "new"), partition_by="day"
    )
    path = made(stream, "n bigint, part bigint, day date", "PARTITIONED BY (part, day)")
    refused(stream, SchemaMismatchError, r"is partitioned by day, which the stream lacks; it has n, part")
    refused(stream, ConfigError, r"is partitioned by \['part', 'day'\]", path=path, partition_by="part")


# --- arguments -------------------------------------------------------------------------------------------------------


def test_a_wrong_argument_of_write_stream_is_refused_by_name(stream: Stream) -> None:
    sink, trigger = RecordAccumulator(path=str(stream.folder / "table")), "must be {'processingTime': '10 seconds'} or"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"trigger": "10 seconds"}, f"trigger='10 seconds' {trigger}"),
        ({"trigger": {"every": "10 s"}}, f"trigger={{'every': '10 s'}} {trigger}"),
        ({"trigger": {}}, f"trigger={{}} {trigger}"),
        ({"trigger": {"processingTime": "soon"}}, "trigger processingTime='soon' is not a duration"),
        ({"trigger": {"availableNow": False}}, f"trigger={{'availableNow': False}} {trigger}"),
        ({"trigge": {}}, "write_stream() has no trigge=, did you mean 'trigger'?"),
        ({"output_mode": "append"}, "write_stream() has no output_mode=. It has df, checkpoint, trigger, que"),
    ]
    for given, said in wrong:
        with pytest.raises(ConfigError, match=re.escape(said)):
            sink.write_stream(stream.rows(), **{"checkpoint": str(stream.checkpoint), **given})
    with pytest.raises(ConfigError, match=r"df is a str, not a streaming DataFrame: read one with spark\.readStream"):
        sink.write_stream("/lake/rows", checkpoint=str(stream.checkpoint))  # type: ignore[arg-type]
    assert not stream.checkpoint.exists()


@pytest.mark.long
def test_a_python_without_the_packages_is_named_before_its_workers_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "venv"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    rows = spark.createDataFrame([("a", "k", datetime(2026, 1, 1))], "id string, key string, time timestamp")
    asked = purgatory(operations=operations_with(created="time", timeout="1 hour"), completions=completions_with())
    assert asked.resolve(rows, rows).count() == 1
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    with pytest.raises(ConfigError) as refusal:
        asked.resolve(rows, rows)
    said = str(refusal.value)
    assert (
        python in said
        and "lacks packages (ModuleNotFoundError: No module named 'numpy')" in said
        and f"PYSPARK_PYTHON={sys.executable}" in said
    )
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="which is not there"):
        asked.resolve(rows, rows)
