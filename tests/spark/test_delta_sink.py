"""The sink's protocol: every crash case of its table, driven through real queries and real Delta tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError
from tests.support.sink_streams import Stream, every

pytestmark = pytest.mark.spark


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


@pytest.mark.long
def test_a_table_by_name_is_made_and_replayed_one_file_a_partition(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS sink_by_name")
    stream = Stream(spark, tmp_path, RecordAccumulator(table="sink_by_name", partition_by=["part"]))
    stream.checkpoint = tmp_path / "with [odd] {characters}*, spaces"
    stream.add(2).run(stream.rows()).forget_last_commit().run(stream.rows())
    assert stream.numbers() == every(2)
    files = [row[0] for row in stream.table().select("_metadata.file_path").distinct().collect()]
    assert sorted(path.rsplit("/", 2)[-2] for path in files) == ["part=0", "part=1"]
    spark.sql("DROP TABLE sink_by_name")


@pytest.mark.parametrize("where", [{}, {"path": "/t", "table": "t"}])
def test_a_sink_needs_one_place(where: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one of path and table"):
        RecordAccumulator(**where)


def test_a_batch_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="streaming DataFrame"):
        RecordAccumulator(path="/t").write_stream(spark.range(1), checkpoint="/c")


@pytest.mark.long
def test_a_table_restored_to_before_the_last_drain_is_lost(stream: Stream) -> None:
    """RESTORE keeps the table's id and Delta's record of transactions: neither shows it."""
    table = f"delta.`{stream.folder / 'table'}`"
    stream.add(1).run(stream.rows()).add(1).run(stream.rows())
    stream.spark.sql(f"INSERT INTO {table} VALUES (-1, 0)")
    stream.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    assert stream.add(1).run(stream.rows()).numbers() == every(3), "back to the last drain: nothing of ours is gone"
    for to in ("VERSION AS OF 1", f"TIMESTAMP AS OF '{version_time(stream, 1)}'"):
        stream.spark.sql(f"RESTORE TABLE {table} TO {to}")
        with pytest.raises(PySparkException, match=r"TableLostError: table .* was restored to (version 1|time)"):
            stream.add(1).run(stream.rows())
        latest = stream.spark.sql(f"DESCRIBE HISTORY {table} LIMIT 2").collect()[1]["version"]
        stream.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {latest}")
        assert stream.run(stream.rows()).numbers() == every(stream.files), "the remedy that the error names"


def version_time(stream: Stream, version: int) -> str:
    history = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.folder / 'table'}`")
    return str(history.where(f"version = {version}").selectExpr("cast(timestamp AS string)").collect()[0][0])
