"""SIGKILL at every step of a move: the old checkpoint is as it was, the new one refuses to start, a rerun works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import move_checkpoint
from spark_purgatory.spark.move import move
from tests.support.children import ROOT
from tests.support.lanes import Lane, batches_of, contents
from tests.support.law_streams import law_stream

pytestmark = pytest.mark.long


def kill_at(folder: Path, seed: int, failpoint: str) -> int:
    """Move in a process that dies there; its return code."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.support.move_child", str(folder), str(seed), failpoint]
    done = subprocess.run(command, cwd=ROOT, env=environment, start_new_session=True, capture_output=True, check=False)
    return done.returncode


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_a_move_that_is_killed_can_be_made_again(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    drawn = law_stream(seed, worlds=20)
    lane = Lane(spark, tmp_path, drawn, "parquet", tmp_path / "checkpoint")
    first, *others = batches_of(drawn, seed, 3)
    lane.add(first)
    lane.run()
    old, files, target = lane.checkpoint, contents(lane.checkpoint), tmp_path / "moved"
    lane.shards = 5
    for failpoint in move.FAILPOINTS:
        assert kill_at(tmp_path, seed, failpoint) == -signal.SIGKILL
        assert contents(old) == files, failpoint
        lane.checkpoint = target
        with pytest.raises(Exception, match="Unrecognized token 'half_of_a_checkpoint"):
            lane.run()
    move_checkpoint(spark, lane.outcomes(), source=str(old), target=str(target))
    assert contents(old) == files
    for batch in others:
        lane.add(batch)
        lane.run()
    assert lane.table() == lane.expected()
