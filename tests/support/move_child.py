"""A move in a process of its own that is killed: ``python -m tests.support.move_child FOLDER SEED FAILPOINT``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_purgatory.spark.move import move
from tests.support.lanes import Lane
from tests.support.law_streams import law_stream


def main(folder: Path, seed: int, wanted: str) -> None:
    """Move a lane from ``checkpoint`` to ``moved``; the process dies at the failpoint."""

    def reached(failpoint: str) -> None:
        if failpoint == wanted:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    move.reached = reached
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.log.level", "ERROR").getOrCreate()
    lane = Lane(spark, folder, law_stream(seed, worlds=20), "parquet", folder / "checkpoint", shards=5)
    source, target = str(lane.checkpoint), str(folder / "moved")
    move.move_checkpoint(spark, lane.outcomes(), source=source, target=target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
