"""SIGKILL at every failpoint of the sink, each followed by a restart: nothing lost, nothing doubled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
NAMED_ERROR = re.compile(r"spark_purgatory\.errors\.(\w+: [^\n]*)")


def land(folder: Path, batches: int, rows: int, first: int = 0) -> int:
    """Files of micro-batches ``first`` and on; returns the rows of all so far."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
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


def child(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.crash_child", str(folder), *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert CANARY not in ended.stdout + ended.stderr
    assert not list(folder.rglob(f"*{CANARY}*"))
    return ended


def kill(folder: Path, failpoint: str, *arguments: str) -> str:
    """Run until the failpoint is reached; "" if that killed it. In parts: leaving half of them."""
    killed = child(folder, "--kill", "after stage" if failpoint == IN_STAGE else failpoint, *arguments)
    if killed.returncode == -signal.SIGKILL:
        if failpoint == IN_STAGE:
            halve(
                max(
                    folder.glob("checkpoint/staging/rows/*/epoch=*/batch=*/*.parquet"),
                    key=lambda path: path.parent.name,
                )
            )
        return ""
    return f"not killed at {failpoint!r}, but ended with {killed.returncode}: {killed.stderr[-1500:]}"


def verdict(folder: Path, rows: int, *arguments: str) -> str:
    """Run to the end; "" if the table has every row once, else what is wrong."""
    restarted = child(folder, *arguments)
    if restarted.returncode != 0:
        named = NAMED_ERROR.search(restarted.stderr)
        return f"did not recover: {named[1] if named else restarted.stderr[-1500:]}"
    lines = (folder / "numbers.txt").read_text(encoding="utf-8").splitlines()
    return wrong({int(n): int(count) for n, count in map(str.split, lines)}, rows)


def wrong(counts: Mapping[int, int], rows: int) -> str:
    """What is wrong with a table that has each row so often."""
    lost = sum(n not in counts for n in range(rows))
    doubled = sum(count > 1 for count in counts.values())
    unexpected = sum(not 0 <= n < rows for n in counts)
    return f"{lost} lost, {doubled} doubled, {unexpected} unexpected" if lost or doubled or unexpected else ""


def kill_in_turn(folder: Path, failpoints: Sequence[str], *arguments: str) -> int:
    """Each restart takes up what the kill before it left, and is killed at the next failpoint; the rows so far."""
    rows = 0
    for number, failpoint in enumerate(failpoints):
        rows = land(folder, *FEW, first=FEW[0] * number)
        assert kill(folder, failpoint, *arguments) == ""
    return rows


@pytest.mark.parametrize("failpoint", ["after commit", *now_and_then(IN_STAGE)])
def test_a_kill_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path, failpoint: str) -> None:
    rows = kill_in_turn(tmp_path, (failpoint,))
    run(spark, tmp_path)
    assert wrong(numbers(spark, tmp_path), rows) == ""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("place", [(), ("--by-name",)], ids=["path", "name"])
def test_kills_at_every_failpoint_in_turn_lose_and_double_nothing(tmp_path: Path, place: tuple[str, ...]) -> None:
    rows = kill_in_turn(tmp_path, (*FAILPOINTS, IN_STAGE), *place)
    assert rows >= 20_000
    assert verdict(tmp_path, rows, *place) == ""
