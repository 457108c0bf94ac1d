"""At twenty moments of a running stream pending, gauges, metrics and report agree with a count of rows and table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator, gauges, metrics, monitor, pending
from spark_purgatory.job.report import read_report
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.long]

MOMENTS = 20


def rows_read(query: Any) -> int:
    return sum(
        source["numInputRows"]
        for report in query.recentProgress
        for source in report["sources"]
        if not source["description"].startswith("RatePerMicroBatch")
    )


def rows_of(sink: RecordAccumulator, spark: SparkSession) -> list[Any]:
    """What is in the table and staged; again if a drain removes staged files meanwhile, as `read` says."""
    try:
        return sink.read(spark, staged=True).collect()
    except SPARK_FAULTS as error:
        assert "FILE_NOT_EXIST" in str(error)
        return rows_of(sink, spark)


def last_batch(landing: Landing) -> int:
    return max(int(path.name) for path in (landing.checkpoint / "commits").glob("[0-9]*"))


@pytest.fixture
def all_reports(spark: SparkSession) -> Iterator[None]:
    """Spark keeps the last 100 reports of micro-batches, too few to add up all rows that they read."""
    with settings(spark, {"spark.sql.streaming.numRecentProgressUpdates": "100000"}):
        yield


@pytest.mark.usefixtures("all_reports")
def test_all_views_agree_with_a_count_at_twenty_moments(spark: SparkSession, tmp_path: Path) -> None:
    rng, landing = random.Random(16), Landing(tmp_path)
    landing.add([], [])
    samples: list[metrics.Sample] = []
    sink = RecordAccumulator(path=str(tmp_path / "table"), linger="4 seconds", batch_size="1 MiB")
    outcomes = purgatory(max_future="20 days").resolve(*landing.frames(spark))
    checkpoint = str(landing.checkpoint)
    query = sink.write_stream(outcomes, checkpoint=checkpoint, trigger={"processingTime": "2 seconds"})
    monitor(query, samples.append, gauges_every="2 seconds")
    landed: dict[str, dict[str, Any]] = {}
    count = 0
    try:
        for moment in range(MOMENTS):
            minutes = moment * 10.0
            new = [
                operation(f"{moment}-{n}", minutes + rng.random(), minutes + rng.choice((3, 15, 500)))
                for n in range(rng.randrange(1, 30))
            ]
            waiting = [name for name in landed if rng.random() < 0.2]
            came = [event(name, minutes + 1 + rng.random()) for name in waiting]
            landing.add(new, [*came, event("nothing", minutes + 2)])
            landed |= {each["id"]: each for each in new}
            count += len(new) + len(came) + 1
            # Until all is read, and the micro-batch has run that only the new watermark made.
            until(lambda count=count: rows_read(query) == count and query.exception() is None)
            last = last_batch(landing)
            until(lambda last=last: last_batch(landing) >= last + 2)

            told = {row["id"]: row["status"] for row in rows_of(sink, spark)}
            expected = set(landed) - set(told)
            assert {row["id"] for row in pending(spark, checkpoint=checkpoint, columns=["id"]).collect()} == expected
            assert gauges(spark, checkpoint=checkpoint)["pending"] == len(expected)
            waits = len(expected)
            # Reports of micro-batches come through Spark's queue of events, so they may come after the gauges.
            by_status = Counter(told.values())
            wanted = {"pending": waits, "operations_received_total": len(landed)}
            wanted |= {f"outcomes_total.{status.lower()}": number for status, number in by_status.items()}
            until(lambda wanted=wanted: wanted.items() <= samples[-1].flat().items())
            report = read_report(spark, checkpoint, sink)
            assert (report.gauges["pending"], report.summary.by_status) == (len(expected), dict(by_status))
            assert sum(report.ages.values()) == len(expected)
    finally:
        query.stop()
    assert {"COMPLETED", "EXPIRED"} <= set(by_status)
