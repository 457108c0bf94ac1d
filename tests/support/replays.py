"""A stream of orders whose micro-batches are run again with a difference: rows in another order, other partitions,
another time-out, another version of the engine's steps.

Each row of an order has a number of its own, so that whatever may differ, two things can be counted: the outcomes of
each row, and the rows of each id that were accepted. Both are to be one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
)
from spark_purgatory.core.state import step_log
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.storage import spark_access

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
ORDERS = pa.schema([("id", pa.string()), ("row", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
PAYMENTS = pa.schema(
    [
        ("order_id", pa.string()),
        ("paid_at", pa.timestamp("us", "UTC")),
        ("event_id", pa.string()),
        ("sum", pa.float64()),
    ]
)


class Died(Exception):
    """A failpoint was reached."""


class OtherSteps(log_host.LogHost):
    """The log host of a release with another version of the engine's steps."""

    def __init__(self, *given: Any, version: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self.version = version

    def init(self, *given: Any) -> Any:
        for module in (log_host, step_log):
            setattr(module, "STEP_VERSION", self.version)  # noqa: B010
        return super().init(*given)


@dataclass(frozen=True)
class Settings:
    """What may differ between two runs of a query."""

    timeout: str = "30 minutes"
    order: int = 0
    partitions: int = 1
    steps: int = step_log.STEP_VERSION


def _in_order(seed: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The rows of each partition in an order of the seed's."""

    def ordered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            table = pa.Table.from_batches(found).combine_chunks()
            order = list(range(len(table)))
            random.Random(seed).shuffle(order)
            yield from table.take(order).to_batches()

    return ordered


@dataclass
class Replays:
    """One checkpoint and its table."""

    spark: SparkSession
    folder: Path
    host: Any
    emit: Any
    options: dict[str, Any]
    seed: int
    rows: int = 0
    files: int = 0
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        for name in ("orders", "payments"):
            (self.folder / name).mkdir(parents=True)

    def land(self, orders: list[tuple[str, float]], payments: list[tuple[str, float]]) -> None:
        """A micro-batch of orders and payments: ids, and minutes."""
        at = [BEGIN + timedelta(minutes=minutes) for _, minutes in orders]
        numbers = list(range(self.rows, self.rows + len(orders)))
        paid = [BEGIN + timedelta(minutes=minutes) for _, minutes in payments]
        events = [f"{name}/{minutes}" for name, minutes in payments]
        sums = [self.random.random() for _ in payments]
        tables = {
            "orders": pa.table([[name for name, _ in orders], numbers, at], schema=ORDERS),
            "payments": pa.table([[name for name, _ in payments], paid, events, sums], schema=PAYMENTS),
        }
        for name, table in tables.items():
            path = self.folder / name / f"{self.files:04d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.rows, self.files = self.rows + len(orders), self.files + 1
        self.ids.update(name for name, _ in orders)

    def land_some(self) -> None:
        """A micro-batch of twelve minutes with duplicates, redelivered and late rows."""
        minute, draw = 12.0 * self.files, self.random
        orders, payments = [], []
        for number in range(5):
            name, created = f"o{self.files}-{number}", minute + draw.choice([0, 3, 3, 7, -40 if self.files > 4 else 1])
            orders += [(name, created + draw.choice([0, 0, 1])) for _ in range(draw.choice([1, 2, 3]))]
            if draw.random() < 0.7:
                payments += [(name, created + draw.choice([5, 10, 28, 30, 45]))] * draw.choice([1, 2])
        self.land(orders, payments)

    def stream(self, name: str, schema: str, settings: Settings) -> DataFrame:
        """One source, its rows in an order and in partitions that the settings say."""
        rows = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder / name))
        spread = rows.repartition(settings.partitions, F.xxhash64(*rows.columns, F.lit(settings.order)))
        return spread.mapInArrow(_in_order(settings.order), rows.schema)

    def run(self, settings: Settings) -> None:
        release = partial(OtherSteps, version=settings.steps)
        needed = STATE_STORE_SETTINGS if self.host == "transformWithState" else {}
        with patch.object(log_host, "LogHost", release), spark_access.settings(self.spark, needed):
            self._run(settings)

    def _run(self, settings: Settings) -> None:
        purgatory = Purgatory(
            operations=Operations(id="id", keys="id", created="at", timeout=settings.timeout, watermark="20 minutes"),
            completions=Completions(
                key="order_id",
                time="paid_at",
                value="sum",
                event_id="event_id",
                columns=["sum"],
                watermark="20 minutes",
            ),
            criterion=criteria.any_key(),
            emit=self.emit,
            evidence="all",
            shards=2,
            host=self.host,
        )
        outcomes = purgatory.resolve(
            self.stream("orders", "id string, row bigint, at timestamp", settings),
            self.stream("payments", "order_id string, paid_at timestamp, event_id string, sum double", settings),
        )
        sink = RecordAccumulator(path=str(self.folder / "table"), **self.options)
        query = sink.write_stream(outcomes, checkpoint=str(self.folder / "checkpoint"), trigger={"availableNow": True})
        query.awaitTermination()

    def end(self, settings: Settings) -> None:
        """Let every order that waits reach its deadline."""
        for minutes in (10_000, 20_000):
            self.land([(f"end-{minutes}", minutes)], [("nobody", minutes)])
            self.run(settings)

    def wrong(self) -> str:
        """What is wrong with the table: "" if each row has one outcome, and one row of each id was accepted."""
        found = self.spark.read.format("delta").load(str(self.folder / "table")).collect()
        of_row = Counter(row["row"] for row in found)
        accepted = Counter(row["id"] for row in found if row["status"] != "DUPLICATE")
        waits = {self.rows - 1}
        lost = [number for number in range(self.rows) if number not in of_row and number not in waits]
        doubled = [number for number, count in of_row.items() if count > 1]
        ended = {name for name in self.ids if not name.startswith("end-")}
        twice = sorted(name for name in ended if accepted[name] != 1)
        statuses = {row["status"] for row in found} - {"COMPLETED", "EXPIRED", "DUPLICATE"}
        if not (lost or doubled or twice or statuses):
            return ""
        return f"{len(lost)} rows lost, {len(doubled)} doubled, ids not accepted once: {twice[:3]}, {statuses or ''}"
