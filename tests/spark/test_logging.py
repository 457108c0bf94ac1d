"""What the log says: the start of a query, its drains, never a row's value."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.sink_streams import ROWS_A_FILE, Stream, every


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("spark_purgatory.") and r.levelno == level]


@pytest.mark.long
def test_a_query_logs_its_start_and_each_drain(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_purgatory")
    stream = Stream(spark, tmp_path).add(2).run()
    assert stream.numbers() == every(2)
    said = lines(caplog, logging.INFO)
    [start] = [line for line in said if line.startswith("query ")]
    for part in (str(stream.checkpoint), "linger 300,000 ms", "spark_purgatory 0.", "Spark 4.", "availableNow"):
        assert part in start
    assert any("there was no drain yet" in line for line in said)
    [drain] = [line for line in said if line.startswith("drain ")]
    assert f"{2 * ROWS_A_FILE} rows in " in drain
    stream.add(1).run()
    assert any("drain 0 is complete" in line for line in lines(caplog, logging.INFO))
