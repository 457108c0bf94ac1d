"""Errors of Spark and of functions in its workers quote rows; what `sentence_of` and a job say of them never.

Real queries fail on a value of a row; `tests/unit/test_sentence_of.py` has the recorded texts of other errors.
"""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import sentence_of
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.run_report import guarded
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest
from tests.support.now_and_then import now_and_then
from tests.support.sink_queries import HOUR
from tests.support.sink_streams import Stream

CANARY = "kanarie-4711"
CAST = "[CAST_INVALID_INPUT]"


def texts(stream: Stream) -> DataFrame:
    """Rows whose column ``text`` has the canary, though no plan has it."""
    return stream.add(1).rows().withColumn("text", F.concat(F.lit("kanarie-"), F.col("n") + 4711))


def is_silent(action: Callable[[], object], expected: str) -> None:
    """The error quotes the canary, and its sentence does not."""
    with pytest.raises(Exception, match="kanarie") as raised:
        action()
    said = sentence_of(raised.value)
    assert expected in said and len(said.splitlines()) == 1, said
    assert "kanarie" not in said and "4711" not in said, said


def test_a_sentence_has_no_value_of_a_row_that_failed_on_the_way_to_the_sink(stream: Stream) -> None:
    sink = RecordAccumulator(path=str(stream.folder / "table"), **HOUR)
    rows = texts(stream).select(F.col("text").cast("int"))
    query = sink.write_stream(rows, checkpoint=str(stream.checkpoint), trigger={"availableNow": True})
    is_silent(query.awaitTermination, CAST)


def raises(rows: DataFrame, number: int) -> None:
    raise ValueError(rows.collect()[0]["text"])


def casts(rows: DataFrame, number: int) -> None:
    rows.select(F.col("text").cast("int")).collect()


@pytest.mark.parametrize(
    ("function", "expected"),
    [(raises, "ValueError in raises ("), *now_and_then((casts, f"NumberFormatException {CAST}"))],
)
def test_a_sentence_has_no_value_that_a_function_of_foreach_batch_raised(
    stream: Stream, function: Callable[[DataFrame, int], None], expected: str
) -> None:
    writer = texts(stream).writeStream.foreachBatch(function).option("checkpointLocation", str(stream.checkpoint))
    is_silent(writer.trigger(availableNow=True).start().awaitTermination, expected)


JOB = """
name: numbers
operations:
  source: {{format: json, path: {folder}/operations, schema: "id string, amount string, at timestamp"}}
  select: [id, at, {select}]
  id: id
  keys: id
  created: at
  timeout: 1 hour
  watermark: 1 minute
completions:
  source: {{format: json, path: {folder}/events, schema: "key string, at timestamp"}}
  key: key
  time: at
  watermark: 1 minute
purgatory: {{criterion: any_key, shards: 1}}
output: {{path: {folder}/table}}
checkpoint: {folder}/checkpoint
trigger: {{availableNow: true}}
"""


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        *now_and_then(("cast(amount as int) as amount", CAST)),
        ("cast(amounts as int) as amount", "Did you mean one of the following? [`amount`,"),
    ],
)
def test_a_job_prints_no_value_of_a_row(spark: SparkSession, tmp_path: Path, select: str, expected: str) -> None:
    for side, row in (("operations", f'"id": "a", "amount": "{CANARY}"'), ("events", '"key": "a"')):
        (tmp_path / side).mkdir()
        (tmp_path / side / "1.json").write_text(f'{{{row}, "at": "2024-01-01T08:00:00Z"}}\n')
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path, select=select))
    console = Console(file=StringIO(), width=10_000)

    def body() -> int:
        run(spark, load_config(tmp_path / "job.yaml"), console, StopRequest())
        return 0

    guarded(console, body)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert expected in printed, printed
    assert "kanarie" not in printed and "4711" not in printed, printed
