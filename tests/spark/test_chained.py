"""A purgatory whose operations are the outcomes of another one, in one query: order, then payment, then shipment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, Purgatory, gauges, pending
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import at, completions_with, event, operation, operations_with, purgatory
from tests.support.streams import Host, Landing

PAID = replace(purgatory(), host="transformWithState", emit="final", name="payments")


def shipped(host: Host) -> Purgatory:
    """Paid orders wait ten minutes for their shipment."""
    return purgatory(
        operations=operations_with(created="resolved_at", timeout="10 minutes", watermark="1 hour", outcomes_of=PAID),
        completions=completions_with(),
        emit="final",
        shards=2,
        host=host,
        prefix="ship_",
        name="shipments",
    )


@pytest.mark.parametrize("host", ["transformWithState", *now_and_then("applyInPandasWithState")])
def test_what_waits_in_the_second_is_measured_at_its_own_watermark(
    spark: SparkSession, tmp_path: Path, host: Host
) -> None:
    first, second = Landing(tmp_path / "first"), Landing(tmp_path / "second")
    # The query's watermark is at minute 100. The order is paid at 35, and waits until 45.
    first.add([operation("o", 30, 50), operation("next", 100, 200)], [event("o", 35), event("nobody", 100)])
    second.add([], [event("nobody", 100)])
    with settings(spark, STATE_STORE_SETTINGS):
        paid = PAID.resolve(*first.frames(spark)).where("status = 'COMPLETED'")
        outcomes = shipped(host).resolve(paid, second.frames(spark)[1])
        writer = outcomes.writeStream.format("noop").option("checkpointLocation", str(first.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
        found = gauges(spark, checkpoint=str(first.checkpoint))
        [waits] = pending(spark, checkpoint=str(first.checkpoint), prefix="waits_").collect()
    minutes = int(at(0).timestamp() * 1000), 60_000
    assert (found["pending"], found["watermark_ms"]) == (1, minutes[0] + 40 * minutes[1])
    assert found["next_due_ms"] == minutes[0] + 45 * minutes[1]
    assert (waits["waits_age_ms"], waits["waits_remaining_ms"]) == (5 * minutes[1], 5 * minutes[1])


def test_what_cannot_be_chained_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    orders, payments = Landing(tmp_path).add([operation("o")], [event("o", 5)]).frames(spark)
    blob = purgatory(host="applyInPandasWithState").resolve(orders, payments)
    second = shipped("transformWithState")
    after_blob = replace(
        second, operations=replace(second.operations, outcomes_of=purgatory(host="applyInPandasWithState"))
    )
    with pytest.raises(ConfigError, match=r"operations are outcomes of .* give that purgatory host='transformWithSta"):
        after_blob.resolve(blob, payments)
    with settings(spark, STATE_STORE_SETTINGS):
        paid = PAID.resolve(orders, payments)
        idle = replace(second, operations=replace(second.operations, idle_after="1 minute"))
        with pytest.raises(
            ConfigError, match=r"operations\.idle_after is set, but outcomes have their purgatory's watermark"
        ):
            idle.resolve(paid, payments)
        with pytest.raises(ConfigError, match=r"name='payments' is taken"):
            replace(shipped("transformWithState"), name="payments").resolve(paid, payments)
