"""The operator on real Spark: types, boundaries, restarts, refusals."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Operations, criteria
from spark_purgatory.errors import ConfigError
from spark_purgatory.schema import OUTCOME_COLUMNS
from spark_purgatory.spark.host.exchange import EXCHANGE_SETTINGS, unix_sockets
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.quick_spark import COMPILED
from tests.support.stream_rows import event, operation, operations_with, purgatory
from tests.support.streams import Landing


def statuses(outcomes: list[dict[str, Any]]) -> dict[str, str]:
    assert len({o["id"] for o in outcomes}) == len(outcomes), "an operation has more than one outcome"
    return {o["id"]: o["status"] for o in outcomes}


def test_outcomes_have_the_columns_and_types_that_the_specification_names(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("a", 10), event("a", 10), event("a", 11)])
    outcomes = purgatory().resolve(*landing.frames(spark, streaming=False))
    added = {f.name: f.dataType.simpleString() for f in outcomes.schema.fields[-7:]}
    assert added == {
        "status": "string",
        "resolved_at": "timestamp",
        "wait_ms": "bigint",
        "matched": "bigint",
        "missing_keys": "array<string>",
        "late": "boolean",
        "reason": "string",
    }
    a, b = outcomes.orderBy("id").collect()
    assert (a.status, a.wait_ms, a.matched, a.missing_keys, a.reason) == ("COMPLETED", 600_000, 2, [], None)
    assert (b.status, b.wait_ms, b.matched, b.missing_keys, b.reason) == ("EXPIRED", 1_800_000, 0, ["b"], None)


def test_a_restart_continues_where_the_stream_stopped_and_a_changed_query_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path)
    landing.add([operation("paid"), operation("unpaid"), operation("later", 5, 60)], [event("x", 6)])
    assert statuses(landing.run(spark, purgatory())) == {}
    landing.add([operation("new", 20, 25)], [event("paid", 20)])
    with pytest.raises(StreamingQueryException, match="emit: the checkpoint was written with 'early', but the query"):
        landing.run(spark, purgatory(emit="final"))
    assert statuses(landing.run(spark, purgatory())) == {"paid": "COMPLETED"}
    landing.add([operation("z", 40, 90)], [event("later", 40)])
    expected = {"paid": "COMPLETED", "unpaid": "EXPIRED", "later": "COMPLETED", "new": "EXPIRED"}
    assert statuses(landing.run(spark, purgatory())) == expected


def test_late_rows_arrive_and_are_decided_and_a_far_future_time_is_rejected_and_moves_no_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing, far = Landing(tmp_path), datetime(9999, 1, 1, tzinfo=UTC)
    wrong = {**operation("wrong"), "created": far, "deadline": far + timedelta(days=1)}
    landing.add(
        [operation("waits", 0, 300), wrong], [event("nobody", 100), {"key": "waits", "time": far, "value": 1.0}]
    )
    landing.add([operation("clock", 100, 400)], [event("nobody", 100)])
    landing.add([operation("late", 10, 20), operation("late-open", 90, 200)], [event("waits", 50)])
    landing.add([operation("clock-2", 101, 400)], [event("late-open", 150), event("x", 101)])
    outcomes = {o["id"]: o for o in landing.run(spark, purgatory())}
    assert "max_future" in outcomes["wrong"]["reason"]
    assert {name: (o["status"], o["late"]) for name, o in outcomes.items()} == {
        "wrong": ("REJECTED", False),
        "waits": ("COMPLETED", False),
        "late": ("EXPIRED", True),
        "late-open": ("COMPLETED", True),
    }


def test_spark_knows_the_settings_that_make_the_exchange_cheaper(spark: SparkSession) -> None:
    # Spark takes any name: one it does not know would be set to no effect.
    for name, value in EXCHANGE_SETTINGS.items():
        assert spark.conf.get(name) not in (None, value), f"{name} is gone, or its default now"
    registry: Any = spark.sparkContext._jvm
    for name in ("spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"):
        known = registry.org.apache.spark.internal.config.ConfigEntry.findEntry(name) is not None
        assert known == (name in unix_sockets("/tmp")), f"{name} is gone, or Spark knows it now"


def test_sockets_are_only_where_their_path_is_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    for folder in ("/tmp", "/" + 63 * "d"):
        assert unix_sockets(folder)["spark.python.unix.domain.socket.dir"] == folder
    for folder in ("/" + 64 * "d", "/" + 32 * "\u00e4"):
        assert unix_sockets(folder) == {}


def test_operations_with_several_keys_see_events_of_all_of_them(spark: SparkSession, tmp_path: Path) -> None:
    operations = [operation(f"o{i}", keys=["left", "right", f"own-{i}"]) for i in range(6)]
    landing = Landing(tmp_path).add(
        operations, [event("left", 3), event("right", 5)] + [event(f"own-{i}", i) for i in range(3)]
    )
    both = purgatory(
        operations=operations_with(keys="keys"),
        criterion=criteria.all_keys(),
    )
    rows = {o.id: o for o in both.resolve(*landing.frames(spark, streaming=False)).collect()}
    assert [rows[f"o{i}"].status for i in range(6)] == ["COMPLETED"] * 3 + ["EXPIRED"] * 3
    assert rows["o4"].missing_keys == ["own-4"] and rows["o4"].matched == 2
    little = replace(both, max_broadcast_bytes=100)
    with pytest.raises(PythonException, match=r"max_broadcast_bytes is 100, but .* each of 3 shards .* scope="):
        little.resolve(*landing.frames(spark, streaming=False)).collect()
    assert replace(little, shards=1).resolve(*landing.frames(spark, streaming=False)).count() == 6


def test_helpers_are_read_and_left_out_of_the_outcome(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a")], [event("a", 4)])
    operations, events = landing.frames(spark, streaming=False)
    operations = operations.withColumn("wait", F.expr("interval '5' minute"))
    given = operations_with(timeout="wait", exclude=["wait", "row"], watermark="1 minute")
    outcomes = purgatory(operations=given).resolve(operations, events)
    kept = [name for name in operations.columns if name not in ("wait", "row")]
    assert outcomes.columns == [*kept, *OUTCOME_COLUMNS]
    assert [row.status for row in outcomes.collect()] == ["COMPLETED"]
    within = operations.withColumn("sla", F.struct("wait"))
    for wrong in ("rwo", "sla.wait"):
        with pytest.raises(ConfigError, match=rf"operations\.exclude='{wrong}' is not a column"):
            purgatory(operations=replace(given, exclude=wrong)).resolve(within, events)


def test_column_arguments_take_columns_intervals_and_numbers_of_a_unit(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("A", 4)])
    operations, events = landing.frames(spark, streaming=False)
    operations = operations.withColumn("wait", F.expr("interval '5' minute")).withColumn("ms", F.lit(180_000))

    def decided(**timeout: Any) -> DataFrame:
        made = Operations(id="id", keys=F.upper("key"), created=F.col("created"), **timeout)
        return purgatory(operations=made, shards=1).resolve(operations, events)

    waits: list[tuple[Any, str | None, int]] = [
        *((five, None, 300_000) for five in ("wait", F.col("wait"), timedelta(minutes=5))),
        *((F.lit(number), unit, 180_000) for number, unit in ((180_000, "milliseconds"), (180, "seconds"))),
        (F.lit(3), "minutes", 180_000),
        (F.lit(1), "hours", 3_600_000),
        (F.lit(1), "days", 86_400_000),
    ]
    outcomes = [decided(timeout=wait, timeout_unit=unit).where("id = 'b'") for wait, unit, _ in waits]
    each = reduce(DataFrame.union, (rows.select(F.lit(at), "wait_ms") for at, rows in enumerate(outcomes)))
    assert [row.wait_ms for row in sorted(each.collect())] == [wait_ms for *_, wait_ms in waits]
    for column, unit, said in (
        ("ms", None, "timeout has type int and no unit: set timeout_unit, for example 'minutes'"),
        ("wait", "minutes", "which has a unit: leave out timeout_unit='minutes'"),
        ("key", "minutes", 'timeout is string: write "30 minutes", or name a column of day-time intervals'),
    ):
        with pytest.raises(ConfigError, match=said):
            decided(timeout=column, timeout_unit=unit)


def test_mixtures_clashes_and_second_watermarks_are_errors_that_say_so(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a")], [])
    operations, events = landing.frames(spark, streaming=False)
    stream, stream_events = landing.frames(spark)
    with pytest.raises(ConfigError, match=r"operations\.created is string, not a timestamp"):
        purgatory(operations=replace(purgatory().operations, created="row")).resolve(operations, events)
    with pytest.raises(ConfigError, match="operations are a stream and completions a batch DataFrame"):
        purgatory().resolve(stream, events)
    with pytest.raises(ConfigError, match=r"already have a column status.*prefix"):
        purgatory().resolve(operations.withColumnRenamed("row", "status"), events)
    with pytest.raises(ConfigError, match="'created' already has a watermark: remove withWatermark"):
        purgatory().resolve(stream.withWatermark("created", "1 minute"), stream_events)
    prefixed = purgatory(prefix="o_").resolve(operations.withColumnRenamed("row", "status"), events)
    assert prefixed.columns[-7:] == [
        "o_" + name for name in ("status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason")
    ]


@pytest.mark.long
def test_a_micro_batch_runs_the_code_that_the_last_one_compiled(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for minute in range(7):
        landing.add([operation(f"o{minute}", minute, minute + 3)], [event(f"o{minute}", minute)])
    compiled: list[int] = []

    def into_noop(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        metrics = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())

    outcomes = purgatory().resolve(*landing.frames(spark))
    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    with settings(spark, COMPILED):
        outcomes.writeStream.foreachBatch(into_noop).options(**options).trigger(
            availableNow=True
        ).start().awaitTermination()
    # Spark writes the watermark into the predicate that drops old state: that is the one.
    assert [after - before for before, after in pairwise(compiled[3:7])] == [1, 1, 1]
