"""Every way in which a stream may be wrapped before `resolve`: the outcomes are right, or it is refused by name.

A purgatory whose watermark cannot move gives no outcome, and Spark raises no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    RecordAccumulator,
    check_checkpoint,
)
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.operator.stream_plan import queries_of
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import multiset
from tests.support.stream_rows import completions_with, event, operation, operations_with, purgatory
from tests.support.streams import Host, Landing

Wrap = Callable[[DataFrame], DataFrame]
HOSTS: tuple[Host, ...] = ("applyInPandasWithState", "transformWithState")
PAID = replace(purgatory(), host="transformWithState", emit="final", name="payments")
SHIPPED = purgatory(
    operations=operations_with(created="resolved_at", timeout="10 minutes", watermark="2 hours", outcomes_of=PAID),
    completions=completions_with(),
    shards=2,
    host="transformWithState",
    prefix="ship_",
    name="shipments",
)


def batches_as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def frames_as_they_are(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def viewed(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("wrapped")
    return frame.sparkSession.sql("select * from wrapped")


def renamed(frame: DataFrame) -> DataFrame:
    for name in frame.columns:
        frame = frame.withColumnRenamed(name, f"its_{name}")
    return frame.toDF(*(name.removeprefix("its_") for name in frame.columns))


def joined(frame: DataFrame) -> DataFrame:
    """With a table that is an aggregation, and has a limit and no duplicates: it is no stream."""
    ids = frame.sparkSession.range(5).selectExpr("'o' as o").groupBy("o").count().dropDuplicates().limit(10)
    return frame.crossJoin(ids).drop("o", "count")


STATELESS: dict[str, Wrap] = {
    "alias": lambda frame: frame.alias("wrapped"),
    "view": viewed,
    "toDF and withColumnRenamed": renamed,
    "select": lambda frame: frame.select(*(F.col(name).alias(name) for name in frame.columns)),
    "columns computed anew": lambda frame: frame.withColumn("key", F.concat("key", F.lit(""))).where("key is not null"),
    "union": lambda frame: frame.where("id < 'o3'").unionByName(frame.where("id >= 'o3'")),
    "join with a table": joined,
    "repartition": lambda frame: frame.repartition(2),
    "mapInArrow": lambda frame: frame.mapInArrow(batches_as_they_are, frame.schema),
    "mapInPandas": lambda frame: frame.mapInPandas(frames_as_they_are, frame.schema),
}


def watermarked(frame: DataFrame) -> DataFrame:
    return frame.withWatermark("created", "1 minute")


def windowed(frame: DataFrame) -> DataFrame:
    by = F.window("created", "1 minute").alias("window")
    counted = watermarked(frame).groupBy(by, "id", "key", "keys", "deadline", "row").count()
    return counted.select("id", "key", "keys", F.col("window.start").alias("created"), "deadline", "row")


def joined_streams(frame: DataFrame) -> DataFrame:
    other = frame.select(F.col("id").alias("other"))
    return frame.join(other, F.col("id") == F.col("other")).drop("other")


def first_of(host: Host) -> Wrap:
    return lambda frame: (
        replace(PAID, host=host)
        .resolve(frame, frame.select("key", F.col("created").alias("time"), F.lit(1.0).alias("value")))
        .select(frame.columns)
    )


REFUSED: dict[str, tuple[Wrap, str]] = {
    "withWatermark": (watermarked, "operations: column 'created' already has a watermark: remove withWatermark there"),
    "its column dropped": (
        lambda frame: (
            watermarked(frame.withColumn("moment", F.col("created")))
            .drop("created")
            .withColumnRenamed("moment", "created")
        ),
        "operations: column 'created' already has a watermark",
    ),
    "window": (windowed, "operations: the stream comes out of an aggregation"),
    "limit": (lambda frame: frame.limit(100), "comes out of limit"),
    "distinct in SQL": (
        lambda frame: viewed(frame).sparkSession.sql("select distinct * from wrapped"),
        "comes out of ",
    ),
    "dropDuplicatesWithinWatermark": (
        lambda frame: watermarked(frame).dropDuplicatesWithinWatermark(["id"]),
        "comes out of dropDuplicatesWithinWatermark, .* is a DUPLICATE",
    ),
    "join of two streams": (joined_streams, "comes out of a join of two streams"),
    "a purgatory on one host": (
        first_of(HOSTS[0]),
        "contains outcomes of the purgatory 'payments' .*: give that purgatory host='transformWithState'",
    ),
    "a purgatory on the other": (
        first_of(HOSTS[1]),
        "contains .*: set operations.outcomes_of= to that purgatory, or write",
    ),
}
"""What is done to operations, and what the error says whatever is done to them afterwards."""


def landed(folder: Path) -> Landing:
    """Ten orders of which five are paid, then rows whose times let these be decided."""
    landing = Landing(folder)
    landing.add([operation(f"o{i}", i, i + 10) for i in range(10)], [event(f"o{i}", i + 1) for i in range(0, 10, 2)])
    return landing.add([operation("clock", 90, 91)], [event("nobody", 90)])


def outcomes(spark: SparkSession, stream: DataFrame, folder: Path) -> list[dict[str, Any]]:
    writer = stream.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return [row.asDict() for row in spark.read.parquet(str(folder / "out")).collect()]


def every(frame: DataFrame) -> DataFrame:
    """All stateless ways, one after the other."""
    return reduce(lambda wrapped, way: way(wrapped), STATELESS.values(), frame)


@pytest.mark.long
@pytest.mark.parametrize("host", HOSTS)
def test_streams_that_keep_no_state_may_be_wrapped_in_every_way(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    landing, made = landed(tmp_path), purgatory(host=host, emit="final")
    expected = [row.asDict() for row in made.resolve(*landing.frames(spark, streaming=False)).collect()]
    with settings(spark, STATE_STORE_SETTINGS):
        rows = outcomes(
            spark, made.resolve(every(landing.frames(spark)[0]), every_event(landing.frames(spark)[1])), tmp_path
        )
    decided = [row for row in expected if row["id"] != "clock"]
    assert multiset(rows, "id", "status") == multiset(decided, "id", "status")
    assert {row["status"] for row in rows} == {"COMPLETED", "EXPIRED"}


def every_event(frame: DataFrame) -> DataFrame:
    ways = (way for name, way in STATELESS.items() if name not in ("columns computed anew", "union"))
    return reduce(lambda wrapped, way: way(wrapped), ways, frame)


def test_streams_that_no_watermark_passes_are_refused_however_they_are_wrapped(
    spark: SparkSession, tmp_path: Path
) -> None:
    operations, events = landed(tmp_path).frames(spark)
    with settings(spark, STATE_STORE_SETTINGS):
        for number, (wrap, said) in enumerate(REFUSED.values()):
            after = every if number % 2 else viewed
            with pytest.raises(ConfigError, match=said):
                purgatory(host=HOSTS[number % 2], name="later").resolve(after(wrap(operations)), events)
    late = events.withWatermark("time", "1 minute")
    with pytest.raises(ConfigError, match="completions: column 'time' already"):
        purgatory().resolve(operations, every_event(late.select("key", "time", "value")))
    with pytest.raises(ConfigError, match="completions: the stream comes out of dropDuplicatesWithinWatermark"):
        purgatory().resolve(operations, every_event(late.dropDuplicatesWithinWatermark(["key"])))


@pytest.mark.long
@pytest.mark.parametrize("way", ["mapInArrow", "view", "toDF and withColumnRenamed"])
def test_a_second_purgatory_decides_right_however_the_first_ones_outcomes_are_wrapped(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    landing = landed(tmp_path)

    def decided(streaming: bool, wrap: Wrap) -> DataFrame:
        operations, events = landing.frames(spark, streaming)
        paid = wrap(PAID.resolve(operations, events)).where("status = 'COMPLETED'")
        return SHIPPED.resolve(paid, landing.frames(spark, streaming)[1])

    expected = [row.asDict() for row in decided(False, lambda frame: frame).collect()]
    with settings(spark, STATE_STORE_SETTINGS):
        rows = outcomes(spark, decided(True, STATELESS[way]), tmp_path)
    assert len(rows) == 5
    assert multiset(rows, "id", "ship_status") == multiset(expected, "id", "ship_status")


def test_what_is_said_of_a_first_purgatory_must_be_true(spark: SparkSession, tmp_path: Path) -> None:
    landing = landed(tmp_path)
    operations, events = landing.frames(spark)
    with settings(spark, STATE_STORE_SETTINGS):
        paid = PAID.resolve(operations, events)
        plain = operations.withColumn("resolved_at", F.col("created"))
        with pytest.raises(
            ConfigError, match=r"operations\.outcomes_of names .*'payments', but the stream does not come"
        ):
            SHIPPED.resolve(plain, events)
        other = replace(SHIPPED, operations=replace(SHIPPED.operations, outcomes_of=replace(PAID, name="others")))
        with pytest.raises(ConfigError, match=r"operations: the stream contains outcomes of the purgatory 'payments'"):
            other.resolve(paid, events)
        with pytest.raises(ConfigError, match=r"column 'resolved_at' already has a watermark.* first purgatory holds"):
            SHIPPED.resolve(every(paid.withWatermark("resolved_at", "1 hour")), events)
        both = replace(SHIPPED, completions=completions_with(time="resolved_at", outcomes_of=PAID))
        with pytest.raises(ConfigError, match=r"one input must have a watermark of its own"):
            both.resolve(paid, paid)
    with pytest.raises(ConfigError, match=r"completions\.outcomes_of='payments' must be the Purgatory"):
        replace(PAID, completions=completions_with(outcomes_of="payments"))  # type: ignore[arg-type]


def test_what_a_query_is_stands_in_its_plan_however_the_stream_is_wrapped(spark: SparkSession, tmp_path: Path) -> None:
    landing = landed(tmp_path)
    stream = purgatory().resolve(*landing.frames(spark))
    landing.run(spark, purgatory())
    known = queries_of(stream)
    assert [each.shards for each in known] == [3]
    another = operations_with(deadline=F.col("deadline") + F.expr("interval 1 hour"))
    later = purgatory(emit="final", operations=another).resolve(*landing.frames(spark))
    assert queries_of(every(stream))[:1] == queries_of(stream.dropDuplicates(["id"]))[:1] == known
    with pytest.raises(StateMismatchError, match=r"emit: .*set it back to 'early'") as refused:
        check_checkpoint(spark, every(later), checkpoint=str(landing.checkpoint))
    assert "operations.deadline: the checkpoint takes it from column 'deadline', the query from an" in str(
        refused.value
    )
    assert queries_of(landing.frames(spark)[0]) == []
    assert all(not field.metadata for field in stream.schema.fields), "no trace in a schema, nor in a table"


CUT = (
    {"spark.sql.maxPlanStringLength": "200"},
    {"spark.sql.maxPlanStringLength": "1000", "spark.sql.debug.maxToStringFields": "0"},
    {"spark.sql.redaction.string.regex": "\\w+"},
)
"""Settings that change what EXPLAIN prints."""
TREE = (
    "x\n+- Aggregate [a]\n:  +- ~EventTimeWatermark created#1: timestamp, 1 minutes\n\n== Optimized Logical Plan ==\n"
    "x\n== Analyzed Logical Plan ==\none: int\n+- ~Aggregate [a]\n\r+- ~Aggregate [a]\u2028+- ~Aggregate [a]"
)
"""A text whose lines look like those of a plan."""


def test_a_session_that_cuts_its_plans_is_checked_like_any_other(spark: SparkSession, tmp_path: Path) -> None:
    operations, events = landed(tmp_path).frames(spark)
    known = queries_of(purgatory().resolve(operations, events))
    for cut in CUT:
        with settings(spark, cut):
            assert queries_of(purgatory().resolve(operations, events)) == known != []
            with pytest.raises(ConfigError, match="operations: the stream contains outcomes of the purgatory 'paymen"):
                purgatory().resolve(first_of("applyInPandasWithState")(operations), events)
            assert {setting: spark.conf.get(setting) for setting in cut} == cut, "as the user set it"


def test_a_literal_is_no_part_of_the_tree_of_a_plan(spark: SparkSession, tmp_path: Path) -> None:
    operations, events = landed(tmp_path).frames(spark)
    apart = operations.where(F.col("id") != TREE).withColumn("row", F.lit(TREE))
    stream = purgatory().resolve(apart, events.where(F.col("key") != TREE))
    named = stream.withColumnRenamed("row", TREE).where(F.col("id") != TREE)
    assert queries_of(named) == queries_of(stream) != []
    with pytest.raises(ConfigError, match="comes out of an aggregation"):
        purgatory().resolve(windowed(apart).where(F.col("id") != TREE), events)
    with pytest.raises(ConfigError, match="contains outcomes of the purgatory 'payments'"):
        purgatory().resolve(first_of("applyInPandasWithState")(apart).where(F.col("id") != TREE), events)


def test_a_plan_that_spark_does_not_explain_is_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = purgatory().resolve(*landed(tmp_path).frames(spark))
    monkeypatch.setattr("spark_purgatory.spark.operator.stream_plan.IN_FULL", CUT[0])
    with pytest.raises(ConfigError, match="Spark does not explain the whole plan of the stream"):
        queries_of(stream)
    with pytest.raises(ConfigError, match="Spark does not explain the whole plan of the stream"):
        check_checkpoint(spark, stream, checkpoint=str(tmp_path / "none"))


def test_a_micro_batch_inside_foreach_batch_is_decided_by_itself_with_a_warning(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("a", 1)]).add([], [event("b", 2)])
    operations, _ = landing.frames(spark)
    _, completions = landing.frames(spark, streaming=False)
    decided: list[tuple[int, str, str]] = []

    def decide(rows: DataFrame, number: int) -> None:
        outcomes = purgatory().resolve(rows, completions)
        decided.extend((number, row.id, row.status) for row in outcomes.collect())

    options = {"checkpointLocation": str(landing.checkpoint)}
    operations.writeStream.foreachBatch(decide).options(**options).trigger(availableNow=True).start().awaitTermination()
    assert {(number, name) for number, name, _ in decided} == {(0, "a"), (0, "b")}
    assert "resolve() is called inside foreachBatch and decides the rows of this micro-batch" in caplog.text
    caplog.clear()
    purgatory().resolve(*landing.frames(spark, streaming=False)).collect()
    assert "foreachBatch" not in caplog.text


@pytest.mark.long
def test_streams_that_are_resolved_and_started_inside_foreach_batch_are_decided_across_its_micro_batches(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the user's session into Parquet, and in the micro-batch's into a table."""
    outer = Landing(tmp_path / "outer").add([operation("x")], []).add([operation("y")], [])
    plain, sink = Landing(tmp_path / "plain"), Landing(tmp_path / "sink")
    steps = (
        ([operation(f"o{i}", i, i + 10) for i in range(10)], []),
        ([operation("clock", 90, 91)], [event("nobody", 90), *(event(f"o{i}", i + 1) for i in range(0, 10, 2))]),
    )

    def decide(rows: DataFrame, number: int) -> None:
        plain.add(*steps[number]).run(spark, purgatory(emit="final"))
        outcomes = purgatory(emit="final").resolve(*sink.add(*steps[number]).frames(rows.sparkSession))
        table = RecordAccumulator(path=str(sink.outcomes))
        trigger = {"availableNow": True}
        table.write_stream(outcomes, checkpoint=str(sink.checkpoint), trigger=trigger).awaitTermination()

    query = outer.frames(spark)[0].writeStream.foreachBatch(decide).option("checkpointLocation", str(outer.checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    statuses = {f"o{i}": ("EXPIRED" if i % 2 else "COMPLETED") for i in range(10)}
    for outcomes in (spark.read.parquet(str(plain.outcomes)), spark.read.format("delta").load(str(sink.outcomes))):
        assert Counter((row.id, row.status) for row in outcomes.collect()) == Counter(statuses.items())
    assert "foreachBatch" not in caplog.text, "it is no batch of one micro-batch's rows"


@pytest.mark.blob_host
def test_what_spark_refuses_to_do_with_outcomes_is_refused_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("o1")], [event("o1", 5), event("clock", 110)])
    one, other = (purgatory(name=name).resolve(*landing.frames(spark)) for name in ("one", "other"))
    events = landing.frames(spark)[1].withWatermark("time", "1 minute").withColumnRenamed("key", "event_key")
    window = "event_key = id and time between resolved_at and resolved_at + interval 1 hour"
    with pytest.raises(AnalysisException, match="DUPLICATED_METRICS_NAME"):
        one.union(purgatory(name="one").resolve(*landing.frames(spark)))
    for stream, by_spark, said in (
        (
            one.union(other),
            "Multiple applyInPandasWithStates",
            "outcomes of the purgatories 'one' and 'other', .* write each by a query of its own",
        ),
        (
            one.select("id", "resolved_at").join(events, F.expr(window)),
            "possible 'correctness' issue",
            "are joined with another stream",
        ),
        (one.withWatermark("resolved_at", "1 minute"), "", "remove withWatermark, or write its outcomes to a table"),
    ):
        plain = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "plain"))
        if by_spark:
            with pytest.raises(AnalysisException, match=by_spark):
                plain.start()
        with pytest.raises(ConfigError, match=said):
            check_checkpoint(spark, stream, checkpoint=str(landing.checkpoint))
        with pytest.raises(ConfigError, match=said):
            RecordAccumulator(path=str(tmp_path / "refused")).write_stream(stream, checkpoint=str(landing.checkpoint))
