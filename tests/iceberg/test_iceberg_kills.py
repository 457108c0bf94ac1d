"""SIGKILL at the sink's failpoints and around the pick, next to a writer that appends, compacts and expires."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain.failpoints import FAILPOINTS
from tests.support import iceberg_lake as world
from tests.support.iceberg_child import TABLE
from tests.support.iceberg_lake import append, expire, has_iceberg, numbers, rewrite

if not has_iceberg(pyspark.__version__):
    pytest.skip("Iceberg has no runtime for this Spark: make test-iceberg", allow_module_level=True)
pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
POINTS = ("after pick", "before pick", *(FAILPOINTS if os.environ.get("EVERY_CASE") else ("after commit",)))
ROWS, FILES = (800, 2)
UNKNOWN = re.compile(r"spark_purgatory\.intent\.([0-9a-f-]{36})")


class Neighbour(Thread):
    """Appends, compacts and expires until it is told to stop; others' commits may make a try of it fail."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(daemon=True)
        self.spark, self.ends, self.done = spark, Event(), Counter[str]()

    def run(self) -> None:
        steps = {"append": lambda: append(self.spark, TABLE, world.OF_OTHERS)}
        steps |= {"rewrite": lambda: rewrite(self.spark, TABLE), "expire": lambda: expire(self.spark, TABLE)}
        while not self.ends.is_set():
            for name, step in steps.items():
                try:
                    step()
                    self.done[name] += 1
                except Exception as error:
                    self.done[f"{name}: {type(error).__name__}"] += 1
                if self.ends.wait(0.5):
                    return


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def spark(lake: Path) -> Iterator[SparkSession]:
    session = world.session(lake)
    yield session
    session.stop()


def land(lake: Path, number: int) -> None:
    (lake / "in").mkdir(exist_ok=True)
    for file in range(number * FILES, (number + 1) * FILES):
        found = range(file * ROWS, (file + 1) * ROWS)
        path = lake / "in" / f"{file:03d}.parquet"
        pq.write_table(pa.table({"n": list(found), "part": [n % 4 for n in found]}), path)
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))


def child(lake: Path, point: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.iceberg_child", str(lake), point]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)


def answered(spark: SparkSession, lake: Path, said: str) -> bool:
    """Whether the run stopped because nobody knows; then the owner looks at the rows, and says it."""
    found = UNKNOWN.search(said)
    if found is None:
        return False
    spark.sql(f"REFRESH TABLE {TABLE}")
    there = numbers(spark.table(TABLE))
    staging = lake / "checkpoint" / "staging"
    entries = [path.read_text() for path in (staging / "log").rglob("*") if path.is_file() and path.suffix != ".crc"]
    body = json.loads(json.loads(next(text for text in entries if found[1] in text))["body"])
    taken = {n for path in body["taken"]["path"] for n in pq.read_table(staging / path)["n"].to_pylist()}
    assert taken <= {*there} or taken.isdisjoint(there)
    what = "committed" if taken <= {*there} else "not committed"
    spark.sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('spark_purgatory.intent.{found[1]}' = '{what}')")
    return True


def test_kills_beside_a_busy_neighbour_lose_and_double_nothing(spark: SparkSession, lake: Path) -> None:
    land(lake, 0)
    assert child(lake).returncode == 0
    neighbour = Neighbour(spark)
    neighbour.start()
    kills, stops = 0, 0
    for number, point in enumerate(POINTS, 1):
        land(lake, number)
        killed = child(lake, point)
        while killed.returncode != -signal.SIGKILL:
            assert answered(spark, lake, killed.stderr), f"{point}: {killed.returncode} {killed.stderr[-3000:]}"
            stops += 1
            killed = child(lake, point)
        kills += 1
    last = child(lake)
    while last.returncode:
        assert answered(spark, lake, last.stderr), last.stderr[-3000:]
        stops += 1
        last = child(lake)
    neighbour.ends.set()
    neighbour.join()
    spark.sql(f"REFRESH TABLE {TABLE}")
    found, rows = numbers(spark.table(TABLE)), ROWS * FILES * (len(POINTS) + 1)
    lost, doubled = rows - len(found), sum(count > 1 for count in found.values())
    print(
        f"{kills} kills, {stops} stops by name, {rows:,} rows: {lost} lost, {doubled} doubled; {dict(neighbour.done)}"
    )
    assert (lost, doubled) == (0, 0)
    assert neighbour.done["append"] and neighbour.done["rewrite"] and neighbour.done["expire"]
