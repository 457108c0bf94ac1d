"""A micro-batch that is run again may be another one; each operation has one outcome all the same.

The series ends micro-batches with an error at every failpoint of the sink, and each restart differs from the run before
it in the order of rows, in partitions, in the time-out or in the engine's steps.
"""

from __future__ import annotations

import os
from itertools import cycle, product
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.drain.actions import FAILPOINTS
from tests.support.replays import Died, Replays, Settings

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


def walk(replays: Replays, crashes: int) -> tuple[int, int]:
    """That many restarts, each crashed at the next failpoint; how many crashed, and how many were stopped by name."""
    crashed = refused = 0
    for failpoint, settings, _ in zip(cycle(FAILPOINTS), cycle(SETTINGS), range(crashes), strict=False):
        replays.land_some()
        replays.land_some()

        def hook(reached: str, failpoint: str = failpoint) -> None:
            if reached == failpoint:
                raise Died(failpoint)

        actions.hook = hook
        try:
            replays.run(settings)
        except (StreamingQueryException, Died) as error:
            crashed += "Died" in f"{type(error)}{error}"
            refused += "entries of version" in str(error) or "StateVersionError" in str(error)
            # The last is a crash as well, of a loaded machine.
            if not any(each in f"{type(error)}{error}" for each in ("Died", "StateVersionError", "connect back")):
                raise
        finally:
            actions.hook = None
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
