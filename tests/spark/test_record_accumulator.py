"""`RecordAccumulator` on real streams: when rows become visible, what bounds them, and what stops it by name."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.sink import record_accumulator
from spark_purgatory.spark.sink.staging.staged_files import read_pieces
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import HOUR, accumulator, staged_files, start, wait_until
from tests.support.sink_streams import ROWS_A_FILE, Stream, every


def test_rows_that_have_lingered_leave_a_stream_that_has_gone_quiet(stream: Stream) -> None:
    """One file, then nothing: the heartbeat lets its rows out."""
    stream.add(1)
    deliveries: list[Any] = []
    linger_s = 2
    sink = accumulator(stream, linger=f"{linger_s} seconds", on_delivery=lambda value, error: deliveries.append(value))
    query = start(stream, sink)
    wait_until(lambda: bool(deliveries), query)
    assert stream.numbers() == every(1)
    query.stop()
    assert sum(value.rows for value in deliveries) == 10
    assert {value.version for value in deliveries} == {0}
    assert min(value.queued_ms for value in deliveries) >= 1000 * linger_s / 2, "how soon after, the machine decides"


def test_rows_linger_in_the_staged_view_and_flush_and_close_bring_them_to_the_table(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add(1)
    sink = accumulator(stream, **HOUR)
    query = start(stream, sink)
    wait_until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    assert not sink.table_exists(stream.spark), "it lingers"
    staged = sink.read(stream.spark, staged=True)
    assert Counter(row["n"] for row in staged.collect()) == every(1)
    assert [row["n"] for row in staged.where("n = 3").collect()] == [3], "Spark puts no 3 into the hash of other rows"
    sink.flush()
    assert stream.numbers() == every(1)
    stream.add(1)
    query.processAllAvailable()
    assert Counter(row["n"] for row in sink.read(stream.spark, staged=True).collect()) == every(2)

    def read_late(*given: Any) -> DataFrame:
        if query.isActive:
            sink.close()  # A drain that ends while the view is made removes what it has found.
        return read_pieces(*given)

    monkeypatch.setattr(record_accumulator, "read_pieces", read_late)
    assert Counter(row["n"] for row in sink.read(stream.spark, staged=True).collect()) == every(2)
    assert stream.numbers() == every(2)
    assert staged_files(stream) == []
    assert not query.isActive


@pytest.mark.parametrize(
    ("column", "said"),
    [
        *now_and_then(
            ("repeat('x', 5000)", "ConfigError: a row of .* bytes is larger than the whole buffer_memory, 2,")
        ),
        ("repeat('../', 300)", "ConfigError: a value of partition column 1 of partition_by takes 1500 bytes"),
    ],
)
def test_a_row_that_no_sink_could_take_is_refused_before_anything_counts(
    stream: Stream, column: str, said: str
) -> None:
    stream.add(1)
    options = {"buffer_memory": 2000, "batch_size": 1000}
    sink = RecordAccumulator(path=str(stream.folder / "table"), partition_by=["text"], **options)
    rows = stream.rows().selectExpr("n", f"{column} AS text")
    with pytest.raises(PySparkException, match=said) as raised:
        sink.write_stream(rows, checkpoint=str(stream.checkpoint), trigger={"availableNow": True}).awaitTermination()
    assert not re.search(r"x{20}|(\.\./){5}", str(raised.value)), "errors name no payload"
    assert not sink.table_exists(stream.spark)
    assert not staged_files(stream)


@pytest.mark.long
def test_hostile_partition_values_arrive_as_they_are(stream: Stream) -> None:
    values = ["../up", "it's", 'say "hi"', "`tick`", "new\\nline", "a/b=c%2F", "ü", "*?[x]{y}"]
    listed = ", ".join('"' + value.replace('"', '\\"') + '"' for value in values)
    stream.add(1)
    rows = stream.rows().selectExpr("n", f"element_at(array({listed}), cast(n % {len(values)} + 1 AS int)) AS text")
    sink = RecordAccumulator(path=str(stream.folder / "table"), partition_by=["text"])
    sink.write_stream(rows, checkpoint=str(stream.checkpoint), trigger={"availableNow": True}).awaitTermination()
    found = {row["n"]: row["text"] for row in sink.read(stream.spark).collect()}
    assert found == {n: values[n % len(values)].replace("\\n", "\n") for n in range(10)}
    assert not list((stream.folder).glob("up*"))


# --- what stops it, by name ---------------------------------------------------------------------------------------


def test_an_option_that_cannot_work_is_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "exactly one of path and table"),
        ({"path": "/t", "table": "t"}, "exactly one of path and table"),
        ({"path": "/t", "batch_size": "big"}, "batch_size='big' is not a size"),
        ({"path": "/t\n"}, "control character"),
        ({"table": "x\ny"}, "control character"),
        ({"table": "../t"}, "contains '..'"),
        ({"path": "/lake/../etc"}, "contains '..': write the full path"),
        ({"table": "t" * 5000}, "at most 1,024"),
        ({"path": "/t", "batch_size": "2 GiB", "buffer_memory": "1 GiB"}, "must hold at least one file"),
        ({"path": "/t", "linger": "1 hour"}, "delivery_timeout .* must be at least linger"),
    ]
    for options, said in wrong:
        with pytest.raises(ConfigError, match=said):
            RecordAccumulator(**options)


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
    [drain] = [line for line in said if line.startswith("drain ")]
    assert f"{2 * ROWS_A_FILE} rows in " in drain
