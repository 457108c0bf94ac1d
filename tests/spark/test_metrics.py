"""`monitor`: what reporters get of a real query, against counts of the rows, the table and the checkpoint."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import RecordAccumulator, metrics, monitor
from spark_purgatory.errors import ConfigError
from spark_purgatory.metrics.catalog import METRICS
from tests.support.children import until
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Landing

HOUR = {"linger": "1 hour", "delivery_timeout": "1 hour"}


def scraped(port: int) -> Iterator[tuple[str, dict[str, str], float]]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def land(landing: Landing) -> None:
    landing.add(
        [operation(f"o{n}", deadline=30 if n < 4 else 300) for n in range(20)] + [operation("bad", 5, 1), {"id": None}],
        [event("o7", 2), event("o8", 3), event("nothing", 60), {"key": None, "time": None}],
    )
    landing.add([operation("o0", deadline=300), operation("new", 61, 400)], [event("o9", 4), event("nothing", 70)])


def test_every_reporter_gets_what_the_rows_the_table_and_the_checkpoint_say(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landing = Landing(tmp_path)
    land(landing)
    registry, reader, samples = CollectorRegistry(), InMemoryMetricReader(), list[metrics.Sample]()
    served = metrics.prometheus(0, addr="127.0.0.1", registry=registry)
    meter = MeterProvider([reader]).get_meter("test")
    outcomes = purgatory(tick="1 second").resolve(*landing.frames(spark))
    sink = RecordAccumulator(path=str(tmp_path / "table"), **HOUR)
    query = sink.write_stream(
        outcomes, checkpoint=str(landing.checkpoint), trigger={"processingTime": "1 second"}, query_name="measured"
    )
    reporters = (
        served,
        metrics.opentelemetry(meter),
        metrics.progress(),
        samples.append,
    )
    watched = monitor(query, *reporters, gauges_every="1 second")
    until(lambda: samples and samples[-1].flat().get("pending") == 14 and samples[-1].flat()["staged_bytes"] > 0)
    staged = samples[-1].flat()
    query.flush()
    until(lambda: samples[-1].flat()["drains_total"] >= 1)
    flat = samples[-1].flat()
    named = {metric.name for metric in METRICS}
    seen = {name for sample in samples for name in sample.values}
    named.remove("source_lag_records")  # of Kafka alone: tests/unit/test_kafka_sources.py
    assert named == seen, "each metric of the catalogue was measured, and nothing else"

    table = {row["status"].lower(): row["count"] for row in sink.read(spark).groupBy("status").count().collect()}
    got = {
        name.partition(".")[2]: value for name, value in flat.items() if name.startswith("outcomes_total.") and value
    }
    assert got == table == {"completed": 3, "expired": 4, "rejected": 2, "duplicate": table["duplicate"]}
    assert flat["operations_received_total"] == 24 == sum(table.values()) + flat["pending"]
    assert {n: v for n, v in flat.items() if n.startswith(("rejected_total", "events_rejected_total")) and v} == {
        "rejected_total.null_id": 1,
        "rejected_total.deadline_before_created": 1,
        "events_rejected_total.null_key": 1,
    }
    observed = [progress.observedMetrics["spark_purgatory"]["rejections"] for progress in ran(query)]
    assert [reasons for reasons in observed if reasons] == [
        {"rejected_null_id": 1, "rejected_deadline_before_created": 1, "events_rejected_null_key": 1}
    ]
    assert (flat["events_received_total"], flat["events_late_total"]) == (6, 1)
    assert flat["drained_rows_total"] == sum(table.values())
    files = list((tmp_path / "table").rglob("*.parquet"))
    assert flat["drained_files_total"] == len(files)
    assert flat["drained_bytes_total"] == sum(path.stat().st_size for path in files)
    assert staged["staged_bytes"] + staged["buffer_available_bytes"] == sink.options.bytes_of("buffer_memory")
    assert flat["linger_ms"] == 3_600_000
    assert 1 <= flat["shard_skew"] <= flat["shards"] == 3
    assert flat["staged_bytes"] == flat["staged_age_ms"] == 0 < staged["staged_age_ms"]

    assert served.port is not None
    page = {(name, *sorted(labels.items())): value for name, labels, value in scraped(served.port)}
    assert page["spark_purgatory_pending", ("query", "measured")] == 14
    assert page["spark_purgatory_outcomes_total", ("query", "measured"), ("status", "expired")] == 4
    data = json.loads(reader.get_metrics_data().to_json())
    points = {m["name"]: m["data"]["data_points"] for m in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]}
    assert [point["value"] for point in points["spark_purgatory_pending"]] == [14]
    sink.close()
    until(lambda: watched._stopped)
    time.sleep(0.5)
    count = len(samples)
    time.sleep(1.5)
    assert len(samples) == count, "no sample after the end"
    said_as_rows(capsys.readouterr().out, table)


def said_as_rows(said: str, table: dict[str, int]) -> None:
    """The lines of `metrics.progress`."""
    last = [line for line in said.splitlines() if " batch " in line][-1]
    assert ", 14 waiting, " in last and f"COMPLETED 3, EXPIRED 4, DUPLICATE {table['duplicate']}, REJECTED 2" in last


def ran(query: StreamingQuery) -> list[Any]:
    """Reports of micro-batches; Spark also reports that there was nothing to do."""
    return [progress for progress in query.recentProgress if "addBatch" in progress.durationMs]


def test_micro_batches_that_ended_before_the_monitor_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for n in range(3):
        landing.add([operation(f"a{n}")], [event(f"a{n}", 1 + n)])
    kept: list[metrics.Sample] = []
    writer = purgatory().resolve(*landing.frames(spark)).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(landing.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    until(lambda: sum(p.observedMetrics["spark_purgatory"]["received"] or 0 for p in ran(query)) == 3)
    watched = monitor(query, kept.append)
    assert watched.last is kept[0]
    first = kept[0].flat()
    assert first["operations_received_total"] == first["events_received_total"] == 3
    assert "pending" not in first, "without a checkpoint the state is not read"
    until(lambda: watched._stopped)
    batches = [p.batchId for p in ran(query)]
    assert len(set(batches)) == len(batches) == kept[-1].flat()["batches_total"]
    assert kept[0].flat() == first, "a sample that was given does not change"


def test_what_cannot_work_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"has no reporter: give metrics.prometheus"):
        monitor(None)  # type: ignore[arg-type]
    first = metrics.prometheus(0, addr="127.0.0.1", registry=CollectorRegistry())
    with pytest.raises(ConfigError, match="cannot listen: Address already in use; choose another port"):
        metrics.prometheus(first.port, addr="127.0.0.1", registry=CollectorRegistry())
