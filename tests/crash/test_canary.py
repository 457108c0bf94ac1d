"""What rows hold is nobody's business: not in an error, not in a metric, not in the name of a file."""

from __future__ import annotations

import json
import tempfile
import traceback
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from spark_purgatory.errors import ConfigError
from tests.support.canary_child import CANARY as PURGATORY_CANARY
from tests.support.children import run_module
from tests.support.sink_streams import Stream

pytestmark = pytest.mark.spark

CANARY = "canary-7f3a"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path).add(1)


def test_rows_that_pass_leave_no_trace_in_progress_or_names_of_files(stream: Stream) -> None:
    rows = stream.rows().selectExpr("n", f"concat('{CANARY}', n) AS text")
    sink = RecordAccumulator(path=str(stream.folder / "table"))
    query = sink.write_stream(rows, checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    query.awaitTermination()
    assert sink.read(stream.spark).where(f"text like '{CANARY}%'").count() == 10
    progress = query.recentProgress
    assert progress
    assert CANARY not in str(progress)
    names = [str(path.relative_to(stream.folder)) for path in stream.folder.rglob("*")]
    assert len(names) > 10
    assert not [name for name in names if CANARY in name]


def test_a_limit_of_the_purgatory_names_no_payload(spark: SparkSession) -> None:
    rows = spark.range(10).selectExpr(f"concat('{CANARY}', id) AS text", "timestamp_seconds(id) AS at")
    purgatory = Purgatory(
        operations=Operations(id="text", keys="text", created="at", timeout="1 minute", watermark="0 seconds"),
        completions=Completions(key="text", time="at", watermark="0 seconds"),
        criterion=criteria.any_key(),
        max_pending_per_shard=1,
        shards=1,
    )
    outcomes = purgatory.resolve(rows, rows.where("at is null"))
    with pytest.raises(PySparkException, match="max_pending_per_shard") as raised:
        outcomes.collect()
    assert CANARY not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("name", ["a`b", "t; DROP TABLE t", "it's", "a.b.c.d", "x\ny", "../t", "t" * 4096])
def test_a_hostile_table_name_is_refused_before_anything_is_written(stream: Stream, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^table(=| has )"):
        RecordAccumulator(table=name).write_stream(stream.rows(), checkpoint=str(stream.checkpoint))
    assert not stream.checkpoint.exists()


@pytest.mark.long
@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_a_purgatory_leaves_no_trace_of_ids_keys_and_payload(host: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sp") as temporary:  # A path that is short enough for sockets.
        printed = run_module("tests.support.canary_child", host, str(tmp_path), TMPDIR=temporary)
    assert json.loads((tmp_path / "told.json").read_text(encoding="utf-8")) == {"COMPLETED": 4, "EXPIRED": 4}
    assert "max_pending_per_shard" in printed and "numInputRows" in printed and "operations_received_total" in printed
    assert "MicroBatchExecution" in printed, "Spark's log at INFO"
    assert "/state/" in printed and "outcomes/part-" in printed, "names of files"
    assert PURGATORY_CANARY not in printed
