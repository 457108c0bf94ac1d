"""SIGKILL at the failpoints of the sink, followed by a restart: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from tests.support.crash_child import numbers, run
from tests.support.delta_files import halve
from tests.support.now_and_then import now_and_then

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 4
FEW = (2, 800)
"""Micro-batches, rows in each: enough for a drain."""
IN_STAGE = "in stage"
CANARY = "canary"
"""In every row, and so in no log and no file's name."""


def land(folder: Path, batches: int, rows: int, first: int = 0) -> int:
    """A file for each micro-batch, from ``first`` on; returns how many rows there are."""
    (folder / "in").mkdir(exist_ok=True)
    for batch in range(first, first + batches):
        numbers = range(batch * rows, (batch + 1) * rows)
        columns = {
            "n": list(numbers),
            "part": [n % PARTITIONS for n in numbers],
            "text": [f"{CANARY}{n * 2654435761 % 2**32:032x}" for n in numbers],
        }
        path = folder / "in" / f"{batch:03d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return (first + batches) * rows


def child(folder: Path, failpoint: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.crash_child", str(folder), failpoint]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert CANARY not in ended.stdout + ended.stderr
    assert not list(folder.rglob(f"*{CANARY}*"))
    return ended


def kill(folder: Path, failpoint: str) -> None:
    """Run until a failpoint; one in a stage is that after it, which leaves half of a file."""
    killed = child(folder, "after stage" if failpoint == IN_STAGE else failpoint)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-1500:]
    if failpoint == IN_STAGE:
        staged = folder.glob("checkpoint/staging/rows/*/epoch=*/batch=*/*.parquet")
        halve(max(staged, key=lambda path: path.parent.name))


@pytest.mark.parametrize("failpoint", ["after commit", *now_and_then(IN_STAGE)])
def test_a_kill_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path, failpoint: str) -> None:
    rows = land(tmp_path, *FEW)
    kill(tmp_path, failpoint)
    run(spark, tmp_path)
    assert numbers(spark, tmp_path) == dict.fromkeys(range(rows), 1)


@pytest.mark.slow
def test_kills_at_every_failpoint_in_turn_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Each restart takes up what the kill before it left, and is killed at the next failpoint."""
    rows = 0
    for number, failpoint in enumerate((*FAILPOINTS, IN_STAGE)):
        rows = land(tmp_path, *FEW, first=FEW[0] * number)
        kill(tmp_path, failpoint)
    assert rows >= 20_000
    run(spark, tmp_path)
    assert numbers(spark, tmp_path) == dict.fromkeys(range(rows), 1)
