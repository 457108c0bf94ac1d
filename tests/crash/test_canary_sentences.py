"""Errors of Spark, of Delta and of functions in its workers quote rows; what `sentence_of` and a job say of them never.

Each scene makes a real query fail on a value of a row, in a way in which users' queries do.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from rich.console import Console

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import sentence_of
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import guarded, run
from spark_purgatory.job.stopping import StopRequest
from tests.support.now_and_then import each_commit, now_and_then
from tests.support.sink_queries import HOUR
from tests.support.sink_streams import Stream

CANARY = "kanarie-4711"


@F.udf(T.DoubleType())
def as_number(text: str) -> float:
    return float(text)


class Scene:
    """A stream whose column ``text`` has the canary in each row, though no plan has it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.stream = Stream(spark, folder).add(1)
        self.table = folder / "table"

    def rows(self) -> DataFrame:
        return self.stream.rows().withColumn("text", F.concat(F.lit("kanarie-"), F.col("n") + 4711))

    def ended_by(self, rows: DataFrame, function: Callable[[DataFrame, int], None] | None = None) -> BaseException:
        """The error that a user gets of a query, with or without foreachBatch."""
        writer = rows.writeStream.option("checkpointLocation", str(self.folder / "queries"))
        writer = writer.format("noop") if function is None else writer.foreachBatch(function)
        return raised_by(writer.trigger(availableNow=True).start().awaitTermination)

    def ended_in_the_sink(self, rows: DataFrame, **options: Any) -> BaseException:
        sink = RecordAccumulator(path=str(self.table), **options)
        query = sink.write_stream(rows, checkpoint=str(self.stream.checkpoint), trigger={"availableNow": True})
        return raised_by(query.awaitTermination)


def raised_by(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


CAST = "[CAST_INVALID_INPUT]"
CAST_IN_FULL = f'{CAST} The value ... of the type "STRING" cannot be cast to "INT" because it is malformed. Correct the'


def a_cast(scene: Scene) -> tuple[BaseException, str]:
    return scene.ended_by(scene.rows().select(F.col("text").cast("int"))), CAST_IN_FULL


def a_cast_in_a_batch(scene: Scene) -> tuple[BaseException, str]:
    rows = scene.spark.range(3).select(F.concat(F.lit("kanarie-4"), F.col("id") + 711).cast("int"))
    return raised_by(rows.collect), CAST_IN_FULL


def a_cast_on_the_way_to_the_sink(scene: Scene) -> tuple[BaseException, str]:
    return scene.ended_in_the_sink(scene.rows().select(F.col("text").cast("int")), **HOUR), CAST


def a_function_in_a_worker(scene: Scene) -> tuple[BaseException, str]:
    return scene.ended_by(scene.rows().select(as_number("text"))), "ValueError in as_number ("


def a_function_given_to_foreach_batch(scene: Scene) -> tuple[BaseException, str]:
    def write(rows: DataFrame, number: int) -> None:
        raise ValueError(rows.collect()[0]["text"])

    return scene.ended_by(scene.rows(), write), "ValueError in write ("


def a_cast_inside_foreach_batch(scene: Scene) -> tuple[BaseException, str]:
    def write(rows: DataFrame, number: int) -> None:
        rows.select(F.col("text").cast("int")).collect()

    return scene.ended_by(scene.rows(), write), f"NumberFormatException {CAST}"


def an_error_that_an_expression_raises(scene: Scene) -> tuple[BaseException, str]:
    rows = scene.rows().select(F.raise_error(F.concat(F.lit("of "), "text")))
    return scene.ended_by(rows), "[USER_RAISED_EXCEPTION] ..."


def a_constraint_of_a_table(scene: Scene) -> tuple[BaseException, str]:
    scene.spark.sql(f"CREATE TABLE delta.`{scene.table}` (n bigint, text string) USING delta")
    scene.spark.sql(f"ALTER TABLE delta.`{scene.table}` ADD CONSTRAINT short CHECK (length(text) < 3)")

    def write(rows: DataFrame, number: int) -> None:
        rows.select("n", "text").write.format("delta").mode("append").save(str(scene.table))

    return scene.ended_by(scene.rows(), write), "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES]"


def a_partition_whose_folder_is_a_file(scene: Scene) -> tuple[BaseException, str]:
    rows = scene.spark.range(1).select("id", F.lit(CANARY).alias("text"))
    rows.write.format("delta").partitionBy("text").save(str(scene.table))
    (folder,) = scene.table.glob("text=*")
    shutil.rmtree(folder)
    folder.touch()
    return raised_by(lambda: rows.write.format("delta").mode("append").save(str(scene.table))), "text=..."


SCENES: tuple[Callable[[Scene], tuple[BaseException, str]], ...] = (
    a_cast,
    a_cast_in_a_batch,
    a_cast_on_the_way_to_the_sink,
    a_function_in_a_worker,
    a_function_given_to_foreach_batch,
    a_cast_inside_foreach_batch,
    an_error_that_an_expression_raises,
    a_constraint_of_a_table,
    a_partition_whose_folder_is_a_file,
)


OFTEN = (a_cast_on_the_way_to_the_sink, a_function_given_to_foreach_batch)


@pytest.mark.parametrize("play", each_commit(SCENES, lambda play: play in OFTEN), ids=lambda play: play.__name__)
def test_a_sentence_has_no_value_of_a_row(
    spark: SparkSession, tmp_path: Path, play: Callable[[Scene], tuple[BaseException, str]]
) -> None:
    error, expected = play(Scene(spark, tmp_path))
    assert "kanarie" in str(error), "otherwise there is nothing to hide"
    said = sentence_of(error)
    assert expected in said, said
    assert "kanarie" not in said and "4711" not in said, said
    assert len(said.splitlines()) == 1


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
        *now_and_then(
            ("cast(amount as int) as amount", CAST), ("raise_error(amount) as amount", "[USER_RAISED_EXCEPTION]")
        ),
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

    guarded(console, False, body)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert expected in printed, printed
    assert "kanarie" not in printed and "4711" not in printed, printed
