"""`python -m tests.support.recorded_metrics`: what a real query reports while it is well, and while things go wrong.

One line a micro-batch, with the phase and all series that Prometheus would scrape, in the file
`tests/data/metrics_recorded.jsonl.gz`. `promtool` tests the alerts on it. Values are as measured; the tests let a
line last for minutes.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria, metrics, monitor
from spark_purgatory.job.session import reading_session
from tests.support.delta_files import closed

FILE = Path(__file__).resolve().parents[1] / "data" / "metrics_recorded.jsonl.gz"
PORT = 9187
STEPS, MINUTES = 6, 8
"""Micro-batches of a phase, and how long the tests let each last: 48 minutes are longer than the longest window of a
rule, 30 minutes, with the 15 that its value has to last.
"""
ORDERS, PAYMENTS = "order_id string, key string, at timestamp", "key string, at timestamp"
Rows = list[tuple[Any, ...]]


class Shop:
    """A query whose rows are landed step by step, and what it reports."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder, self.lines, self._number = folder, list[str](), 0
        for name in ("orders", "payments"):
            (folder / name).mkdir(parents=True)
        purgatory = Purgatory(
            operations=Operations(id="order_id", keys="key", created="at", timeout="1 second", watermark="1 second"),
            completions=Completions(key="key", time="at", watermark="1 second"),
            criterion=criteria.any_key(),
            shards=8,
        )
        orders, payments = (
            spark.readStream.schema(schema).parquet(str(folder / name))
            for name, schema in (("orders", ORDERS), ("payments", PAYMENTS))
        )
        sink = RecordAccumulator(path=str(folder / "table"), linger="1 second", retry_backoff="10 milliseconds")
        self.query = sink.write_stream(
            purgatory.resolve(orders, payments),
            checkpoint=str(folder / "checkpoint"),
            trigger={"processingTime": "0 seconds"},
            query_name="orders",
        )
        registry = CollectorRegistry()
        served = metrics.prometheus(PORT, addr="127.0.0.1", registry=registry)
        self._monitor = monitor(self.query, served, gauges_every="5 seconds")

    def step(self, phase: str, orders: Rows, payments: Rows) -> None:
        """Land rows, and record what is reported after they were read."""
        for name, rows, columns in (("orders", orders, ORDERS), ("payments", payments, PAYMENTS)):
            names = [column.split()[0] for column in columns.split(", ")]
            table = pa.table({each: [row[at] for row in rows] for at, each in enumerate(names)})
            partial = self.folder / f"{name}-{self._number}.parquet"
            pq.write_table(table, partial, coerce_timestamps="us")
            partial.rename(self.folder / name / partial.name)
        self._number += 1
        before = self._batches()
        self._until(lambda: self._batches() > before)
        self.lines.append(json.dumps({"phase": phase, "samples": scraped()}))

    def paid(self, phase: str, step: int, ago: timedelta = timedelta(), late: int = 0) -> None:
        """A step in which each order is paid."""
        at = datetime.now(UTC) - ago
        names = [f"{phase}-{step}-{n}" for n in range(10)]
        too_late = [("nobody", at - timedelta(minutes=5))] * late
        self.step(phase, [(name, name, at) for name in names], [*((name, at) for name in names), *too_late])

    def _batches(self) -> float:
        return self._monitor.last.flat()["batches_total"] if self._monitor.last else 0

    def _until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            if (error := self.query.exception()) is not None:
                raise error
            time.sleep(0.02)


def scraped() -> dict[str, float]:
    """Every series of ours, as Prometheus would store it."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
    pairs = (line.rpartition(" ") for line in text.splitlines() if line.startswith("spark_purgatory_"))
    return {series: float(value) for series, _, value in pairs if "_created" not in series}


def record(spark: SparkSession, folder: Path) -> list[str]:
    shop = Shop(spark, folder)

    for step in range(STEPS):
        shop.paid("behind", step, ago=timedelta(hours=2))
    for step in range(STEPS):
        shop.paid("well", step)
    for step in range(STEPS):
        names, at = [f"unpaid-{step}-{n}" for n in range(10)], datetime.now(UTC)
        shop.step("unpaid", [(name, name, at) for name in names], [("nobody", at)])
    for step in range(STEPS):
        shop.paid("late", step, late=2)
    shop.query.flush()
    with closed(spark, folder / "table"):
        for step in range(STEPS):
            shop.paid("refused", step)
    soon = datetime.now(UTC) + timedelta(hours=1)
    shop.step("crowd", [(f"crowd-{n}", "popular", soon) for n in range(12_000)], [("nobody", datetime.now(UTC))])
    for step in range(1, STEPS):
        shop.paid("crowd", step)
    shop.query.stop()
    return shop.lines


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="recorded_"))
    spark = reading_session({"spark.sql.shuffle.partitions": "2"}, folder / "spark.log", delta=True)
    lines = record(spark, folder / "shop")
    spark.stop()
    with gzip.GzipFile(FILE, "wb", mtime=0) as file:
        file.write("\n".join(lines).encode())
    shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{FILE}: {len(lines)} lines\n")


if __name__ == "__main__":
    main()
