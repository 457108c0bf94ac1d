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
from operator import itemgetter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, Purgatory
from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.host import log_host
from spark_purgatory.spark.host.exchange import unix_sockets
from tests.support.engine_driver import multiset
from tests.support.faulty_host import ACTIONS, FaultyHost
from tests.support.law_streams import COLUMNS, LawStream, law_stream, with_file_columns
from tests.support.stream_kit import stream_outcomes
from tests.support.streams import Landing

WORLDS = 8
"""That share a stream."""
LATE_BATCHES = 6
ALL = (*COLUMNS, "late", "reason")
Compared = tuple[list[dict[str, Any]], dict[str, Counter[Any]]]
ROUTES = ("faults", "cold", "cold and faults", "warm")


def main(folder: Path, first: int, count: int) -> None:
    """Run every seed's streams, and compare."""
    builder = SparkSession.builder.master("local[2,6]").config("spark.sql.shuffle.partitions", "2")
    needed = {**QUICK_SETTINGS, **STATE_STORE_SETTINGS, **unix_sockets(tempfile.gettempdir())}
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
    blob = stream.purgatory("applyInPandasWithState")
    log = stream.purgatory("transformWithState", **({"max_warm_bytes": 1} if "cold" in route else {}))
    if seed // len(ROUTES) % 2:
        rows, differences = with_late_rows(spark, stream, folder, seed, blob, log)
    else:
        rows, differences = without_late_rows(spark, stream, folder, seed, blob, log)
    return {
        "seed": seed,
        "route": route,
        "rows": len(rows),
        "late": sum(bool(row["late"]) for row in rows),
        "statuses": Counter(str(row["status"]) for row in rows),
        "faults": len(list(plan.glob("done *"))),
        "differences": {name: sum(rows.values()) for name, rows in differences.items()},
    }


def without_late_rows(
    spark: SparkSession, stream: LawStream, folder: Path, seed: int, blob: Purgatory, log: Purgatory
) -> Compared:
    """In any order that no watermark forbids, with a restart: what a batch and the oracle give as well."""
    frames = stream.landed(folder).frames(spark, streaming=False)
    stream_of = partial(stream_outcomes, seed=seed, batches=stream.batches)
    of_blob, watermark_us = stream_of(blob, *frames, folder / "blob")
    of_log, _ = stream_of(log, *frames, folder / "log")
    rows = rows_of(of_blob)
    return rows, {
        "log and blob": either(multiset(rows_of(of_log), *ALL), multiset(rows, *ALL)),
        "blob and oracle": either(multiset(rows, *COLUMNS), stream.expected(watermark_us)),
        "batch and oracle": either(multiset(rows_of(blob.resolve(*frames)), *COLUMNS), stream.expected(None)),
    }


def with_late_rows(
    spark: SparkSession, stream: LawStream, folder: Path, seed: int, blob: Purgatory, log: Purgatory
) -> Compared:
    """A third of the rows come in a later micro-batch than their time says, many of them behind the watermark.

    What is late depends on the order of arrival, so only the hosts can be compared, over the same micro-batches.
    """
    rng = random.Random(seed)
    sides = [sorted(rows, key=itemgetter(time)) for rows, time in zip(stream.world, ("created", "time"), strict=True)]
    batches: list[tuple[list[Any], list[Any]]] = [([], []) for _ in range(LATE_BATCHES)]
    for side, rows in enumerate(sides):
        for place, row in enumerate(rows):
            batch = place * LATE_BATCHES // len(rows)
            batches[rng.randrange(batch, LATE_BATCHES) if rng.random() < 1 / 3 else batch][side].append(row)
    landing = Landing(folder)
    found: dict[str, list[dict[str, Any]]] = {}
    for half in (batches[: LATE_BATCHES // 2], batches[LATE_BATCHES // 2 :]):
        for operations, events in half:
            landing.add(*([with_file_columns(row) for row in rows] for rows in (operations, events)))
        for name, purgatory in (("blob", blob), ("log", log)):
            found[name] = Landing(folder, name).run(spark, purgatory)
    frames = landing.frames(spark, streaming=False)
    return found["blob"], {
        "log and blob": either(multiset(found["log"], *ALL), multiset(found["blob"], *ALL)),
        "batch and oracle": either(multiset(rows_of(blob.resolve(*frames)), *COLUMNS), stream.expected(None)),
    }


def planned(plan: Path, seed: int, wanted: bool) -> Path:
    """A folder of faults: what happens, and where."""
    rng = random.Random(seed)
    plan.mkdir(parents=True)
    for number in range(5 if wanted else 0):
        (plan / f"{number:02} {rng.choice(ACTIONS)} {rng.choice(log_host.FAILPOINTS)}").touch()
    return plan


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a DataFrame."""
    return [row.asDict() for row in frame.collect()]


def either(left: Counter[Any], right: Counter[Any]) -> Counter[Any]:
    """Rows of one that the other lacks."""
    return (left - right) + (right - left)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
