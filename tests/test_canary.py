"""What rows hold is nobody's business: not in an error, not in a metric, not in the name of a file."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from spark_purgatory.errors import BufferExhaustedError, ConfigError
from tests.test_delta_sink import Stream
from tests.test_record_accumulator import HOUR

pytestmark = pytest.mark.spark

CANARY = "canary-7f3a"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path).add(1)


def told(action: Callable[[], object], error: type[BaseException], match: str) -> str:
    """All that an error tells, with what caused it."""
    with pytest.raises(error, match=match) as raised:
        action()
    return "".join(traceback.format_exception(raised.value))


def with_canary(stream: Stream, times: int = 1) -> DataFrame:
    """Not as one word, which the text of the query would hold."""
    word = f"concat('{CANARY[:3]}', char({ord(CANARY[3])} + 0 * n), '{CANARY[4:]}', n)"
    return stream.rows().selectExpr("n", "part", f"repeat({word}, {times}) AS text")


def test_rows_that_pass_leave_no_trace_in_progress_or_names_of_files(stream: Stream) -> None:
    rows = with_canary(stream)
    purgatory = Purgatory(
        operations=Operations(id="text", keys="text", created="at", timeout="1 minute"),
        completions=Completions(key="text", time="at"),
        criterion=criteria.any_key(),
    )
    timed = rows.selectExpr("*", "timestamp_seconds(n) AS at")
    sink = RecordAccumulator(path=str(stream.folder / "table"))
    outcomes = purgatory.resolve(timed, timed.select("text", "at"))
    query = sink.write_stream(outcomes, checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    query.awaitTermination()
    assert sink.read(stream.spark).where(f"text like '{CANARY}%'").count() == 10
    progress = query.recentProgress
    assert progress
    assert CANARY not in str(progress)
    names = [str(path.relative_to(stream.folder)) for path in stream.folder.rglob("*")]
    assert len(names) > 20
    assert not [name for name in names if CANARY in name]


def test_an_error_names_no_payload(stream: Stream) -> None:
    table = stream.folder / "table"
    small = RecordAccumulator(path=str(table), batch_size_bytes=1000, buffer_memory_bytes=2000)
    rows, checkpoint = with_canary(stream, times=500), str(stream.folder / "small")
    large = small.write_stream(rows, checkpoint=checkpoint, trigger={"availableNow": True})
    assert CANARY not in told(large.awaitTermination, PySparkException, "larger than the whole buffer_memory")

    stream.spark.sql(f"CREATE TABLE delta.`{table}` (n bigint, part bigint, text string) USING delta")
    stream.spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT none CHECK (text = 'another')")
    refused = RecordAccumulator(path=str(table), max_block="100 milliseconds", **HOUR)
    query = refused.write_stream(with_canary(stream), checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    said = told(query.awaitTermination, BufferExhaustedError, "CHECK constraint none")
    assert CANARY not in said


def test_a_limit_of_the_purgatory_names_no_payload(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr(f"concat('{CANARY}', id) AS text", "timestamp_seconds(id) AS at")
    purgatory = Purgatory(
        operations=Operations(id="text", keys="text", created="at", timeout="1 minute"),
        completions=Completions(key="text", time="at"),
        criterion=criteria.any_key(),
        max_pending_per_shard=1,
        shards=1,
    )
    outcomes = purgatory.resolve(rows, rows.where("at is null"))
    assert CANARY not in told(outcomes.collect, PySparkException, "max_pending_per_shard")


@pytest.mark.parametrize("name", ["a`b", "t; DROP TABLE t", "it's", "a.b.c.d", "x\ny", "../t", "t" * 4096])
def test_a_hostile_table_name_is_refused_before_anything_is_written(stream: Stream, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^table(=| has )"):
        RecordAccumulator(table=name).write_stream(stream.rows(), checkpoint=str(stream.checkpoint))
    assert not stream.checkpoint.exists()
