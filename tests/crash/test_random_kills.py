"""SIGKILL of the whole driver at random moments, again and again in one checkpoint, while a reader reads the table."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.children import until
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.killed_child import A_FILE, COLUMNS, Orders, ends_s, land
from tests.support.lanes import BLOB, LOG
from tests.support.places_world import TIMEOUT_S, differences

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("KILLS_SEED", "1"))
HOSTS = (BLOB, LOG)
AHEAD = 12
"""Files that wait for the driver when it is started: more than it reads before it is killed."""
MICRO_BATCH_S = A_FILE + TIMEOUT_S
"""No micro-batch brings the watermark forward by more."""


class Reader(threading.Thread):
    """Reads the whole table again and again, and notes what no reader may see."""

    def __init__(self, table: Path) -> None:
        super().__init__(daemon=True)
        self.table, self.reads, self.faults = table, 0, list[str]()
        self.ended = threading.Event()
        self.seen: Counter[tuple[str, str]] = Counter()

    def run(self) -> None:
        """Until it is told to end."""
        while not self.ended.wait(3):
            try:
                self.read()
            except Exception as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    def read(self) -> None:
        """One read: each row once, all that the read before it had, and all of the micro-batches before the last."""
        if not (self.table / "_delta_log" / f"{0:020}.json").exists():
            return
        rows = delta_rows(self.table, COLUMNS)
        now = Counter(zip(rows["order_id"].to_pylist(), rows["status"].to_pylist(), strict=True))
        twice = sum(count > 1 for count in now.values())
        gone = (self.seen - now).total()
        numbers = {int(name[6:]) for name, status in now if status != "DUPLICATE"}
        whole_s = max(map(ends_s, numbers), default=0) - MICRO_BATCH_S
        missing = sum(ends_s(number) < whole_s and number not in numbers for number in range(max(numbers, default=0)))
        if twice or gone or missing:
            self.faults.append(f"read {self.reads}: {twice} twice, {gone} gone, {missing} missing before the last")
        self.reads, self.seen = self.reads + 1, now


def last_commit(folder: Path, host: str) -> int:
    """The last micro-batch that a query has committed; -1 before the first."""
    return max((int(path.name) for path in (folder / host / "checkpoint" / "commits").glob("[0-9]*")), default=-1)


def run_and_kill(driver: JobProcess, folder: Path, rng: random.Random) -> float | None:
    """Start the driver, and kill it: while it recovers, or after a micro-batch; seconds to the first commit."""
    behind = min(HOSTS, key=lambda each: last_commit(folder, each))
    host = rng.choice((*HOSTS, behind, behind))
    for each in HOSTS:
        (folder / each / "started").unlink(missing_ok=True)
    before, began_s, recovered_s = last_commit(folder, host), time.monotonic(), None
    driver.start(",".join(HOSTS))
    if rng.random() < 0.3:
        until(lambda: (folder / host / "started").exists() or not driver.is_alive())
        time.sleep(rng.uniform(0, 10))
    else:
        until(lambda: last_commit(folder, host) > before or not driver.is_alive())
        recovered_s = time.monotonic() - began_s
        time.sleep(rng.uniform(0, 4))
    assert driver.is_alive(), driver.said()
    driver.kill()
    return recovered_s


@pytest.mark.slow
@pytest.mark.spark
def test_kills_at_random_moments_lose_and_double_nothing_and_no_reader_sees_a_wrong_table(tmp_path: Path) -> None:
    """A kill ends two queries, one on each host."""
    rng, files, recoveries = random.Random(SEED), 0, list[float]()
    folder = tmp_path / "killed"
    for host in HOSTS:
        (folder / host).mkdir(parents=True)
    driver = JobProcess(folder, folder, (sys.executable, "-m", "tests.support.killed_child"))
    readers = [Reader(folder / host / "table") for host in HOSTS]
    for reader in readers:
        reader.start()
    for kill in range(1, KILLS + 1):
        needed = max(last_commit(folder, host) for host in HOSTS) + 1 + AHEAD
        land(folder, range(files, needed))
        files = max(files, needed)
        seconds = run_and_kill(driver, folder, rng)
        recoveries += [] if seconds is None else [seconds]
        came = [(last_commit(folder, host), reader.reads) for host, reader in zip(HOSTS, readers, strict=True)]
        print(f"kill {kill}: micro-batch and reads {came}, first commit after {seconds} s", flush=True)
    world = Orders(files * A_FILE)
    world.land_closing(folder)
    driver.start(",".join(HOSTS), "--end")
    code = driver.exit_code()
    for reader in readers:
        reader.ended.set()
        reader.join()
        reader.read()
    assert code == 0, driver.said()
    print(
        f"seed {SEED}: {KILLS} kills, {len(HOSTS) * world.expected().total()} outcomes, "
        f"{sum(reader.reads for reader in readers)} reads, first commit after "
        f"{sorted(recoveries)[len(recoveries) // 2]:.0f} s (median), {max(recoveries):.0f} s (longest)"
    )
    for host, reader in zip(HOSTS, readers, strict=True):
        assert differences(delta_rows(folder / host / "table", COLUMNS), world.expected()) == {}, host
        assert reader.faults == [], host
