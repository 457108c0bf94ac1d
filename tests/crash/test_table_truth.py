"""Whether a drain was committed, told by the table alone: its history whole, cut by log clean-up, or kept by a catalog.

A run ends where a failpoint is reached, and the next one takes up what it left. `test_crash` kills processes.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import TableLostError
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import HOUR, OF_OTHERS, accumulator, forget_history, staged_for
from tests.support.sink_streams import Stream, every

CATALOG = "spark_catalog"
PUBLISHED_EACH = 5


def make_catalog_managed(spark: SparkSession, name: str, columns: str, folder: Path) -> None:
    """Make a table, partitioned by ``part``, and hand its commits to the coordinator.

    Delta makes such a table only at the request of a catalog: here its first commit is rewritten.
    """
    jvm = spark._jvm
    assert jvm is not None
    commits = jvm.org.apache.spark.sql.delta.coordinatedcommits
    if commits.CatalogOwnedCommitCoordinatorProvider.getBuilder(CATALOG).isEmpty():
        builder = commits.InMemoryCommitCoordinatorBuilder(PUBLISHED_EACH)
        commits.CatalogOwnedCommitCoordinatorProvider.registerBuilder(CATALOG, builder)
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING delta PARTITIONED BY (part) LOCATION '{folder}' TBLPROPERTIES "
        "('delta.enableInCommitTimestamps' = 'true', 'delta.feature.vacuumProtocolCheck' = 'supported')"
    )
    log = folder / "_delta_log"
    first = log / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "protocol" in action:
            for features in ("readerFeatures", "writerFeatures"):
                action["protocol"][features].append("catalogManaged")
    for checksum in log.glob("*.crc"):  # Delta's own, and Hadoop's hidden ones.
        checksum.unlink()
    first.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def published(folder: Path) -> int:
    """The last version that is a file of the log."""
    return max(int(path.stem) for path in (folder / "_delta_log").glob("*.json"))


class PowerCutError(RuntimeError):
    """Ends a query's run."""


def cut_at(stream: Stream, failpoint: str) -> None:
    """Run the stream, one file more, until the failpoint is reached; then the run ends."""

    def hook(reached: str) -> None:
        if reached == failpoint:
            actions.hook = None
            raise PowerCutError(failpoint)

    actions.hook = hook
    try:
        with pytest.raises(Exception, match=f"PowerCutError: {failpoint}|^{failpoint}"):
            stream.add(1).run(stream.rows())
    finally:
        actions.hook = None


def cut_in_turn(stream: Stream, points: Sequence[str]) -> None:
    """Each run takes up what the one before left; in the end every row is there once."""
    for point in points:
        cut_at(stream, point)
    assert stream.run(stream.rows()).numbers() == every(stream.files)


@pytest.mark.long
@pytest.mark.parametrize(
    ("failpoint", "is_there"),
    [("after commit", True), *now_and_then(("before commit", False))],
)
def test_a_drain_of_which_the_history_says_nothing_any_more_is_repeated_and_delta_skips_it_if_it_was_done(
    stream: Stream, caplog: pytest.LogCaptureFixture, failpoint: str, is_there: bool
) -> None:
    stream.add(1).run(stream.rows())
    cut_at(stream, failpoint)
    forget_history(stream)
    with caplog.at_level(logging.WARNING, logger="spark_purgatory"):
        assert stream.run(stream.rows()).numbers() == every(2) + OF_OTHERS
    assert ("committed before the table's history was cut: the table skipped it" in caplog.text) is is_there
    assert stream.add(1).run(stream.rows()).numbers() == every(3) + OF_OTHERS


def by_name(spark: SparkSession, folder: Path, name: str) -> Stream:
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    return Stream(spark, folder, RecordAccumulator(table=name, partition_by=["part"]))


def test_a_table_by_name_through_the_end_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    stream = by_name(spark, tmp_path, "cut")
    cut_in_turn(stream, ("after commit",))
    spark.sql("DROP TABLE cut")


def managed(spark: SparkSession, folder: Path, name: str) -> Stream:
    stream = by_name(spark, folder, name)
    make_catalog_managed(spark, name, "n bigint, part bigint", folder / "table")
    return stream


@pytest.mark.slow
def test_a_table_whose_commits_a_catalog_keeps_through_the_ends_of_runs_at_every_failpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = managed(spark, tmp_path, "kept_often")
    cut_in_turn(stream, FAILPOINTS)
    version = spark.sql("DESCRIBE HISTORY kept_often LIMIT 1").first()["version"]
    assert published(stream.folder / "table") < version, "the last commits are not in the table's log"
    spark.sql("RESTORE TABLE kept_often TO VERSION AS OF 1")
    with pytest.raises(Exception, match=r"TableLostError: .* was restored to version 1"):
        stream.add(1).run(stream.rows())
    spark.sql("DROP TABLE kept_often")


def sql(stream: Stream, statement: str) -> None:
    name = stream.sink.options.table or f"delta.`{stream.folder / 'table'}`"
    stream.spark.sql(statement.replace("TABLE T", f"TABLE {name}"))


@pytest.mark.long
@pytest.mark.parametrize("by_name", [False, True])
def test_a_copy_of_the_checkpoint_goes_on_with_the_table_restored_to_the_version_of_that_hour(
    stream: Stream, by_name: bool
) -> None:
    """Delta keeps the numbers of the drains that it took back, and would skip the next ones."""
    if by_name:
        stream.sink = RecordAccumulator(table="of_that_hour")
    stream.add(1).run(stream.rows()).add(1).run(stream.rows())
    newest, copy = stream.checkpoint, stream.folder / "copy"
    shutil.copytree(newest, copy)
    for _ in range(2):
        stream.add(1).run(stream.rows())
    sql(stream, "RESTORE TABLE T TO VERSION AS OF 1")
    with pytest.raises(Exception, match="bring back a copy of the checkpoint made while the table was at version 1"):
        stream.run(stream.rows())
    sql(stream, "RESTORE TABLE T TO VERSION AS OF 3")
    stream.checkpoint = copy
    with pytest.raises(Exception, match=r"belongs to version 1: RESTORE the table to version 1") as raised:
        stream.run(stream.rows())
    version = re.findall(r"RESTORE the table to version (\d+)", str(raised.value))[0]
    sql(stream, f"RESTORE TABLE T TO VERSION AS OF {version}")
    assert stream.run(stream.rows()).numbers() == every(4)
    assert stream.sink.read(stream.spark, staged=True, checkpoint=str(copy)).count() == 40
    assert stream.add(1).run(stream.rows()).numbers() == every(5)
    stream.spark.sql("DROP TABLE IF EXISTS of_that_hour")


def meddled(stream: Stream, failpoint: str, meddle: Callable[[], object]) -> Stream:
    """Drain a second file; something happens to the table at the failpoint."""
    accumulator(stream)
    stream.add(1).run(stream.rows()).add(1)
    staged_for(stream, accumulator(stream, **HOUR))

    def hook(reached: str) -> None:
        if reached == failpoint:
            actions.hook = None
            meddle()

    actions.hook = hook
    try:
        stream.run(stream.rows())
    finally:
        actions.hook = None
    return stream


@pytest.mark.long
def test_a_table_that_was_removed_under_a_drain_gets_the_rows_once_it_is_back(stream: Stream) -> None:
    table, aside = stream.folder / "table", stream.folder / "aside"
    with pytest.raises(TableLostError, match="Bring the earlier table back from a copy and start again"):
        meddled(stream, "before commit", lambda: table.rename(aside))
    shutil.rmtree(table)
    aside.rename(table)
    assert stream.run(stream.rows()).numbers() == every(2)
