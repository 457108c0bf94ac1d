"""A session in which nothing was set: a query gets the settings that fit it, and the session stays as it was."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Purgatory,
    RecordAccumulator,
    check_checkpoint,
    move_checkpoint,
)
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.doctor.session import checkpoint_findings
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.start_check import LOCAL_CHECKPOINT
from spark_purgatory.spark.host.requirements import (
    CHANGELOG,
    COUNT_ROWS,
    KEEPS_OLD_FILES,
    PROVIDER,
    ROCKSDB,
)
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.sink.table.delta_target import SNAPSHOT_PARTITIONS
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, settings
from tests.support.children import until
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import event, operation, operations_with, purgatory
from tests.support.streams import Landing

CHOSEN_BY_US = (
    *LOCAL_CHECKPOINT,
    PARTITIONS,
    PROVIDER,
    CHANGELOG,
    COUNT_ROWS,
    FORMAT_VERSION,
    SNAPSHOT_PARTITIONS,
    "spark.sql.adaptive.enabled",
)
SET_BY_DELTA = ("spark.databricks.delta.lastCommitVersionInSession", "spark.sql.parquet.fieldId.")
CORES = 2
"""The session's."""
MANY = 2 * 3 + 1
"""More than twice the shards of `purgatory`."""


@pytest.fixture
def bare(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of the same application that has set nothing of what a query may choose. It must not change."""
    session = spark.newSession()
    for name in CHOSEN_BY_US:
        session.conf.unset(name)
    before = set(session.conf.getAll.items())
    yield session
    changed = {name for name, _ in before ^ set(session.conf.getAll.items()) if not name.startswith(SET_BY_DELTA)}
    assert not changed


def landed(folder: Path) -> Landing:
    """One micro-batch in which an operation ends and another one waits."""
    return Landing(folder).add([operation("o1"), operation("o2", 100, 200)], [event("o1", 5), event("clock", 110)])


def write(
    landing: Landing, spark: SparkSession, outcomes: DataFrame | None = None, given: Purgatory | None = None
) -> dict[str, Any]:
    """Run the query into a table, to its end; its first report of this run that has a state."""
    outcomes = outcomes or (given or purgatory()).resolve(*landing.frames(spark))
    query = RecordAccumulator(path=str(landing.outcomes)).write_stream(
        outcomes, checkpoint=str(landing.checkpoint), trigger={"availableNow": True}
    )
    query.awaitTermination()
    return next(dict(report) for report in query.recentProgress if report["stateOperators"])


def partitions_of(report: Mapping[str, Any]) -> set[int]:
    return {operator["numShufflePartitions"] for operator in report["stateOperators"]}


def kept(landing: Landing, name: str = PARTITIONS) -> str:
    """A setting that the checkpoint fixes."""
    text = (landing.checkpoint / "offsets" / "0").read_text(encoding="utf-8")
    return str(json.loads(text.splitlines()[1])["conf"][name])


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings about state partitions."""
    return [text for record in caplog.records if "state partitions for" in (text := record.getMessage())]


@pytest.mark.parametrize(("host", "shards"), [("applyInPandasWithState", 3), *now_and_then((LOG_HOST, 1))])
def test_a_query_has_as_many_state_partitions_as_shards_or_cores(
    bare: SparkSession, tmp_path: Path, host: str, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    landing = landed(tmp_path)
    report = write(landing, bare, given=purgatory(host=host, shards=shards))
    assert partitions_of(report) == {min(shards, CORES)}
    assert kept(landing) == str(min(shards, CORES))
    assert kept(landing, PROVIDER) == ROCKSDB
    assert list(landing.checkpoint.glob("state/0/0/*_*.changelog"))
    assert bare.read.format("delta").load(str(landing.outcomes)).count() == 1
    assert not said(caplog)
    assert report["stateOperators"][0]["numRowsTotal"] == 0


@pytest.mark.long
def test_a_checkpoint_on_a_local_disk_is_written_without_processes(bare: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop's own local storage, which replaces files; Hive's, of other streams, does not."""
    bare.createDataFrame([(1,)], "a int").write.json(str(tmp_path / "opened"))
    landing = landed(tmp_path)
    query: Any = RecordAccumulator(path=str(landing.outcomes)).write_stream(
        purgatory().resolve(*landing.frames(bare)), checkpoint=str(landing.checkpoint), trigger={"availableNow": True}
    )
    query.awaitTermination()
    manager = query._query._jsq.streamingQuery().offsetLog().fileManager()
    assert manager.getClass().getSimpleName() == KEEPS_OLD_FILES
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    new.write_text("new")
    path: Any = bare._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
    manager.renameTempFile(path(str(new)), path(str(old)), True)
    assert old.read_text() == "new" and not new.exists()


@pytest.mark.long
def test_a_drain_reads_the_log_of_a_small_table_in_few_tasks(bare: SparkSession, tmp_path: Path) -> None:
    """Delta's default is 50 tasks, for one row a task."""
    bare.sparkContext.setJobGroup("drains", "")
    try:
        write(landed(tmp_path), bare)
    finally:
        bare.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    tracker = bare.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("drains")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert len(stages) > 1 and 50 not in {stage.numTasks for stage in stages if stage}


@pytest.mark.long
def test_chained_purgatories_have_the_partitions_of_the_one_with_more_shards(
    bare: SparkSession, tmp_path: Path
) -> None:
    first = purgatory(shards=1, host="transformWithState", name="payments")
    waits = operations_with(created="resolved_at", timeout="1 hour", outcomes_of=first)
    second = purgatory(operations=waits, name="shipments", prefix="ship_")
    landing = landed(tmp_path)
    paid = first.resolve(*landing.frames(bare)).where("status = 'COMPLETED'")
    report = write(landing, bare, second.resolve(paid, Landing(tmp_path / "ships").add([], []).frames(bare)[1]))
    assert len(report["stateOperators"]) == 2
    assert partitions_of(report) == {CORES}


@pytest.mark.long
def test_what_the_session_has_set_itself_stays(bare: SparkSession, tmp_path: Path) -> None:
    with settings(bare, {PARTITIONS: "5", COUNT_ROWS: "true", PROVIDER: ROCKSDB}):
        landing = landed(tmp_path)
        report = write(landing, bare)
    assert partitions_of(report) == {5}
    assert report["stateOperators"][0]["numRowsTotal"] > 0
    heap = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    with settings(bare, {PROVIDER: heap}), pytest.raises(ConfigError) as error:
        purgatory(host=LOG_HOST).resolve(*landing.frames(bare))
    assert f'\n    spark.conf.set("{PROVIDER}", "{ROCKSDB}")\n' in str(error.value)


def test_a_start_that_fails_leaves_the_session_as_it_was(bare: SparkSession, tmp_path: Path) -> None:
    rates = bare.readStream.format("rate").load().writeStream.format("noop").queryName("taken").start()
    landing = landed(tmp_path)
    try:
        with pytest.raises(PySparkException, match="taken"):
            RecordAccumulator(path=str(landing.outcomes)).write_stream(
                purgatory().resolve(*landing.frames(bare)), checkpoint=str(landing.checkpoint), query_name="taken"
            )
        assert bare.conf.get(PARTITIONS, None) is None
    finally:
        rates.stop()


def test_settings_of_blocks_that_overlap_do_not_stay(bare: SparkSession) -> None:
    first, second = (settings(bare, {COUNT_ROWS: value}) for value in ("true", "false"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert bare.conf.get(COUNT_ROWS) == "false"
    second.__exit__(None, None, None)
    assert bare.conf.get(COUNT_ROWS, None) is None
    with settings(bare, {COUNT_ROWS: "false"}):
        bare.conf.set(COUNT_ROWS, "true")  # somebody else has the last word
    assert bare.conf.get(COUNT_ROWS) == "true"
    bare.conf.unset(COUNT_ROWS)


@pytest.mark.long
def test_an_old_checkpoint_of_many_partitions_runs_and_says_so_until_it_is_moved(
    bare: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = landed(tmp_path)
    with settings(bare, {PARTITIONS: str(MANY)}):
        assert partitions_of(write(landing, bare)) == {MANY}
    until(lambda: len(said(caplog)) == 1)
    caplog.clear()
    landing.add([operation("o3", 120, 130)], [event("clock", 150)])
    assert partitions_of(write(landing, bare)) == {MANY}
    until(lambda: len(said(caplog)) == 1)
    assert f"{MANY} state partitions for 3 shards" in said(caplog)[0]
    assert f"spark-purgatory move --partitions {CORES}" in said(caplog)[0]
    caplog.clear()
    outcomes = purgatory().resolve(*landing.frames(bare))
    check_checkpoint(bare, outcomes, checkpoint=str(landing.checkpoint))
    assert len(said(caplog)) == 1 and "a RecordAccumulator, which writeStream cannot continue" in caplog.text
    found = {finding.what: finding for finding in checkpoint_findings(bare, str(landing.checkpoint))}
    assert found["state partitions"].status == "note"
    assert f"move --partitions {CORES}" in found["state partitions"].found

    caplog.clear()
    moved = Landing(tmp_path)
    moved.checkpoint = tmp_path / "moved"
    move_checkpoint(
        bare, outcomes=outcomes, source=str(landing.checkpoint), target=str(moved.checkpoint), partitions=CORES
    )
    landing.add([operation("o9", 400, 500)], [event("clock", 400)])
    assert partitions_of(write(moved, bare)) == {CORES}
    assert {row.id for row in bare.read.format("delta").load(str(landing.outcomes)).collect()} == {"o1", "o2", "o3"}
    time.sleep(1)
    assert not said(caplog)
    assert "state partitions" not in [finding.what for finding in checkpoint_findings(bare, str(moved.checkpoint))]


@pytest.mark.long
def test_a_start_without_a_sink_of_ours_in_a_default_session_is_told_what_to_paste(
    bare: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = landed(tmp_path)
    with settings(bare, {PARTITIONS: "1"}), pytest.raises(PySparkException, match="STORE_BACKEND_NOT_SUPPORTED"):
        landing.run(bare, purgatory(host=LOG_HOST))
    until(lambda: any(record.levelno == logging.ERROR for record in caplog.records))
    (text,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert [line.strip() for line in text.splitlines()[1:]] == [
        f'spark.conf.set("{PROVIDER}", "{ROCKSDB}")',
        f'spark.conf.set("{CHANGELOG}", "true")',
        f'spark.conf.set("{COUNT_ROWS}", "false")',
        f'spark.conf.set("{FORMAT_VERSION}", "2")',
    ]


def test_a_start_in_a_session_with_another_format_than_the_checkpoint_is_told_what_to_set(
    bare: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = f'checkpoint has states of format 2.*spark.conf.set\\("{FORMAT_VERSION}", "2"\\)'

    def is_told() -> bool:
        return any(re.search(wanted, record.getMessage()) for record in caplog.records)

    landing = landed(tmp_path)
    with settings(bare, {PARTITIONS: "2", **STATE_STORE_SETTINGS}):
        assert len(landing.run(bare, purgatory())) == 1
    landing.add([operation("o9", 400, 500)], [event("clock", 400)])
    check_checkpoint(bare, purgatory().resolve(*landing.frames(bare)), checkpoint=str(landing.checkpoint))
    assert is_told()
    caplog.clear()
    with pytest.raises(PySparkException, match=r"changelog does not exist|CANNOT_LOAD_STATE_STORE"):
        landing.run(bare, purgatory())
    until(is_told)
    with settings(bare, {FORMAT_VERSION: "2"}):
        assert len(landing.run(bare, purgatory())) == 2
