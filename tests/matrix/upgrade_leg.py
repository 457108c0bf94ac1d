"""A leg of a checkpoint's way through releases of Spark.

``python -m tests.matrix.upgrade_leg FOLDER HOST SINK BATCHES``

It goes on with the checkpoint, which it first moves to other shards where SINK says so, and kills itself while its
third micro-batch is planned and not committed. With BATCHES 0 it runs to the end and compares what was written, over
all legs, with the oracle. What it finds goes as a line of JSON to ``FOLDER/found.jsonl``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, RecordAccumulator, gauges, move_checkpoint
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.demo.runner import QUICK_SETTINGS
from tests.matrix.cells import MOVED
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.streams import Landing

SEED, WORLDS, BATCHES = 7, 12, 24
PATIENCE_SECONDS = 240


def main(folder: Path, host: str, sink: str, batches: int) -> None:
    """One leg."""
    stream = law_stream(SEED, WORLDS)
    landing = stream.landed_in_batches(folder, SEED, BATCHES)
    moves = len(list(folder.glob("moved-*")))
    if moves:
        landing.checkpoint = folder / f"moved-{moves}"
    is_moved, sink = sink == MOVED and is_begun(landing), sink.partition(",")[0]
    spark = session(host, sink)
    found: dict[str, Any] = {"spark": spark.version}
    if is_begun(landing):
        # This release's reader, on the state that another release wrote.
        found["pending"] = gauges(spark, checkpoint=str(landing.checkpoint))["pending"]
        found["staged files"] = len(list(landing.checkpoint.glob("staging/**/*.parquet")))
    purgatory = replace(stream.purgatory(host), shards=stream.shards + moves + is_moved)
    outcomes = purgatory.resolve(*landing.frames(spark))
    if is_moved:
        source, landing.checkpoint = str(landing.checkpoint), folder / f"moved-{moves + 1}"
        moved = move_checkpoint(spark, outcomes, source=source, target=str(landing.checkpoint))
        assert moved.operations == found["pending"] == gauges(spark, checkpoint=str(landing.checkpoint))["pending"]
    if batches:
        until = landing.last_batch + batches + 1
        run_until_planned(start(outcomes, landing, sink, {"processingTime": "0 seconds"}), landing, until)
        note(folder, {**found, "killed in": until})
        os.killpg(os.getpgrp(), signal.SIGKILL)
    query = start(outcomes, landing, sink, {"availableNow": True})
    query.awaitTermination()
    if sink == "delta":
        query.flush()
    written = table(landing).read(spark) if sink == "delta" else spark.read.parquet(str(landing.outcomes))
    rows = multiset((row.asDict() for row in written.collect()), *COLUMNS)
    expected = stream.expected(landing.last_watermark_us)
    found |= {"outcomes": rows.total(), "wrong": (rows - expected).total(), "missing": (expected - rows).total()}
    note(folder, found)
    spark.stop()


def session(host: str, sink: str) -> SparkSession:
    """A session as an upgraded job would have it."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    settings = {
        **QUICK_SETTINGS,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    if host == LOG_HOST:
        settings |= STATE_STORE_SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    if sink == "delta":
        from delta import configure_spark_with_delta_pip

        from spark_purgatory.spark.sink.table.delta_target import DELTA_SETTINGS

        for name, value in {**DELTA_SETTINGS, "spark.databricks.delta.snapshotPartitions": "2"}.items():
            builder = builder.config(name, value)
        builder = configure_spark_with_delta_pip(builder)
    spark: SparkSession = builder.getOrCreate()
    return spark


def table(landing: Landing) -> RecordAccumulator:
    """Batches that are full after some micro-batches, and else wait: rows are staged when a leg ends."""
    return RecordAccumulator(path=str(landing.outcomes), batch_size=4 << 10, linger="1 hour", delivery_timeout="1 hour")


def start(outcomes: DataFrame, landing: Landing, sink: str, trigger: dict[str, Any]) -> Any:
    """The query."""
    checkpoint = str(landing.checkpoint)
    if sink == "delta":
        return table(landing).write_stream(outcomes, checkpoint=checkpoint, trigger=trigger)
    writer = outcomes.writeStream.format("parquet").option("path", str(landing.outcomes))
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def run_until_planned(query: Any, landing: Landing, batch_id: int) -> None:
    """Wait until the query has planned that micro-batch."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (landing.checkpoint / "offsets" / str(batch_id)).exists():
        if not query.isActive:
            query.awaitTermination()
        assert time.monotonic() < end, f"micro-batch {batch_id} was not planned in {PATIENCE_SECONDS} s"
        time.sleep(0.005)


def is_begun(landing: Landing) -> bool:
    return (landing.checkpoint / "commits" / "0").exists()


def note(folder: Path, found: dict[str, Any]) -> None:
    with (folder / "found.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps(found), file=file, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
