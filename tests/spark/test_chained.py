"""A purgatory whose operations are the outcomes of another one, in one query: order, then payment, then shipment."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, Purgatory, gauges, pending
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import multiset
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import at, completions_with, event, operation, operations_with, purgatory
from tests.support.streams import Host, Landing

BATCHES = 6
COLUMNS = ("id", "wait_ms", "matched", "ship_status", "ship_resolved_at", "ship_wait_ms", "ship_matched")
PAID = replace(purgatory(), host="transformWithState", emit="final", name="payments")


def shipped(host: Host, watermark: str = "60 minutes") -> Purgatory:
    """Paid orders wait ten minutes for their shipment."""
    return purgatory(
        operations=operations_with(created="resolved_at", timeout="10 minutes", watermark=watermark, outcomes_of=PAID),
        completions=completions_with(),
        emit="final",
        shards=2,
        host=host,
        prefix="ship_",
        name="shipments",
    )


class Sources:
    """Orders and payments in one landing, shipments in another."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = Landing(folder / "first"), Landing(folder / "second")
        self.rng = random.Random(7)

    def add(self, batch: int) -> None:
        """A micro-batch of ten minutes: some orders are paid, some of these shipped, some of that late."""
        minutes, rng = batch * 10, self.rng
        ids = [f"o{batch}-{i}" for i in range(12)]
        orders = [operation(id, start := minutes + rng.uniform(0, 9), start + rng.uniform(1, 20)) for id in ids]
        earlier = [f"o{max(batch - back, 0)}-{i}" for back in (0, 1) for i in range(12)]
        payments = [event(id, minutes + rng.uniform(0, 9)) for id in earlier if rng.random() < 0.5]
        shipments = [event(id, minutes + rng.uniform(0, 9)) for id in earlier if rng.random() < 0.5]
        self.first.add(orders, payments)
        self.second.add([], shipments)

    def close(self) -> None:
        """Rows whose times let everything be decided, in steps that are shorter than the second's room."""
        for minutes in range(80, 260, 30):
            self.first.add([operation(f"closing{minutes}", minutes, minutes + 1)], [event("nobody", minutes)])
            self.second.add([], [event("nobody", minutes)])

    def outcomes(self, spark: SparkSession, streaming: bool, second: Purgatory) -> DataFrame:
        """The outcomes of the second purgatory over those of the first."""
        paid = PAID.resolve(*self.first.frames(spark, streaming)).where("status = 'COMPLETED'")
        return second.resolve(paid, self.second.frames(spark, streaming)[1])

    def run(self, spark: SparkSession, second: Purgatory) -> list[dict[str, Any]]:
        """The stream over all that landed; returns all rows ever written."""
        writer = self.outcomes(spark, True, second).writeStream.format("parquet")
        writer = writer.option("path", str(self.first.outcomes)).option(
            "checkpointLocation", str(self.first.checkpoint)
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        return self.first.written(spark)


@pytest.mark.long
@pytest.mark.parametrize("host", ["transformWithState", "applyInPandasWithState"])
def test_two_purgatories_in_one_query_give_what_two_batch_resolves_give(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    sources = Sources(tmp_path)
    with settings(spark, STATE_STORE_SETTINGS):
        for batch in range(BATCHES):
            sources.add(batch)
            if batch == BATCHES // 2:
                sources.run(spark, shipped(host))
        sources.close()
        rows = sources.run(spark, shipped(host))
    expected = [row.asDict() for row in sources.outcomes(spark, False, shipped(host)).collect()]
    assert {row["ship_status"] for row in expected} == {"COMPLETED", "EXPIRED"}
    assert len(expected) > 20
    assert multiset(rows, *COLUMNS) == multiset(expected, *COLUMNS)
    assert not any(row["ship_late"] for row in rows), "an hour is room for what the first purgatory gives"
    checkpoint = str(sources.first.checkpoint)
    assert "resolved_at" in pending(spark, checkpoint=checkpoint, prefix="waits_").columns, (
        "of the last purgatory in the query"
    )
    assert gauges(spark, checkpoint=checkpoint)["pending"] == 0


@pytest.mark.parametrize("host", ["transformWithState", *now_and_then("applyInPandasWithState")])
def test_what_waits_in_the_second_is_measured_at_its_own_watermark(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    sources = Sources(tmp_path)
    # The query's watermark is at minute 100. The order is paid at 35, and waits until 45.
    sources.first.add([operation("o", 30, 50), operation("next", 100, 200)], [event("o", 35), event("nobody", 100)])
    sources.second.add([], [event("nobody", 100)])
    with settings(spark, STATE_STORE_SETTINGS):
        sources.run(spark, shipped(host))
        found = gauges(spark, checkpoint=str(sources.first.checkpoint))
        [waits] = pending(spark, checkpoint=str(sources.first.checkpoint), prefix="waits_").collect()
    minutes = int(at(0).timestamp() * 1000), 60_000
    assert (found["pending"], found["watermark_ms"]) == (1, minutes[0] + 40 * minutes[1])
    assert found["next_due_ms"] == minutes[0] + 45 * minutes[1]
    assert (waits["waits_age_ms"], waits["waits_remaining_ms"]) == (5 * minutes[1], 5 * minutes[1])


def test_what_cannot_be_chained_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    sources.add(0)
    orders, payments = sources.first.frames(spark)
    shipments = sources.second.frames(spark)[1]
    blob = purgatory(host="applyInPandasWithState").resolve(orders, payments)
    second = shipped("transformWithState")
    after_blob = replace(second, operations=replace(second.operations, outcomes_of=purgatory()))
    with pytest.raises(ConfigError, match=r"operations are outcomes of .* give that purgatory host='transformWithSta"):
        after_blob.resolve(blob, shipments)
    with settings(spark, STATE_STORE_SETTINGS):
        paid = PAID.resolve(orders, payments)
        idle = replace(second, operations=replace(second.operations, idle_after="1 minute"))
        with pytest.raises(
            ConfigError, match=r"operations\.idle_after is set, but outcomes have their purgatory's watermark"
        ):
            idle.resolve(paid, shipments)
        with pytest.raises(ConfigError, match=r"name='payments' is taken"):
            replace(shipped("transformWithState"), name="payments").resolve(paid, shipments)
