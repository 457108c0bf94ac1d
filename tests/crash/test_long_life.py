"""Thousands of micro-batches and dozens of restarts of one query: files, memory and time to start level off."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.killed_child import COLUMNS, Orders, land
from tests.support.places_world import differences

BATCHES = int(os.environ.get("LIFE", "2000"))
HOST = os.environ.get("LIFE_HOST", "applyInPandasWithState")
STARTS, JVMS = int(os.environ.get("LIFE_STARTS", "50")), 10
BEYOND = 5
"""Micro-batches that a query may begin before it is stopped."""
A_FILE, EVERY_MS = 20, 30_000
MOST_GROWTH = 1.25
LEVELLED = ("state", "spark", "staging", "entries", "driver", "jvm", "workers")
TIMES = ("restart_s", "batch_s")
"""Printed alone: others use the machine."""


def noted(folder: Path) -> list[dict[str, Any]]:
    """What was noted after each start so far."""
    life = folder / "life.jsonl"
    return [json.loads(line) for line in life.read_text(encoding="utf-8").splitlines()] if life.exists() else []


@pytest.mark.slow
@pytest.mark.spark
def test_two_thousand_micro_batches_with_fifty_restarts_leave_what_a_few_leave(tmp_path: Path) -> None:
    folder = tmp_path
    a_start, starts = BATCHES // STARTS, STARTS // JVMS
    (folder / HOST).mkdir(parents=True, exist_ok=True)
    driver = JobProcess(folder, folder / HOST / "checkpoint", (sys.executable, "-m", "tests.support.long_life_child"))
    while len(noted(folder)) < STARTS:
        files = len(list((folder / "orders").glob("*.json")))
        needed = driver.last_commit() + 1 + starts * (a_start + BEYOND)
        land(folder, range(files, max(files, needed)), A_FILE, EVERY_MS)
        driver.start(HOST, str(starts), str(a_start))
        assert driver.exit_code(seconds=4 * 3600) == 0, driver.said()
    world = Orders(len(list((folder / "orders").glob("0*.json"))) * A_FILE, EVERY_MS)
    world.land_closing(folder)
    ending = JobProcess(folder, folder / HOST / "checkpoint", (sys.executable, "-m", "tests.support.killed_child"))
    ending.start(HOST, "--end")
    assert ending.exit_code(seconds=3600) == 0, ending.said()
    assert differences(delta_rows(folder / HOST / "table", COLUMNS), world.expected()) == {}
    assert grown(noted(folder)) == {}


def grown(life: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What there is more of in the last quarter of the starts than in the second one, by quarters."""
    for at in life:
        print(" ".join(f"{name}={shown(name, value)}" for name, value in at.items()))
    quarter, found = max(1, len(life) // 4), {}
    for name in (*TIMES, *LEVELLED) if life else ():
        parts = (life[first : first + quarter] for first in range(0, min(4 * quarter, len(life)), quarter))
        quarters = [median(at[name] for at in part) for part in parts]
        print(f"{name} by quarters: {', '.join(shown(name, each) for each in quarters)}")
        if name in LEVELLED and quarters[-1] > quarters[len(quarters) // 2 - 1] * MOST_GROWTH:
            found[name] = quarters
    return found


def shown(name: str, value: float) -> str:
    """A time to a tenth, memory in MiB."""
    return f"{value:.1f}" if name in TIMES else f"{value / (1 << 20):.0f}M" if value > 1 << 20 else f"{value:.0f}"
