"""Runs now and then: the watermark follows from the rows of all runs, whichever run read them (semantics 3.11)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Purgatory,
    gauges,
)
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import at, completions_with, event, operation, operations_with, purgatory
from tests.support.streams import EVENTS, OPERATIONS, Host, Landing

pytestmark = pytest.mark.spark

CASES = [("applyInPandasWithState", "early"), *now_and_then(("transformWithState", "final"))]
Hour = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
IN_TURN: list[Hour] = [
    ([operation("o0", 0, 10), operation("o2", 120, 130)], []),
    ([], [event("o0", 5), event("nobody", 180)]),
    ([operation("o4", 240, 250), operation("o5", 240, 400)], []),
]


@pytest.fixture(autouse=True)
def state_store(spark: SparkSession) -> Iterator[None]:
    """Both hosts run on RocksDB."""
    with settings(spark, STATE_STORE_SETTINGS):
        yield


class Hours(Landing):
    """A landing whose sides bring rows in different runs, and the runs of a query."""

    def hour(self, hour: Hour) -> Hours:
        """Land a file for each side that has rows."""
        for side, rows, schema in zip(("operations", "events"), hour, (OPERATIONS, EVENTS), strict=True):
            (self.folder / side).mkdir(parents=True, exist_ok=True)
            if rows:
                self.land(side, rows, schema)
        self._files += 1
        return self

    def start(self, spark: SparkSession, given: Purgatory, **resolved: Any) -> list[tuple[str, str]]:
        """Run the query over what is new, and return the id and status of all outcomes so far."""
        return self.run_of(given.resolve(*self.frames(spark), checkpoint=str(self.checkpoint), **resolved))

    def run_of(self, outcomes: DataFrame) -> list[tuple[str, str]]:
        """Run a query over outcomes."""
        spark, checkpoint = outcomes.sparkSession, str(self.checkpoint)
        writer = outcomes.writeStream.format("parquet").option("path", str(self.outcomes)).trigger(availableNow=True)
        started(writer, spark, checkpoint, decide=settings_to_start(outcomes, checkpoint)[0]).awaitTermination()
        return sorted((row["id"], row["status"]) for row in self.written(spark))

    @property
    def watermark(self) -> float:
        """Minutes after noon."""
        return (self.last_watermark_us / 1_000_000 - at(0).timestamp()) / 60


@pytest.mark.parametrize(("host", "emit"), CASES)
def test_inputs_that_bring_rows_in_turn_have_the_outcomes_of_one_run_over_all_files(
    spark: SparkSession, tmp_path: Path, host: Host, emit: str
) -> None:
    given, runs = purgatory(host=host, emit=emit), Hours(tmp_path)
    for hour in IN_TURN:
        found = runs.hour(hour).start(spark, given)
    assert found == [("o0", "COMPLETED"), ("o2", "EXPIRED")]
    assert runs.watermark == 180, "of the last payments: orders have come to 240"
    seen = gauges(spark, checkpoint=str(runs.checkpoint))
    assert seen["newest_operation_ms"] == at(240).timestamp() * 1000
    assert seen["newest_event_ms"] == at(180).timestamp() * 1000
    assert len(list((runs.checkpoint / "newest").glob("part-*"))) == 1, "of the last start"
    one = Hours(tmp_path, "one")
    assert one.start(spark, given) == found
    assert one.watermark == runs.watermark
    (runs.checkpoint / "commits" / str(runs.last_batch)).unlink()
    settings_to_start(given.resolve(*runs.frames(spark), checkpoint=str(runs.checkpoint)), str(runs.checkpoint))
    assert len(list((runs.checkpoint / "newest").glob("part-*"))) == 2, "the repeated micro-batch may read the first"


@pytest.mark.long
def test_a_run_killed_before_sparks_commit_is_repeated_with_the_newest_times_of_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    runs = Hours(tmp_path)
    for hour in IN_TURN[:2]:
        runs.hour(hour).start(spark, purgatory())
    for log in (runs.checkpoint / "commits", runs.outcomes / "_spark_metadata"):
        (log / str(runs.last_batch)).unlink()
        (log / f".{runs.last_batch}.crc").unlink(missing_ok=True)
    assert runs.hour(IN_TURN[2]).start(spark, purgatory()) == [("o0", "COMPLETED"), ("o2", "EXPIRED")]
    assert runs.watermark == 180
    assert len(list((runs.checkpoint / "newest").glob("part-*"))) == 2, "the repeated micro-batch has read the first"


def test_an_input_that_is_said_to_be_complete_until_a_time_holds_the_watermark_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    runs = Hours(tmp_path)
    given = purgatory(completions=completions_with(value="value", watermark="20 minutes"))
    runs.hour(([operation("o0", 0, 10), operation("o1", 60, 70)], [])).start(spark, given)
    assert runs.last_watermark_us == 0, "nothing is known of payments"
    found = runs.start(spark, given, complete_until={"completions": at(30)})
    assert (found, runs.watermark) == ([("o0", "EXPIRED")], 30)
    found = runs.hour(([operation("o2", 200, 210)], [event("o1", 20)])).start(spark, given)
    assert (found, runs.watermark) == ([("o0", "EXPIRED")], 30), "it holds for its run, and nothing moves back"
    with pytest.raises(ConfigError, match="is no input with a watermark: give operations or completions"):
        runs.start(spark, given, complete_until={"payments": at(30)})
    with pytest.raises(ConfigError, match="more than max_future ahead"):
        runs.start(spark, given, complete_until={"completions": "2200-01-01"})
    with pytest.raises(ConfigError, match="needs checkpoint="):
        given.resolve(*runs.frames(spark), complete_until={"completions": at(30)})
    with pytest.raises(ConfigError, match="give both the same"):
        settings_to_start(given.resolve(*runs.frames(spark), checkpoint="/other"), str(runs.checkpoint))


@pytest.mark.long
def test_both_purgatories_of_a_query_take_over_the_newest_times(spark: SparkSession, tmp_path: Path) -> None:
    first, second = Hours(tmp_path / "first"), Hours(tmp_path / "second")
    paid = purgatory(host="transformWithState", emit="final", name="payments")
    shipped = purgatory(
        operations=operations_with(created="resolved_at", timeout="1 minute", watermark="1 hour", outcomes_of=paid),
        completions=completions_with(),
        host="transformWithState",
        prefix="ship_",
        name="shipments",
    )
    checkpoint = str(first.checkpoint)
    hours: list[tuple[Hour, Hour]] = [
        (([operation("o0", 0, 10)], [event("o0", 5)]), ([], [])),
        (([], []), ([], [event("nobody", 300)])),
        (([operation("o1", 300, 310)], []), ([], [])),
        (([], [event("nobody", 300)]), ([], [])),
    ]
    for orders, shipments in hours:
        first.hour(orders)
        second.hour(shipments)
        outcomes = paid.resolve(*first.frames(spark), checkpoint=checkpoint).where("status = 'COMPLETED'")
        outcomes = shipped.resolve(outcomes, second.frames(spark)[1], checkpoint=checkpoint)
        first.run_of(outcomes.withColumnRenamed("ship_status", "shipped"))
    assert [(row["id"], row["shipped"]) for row in first.written(spark)] == [("o0", "EXPIRED")]
    assert first.watermark == 300
