"""Crashes on Spark, recorded as they happen and played again in the simulation, which ends with the same table.

Each run of the query crashes at the next failpoint of the sink, and differs from the run before it in the order of its
rows, in partitions or in the time-out. Each row of an order has a number of its own, so that two things are counted:
the outcomes of each row, and the rows of each id that were accepted. Both must be one.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
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
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from spark_purgatory.spark.sink.drain.sender import Beside
from spark_purgatory.spark.storage.spark_access import settings
from tests.simulation.recorded import LAST, RecordedRun, Recording, replayed
from tests.support.delta_files import delta_rows
from tests.support.lanes import BLOB, LOG

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
ORDERS = pa.schema([("id", pa.string()), ("row", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
TEXT, TIME = pa.string(), pa.timestamp("us", "UTC")
PAYMENTS = pa.schema([("order_id", TEXT), ("paid_at", TIME), ("event_id", TEXT), ("sum", pa.float64())])
MINUTES = 15
TIMEOUTS = (2, 3, 2, 4)
DAY_US = 86_400_000_000
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000 - DAY_US
"""Times of a recording are counted from here."""
CRASHES = int(os.environ.get("RECORDED", "13"))
DELAY = "20 minutes"


class Died(Exception):
    """A failpoint was reached."""


@dataclass(frozen=True)
class Settings:
    """What may differ between two runs of a query."""

    multiple: int
    """By how much the time-out is multiplied."""
    order: int = 0
    partitions: int = 1


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
class Recorded:
    """One checkpoint and its table, and what became of each run."""

    spark: SparkSession
    folder: Path
    host: Any
    emit: Any
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
        """A micro-batch of twelve minutes with duplicates and redelivered rows; late ones where the oracle has them."""
        minute, draw = 12.0 * self.files, self.random
        late = -40.0 if self.files > 4 and self.emit == "early" else 1.0
        orders, payments = [], []
        for number in range(5):
            name, created = f"o{self.files}-{number}", minute + draw.choice([0, 3, 3, 7, late])
            orders += [(name, created)] * draw.choice([1, 2, 3])
            if draw.random() < 0.7:
                payments += [(name, created + draw.choice([5, 10, 28, 30, 45]))] * draw.choice([1, 2])
        self.land(orders, payments)

    def stream(self, name: str, schema: str, run: Settings) -> DataFrame:
        """One source, its rows in an order and in partitions that the run has."""
        rows = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder / name))
        spread = rows.repartition(run.partitions, F.xxhash64(*rows.columns, F.lit(run.order)))
        return spread.mapInArrow(_in_order(run.order), rows.schema)

    def run(self, run: Settings) -> None:
        """Over all that landed, from the checkpoint on."""
        waits = f"{MINUTES * run.multiple} minutes"
        purgatory = Purgatory(
            operations=Operations(id="id", keys="id", created="at", timeout=waits, watermark=DELAY),
            completions=Completions(
                key="order_id", time="paid_at", value="sum", event_id="event_id", columns=["sum"], watermark=DELAY
            ),
            criterion=criteria.any_key(),
            emit=self.emit,
            evidence="all",
            shards=2,
            host=self.host,
        )
        outcomes = purgatory.resolve(
            self.stream("orders", "id string, row bigint, at timestamp", run),
            self.stream("payments", "order_id string, paid_at timestamp, event_id string, sum double", run),
        )
        sink = RecordAccumulator(path=str(self.folder / "table"), linger="0 seconds")
        query = sink.write_stream(outcomes, checkpoint=str(self.folder / "checkpoint"), trigger={"availableNow": True})
        query.awaitTermination()

    def numbers(self, folder: str) -> list[int]:
        return [int(path.name) for path in (self.folder / "checkpoint" / folder).glob("[0-9]*")]

    def recorded_run(self, run: Settings, failpoint: str = "") -> RecordedRun:
        """A run that crashes at a failpoint, if it comes there. Commits are made in the loop, as under Spark Connect:
        the result of a thread is taken in whenever it ends, in this micro-batch or another one.
        """
        crashed = ""

        def hook(reached: str) -> None:
            if reached == failpoint:
                raise Died(failpoint)

        actions.hook = hook if failpoint else None
        try:
            with patch.object(Beside, "begin", lambda *_: False):
                self.run(run)
        except (StreamingQueryException, Died) as error:
            assert "Died" in f"{type(error)}{error}", error
            crashed = failpoint
        finally:
            actions.hook = None
        ends = (max(self.numbers(name), default=-1) for name in ("offsets", "commits"))
        return RecordedRun(run.multiple, crashed, *ends)

    def planned(self) -> list[dict[str, Any]]:
        """What Spark's offset log says of each micro-batch; a third source, of the library's own, gives no rows."""
        found, begun = [], {"orders": 0, "payments": 0}
        for number in sorted(self.numbers("offsets")):
            _, facts, *sources = (self.folder / "checkpoint" / "offsets" / str(number)).read_text().splitlines()
            watermark_us = json.loads(facts)["batchWatermarkMs"] * 1000 - BEGIN_US
            batch: dict[str, Any] = {"watermark_ms": max(0, watermark_us // 1000)}
            for (name, first), line in zip(list(begun.items()), sources[:2], strict=True):
                begun[name] = json.loads(line)["logOffset"] + 1 if line != "-" else first
                batch[name] = [row for file in range(first, begun[name]) for row in self.rows_of(name, file)]
            found.append({**batch, "operations": batch.pop("orders"), "events": batch.pop("payments")})
        return found

    def rows_of(self, name: str, file: int) -> list[tuple[Any, ...]]:
        rows = pq.read_table(self.folder / name / f"{file:04d}.parquet").to_pylist()
        if name == "orders":
            return [(row["id"], _us(row["at"])) for row in rows]
        return [(row["order_id"], _us(row["paid_at"]), row["event_id"]) for row in rows]

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


def _us(at: Any) -> int:
    return round((at - BEGIN).total_seconds() * 1_000_000) + DAY_US


def record(spark: SparkSession, folder: Path, host: str, emit: str, first: int) -> Recording:
    """A query that crashes again and again, and what it was."""
    lane = Recorded(spark, folder, host, emit, seed=first)
    runs, orders = [], cycle([(0, 1), (1, 3), (7, 1), (2, 2)])
    for number, multiple, order in zip(range(CRASHES), cycle(TIMEOUTS), orders):
        lane.land_some()
        lane.land_some()
        failpoint = FAILPOINTS[(first + number) % len(FAILPOINTS)]
        runs.append(lane.recorded_run(Settings(multiple, *order), failpoint))
    runs.append(lane.recorded_run(Settings(2)))
    for minutes in (10_000, 20_000):
        lane.land([(f"{LAST}{minutes}", minutes)], [("nobody", minutes)])
        runs.append(lane.recorded_run(Settings(2)))
    assert lane.wrong() == ""
    rows = delta_rows(folder / "table", ["id", "status"]).to_pylist()
    table = Counter(f"{row['id']} {row['status']}" for row in rows if not row["id"].startswith(LAST))
    return Recording(host, emit, MINUTES, lane.planned(), runs, table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "emit", "first"), [(BLOB, "early", 0), (BLOB, "final", 3), (LOG, "early", 6), (LOG, "final", 9)]
)
def test_crashes_on_spark_end_with_the_same_table_in_the_simulation(
    spark: SparkSession, tmp_path: Path, host: str, emit: str, first: int
) -> None:
    with settings(spark, STATE_STORE_SETTINGS if host == LOG else {}):
        recording = record(spark, tmp_path / "lane", host, emit, first)
    if keep := os.environ.get("KEEP_RECORDINGS"):
        Path(keep, f"{host}_{emit}.json").write_text(json.dumps(recording._asdict()), encoding="utf-8")
    crashes = [run.crashed_at for run in recording.runs if run.crashed_at]
    print(f"{host}, {emit}: {len(crashes)} crashes of {CRASHES} runs, {sum(recording.table.values())} outcomes")
    assert replayed(recording, f"recorded {host} {emit}") == recording.table
