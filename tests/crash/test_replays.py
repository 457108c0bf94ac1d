"""A micro-batch that is run again may be another one; each operation has one outcome all the same.

A scene ends with a real kill. The series ends micro-batches with an error at every failpoint of the sink, and each
restart differs from the run before it in the order of rows, in partitions, in the time-out or in the engine's steps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import count, cycle, product
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain import failpoints
from spark_purgatory.spark.sink.drain.failpoints import FAILPOINTS
from tests.support.crash_child import kill_at, session
from tests.support.replays import Died, Replays, Settings

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("applyInPandasWithState", "transformWithState")
AT_ONCE = {"linger": "0 seconds"}
STAGED = {"linger": "1 hour", "delivery_timeout": "1 hour", "batch_size": "6 KiB"}
SETTINGS = (
    Settings(),
    Settings(order=1, partitions=3),
    Settings(timeout="60 minutes"),
    Settings(order=7),
    Settings(order=2, partitions=2, steps=Settings().steps + 1),
    Settings(timeout="45 minutes", order=3, partitions=4),
)
DIFFERS = Settings(timeout="60 minutes", order=5, partitions=4)
"""From `Settings()` in the order of rows, in partitions and in the time-out."""


def scene(spark: SparkSession, folder: Path, host: str) -> Replays:
    """Orders with two rows, and payments whose order another time-out decides in another way."""
    replays = Replays(spark, folder, host, "early", AT_ONCE, seed=0)
    pairs = [(f"twin{number}", 0.0) for number in range(8) for _ in range(2)]
    replays.land([*pairs, ("o1", 0.0), ("o2", 0.0)], [("o1", 45.0), ("o2", 10.0)])
    replays.land([("later", 300.0)], [("later", 301.0)])
    return replays


def main() -> None:
    """The run that is killed: ``python -m tests.crash.test_replays FOLDER HOST[,HOST] FAILPOINT``.

    With several hosts, the queries before the last one stand at the failpoint when the process is killed.
    """
    folder, hosts, failpoint = sys.argv[1:]
    spark = session(Path(folder))
    *others, last = hosts.split(",")
    for host in others:
        replays, stands = scene(spark, Path(folder) / host, host), threading.Event()

        def stand(reached: str, stands: threading.Event = stands) -> None:
            if reached == failpoint:
                stands.set()
                threading.Event().wait()

        failpoints.hook = stand
        threading.Thread(target=replays.run, args=(Settings(),), daemon=True).start()
        assert stands.wait(600), f"{host} has not come to {failpoint}"
    replays = scene(spark, Path(folder) / last, last)
    failpoints.hook = kill_at(failpoint)
    replays.run(Settings())


def kill(folder: Path, hosts: Sequence[str]) -> Path:
    """Run the scene on each host, and kill all as they return from micro-batch 0."""
    command = [sys.executable, "-m", "tests.crash.test_replays", str(folder), ",".join(hosts), "before return"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, start_new_session=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-2000:]
    for host in hosts:
        checkpoint = folder / host / "checkpoint"
        assert (checkpoint / "offsets" / "0").exists() and not (checkpoint / "commits" / "0").exists(), host
    return folder


def left(spark: SparkSession, folder: Path, again: Path, host: str) -> Replays:
    """What `kill` has left of a host's scene."""
    replays = Replays(spark, again, host, "early", AT_ONCE, seed=0)
    replays.folder, replays.rows, replays.files = folder / host, 19, 2
    replays.ids = {f"twin{number}" for number in range(8)} | {"o1", "o2", "later"}
    return replays


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scene was killed on both hosts."""
    return kill(tmp_path_factory.mktemp("killed"), HOSTS)


@pytest.mark.long
@pytest.mark.parametrize("host", HOSTS)
def test_after_a_kill_a_micro_batch_that_differs_gives_each_order_one_outcome(
    spark: SparkSession, tmp_path: Path, killed: Path, host: str
) -> None:
    """A second crash, in micro-batch 1, leaves what Spark has stored of the replay, and not what it had in memory."""
    replays, begun = left(spark, killed, tmp_path, host), count()

    def hook(reached: str) -> None:
        if reached == "before stage" and next(begun) == 1:
            raise Died(reached)

    failpoints.hook = hook
    with pytest.raises((StreamingQueryException, Died), match="before stage"):
        replays.run(DIFFERS)
    failpoints.hook = None
    replays.run(DIFFERS)
    replays.end(DIFFERS)
    assert replays.wrong() == ""


def walk(replays: Replays, crashes: int) -> tuple[int, int]:
    """That many restarts, each crashed at the next failpoint; how many crashed, and how many were stopped by name."""
    crashed = refused = 0
    for failpoint, settings, _ in zip(cycle(FAILPOINTS), cycle(SETTINGS), range(crashes), strict=False):
        replays.land_some()
        replays.land_some()

        def hook(reached: str, failpoint: str = failpoint) -> None:
            if reached == failpoint:
                raise Died(failpoint)

        failpoints.hook = hook
        try:
            replays.run(settings)
        except (StreamingQueryException, Died) as error:
            crashed += "Died" in f"{type(error)}{error}"
            refused += "entries of version" in str(error) or "StateVersionError" in str(error)
            # The last is a crash as well, of a loaded machine.
            if not any(each in f"{type(error)}{error}" for each in ("Died", "StateVersionError", "connect back")):
                raise
        finally:
            failpoints.hook = None
    return crashed, refused


@pytest.mark.slow
@pytest.mark.parametrize(("host", "emit", "options"), list(product(HOSTS, ("early", "final"), (AT_ONCE, STAGED))))
def test_crashes_at_every_failpoint_with_replays_that_differ_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, host: str, emit: str, options: dict[str, str]
) -> None:
    crashes = int(os.environ.get("REPLAYS", "48"))
    replays = Replays(spark, tmp_path / "lane", host, emit, options, seed=HOSTS.index(host))
    crashed, refused = walk(replays, crashes)
    replays.run(Settings())
    replays.end(Settings())
    print(f"{host}, {emit}, {options}: {crashed} crashes, {refused} stopped by name, {replays.rows} rows")
    assert replays.wrong() == ""
    assert crashed >= crashes * 0.6


if __name__ == "__main__":
    main()
