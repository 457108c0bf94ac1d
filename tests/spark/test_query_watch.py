"""A query that may lose by its settings says so: while it runs, and before it starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_purgatory import check_checkpoint
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.spark.host.requirements import NO_DATA, POLICY
from spark_purgatory.spark.monitoring.monitor import offset_of
from spark_purgatory.spark.query_listener import QueryListener
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.children import until
from tests.support.stream_rows import event, operation, operations_with, purgatory
from tests.support.streams import Landing


def warnings(caplog: pytest.LogCaptureFixture, least: int) -> list[str]:
    """What was warned of, once it has come: Spark reports a micro-batch some time after it."""

    def found() -> list[str]:
        return [record.getMessage() for record in caplog.records if "query_watch" in record.name]

    until(lambda: len(found()) >= least)
    time.sleep(1)
    return found()


def test_a_function_of_foreach_batch_that_computes_nothing_is_named(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash after Delta's commit: Delta skips the second try of the write without a look at its rows."""
    landing, table, crashes, computes = Landing(tmp_path), str(tmp_path / "table"), [True], False
    landing.add([operation("a")], [event("a", 1)])

    def write(outcomes: DataFrame, batch_id: int) -> None:
        if computes:  # As docs/how-to/other_sinks.md has it.
            outcomes.persist().count()
        writer = outcomes.write.format("delta").mode("append").option("txnAppId", "x").option("txnVersion", batch_id)
        writer.save(table)
        if crashes:
            crashes.pop()
            raise RuntimeError("crashed")

    def run() -> str:
        writer = purgatory().resolve(*landing.frames(spark)).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(landing.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            return sentence_of(error)
        return ""

    assert "RuntimeError in write" in run()
    if not pyspark.__version__.startswith("4.0."):  # That release does not look whether each state was written.
        assert run() != ""
        said = [text for text in warnings(caplog, 1) if "did not compute all outcomes" in text]
        assert ["docs/how-to/other_sinks.md" in text for text in said] == [True]
    computes = True
    assert run() == ""
    assert spark.read.format("delta").load(table).count() == 1


class Kept(StreamingQueryListener):
    """Keeps what Spark reports, as PySpark reads it."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.reports: list[Any] = []
        self.ended: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.started.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.reports.append(event.progress)

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.append(event)


class KeptInOneCall(Kept, QueryListener):
    """The same as ours reads it."""


def test_a_report_that_comes_in_one_call_is_the_one_of_pyspark(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for batch in range(2):
        landing.add([operation(f"o{batch}", batch), operation(None, batch)], [event(f"o{batch}", batch)])
    theirs, ours = Kept(), KeptInOneCall()
    for listener in (theirs, ours):
        spark.streams.addListener(listener)
    try:
        landing.run(spark, purgatory())
        until(lambda: theirs.ended and ours.ended)
    finally:
        for listener in (theirs, ours):
            spark.streams.removeListener(listener)
    (run,) = {event.runId for event in theirs.ended + ours.ended + theirs.started + ours.started}
    assert len(theirs.reports) == len(ours.reports) >= 2
    counted = 0
    facts = ("id", "name", "timestamp", "numInputRows", "durationMs", "eventTime", "batchDuration", "batchId", "runId")
    for their, our in zip(theirs.reports, ours.reports, strict=True):
        assert our.runId == run
        assert [getattr(our, name) for name in facts] == [getattr(their, name) for name in facts]
        counters, their_counters = (
            {name: row.asDict() for name, row in each.observedMetrics.items()} for each in (our, their)
        )
        assert counters == their_counters
        sources, their_sources = (
            [
                (each.description, each.numInputRows, offset_of(each.latestOffset), offset_of(each.endOffset))
                for each in report.sources
            ]
            for report in (our, their)
        )
        assert sources == their_sources
        counted += sum(row["rejected"] or 0 for row in counters.values())
    assert counted == 2


def test_a_session_without_micro_batches_without_rows_is_told_before_the_start(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = Landing(tmp_path).add([operation("o")], [event("o", 1)]).frames(spark)
    ticking = operations_with(idle_after="1 minute")
    with settings(spark, {NO_DATA: "FALSE"}):
        purgatory(operations=ticking).resolve(*frames)
        assert not caplog.records
        purgatory().resolve(*frames)
    (said,) = warnings(caplog, 1)
    assert said.startswith(f"{NO_DATA} is false: an operation whose deadline") and "set idle_after=" in said


def test_a_session_whose_faster_input_moves_the_watermark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path).add([operation("a", 1, 5)], [event("a", 2)])
    operations, events = landing.frames(spark)
    outcomes = purgatory().resolve(operations, events)
    with settings(spark, {POLICY: "max"}):
        for start in (
            lambda: purgatory().resolve(operations, events),
            lambda: check_checkpoint(spark, outcomes, checkpoint=str(landing.checkpoint)),
        ):
            with pytest.raises(ConfigError, match=rf"the session has {POLICY}='max': the faster input"):
                start()
        writer = outcomes.writeStream.format("noop").option("checkpointLocation", str(landing.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(ConfigError, match=rf"checkpoint='.*' has {POLICY}='max'"):
        check_checkpoint(spark, outcomes, checkpoint=str(landing.checkpoint))
