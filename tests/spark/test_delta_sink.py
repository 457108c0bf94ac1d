"""The sink's protocol: every crash case of its table, driven through real queries and real Delta tables."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameWriter, SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError, TableLostError
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.now_and_then import now_and_then
from tests.support.sink_streams import Stream, every

pytestmark = pytest.mark.spark
ZONE = "spark.sql.session.timeZone"


def test_a_table_and_its_checkpoint_through_replay_loss_and_replacement(stream: Stream) -> None:
    """Rows are written once and computed once; what a table has lost is missed by name."""
    stream.add(2).run()
    assert stream.numbers() == every(2)
    assert stream.evaluations() == 2
    stream.forget_last_commit().add(1).run()
    assert stream.numbers() == every(3)
    assert stream.evaluations() == 4, "two batches, one of them replayed, and one more"

    shutil.rmtree(stream.checkpoint)
    stream.run(stream.rows())
    assert stream.numbers() == every(3) + every(3), "a fresh checkpoint on an old table drops nothing"

    for leftover in (stream.folder / "table" / "_delta_log").glob("*00000000002.*"):
        leftover.unlink()
    with pytest.raises(PySparkException, match=r"TableLostError: .* version 2 should be drain 0, .* at version 1"):
        stream.add(1).run(stream.rows())

    shutil.rmtree(stream.folder / "table")
    with pytest.raises(PySparkException, match=r"TableLostError: .* dropped"):
        stream.run(stream.rows())
    assert not stream.sink.table_exists(stream.spark), "nothing was written"
    stream.checkpoint, stream.sink = stream.folder / "again", RecordAccumulator(path=str(stream.folder / "other"))
    assert stream.run(stream.rows()).numbers() == every(4), "started over, as the error says"


@pytest.mark.long
def test_two_texts_in_a_partition_column_are_null_to_delta_as_after_a_plain_append(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is told of in docs/promises.md."""
    texts = ["a", "", "__HIVE_DEFAULT_PARTITION__", None, "null"]
    rows = spark.createDataFrame(list(enumerate(texts)), "n int, text string").coalesce(1)
    rows.write.parquet(str(tmp_path / "in"))
    rows.write.format("delta").partitionBy("text").save(str(tmp_path / "plain"))
    sink = RecordAccumulator(path=str(tmp_path / "table"), partition_by="text")
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    sink.write_stream(stream, checkpoint=str(tmp_path / "c"), trigger={"availableNow": True}).awaitTermination()
    plain = spark.read.format("delta").load(str(tmp_path / "plain"))
    found = [[row["text"] for row in table.sort("n").collect()] for table in (sink.read(spark), plain)]
    assert found == [["a", None, None, None, "null"]] * 2


@pytest.mark.long
def test_a_drain_that_nobody_disturbs_is_found_without_another_look_at_the_table(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history shows its version right behind the one before it; any other version asks for the table's id."""
    stream.add(1).run(stream.rows())
    looks: list[str] = []
    facts, at = DeltaTarget.facts, [""]
    monkeypatch.setattr(DeltaTarget, "facts", lambda *given: looks.append(at[0]) or facts(*given))

    def note(name: str) -> None:
        at[0] = name
        if name == "before commit" and stream.files == 3:
            stream.spark.sql(f"INSERT INTO delta.`{stream.folder / 'table'}` VALUES (-1, 0)")
        if name == "after commit" and stream.files == 4:
            shutil.rmtree(stream.folder / "table")

    monkeypatch.setattr(actions, "hook", note)
    stream.add(1).run(stream.rows())
    assert "before intend" in looks and "before read back" not in looks
    looks.clear()
    stream.add(1).run(stream.rows())
    assert "before read back" in looks
    assert stream.numbers() == every(3) + Counter([-1])
    with pytest.raises(TableLostError, match="it is gone after a commit to it"):
        stream.add(1).run(stream.rows())


def test_a_drain_lends_its_mark_to_no_other_write_and_loses_nothing_by_a_compaction(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write in the same session, during the drain, would carry the mark, and be taken for the drain."""
    stream.add(1).run(stream.rows())
    save, others = DataFrameWriter.save, list[int]()

    def with_a_neighbour(writer: DataFrameWriter, path: str | None = None, **more: Any) -> None:
        if path == str(stream.folder / "table") and not others:
            others.append(-1)
            stream.spark.sql(f"INSERT INTO delta.`{path}` VALUES (-1, 0)")
            stream.spark.sql(f"OPTIMIZE delta.`{path}`")
        save(writer, path, **more)

    monkeypatch.setattr(DataFrameWriter, "save", with_a_neighbour)
    stream.add(1).run(stream.rows())
    assert stream.numbers() == every(2) + Counter(others) and others


def test_a_batch_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="not a streaming DataFrame"):
        RecordAccumulator(path="/t").write_stream(spark.range(1), checkpoint="/c")


@pytest.mark.long
@pytest.mark.connect
def test_a_table_restored_to_before_the_last_drain_is_lost(stream: Stream) -> None:
    """RESTORE keeps the table's id and Delta's record of transactions: neither shows it."""
    table = f"delta.`{stream.folder / 'table'}`"
    stream.add(1).run(stream.rows()).add(1).run(stream.rows())
    stream.spark.sql(f"INSERT INTO {table} VALUES (-1, 0)")
    stream.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    assert stream.add(1).run(stream.rows()).numbers() == every(3), "back to the last drain: nothing of ours is gone"
    for to in ("VERSION AS OF 1", f"TIMESTAMP AS OF '{version_time(stream, 1)}'"):
        stream.spark.sql(f"RESTORE TABLE {table} TO {to}")
        with pytest.raises(TableLostError, match="rows that were delivered are gone"):
            stream.sink.read(stream.spark, staged=True, checkpoint=str(stream.checkpoint))
        lost = r"TableLostError: table .* was restored to (?:version 1|time).* RESTORE the table to version (\d+) and "
        with pytest.raises(PySparkException, match=lost) as raised:
            stream.add(1).run(stream.rows())
        [last] = re.findall(lost, str(raised.value))[:1]
        stream.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {last}")
        assert stream.run(stream.rows()).numbers() == every(stream.files), "the remedy that the error names"


@pytest.mark.parametrize("name", ["", *now_and_then("texts")])
def test_a_char_of_the_table_is_padded_as_spark_does_and_a_varchar_takes_what_fits(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    spark.sql(f"CREATE TABLE texts (n bigint, v varchar(3), c char(5)) USING delta LOCATION '{tmp_path / 'table'}'")
    place = {"table": name} if name else {"path": str(tmp_path / "table")}
    stream = Stream(spark, tmp_path, RecordAccumulator(**place)).add(1)
    rows = stream.rows().selectExpr("n", "'ab ' AS v", "'x' AS c")
    found = stream.run(rows).table().selectExpr("n", "v", "rtrim(c)").collect()
    assert Counter(map(tuple, found)) == Counter((n, "ab ", "x") for n in range(10))
    spark.sql("DROP TABLE texts")


@pytest.mark.long
@pytest.mark.parametrize("name", ["", "timed"])
def test_times_in_a_partition_column_are_the_same_in_a_zone_with_summer_time(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Delta reads them out of folders' names: 01:30 UTC came back as 00:30, for both are 02:30 in Berlin."""
    place = {"table": name} if name else {"path": str(tmp_path / "table")}
    stream = Stream(spark, tmp_path, RecordAccumulator(**place, partition_by=["at"]))
    began = 1_792_886_400  # 2026-10-25 00:00 UTC.
    with settings(spark, {ZONE: "Europe/Berlin"}):
        stream.add(1).run(stream.rows().selectExpr("n", f"timestamp_seconds({began} + 1800 * n) AS at"))
        stream.add(1).run(stream.rows().selectExpr("n", f"timestamp_seconds({began} + 1800 * n) AS at"))
        assert spark.conf.get(ZONE) == "Europe/Berlin"
        found = stream.table().selectExpr("n", "unix_seconds(at)").collect()
    assert Counter(map(tuple, found)) == Counter((n, began + 1800 * n) for n in range(20))
    spark.sql("DROP TABLE IF EXISTS timed")


@pytest.mark.long
def test_what_the_table_computes_from_times_has_the_sessions_zone(spark: SparkSession, tmp_path: Path) -> None:
    columns = "n bigint, at timestamp, day date GENERATED ALWAYS AS (CAST(at AS date))"
    spark.sql(f"CREATE TABLE days ({columns}) USING delta PARTITIONED BY (at)")
    stream = Stream(spark, tmp_path, RecordAccumulator(table="days"))
    with settings(spark, {ZONE: "Europe/Berlin"}):  # Midnight there is 22:00 UTC.
        stream.add(1).run(
            stream.rows().selectExpr("n", "timestamp'2026-09-21 20:30:00Z' + make_dt_interval(0, n) AS at")
        )
        assert Counter(str(row["day"]) for row in stream.table().collect()) == {"2026-09-21": 2, "2026-09-22": 8}
    spark.sql("DROP TABLE days")


def version_time(stream: Stream, version: int) -> str:
    history = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.folder / 'table'}`")
    return str(history.where(f"version = {version}").selectExpr("cast(timestamp AS string)").collect()[0][0])
