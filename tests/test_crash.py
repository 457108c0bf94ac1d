"""SIGKILL at every failpoint of the sink, each followed by a restart: nothing lost, nothing doubled.

The same harness, with a bug planted in the protocol, must see it: it would be worth nothing otherwise.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_purgatory.spark.failpoints import FAILPOINTS
from tests.crash_child import BUGS

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
FEW, MANY = (4, 500), (8, 2500)
"""Micro-batches, rows in each; the second are the 20,000 rows of the long series."""


def land(folder: Path, batches: int, rows: int) -> int:
    (folder / "in").mkdir(parents=True)
    for batch in range(batches):
        numbers = range(batch * rows, (batch + 1) * rows)
        columns = {
            "n": list(numbers),
            "part": [n % PARTITIONS for n in numbers],
            "text": [f"{n * 2654435761 % 2**32:032x}" for n in numbers],
        }
        path = folder / "in" / f"{batch:03d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return batches * rows


def child(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.crash_child", str(folder), *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )


def verdict(folder: Path, rows: int, kill: str, bug: str | None = None) -> str:
    """Kill a run, run again; "" if the table has every row once, else what is wrong."""
    planted = ["--bug", bug] if bug else []
    killed = child(folder, "--kill", kill, *planted)
    if killed.returncode != -signal.SIGKILL:
        return f"not killed at {kill!r}, but ended with {killed.returncode}: {killed.stderr[-1500:]}"
    restarted = child(folder, *planted)
    if restarted.returncode != 0:
        return f"did not recover: {restarted.stderr[-1500:]}"
    lines = (folder / "numbers.txt").read_text(encoding="utf-8").splitlines()
    counts = {int(n): int(count) for n, count in map(str.split, lines)}
    lost = sum(n not in counts for n in range(rows))
    doubled = sum(count > 1 for count in counts.values())
    unexpected = sum(not 0 <= n < rows for n in counts)
    return f"{lost} lost, {doubled} doubled, {unexpected} unexpected" if lost or doubled or unexpected else ""


@pytest.mark.spark
@pytest.mark.parametrize("failpoint", ["after drain commit"])
def test_a_kill_loses_and_doubles_nothing(failpoint: str, tmp_path: Path) -> None:
    rows = land(tmp_path, *FEW)
    assert verdict(tmp_path, rows, failpoint) == ""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_kill_at_any_failpoint_loses_and_doubles_nothing(failpoint: str, tmp_path: Path) -> None:
    rows = land(tmp_path, *MANY)
    assert verdict(tmp_path, rows, failpoint) == ""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("bug", BUGS)
def test_the_harness_sees_a_planted_bug(bug: str, tmp_path: Path) -> None:
    rows = land(tmp_path, *FEW)
    found = verdict(tmp_path, rows, BUGS[bug][1], bug)
    assert found, f"{bug} went unseen"
    assert not found.startswith("not killed"), found
