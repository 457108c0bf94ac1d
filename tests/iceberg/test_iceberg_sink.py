"""The sink on an Iceberg table: rows, crashes, neighbours, expiry, and where nobody can know."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError, PurgatoryError
from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from spark_purgatory.spark.sink.table.iceberg_target import IcebergTarget
from tests.support import iceberg_lake as world
from tests.support.iceberg_lake import PowerCutError, append, cut_at, expire, name, numbers, rewrite
from tests.support.sink_streams import Stream, every


def snapshots(stream: Stream) -> list[dict[str, Any]]:
    rows = stream.spark.table(f"{name(stream)}.snapshots").orderBy("committed_at").collect()
    return [row.asDict() for row in rows]


def test_rows_reach_the_table_once_and_the_history_names_their_drains(stream: Stream) -> None:
    stream.add(2).run(stream.rows())
    stream.add(1).run(stream.rows())
    assert numbers(stream.table()) == every(3)
    drains = [each["summary"]["wap.id"] for each in snapshots(stream) if "wap.id" in each["summary"]]
    assert [drain.rpartition("/")[2] for drain in drains] == ["0", "1"]
    files = stream.spark.table(f"{name(stream)}.files").count()
    assert files == 4, "a file for each partition and drain"


@pytest.mark.parametrize("stream", ["files", "db"], indirect=True)
def test_each_restart_takes_up_what_the_end_of_a_run_left_beside_a_neighbour(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in (*FAILPOINTS, "before pick"):
        cut_at(stream, point, monkeypatch)
        if stream.sink.table_exists(stream.spark):
            append(stream.spark, name(stream), world.OF_OTHERS)
    assert numbers(stream.run(stream.rows()).table()) == every(stream.files)


def test_a_catalog_that_has_the_name_of_the_tables_schema_is_not_taken_for_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    catalog = "spark.sql.catalog.t"
    settings = {catalog: stream.spark.conf.get("spark.sql.catalog.files"), f"{catalog}.type": "hadoop"}
    for key, value in {**settings, f"{catalog}.warehouse": str(tmp_path / "t")}.items():
        stream.spark.conf.set(key, value)
    try:
        assert numbers(stream.add(1).run(stream.rows()).table()) == every(1)
    finally:
        for key in (*settings, f"{catalog}.warehouse"):
            stream.spark.conf.unset(key)


def test_a_session_sees_what_a_restart_has_recovered(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at(stream, "before pick", monkeypatch)
    assert numbers(stream.spark.table(name(stream))) == every(0)
    stream.run(stream.rows())
    assert numbers(stream.spark.table(name(stream))) == every(1)


def test_a_null_in_a_column_that_takes_none_stops_the_query_at_once(stream: Stream) -> None:
    """And the next try of the first drain finds a branch, though the table has no snapshot."""
    stream.spark.sql(
        f"CREATE TABLE {name(stream)} (n bigint NOT NULL, part bigint) USING iceberg PARTITIONED BY (part)"
    )
    rows = stream.rows().selectExpr("nullif(n, 3) AS n", "part")
    with pytest.raises(Exception, match=r"however often it is tried: .*NULL .* field: n\. .*DROP NOT NULL"):
        stream.add(1).run(rows)  # delivery_timeout is half an hour.
    stream.spark.sql(f"ALTER TABLE {name(stream)} ALTER COLUMN n DROP NOT NULL")
    assert stream.run(rows).table().where("n IS NULL").count() == 1


def late_pick(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> tuple[IcebergTarget, int]:
    """The target of a run that ends before it picks, and what it would pick."""
    held: list[tuple[IcebergTarget, int]] = []

    def pick(self: IcebergTarget, spark: SparkSession, written: int) -> None:
        held.append((self, written))
        raise PowerCutError("held")

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_pick", pick)
        with pytest.raises(Exception, match="held"):
            stream.add(1).run(stream.rows())
    return held[0]


def test_a_run_that_lives_on_and_picks_late_doubles_nothing(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.add(1).run(stream.rows())
    zombie, written = late_pick(stream, monkeypatch)
    append(stream.spark, name(stream), world.OF_OTHERS)
    stream.run(stream.rows())
    zombie._pick(stream.spark, written)
    assert numbers(stream.table()) == every(2)
    # One that had written a copy of the rows, and picks that.
    again = zombie.history(stream.spark).drains(zombie_app(stream))[1]
    rows = stream.spark.createDataFrame([(7, 1)], "n bigint, part bigint")
    branch = next(ref for ref in zombie.history(stream.spark).refs if ref != "main")
    marked = rows.writeTo(f"{name(stream)}.branch_{branch}").option(
        "snapshot-property.wap.id", f"{again.app_id}/{again.number}"
    )
    marked.append()
    zombie._pick(stream.spark, zombie.history(stream.spark).refs[branch])
    assert numbers(stream.table()) == every(2)
    assert numbers(stream.add(1).run(stream.rows()).table()) == every(3)


def zombie_app(stream: Stream) -> str:
    from spark_purgatory.spark.sink.table.table_place import app_id_of

    return app_id_of(stream.spark, str(stream.checkpoint))


def test_expiry_and_compaction_between_drains_are_no_matter(stream: Stream) -> None:
    for _ in range(3):
        stream.add(1).run(stream.rows())
        append(stream.spark, name(stream), world.OF_OTHERS)
        rewrite(stream.spark, name(stream))
        append(stream.spark, name(stream), world.OF_OTHERS)
        expire(stream.spark, name(stream))
        assert len(snapshots(stream)) == 2, "the current one, and the last drain's, which the branch keeps"
    assert numbers(stream.table()) == every(3)


@pytest.mark.parametrize("point", ["after intend", "before pick", "after commit", "after read back"])
def test_a_drain_whose_snapshot_expired_before_the_restart_is_known_by_branch_and_files(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    stream.add(1).run(stream.rows())
    append(stream.spark, name(stream), world.OF_OTHERS)
    cut_at(stream, point, monkeypatch)
    append(stream.spark, name(stream), world.OF_OTHERS)
    append(stream.spark, name(stream), world.OF_OTHERS)
    expire(stream.spark, name(stream))
    if point == "before pick":
        with pytest.raises(Exception, match="does not show whether it has drain 1"):
            stream.run(stream.rows())
        say(stream, "not committed")
    assert numbers(stream.run(stream.rows()).table()) == every(2)


def say(stream: Stream, what: str) -> None:
    """Do what the error asks for."""
    uuid = next(
        row["summary"]["spark_purgatory.intent"]
        for row in reversed(snapshots(stream))
        if "spark_purgatory.intent" in row["summary"]
    )
    stream.spark.sql(f"ALTER TABLE {name(stream)} SET TBLPROPERTIES ('spark_purgatory.intent.{uuid}' = '{what}')")


def test_where_its_files_were_rewritten_as_well_the_query_stops_until_it_is_told(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add(1).run(stream.rows())
    append(stream.spark, name(stream), world.OF_OTHERS)
    cut_at(stream, "after commit", monkeypatch)
    rewrite(stream.spark, name(stream))
    append(stream.spark, name(stream), world.OF_OTHERS)
    expire(stream.spark, name(stream))
    before = numbers(stream.table())
    with pytest.raises(Exception, match="does not show whether it has drain 1"):
        stream.run(stream.rows())
    assert numbers(stream.table()) == before == every(2)
    say(stream, "committed")
    assert numbers(stream.add(1).run(stream.rows()).table()) == every(3)


@pytest.mark.parametrize(
    "what", ["rolled back", "dropped", "made again", "replaced", "its branch and snapshot are gone"]
)
def test_a_table_that_lost_the_last_drain_is_refused_by_name(stream: Stream, what: str) -> None:
    stream.add(1).run(stream.rows())
    stream.add(1).run(stream.rows())
    spark, table = stream.spark, name(stream)
    match what:
        case "rolled back":
            first = snapshots(stream)[0]["snapshot_id"]
            spark.sql(f"CALL db.system.rollback_to_snapshot('{table.partition('.')[2]}', {first})")
        case "dropped" | "made again":
            spark.sql(f"DROP TABLE {table} PURGE")
            if what == "made again":
                spark.sql(f"CREATE TABLE {table} (n bigint, part bigint) USING iceberg PARTITIONED BY (part)")
        case "replaced":
            spark.sql(
                f"CREATE OR REPLACE TABLE {table} USING iceberg PARTITIONED BY (part) AS SELECT 1L AS n, 1L AS part"
            )
        case _:
            branch = spark.table(f"{table}.refs").where("name != 'main'").first()["name"]
            spark.sql(f"ALTER TABLE {table} DROP BRANCH {branch}")
            append(spark, table, world.OF_OTHERS)
            append(spark, table, world.OF_OTHERS)
            expire(spark, table)
    with pytest.raises(Exception, match="TableLostError") as raised:
        stream.add(1).run(stream.rows())
    if what == "its branch and snapshot are gone":  # All rows are there.
        spark.sql(re.findall(r"ALTER TABLE .*?\)", str(raised.value))[0])
        assert numbers(stream.run(stream.rows()).table()) == every(3)


def test_a_copy_of_the_checkpoint_goes_on_with_the_table_rolled_back_to_the_snapshot_of_that_hour(
    stream: Stream,
) -> None:
    stream.add(1).run(stream.rows())
    newest, copy = stream.checkpoint, stream.folder / "copy"
    shutil.copytree(newest, copy)
    for _ in range(2):
        stream.add(1).run(stream.rows())
    stream.checkpoint = copy
    with pytest.raises(Exception, match=r"belongs to snapshot \d+: .*set_current_snapshot") as raised:
        stream.run(stream.rows())
    snapshot = re.findall(r"belongs to snapshot (\d+)", str(raised.value))[0]
    catalog, _, table = name(stream).partition(".")
    stream.spark.sql(f"CALL {catalog}.system.set_current_snapshot('{table}', {snapshot})")
    assert numbers(stream.run(stream.rows()).table()) == every(3)
    assert numbers(stream.add(1).run(stream.rows()).table()) == every(4)


def waiting(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are staged, and not drained."""
    stream.add(1).run(stream.rows())
    cut_at(stream, "before intend", monkeypatch)


@pytest.mark.parametrize("change", ["ADD COLUMN more string", "ALTER COLUMN n COMMENT 'a number'"])
def test_a_changed_table_takes_the_staged_rows(stream: Stream, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    waiting(stream, monkeypatch)
    stream.spark.sql(f"ALTER TABLE {name(stream)} {change}")
    assert numbers(stream.run(stream.rows()).table()) == every(2)


def rename(stream: Stream, *changes: tuple[str, str]) -> None:
    for old, new in changes:
        stream.spark.sql(f"ALTER TABLE {name(stream)} RENAME COLUMN {old} TO {new}")


SWAP = ("n", "t"), ("part", "n"), ("t", "part")


def test_rows_that_wait_go_to_the_columns_of_their_names_in_the_order_that_the_owner_names(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change after that stops the query again."""
    stream.sink = RecordAccumulator(table=name(stream), format="iceberg")
    waiting(stream, monkeypatch)
    rename(stream, *SWAP)
    with pytest.raises(PurgatoryError, match="in another order than when rows were staged") as raised:
        stream.run(stream.rows())
    stream.spark.sql(re.findall(r"ALTER TABLE .*?\)", str(raised.value))[0])
    stream.spark.sql(f"ALTER TABLE {name(stream)} ADD COLUMN other string FIRST")
    rename(stream, ("part", "t"))
    with pytest.raises(PurgatoryError, match="lacks part, which it had when rows were staged"):
        stream.run(stream.rows())
    rename(stream, ("t", "part"))
    stream.run(stream.rows())
    assert stream.table().where("n >= 10").count() == 10


def test_a_table_with_transforms_is_told_by_its_provider_and_a_drain_writes_its_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = f"db.t.of_{uuid4().hex[:8]}"
    spark.sql(f"CREATE TABLE {table} (n bigint, part bigint) USING iceberg PARTITIONED BY (part, bucket(2, n))")
    stream = Stream(spark, tmp_path, RecordAccumulator(table=table))
    assert numbers(stream.add(2).run(stream.rows()).table()) == every(2)
    assert numbers(stream.sink.read(spark, staged=True, checkpoint=str(stream.checkpoint))) == every(2)


def test_staged_rows_are_read_with_the_table(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(stream, monkeypatch)
    assert numbers(stream.table()) == every(1)
    assert numbers(stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))) == every(2)
    cut_at(stream, "before pick", monkeypatch)
    assert numbers(stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))) == every(3)


def test_a_path_and_a_table_of_another_format_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format='iceberg' needs a name, not path='/lake/t': set table="):
        RecordAccumulator(path="/lake/t", format="iceberg")
    spark.sql("CREATE TABLE IF NOT EXISTS plain (n bigint, part bigint) USING parquet")
    stream = Stream(spark, tmp_path, RecordAccumulator(table="plain", format="iceberg"))
    with pytest.raises(ConfigError, match="plain is not an Iceberg table"):
        stream.add(1).run(stream.rows())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("files.outcomes", r"has no schema, but files is a catalog: name it files\.SCHEMA\.outcomes"),
        ("db.outcomes", r"has no schema, but db is a catalog"),
        ("outcomes", r"spark_catalog is Spark's own in this session, which makes no Iceberg tables"),
        ("lake.t.outcomes", r"is not the name of a table.*Name a catalog of this session"),
    ],
)
def test_names_that_no_catalog_of_icebergs_takes_are_refused_before_the_start(
    spark: SparkSession, tmp_path: Path, table: str, said: str
) -> None:
    stream = Stream(spark, tmp_path, RecordAccumulator(table=table, format="iceberg"))
    with pytest.raises(ConfigError, match=said):
        stream.add(1).run(stream.rows())


def test_the_code_of_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "iceberg.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0].replace("lake.sales.outcomes", "db.t.outcomes")
    code = code.replace("s3a://bucket/checkpoints/outcomes", str(tmp_path / "checkpoint"))
    names = {"RecordAccumulator": RecordAccumulator, "outcomes": Stream(spark, tmp_path / "files").add(1).rows()}
    exec(code, names)
    names["query"].processAllAvailable()
    names["query"].stop(drain=True)
    assert numbers(spark.table("db.t.outcomes")) == every(1)
