"""SIGKILL at the sink's failpoints, and around write and pick, next to a writer that appends, compacts and expires."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from tests.support import iceberg_lake as world
from tests.support.delta_files import halve
from tests.support.iceberg_child import TABLE
from tests.support.iceberg_lake import append, expire, numbers, rewrite

ROOT = Path(__file__).resolve().parents[2]
IN_STAGE = "in stage"
"""A kill that leaves half of a staged file."""
FEW = ("after pick", "before pick", "after commit")
ALL = (IN_STAGE, *FAILPOINTS[:5], "before write", "before pick", "after pick", *FAILPOINTS[5:])
FILES = 2
"""Micro-batches to a kill."""
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
                if self.ends.wait(2):
                    return


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "killed"


@pytest.fixture
def spark(lake: Path) -> Iterator[SparkSession]:
    session = world.session(lake)
    yield session
    session.stop()


def land(lake: Path, number: int, rows: int) -> None:
    (lake / "in").mkdir(exist_ok=True)
    for file in range(number * FILES, (number + 1) * FILES):
        found = range(file * rows // FILES, (file + 1) * rows // FILES)
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


def run(spark: SparkSession, lake: Path, point: str = "") -> int:
    """A run to its end or its kill; how often it stopped by name before, and was told."""
    stops, due = 0, -signal.SIGKILL if point else 0
    while (ended := child(lake, "after stage" if point == IN_STAGE else point)).returncode != due:
        assert answered(spark, lake, ended.stderr), f"{point}: {ended.returncode} {ended.stderr[-3000:]}"
        stops += 1
    if point == IN_STAGE:
        halve(max(lake.glob("checkpoint/staging/rows/*/epoch=*/batch=*/*.parquet"), key=lambda path: path.parent.name))
    return stops


def verdict(spark: SparkSession, rows: int) -> str:
    """The table beside the rows that landed."""
    spark.sql(f"REFRESH TABLE {TABLE}")
    once = f"SELECT n, count(*) AS times FROM {TABLE} WHERE n > {world.OF_OTHERS} GROUP BY n"
    query = f"SELECT count_if(n < {rows}), count_if(times > 1), count_if(n >= {rows}) FROM ({once})"
    there, doubled, strange = spark.sql(query).collect()[0]
    return f"{rows - there} lost, {doubled} doubled, {strange} strange"


@pytest.mark.parametrize(
    ("points", "rows"),
    [
        (FEW, 1_600),
        *(pytest.param(ALL[at:to], 20_000, marks=pytest.mark.slow) for at, to in ((0, 6), (6, 11), (11, 16))),
    ],
    ids=["few", "before the commit", "in the commit", "after the commit"],
)
def test_kills_beside_a_busy_neighbour_lose_and_double_nothing(
    spark: SparkSession, lake: Path, points: Sequence[str], rows: int
) -> None:
    land(lake, 0, rows)
    run(spark, lake)
    neighbour = Neighbour(spark)
    neighbour.start()
    for number, point in enumerate(points, 1):
        land(lake, number, rows)
        stops = run(spark, lake, point)
        killed = verdict(spark, rows * (number + 1))
        stops += run(spark, lake)
        said = verdict(spark, rows * (number + 1))
        print(f"{point}: {rows:,} rows; after the kill {killed}; after the restart {said}; {stops} stops by name")
        assert said == "0 lost, 0 doubled, 0 strange", point
    neighbour.ends.set()
    neighbour.join()
    print(f"the neighbour: {dict(neighbour.done)}")
    assert neighbour.done["append"] and neighbour.done["rewrite"] and neighbour.done["expire"]
