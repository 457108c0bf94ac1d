"""Evidence in outcomes on real Spark: over restarts, with other columns, in tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    check_checkpoint,
    criteria,
    pending,
)
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.testing import PurgatoryTester
from tests.support.stream_rows import completions_with, purgatory
from tests.support.streams import Host, Landing

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOSTS: tuple[Host, ...] = ("applyInPandasWithState", "transformWithState")


@pytest.fixture(autouse=True)
def both_hosts(spark: SparkSession) -> Iterator[None]:
    """A session in which both hosts run."""
    with settings(spark, STATE_STORE_SETTINGS):
        yield


PAYMENTS = "order_id string, paid_at timestamp, amount decimal(9, 2), method string, lines array<struct<sku: string>>"


def orders(spark: SparkSession) -> DataFrame:
    rows = [("o1", NOON), ("o2", NOON), ("o3", NOON)]
    return spark.createDataFrame(rows, "order_id string, ordered_at timestamp")


def payments(spark: SparkSession) -> DataFrame:
    rows = [
        ("o1", NOON + timedelta(minutes=3), Decimal(5), "card", [("a",)]),
        ("o1", NOON + timedelta(minutes=2), Decimal(7), "cash", None),
        ("o2", NOON + timedelta(minutes=90), Decimal(9), "card", []),
        ("o3", NOON + timedelta(minutes=4), None, None, [("b",), ("c",)]),
    ]
    return spark.createDataFrame(rows, PAYMENTS)


def paid(**completions: Any) -> Purgatory:
    return Purgatory(
        operations=Operations(id="order_id", keys="order_id", created="ordered_at", timeout="1 hour"),
        completions=Completions(key="order_id", time="paid_at", **completions),
        criterion=criteria.any_key(),
    )


def test_a_table_carries_the_columns_of_the_event_that_decided(spark: SparkSession, tmp_path: Path) -> None:
    outcomes = paid(columns=["amount", "method", "lines"]).resolve(orders(spark), payments(spark))
    assert outcomes.schema["event"].dataType.simpleString() == (
        "struct<key:string,time:timestamp,amount:decimal(9,2),method:string,lines:array<struct<sku:string>>>"
    )
    outcomes.write.format("delta").save(str(tmp_path / "table"))
    rows = {row.order_id: row for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()}
    assert rows["o1"].event.method == "cash" and rows["o1"].event.amount == 7
    assert rows["o1"].event.time == rows["o1"].resolved_at
    assert rows["o2"].status == "EXPIRED" and rows["o2"].event is None
    assert [line.sku for line in rows["o3"].event.lines] == ["b", "c"] and rows["o3"].event.amount is None


def test_a_column_keeps_its_name_and_a_field_of_a_struct_goes_by_its_own(spark: SparkSession) -> None:
    given = payments(spark).selectExpr("*", "named_struct('city', method, 'a`.c', 1) as place", "amount as `a.b`")
    outcomes = paid(columns=["place.city", "a.b", "place.`a``.c`"]).resolve(orders(spark), given)
    assert outcomes.schema["event"].dataType.names == ["key", "time", "city", "a.b", "a`.c"]
    (row,) = outcomes.where("order_id = 'o1'").collect()
    assert (row.event["city"], row.event["a.b"], row.event["a`.c"]) == ("cash", 7, 1)


def test_a_prefix_keeps_evidence_apart_from_columns_of_the_operations(spark: SparkSession) -> None:
    given = orders(spark).selectExpr("*", "'mine' as event")
    with pytest.raises(ConfigError, match=r"operations already have a column event, .* set prefix="):
        paid(columns=["amount"]).resolve(given, payments(spark))
    outcomes = replace(paid(columns=["amount"]), prefix="o_", evidence="all").resolve(given, payments(spark))
    assert {"event", "o_event", "o_events"} <= set(outcomes.columns)


def test_columns_that_no_outcome_can_carry_are_refused_by_name(spark: SparkSession) -> None:
    given = payments(spark).selectExpr("*", "paid_at as time", "order_id as Key", "make_ym_interval(0, 1) as months")
    for columns, message in (
        (["total"], r"completions\.columns='total' is not a column: there are order_id, paid_at, amount"),
        (["time"], r"completions\.columns='time' would give the events of an outcome two fields 'time'"),
        (["Key"], r"completions\.columns='Key' would give the events of an outcome two fields 'Key'"),
        (["amount", "amount"], r"completions\.columns=.* must be names of columns, each once"),
        (["amount", "AMOUNT"], r"completions\.columns='AMOUNT' would give the events of an outcome two fields"),
        (["months"], r"completions\.columns: column 'months' is interval year to month, which Spark cannot pass"),
    ):
        with pytest.raises(ConfigError, match=message):
            paid(columns=columns).resolve(orders(spark), given)


def waiting(host: Host, **completions: Any) -> Purgatory:
    return purgatory(
        completions=completions_with(**completions),
        criterion=criteria.count(2),
        shards=2,
        host=host,
        evidence="all" if completions else "none",
    )


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


@pytest.mark.long
@pytest.mark.parametrize("host", HOSTS)
def test_columns_of_events_may_be_named_added_and_dropped_on_a_checkpoint(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    landing = Landing(tmp_path, wide=True)

    def run(purgatory: Purgatory) -> dict[str, Row]:
        sink = RecordAccumulator(path=str(landing.outcomes))
        outcomes = purgatory.resolve(*landing.frames(spark)).select(
            "id", "status", "matched", *purgatory.evidence_columns
        )
        with settings(spark, {"spark.databricks.delta.schema.autoMerge.enabled": "true"}):
            query = sink.write_stream(outcomes, checkpoint=str(landing.checkpoint), trigger={"availableNow": True})
            query.awaitTermination()
        if not (landing.outcomes / "_delta_log").exists():
            return {}
        return {row.id: row for row in spark.read.format("delta").load(str(landing.outcomes)).collect()}

    def order(name: str) -> dict[str, Any]:
        return {"id": name, "keys": [f"k-{name}"], "created": at(0), "deadline": at(60)}

    def event(name: str, minutes: float, **columns: Any) -> dict[str, Any]:
        return {"key": f"k-{name}", "time": at(minutes), **columns}

    landing.add([order("a"), order("b"), order("c")], [event("a", 0.1, region="r1"), event("b", 0.1, region="r1")])
    run(waiting(host))
    # Turned on: of what was there already key and time are known, and no column.
    landing.add([], [event("a", 0.2, region="r2"), event("c", 0.2, region="r2")])
    rows = run(waiting(host, columns=["region"]))
    assert [each.region for each in rows["a"].events] == [None, "r2"] and rows["a"].event.region == "r2"
    waits = {row.id: row for row in pending(spark, checkpoint=str(landing.checkpoint)).collect()}
    assert [each.region for each in waits["c"].events] == ["r2"] and waits["b"].events[0].key == "k-b"
    # A column more, in front.
    landing.add([], [event("b", 0.3, region="r3", event_id="e3")])
    rows = run(waiting(host, columns=["event_id", "region"]))
    assert [(each.region, each.event_id) for each in rows["b"].events] == [(None, None), ("r3", "e3")]
    # A type that cannot hold what is kept is refused by name, before a micro-batch begins.
    landing.add([], [event("c", 0.4, event_id="e4")])
    operations, events = landing.frames(spark)
    other = waiting(host, columns=["region"]).resolve(operations, events.withColumn("region", events.value))
    with pytest.raises(StateMismatchError, match=r"^completions\.columns: column 'region' is string in the checkpoint"):
        check_checkpoint(spark, other, checkpoint=str(landing.checkpoint))
    # A column less.
    rows = run(waiting(host, columns=["event_id"]))
    assert [each.event_id for each in rows["c"].events] == [None, "e4"]


def test_the_largest_event_needs_values_and_nothing_else(spark: SparkSession) -> None:
    purgatory = replace(paid(value="amount"), criterion=criteria.until_deadline(), evidence_order="value")
    outcomes = purgatory.resolve(orders(spark), payments(spark))
    assert outcomes.columns[-1] == "event"
    assert outcomes.schema["event"].dataType.simpleString() == "struct<key:string,time:timestamp,value:decimal(9,2)>"
    rows = {row.order_id: row for row in outcomes.collect()}
    assert (rows["o1"].event.value, rows["o1"].matched, rows["o1"].wait_ms) == (7, 2, 3_600_000)
    assert (rows["o2"].status, rows["o2"].event) == ("EXPIRED", None)
    assert (rows["o3"].status, rows["o3"].event.value) == ("COMPLETED", None)
    with pytest.raises(ConfigError, match=r"evidence_order='value' compares event values, but Completions"):
        replace(purgatory, completions=Completions(key="order_id", time="paid_at"))


def test_the_tester_gives_evidence_without_spark(spark: SparkSession) -> None:
    purgatory = replace(paid(columns=["amount", "method", "lines"]), evidence="all")
    tester = PurgatoryTester(purgatory, orders(spark).schema, payments(spark).schema)
    tester.step(operations=[{"order_id": "o1", "ordered_at": NOON}])
    assert tester.pending[0]["events"] == []
    (row,) = tester.step(completions=[{"order_id": "o1", "paid_at": at(3), "amount": None, "method": "card"}])
    carried = {"key": "o1", "time": at(3), "amount": None, "method": "card", "lines": None}
    assert (row["event"], row["events"]) == (carried, [carried])
    with pytest.raises(ConfigError, match="make the PurgatoryTester with completions_schema="):
        PurgatoryTester(purgatory).step(operations=[{"order_id": "o1", "ordered_at": NOON}])
