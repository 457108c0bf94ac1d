"""A query that may lose by its settings says so: while it runs, and before it starts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Operations
from spark_purgatory.spark.host.requirements import NO_DATA
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

pytestmark = pytest.mark.spark


def warnings(caplog: pytest.LogCaptureFixture, least: int) -> list[str]:
    """What was warned of, once it has come: Spark reports a micro-batch some time after it."""
    for _ in range(300):
        found = [record.getMessage() for record in caplog.records if "query_watch" in record.name]
        if len(found) >= least:
            break
        time.sleep(0.1)
    time.sleep(1)
    return [record.getMessage() for record in caplog.records if "query_watch" in record.name]


def test_many_late_rows_are_warned_of_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = Landing(tmp_path)
    landing.add([operation("clock", 100)], [event("nobody", 100)])
    for batch in range(3):
        names = [f"{batch}-{i}" for i in range(10)]
        landing.add([operation(name, 10) for name in names], [event(name, 100.5 + batch) for name in names[:5]])
    landing.run(spark, purgatory(name="orders"))
    (said,) = warnings(caplog, 1)
    assert "purgatory orders: 10 of 15 rows of micro-batch 1 came behind the watermark (2024-05-01T13:40:00." in said
    assert "Give the late input a longer watermark=" in said and "lie between 2024-05-01T12:10:00.000Z" in said


def test_a_query_without_a_watermark_says_so_and_one_that_has_it_is_quiet(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    healthy, stuck = Landing(tmp_path / "healthy"), Landing(tmp_path / "stuck")
    for batch in range(4):
        healthy.add([operation(f"o{batch}", batch)], [event(f"o{batch}", batch)])
        stuck.add([operation(f"o{batch}", batch)], [])
    healthy.run(spark, purgatory())
    stuck.run(spark, purgatory())
    (said,) = warnings(caplog, 1)
    assert "3 micro-batches brought rows and there is no watermark yet" in said and "set its idle_after=" in said


def test_a_session_without_micro_batches_without_rows_is_told_before_the_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = Landing(tmp_path).add([operation("o")], [event("o", 1)]).frames(spark)
    ticking = Operations(
        id="id", keys="key", created="created", deadline="deadline", idle_after="1 minute", watermark="0 seconds"
    )
    with settings(spark, {NO_DATA: "FALSE"}):
        purgatory(operations=ticking).resolve(*frames)
        assert not caplog.records
        purgatory().resolve(*frames)
    (said,) = warnings(caplog, 1)
    assert said.startswith(f"{NO_DATA} is false: an operation whose deadline") and "set idle_after=" in said
