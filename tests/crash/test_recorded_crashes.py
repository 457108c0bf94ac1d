"""Crashes on Spark, recorded as they happen and played again in the simulation, which ends with the same table."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from spark_purgatory.spark.sink.drain.sender import Beside
from tests.simulation.recorded import LAST, RecordedRun, Recording, replayed
from tests.support.delta_files import delta_rows
from tests.support.lanes import BLOB, LOG
from tests.support.replays import BEGIN, Died, Replays, Settings

MINUTES = 15
TIMEOUTS = (2, 3, 2, 4)
DAY_US = 86_400_000_000
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000 - DAY_US
"""Times of a recording are counted from here."""
CRASHES = int(os.environ.get("RECORDED", "13"))


class Recorded(Replays):
    """Rows, and what became of each run."""

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

    def numbers(self, folder: str) -> list[int]:
        return [int(path.name) for path in (self.folder / "checkpoint" / folder).glob("[0-9]*")]

    def recorded_run(self, multiple: int, settings: dict[str, int], failpoint: str = "") -> RecordedRun:
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
                self.run(Settings(timeout=f"{MINUTES * multiple} minutes", **settings))
        except (StreamingQueryException, Died) as error:
            assert "Died" in f"{type(error)}{error}", error
            crashed = failpoint
        finally:
            actions.hook = None
        ends = (max(self.numbers(name), default=-1) for name in ("offsets", "commits"))
        return RecordedRun(multiple, crashed, *ends)

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


def _us(at: Any) -> int:
    return round((at - BEGIN).total_seconds() * 1_000_000) + DAY_US


def record(spark: SparkSession, folder: Path, host: str, emit: str, first: int) -> Recording:
    """A query that crashes again and again, and what it was."""
    lane = Recorded(spark, folder, host, emit, {"linger": "0 seconds"}, seed=first)
    runs, settings = [], cycle([{}, {"order": 1, "partitions": 3}, {"order": 7}, {"order": 2, "partitions": 2}])
    for number, multiple in zip(range(CRASHES), cycle(TIMEOUTS)):
        lane.land_some()
        lane.land_some()
        failpoint = FAILPOINTS[(first + number) % len(FAILPOINTS)]
        runs.append(lane.recorded_run(multiple, next(settings), failpoint))
    runs.append(lane.recorded_run(2, {}))
    for minutes in (10_000, 20_000):
        lane.land([(f"{LAST}{minutes}", minutes)], [("nobody", minutes)])
        runs.append(lane.recorded_run(2, {}))
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
    recording = record(spark, tmp_path / "lane", host, emit, first)
    if keep := os.environ.get("KEEP_RECORDINGS"):
        Path(keep, f"{host}_{emit}.json").write_text(json.dumps(recording._asdict()), encoding="utf-8")
    crashes = [run.crashed_at for run in recording.runs if run.crashed_at]
    print(f"{host}, {emit}: {len(crashes)} crashes of {CRASHES} runs, {sum(recording.table.values())} outcomes")
    assert replayed(recording, f"recorded {host} {emit}") == recording.table
