"""Which table a query writes to, and where its checkpoint may lie, whatever name or path its user writes."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError, SchemaMismatchError
from spark_purgatory.spark.sink.table import delta_target
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import (
    HOUR,
    accumulator,
    staged_files,
    staged_for,
    start,
    wait_until,
)
from tests.support.sink_streams import Stream, every


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path).add(1)


@pytest.fixture
def schemas(spark: SparkSession) -> Iterator[None]:
    """Two schemas with a table ``mt`` each; the first is the current one."""
    for name in ("one", "two"):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {name}")
        spark.sql(f"CREATE TABLE {name}.mt (n bigint, part bigint) USING delta")
    spark.sql("USE one")
    yield
    spark.sql("USE default")
    for name in ("one", "two"):
        spark.sql(f"DROP DATABASE {name} CASCADE")


def spellings(path: Path | str) -> list[str]:
    """Ways to write an absolute path."""
    path, name = str(path).rsplit("/", 1)
    return [f"{path}/{name}/", f"{path}//{name}", f"file:{path}/{name}", f"file://{path}//{name}/", f"{path}/./{name}"]


def refused_inside(stream: Stream, checkpoint: str, **place: str) -> None:
    table = Path(place["path"].removeprefix("file:").replace("//", "/")) if "path" in place else None
    before = None if table is None or not table.exists() else sorted(table.rglob("*"))
    said = r"^checkpoint=.* lies in the (table's folder .*below .*/_checkpoints|folder .*name a folder outside)$"
    with pytest.raises(ConfigError, match=said):
        RecordAccumulator(**place).write_stream(stream.rows(), checkpoint=checkpoint)
    assert before is None or before == sorted(table.rglob("*")), "nothing is left behind"


# --- the checkpoint and the table's folder -------------------------------------------------------------------------


@pytest.mark.long
def test_a_checkpoint_in_the_folder_of_a_table_by_name_is_refused_where_vacuum_removes_it(
    stream: Stream, schemas: None
) -> None:
    """VACUUM removes it, and the next run reads the sources again."""
    folder = stream.spark.sql("DESCRIBE DETAIL mt").first()["location"]
    local = folder.removeprefix("file:")
    for within in ("checkpoint", "a/b", "_delta_log", "_change_data/x", ""):
        refused_inside(stream, f"{local}/{within}", table="mt")
    refused_inside(stream, f"{local.removesuffix('mt')}new/_checkpoints/a", table="new")
    stream.checkpoint = Path(local) / "_checkpoints" / "a"
    stream.sink = RecordAccumulator(table="mt")
    assert stream.run(stream.rows()).numbers() == every(1)
    with settings(stream.spark, {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "8"}):
        stream.spark.sql("VACUUM one.mt")
    assert stream.add(1).run(stream.rows()).numbers() == every(2)


def test_a_checkpoint_in_a_tables_folder_is_refused_however_both_are_written(stream: Stream) -> None:
    table = stream.folder / "table"
    for path in (str(table), *spellings(table)):
        for checkpoint in spellings(table / "checkpoint")[:4]:
            refused_inside(stream, checkpoint, path=path)
    stream.spark.range(1).write.format("delta").save(str(table))
    (stream.folder / "link").symlink_to(table)
    refused_inside(stream, f"{stream.folder}/link/checkpoint", path=str(table))


# --- names and paths are looked up once ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_table_by_its_short_name_is_the_same_after_use(stream: Stream, schemas: None) -> None:
    """Rows were staged for one.mt: after a restart all of them went to two.mt."""
    sink = stream.sink = RecordAccumulator(table="mt", **HOUR)
    query = start(stream, sink)
    wait_until(lambda: bool(staged_files(stream)), query)
    query.stop()
    stream.spark.sql("USE two")
    stream.sink = RecordAccumulator(table="mt")
    assert stream.run(stream.rows()).numbers() == every(1), "the accumulator reads the table that it writes"
    assert stream.spark.table("one.mt").count() == 10 and stream.spark.table("two.mt").count() == 0
    for name in ("one.mt", "spark_catalog.one.mt", "`one`.`MT`"):
        stream.add(1).sink = RecordAccumulator(table=name)
        assert stream.run(stream.rows()).numbers() == every(stream.files)
    with pytest.raises(
        ConfigError, match=r"belongs to table spark_catalog\.one\.mt, .*writes to spark_catalog\.two\.mt"
    ):
        RecordAccumulator(table="two.mt").write_stream(stream.rows(), checkpoint=str(stream.checkpoint))


# --- what is said ----------------------------------------------------------------------------------------------------


def test_a_table_that_is_not_there_yet_is_told_by_read(stream: Stream) -> None:
    sink = accumulator(stream, **HOUR)
    with pytest.raises(
        ConfigError, match=r"table .*/table does not exist yet: the first drain creates it.*staged=True"
    ):
        sink.read(stream.spark)
    with pytest.raises(ConfigError, match=r"is not the checkpoint of a query that was started"):
        sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
    start(stream, sink, stream.rows().where("n < 0")).processAllAvailable()
    assert sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint)).count() == 0
    sink.close()
    for folder in ("offsets", "commits", "staging/log"):
        shutil.rmtree(stream.checkpoint / folder)  # As the checkpoint is before the first micro-batch.
    with pytest.raises(ConfigError, match=r"does not exist yet, and no row is staged for it"):
        sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
    shutil.rmtree(stream.checkpoint)
    query = start(stream, sink)
    wait_until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    with pytest.raises(ConfigError, match=r"does not exist yet"):
        sink.read(stream.spark)
    assert sink.read(stream.spark, staged=True).count() == 10
    query.stop()


# --- renamed tables and columns --------------------------------------------------------------------------------------

MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"


def rename(table: Path, *changes: tuple[str, str]) -> None:
    for old, new in changes:
        SparkSession.active().sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN {old} TO {new}")


SWAP = ("a", "t"), ("b", "a"), ("t", "b"), ("at.x", "t"), ("at.y", "x"), ("at.t", "y")
SWAP_BACK = ("at.y", "t"), ("at.x", "y"), ("at.t", "x"), ("b", "t"), ("a", "b"), ("t", "a")
BEFORE = "concat('A', n) AS a", "concat('B', n) AS b", "struct('X' AS x, 'Y' AS y) AS at"
AFTER = "concat('A', n) AS b", "concat('B', n) AS a", "struct('X' AS y, 'Y' AS x) AS at"
BY_NAME = "a = concat('A', n) AND b = concat('B', n) AND at.x = 'X' AND at.y = 'Y'"
SWAPPED = "b = concat('A', n) AND a = concat('B', n) AND at.y = 'X' AND at.x = 'Y'"
NEWER_NAMES = r"version \d+ of table .* renamed, .* staged under the names of version \d+"


@pytest.fixture
def swapping(stream: Stream) -> Stream:
    """Rows wait for a table whose columns a and b, at.x and at.y, get each other's names by `SWAP`."""
    columns = "n bigint, part bigint, a string, b string, at struct<x: string, y: string>"
    stream.spark.sql(f"CREATE TABLE delta.`{stream.folder / 'table'}` ({columns}) USING delta {MAPPED}")
    stream.sink = RecordAccumulator(path=str(stream.folder / "table"), **HOUR)
    staged_for(stream, stream.sink, stream.rows().selectExpr("n", "part", *BEFORE))
    return stream


def said_by(stream: Stream, *columns: str) -> str:
    """The statement in the error of a start."""
    with pytest.raises(SchemaMismatchError, match=NEWER_NAMES) as raised:
        stream.sink.write_stream(stream.rows().selectExpr("n", "part", *columns), checkpoint=str(stream.checkpoint))
    return re.findall(r"ALTER TABLE .*?\)", str(raised.value))[0]


@pytest.mark.long
def test_rows_that_wait_under_a_name_that_was_given_away_stop_the_query_until_it_is_renamed_back(
    swapping: Stream,
) -> None:
    stream, table = swapping, swapping.folder / "table"
    rename(table, *SWAP)
    said_by(stream, *BEFORE), said_by(stream, *AFTER)
    with pytest.raises(SchemaMismatchError, match=NEWER_NAMES):
        stream.sink.read(stream.spark, staged=True)
    with pytest.raises(SchemaMismatchError, match=NEWER_NAMES):
        stream.sink.close()
    assert stream.table().count() == 0
    rename(table, *SWAP_BACK)
    start(stream, stream.sink, stream.rows().selectExpr("n", "part", *BEFORE))
    stream.sink.close()
    rename(table, *SWAP)
    stream.sink = RecordAccumulator(path=str(table))
    stream.add(1).run(stream.rows().selectExpr("n", "part", *AFTER))
    assert stream.numbers() == every(2) and stream.table().where(SWAPPED).count() == 20


@pytest.mark.long
@pytest.mark.connect
def test_a_column_that_was_made_anew_with_another_type_is_added_again_as_the_error_says(swapping: Stream) -> None:
    """It said to widen bigint to string, which Delta does not do."""
    stream = swapping
    table = f"ALTER TABLE delta.`{stream.folder / 'table'}`"
    stream.spark.sql(f"{table} DROP COLUMN a")
    stream.spark.sql(f"{table} ADD COLUMNS (a bigint)")
    stream.spark.sql(said_by(stream, *BEFORE))
    said = r"other types for a \(string, in the table bigint\).*RENAME COLUMN.*ADD COLUMNS"
    with pytest.raises(SchemaMismatchError, match=said):
        stream.run(stream.rows().selectExpr("n", "part", *BEFORE))
    stream.spark.sql(f"{table} RENAME COLUMN a TO other")
    stream.spark.sql(f"{table} ADD COLUMNS (a string)")
    stream.spark.sql(said_by(stream, *BEFORE))
    stream.run(stream.rows().selectExpr("n", "part", *BEFORE))
    assert stream.table().where(BY_NAME).count() == 10


@pytest.mark.long
@pytest.mark.parametrize("drained", [*now_and_then(True), False])
def test_a_table_that_was_renamed_is_known(
    stream: Stream, schemas: None, monkeypatch: pytest.MonkeyPatch, drained: bool
) -> None:
    name = "new" if drained else "mt"
    stream.sink = RecordAccumulator(table=name)
    if drained:
        stream.run(stream.rows()).add(1)  # The first drain makes the table.
    staged_for(stream, RecordAccumulator(table=name, **HOUR))
    stream.spark.sql(f"ALTER TABLE {name} RENAME TO one.other")
    for forgets in (True, False):
        monkeypatch.setattr(delta_target, "forgets_names", lambda *_, forgets=forgets: forgets)
        with pytest.raises(Exception, match=r"was (moved or )?renamed, start with its new (path or )?name"):
            stream.run(stream.rows())
    monkeypatch.undo()
    stream.sink = RecordAccumulator(table="one.other")
    assert stream.run(stream.rows()).numbers() == every(stream.files)
    location = stream.spark.sql("DESCRIBE DETAIL one.other").first()["location"]
    stream.add(1).sink = RecordAccumulator(path=location)
    assert stream.run(stream.rows()).numbers() == every(stream.files), "by its path as well"
    moved = shutil.move(location.removeprefix("file:"), stream.folder / "moved")
    with pytest.raises(Exception, match=r"was dropped .* start with its new path"):
        stream.add(1).run(stream.rows())
    stream.sink = RecordAccumulator(path=str(moved))
    assert stream.run(stream.rows()).numbers() == every(stream.files)
    with pytest.raises(ConfigError, match=r"belongs to table "):
        RecordAccumulator(table="two.mt").write_stream(stream.rows(), checkpoint=str(stream.checkpoint))


# --- tables of several queries ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_new_checkpoint_on_a_table_that_another_query_has_filled_is_warned(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(checkpoint: str, **options: bool) -> bool:
        caplog.clear()
        stream.checkpoint = stream.folder / checkpoint
        stream.sink = RecordAccumulator(path=f"file:{stream.folder}/table", **options)
        stream.add(1).run(stream.rows())
        return "was filled by spark_purgatory/" in caplog.text

    with caplog.at_level(logging.WARNING):
        assert not warned("first") and not warned("first"), "its own restart"
        assert not warned("second", shares_table=True), "it is meant"
        assert warned("third") and "give shares_table=True" in caplog.text
        query_id = json.loads((stream.folder / "first" / "metadata").read_text())["id"]
        assert f"spark_purgatory/{query_id} (last in version 1 at " in caplog.text
        # CREATE OR REPLACE of a path leaves a table with these columns as it is.
        stream.spark.sql(f"REPLACE TABLE delta.`{stream.folder}/table` (n bigint, part bigint) USING delta")
        assert not warned("fourth"), "what they brought is gone"


# --- what the session is set to --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ansi", "policy"),
    [
        ("false", "LEGACY"),
        *now_and_then(("true", "ANSI"), ("true", "LEGACY"), ("true", "STRICT"), ("false", "ANSI"), ("false", "STRICT")),
    ],
)
def test_what_is_written_does_not_depend_on_the_session(stream: Stream, policy: str, ansi: str) -> None:
    """A bigint went into a tinyint as -128 .. 127, and the microseconds of a drain at the end were cut."""
    spark = stream.spark
    spark.sql("CREATE OR REPLACE TABLE kinds (n decimal(20, 0), part bigint, small int, at timestamp) USING delta")
    values = "CAST(part AS tinyint) AS small", "timestamp'2026-01-01 00:00:00.123456' AS at"
    session = {"spark.sql.storeAssignmentPolicy": policy, "spark.sql.ansi.enabled": ansi}
    session |= {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}
    with settings(spark, session):
        stream.sink = RecordAccumulator(table="kinds")
        stream.run(stream.rows().selectExpr("n", "part", *values))
        narrow = stream.rows().selectExpr("n", "part", "part AS small")
        with pytest.raises(SchemaMismatchError, match=r"other types for small \(bigint, in the table int\)"):
            stream.sink.write_stream(narrow, checkpoint=str(stream.folder / "second"))
    found = {(int(row["n"]), row["small"], row["at"].microsecond) for row in stream.table().collect()}
    assert found == {(n, n % 2, 123456) for n in range(10)}
    spark.sql("DROP TABLE kinds")


@pytest.mark.long
@pytest.mark.parametrize("by_name", [False, *now_and_then(True)])
def test_rows_that_wait_go_to_a_column_whose_type_was_widened(stream: Stream, by_name: bool) -> None:
    """By path the staged ints were refused, with two advices of which none helped."""
    table = stream.folder / "table"
    more = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    stream.spark.sql(f"CREATE TABLE widened (n int, s struct<x: int, y: float>) USING delta LOCATION '{table}' {more}")
    place = {"table": "widened"} if by_name else {"path": str(table)}
    stream.sink = RecordAccumulator(**place, **HOUR)
    rows = stream.rows().selectExpr("int(n) AS n", "struct(int(n) AS x, float(n) AS y) AS s")
    staged_for(stream, stream.sink, rows)
    for change in ("n TYPE bigint", "s.x TYPE bigint", "s.y TYPE double"):
        stream.spark.sql(f"ALTER TABLE widened ALTER COLUMN {change}")
    stream.sink = RecordAccumulator(**place)
    assert stream.add(1).run(rows).numbers() == every(2), "ints hold as they are"
    assert stream.table().where("s.x = n AND s.y = n").count() == 20
    stream.spark.sql("DROP TABLE widened")


PAIR, MORE = "struct<x: int, y: int>", "struct<x: int, y: int, z: struct<v: int, w: int>>"
OF_PAIR, OF_MORE = "struct(2 AS y, 1 AS X)", "struct(struct(4 AS w, 3 AS v) AS z, 2 AS y, 1 AS x)"
FIELDS = "to_json(struct(s, a, v, map_keys(k) AS of, map_values(k) AS to), map('ignoreNullFields', 'false'))"
BY_FIELD = (
    '{"s":{"x":1,"y":2},"a":[{"x":1,"y":2,"z":{"v":3,"w":4}},null],"v":{"a":{"x":1,"y":2,"z":{"v":3,"w":4}},"b":null},'
    '"of":[{"x":1,"y":2}],"to":[[{"x":1,"y":2}]]}'
)


@pytest.mark.long
@pytest.mark.parametrize("by_name", [True, False])
def test_fields_go_to_the_fields_of_their_names_at_every_depth(stream: Stream, by_name: bool) -> None:
    """Structs in maps were read by position before a drain: x had the values of y."""
    table = stream.folder / "table"
    kinds = f"s {PAIR}, a array<{MORE}>, v map<string, {MORE}>, k map<{PAIR}, array<{PAIR}>>"
    stream.spark.sql(f"CREATE TABLE ordered (n bigint, part bigint, {kinds}) USING delta LOCATION '{table}'")
    place = {"table": "ordered"} if by_name else {"path": str(table)}
    stream.sink = RecordAccumulator(**place, **HOUR)
    lists = f"array({OF_MORE}, null) AS a", f"map('a', {OF_MORE}, 'b', null) AS v"
    values = "n", "part", f"{OF_PAIR} AS s", *lists, f"map({OF_PAIR}, array({OF_PAIR})) AS k"
    staged_for(stream, stream.sink, stream.rows().selectExpr(*values))
    staged = stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
    assert staged.dtypes == stream.table().dtypes
    assert [row[0] for row in staged.selectExpr(FIELDS).collect()] == [BY_FIELD] * 10
    stream.sink = RecordAccumulator(**place)
    stream.add(1).run(stream.rows().selectExpr(*values))
    assert stream.numbers() == every(2)
    assert [row[0] for row in stream.table().selectExpr(FIELDS).collect()] == [BY_FIELD] * 20
    stream.spark.sql("DROP TABLE ordered")


ODD = ("ship-to", "größe", "a.b", "1e5", "tick`s")


@pytest.mark.long
@pytest.mark.parametrize("place", [{"table": "`1e5`"}, {"path": "table"}])
def test_a_table_may_have_a_name_that_reads_as_a_number_and_a_partition_column_every_name(
    stream: Stream, place: dict[str, str]
) -> None:
    """By name every drain was refused: Spark parses the names of partition columns there."""
    place = {name: str(stream.folder / value) if name == "path" else value for name, value in place.items()}
    stream.sink = RecordAccumulator(**place, partition_by=[*ODD])
    columns = [f"part + {at} AS `{name.replace('`', '``')}`" for at, name in enumerate(ODD)]
    stream.run(stream.rows().selectExpr("n", *columns)).add(1).run(stream.rows().selectExpr("n", *columns))
    assert stream.numbers() == every(2)
    detail = stream.spark.sql(f"DESCRIBE DETAIL {place.get('table') or repr(place['path'])}")
    assert [*detail.select("partitionColumns").first()[0]] == [*ODD]
    stream.spark.sql("DROP TABLE IF EXISTS `1e5`")
