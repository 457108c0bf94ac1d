"""Streams of the law on both hosts, the log host's under faults.

``python -m tests.support.hosts_child FOLDER FIRST N``

For each of N seeds a line of JSON goes to ``FOLDER/found.jsonl``: how often the log host differs from the blob host,
the blob host from the oracle, and batch from the oracle; and what was among the stream, so that the test can tell that
it tried what it says.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import LOG_HOST_SETTINGS
from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.host.exchange import unix_sockets
from spark_purgatory.testing.kit import stream_outcomes
from tests.support.engine_driver import multiset
from tests.support.faulty_host import ACTIONS, FaultyHost
from tests.support.law_streams import COLUMNS, law_stream

WORLDS = 8
"""That share a stream."""
ROUTES = ("faults", "cold", "cold and faults", "warm")


def main(folder: Path, first: int, count: int) -> None:
    """Run every seed's streams, and compare."""
    builder = SparkSession.builder.master("local[2,6]").config("spark.sql.shuffle.partitions", "2")
    needed = {**QUICK_SETTINGS, **LOG_HOST_SETTINGS, **unix_sockets(tempfile.gettempdir())}
    for name, value in {**needed, "spark.ui.enabled": "false", "spark.log.level": "FATAL"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with (folder / "found.jsonl").open("a", encoding="utf-8") as found:
        for seed in range(first, first + count):
            print(json.dumps(compared(spark, folder / str(seed), seed)), file=found, flush=True)
    spark.stop()


def compared(spark: SparkSession, folder: Path, seed: int) -> dict[str, Any]:
    """One seed: its stream on both hosts, and as a batch."""
    route = ROUTES[seed % len(ROUTES)]
    plan = planned(folder / "plan", seed, "faults" in route)
    log_host.LogHost = partial(FaultyHost, plan=str(plan))  # type: ignore[assignment,misc]
    stream = law_stream(seed, WORLDS)
    frames = stream.landed(folder).frames(spark, streaming=False)
    blob = stream.purgatory("applyInPandasWithState")
    log = stream.purgatory("transformWithState", **({"max_warm_bytes": 1} if "cold" in route else {}))
    stream_of = partial(stream_outcomes, seed=seed, batches=2 * stream.batches, restarts=2)
    of_blob, watermark_us = stream_of(blob, *frames, folder / "blob")
    of_log, _ = stream_of(log, *frames, folder / "log")
    rows = of_blob.collect()
    differences = {
        "log and blob": counted(of_log, *COLUMNS, "late", "reason") - counted(of_blob, *COLUMNS, "late", "reason"),
        "blob and log": counted(of_blob, *COLUMNS, "late", "reason") - counted(of_log, *COLUMNS, "late", "reason"),
        "blob and oracle": either(counted(of_blob, *COLUMNS), stream.expected(watermark_us)),
        "batch and oracle": either(counted(blob.resolve(*frames), *COLUMNS), stream.expected(None)),
    }
    return {
        "seed": seed,
        "route": route,
        "rows": len(rows),
        "late": sum(bool(row["late"]) for row in rows),
        "statuses": Counter(row["status"] for row in rows),
        "faults": len(list(plan.glob("done *"))),
        "differences": {name: sum(rows.values()) for name, rows in differences.items()},
    }


def planned(plan: Path, seed: int, wanted: bool) -> Path:
    """A folder of faults: what happens, and where."""
    rng = random.Random(seed)
    plan.mkdir(parents=True)
    for number in range(5 if wanted else 0):
        (plan / f"{number:02} {rng.choice(ACTIONS)} {rng.choice(log_host.FAILPOINTS)}").touch()
    return plan


def counted(frame: DataFrame, *columns: str) -> Counter[Any]:
    """The rows of a DataFrame."""
    return multiset((row.asDict() for row in frame.collect()), *columns)


def either(left: Counter[Any], right: Counter[Any]) -> Counter[Any]:
    """Rows of one that the other lacks."""
    return (left - right) + (right - left)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
