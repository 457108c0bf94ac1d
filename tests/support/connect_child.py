"""Through Spark Connect, in a process of its own: ``python -m tests.support.connect_child ROLE FOLDER``.

A Connect session and a classic one do not live in one process. What was seen goes to ``seen.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
    gauges,
    pending,
)
from spark_purgatory.errors import ConfigError
from tests.support.children import only_connect_server, run_module
from tests.support.crash_child import builder_with, quick

PURGATORY = Purgatory(
    operations=Operations(id="id", keys="id", created="at", timeout="1 minute", watermark="0 seconds"),
    completions=Completions(key="key", time="at", watermark="0 seconds"),
    criterion=criteria.any_key(),
    shards=1,
)
WAIT_SECONDS = 600


def session(folder: Path, with_delta: bool) -> SparkSession:
    """A client, and the server that it starts."""
    builder = SparkSession.builder.remote("local[2]")
    return (builder_with(builder, folder) if with_delta else quick(builder)).getOrCreate()


def statuses(rows: DataFrame) -> dict[str, int]:
    """How many outcomes there are of each kind."""
    return {row["status"]: row["count"] for row in rows.groupBy("status").count().collect()}


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except (ConfigError, PySparkException) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def write_through_sink(spark: SparkSession, folder: Path) -> None:
    """A purgatory and its sink: stage, refuse, close."""
    operations, completions = (str(folder / name) for name in ("operations", "completions"))
    streams = [
        spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
        for schema, path in (("id bigint, at timestamp", operations), ("key bigint, at timestamp", completions))
    ]
    outcomes = PURGATORY.resolve(streams[0], streams[1])
    place, checkpoint = folder / "it's `the` table", folder / "checkpoint"
    sink = RecordAccumulator(path=str(place), partition_by=["status"], linger="1 hour", delivery_timeout="1 hour")
    sink.write_stream(outcomes, checkpoint=str(checkpoint), trigger={"processingTime": "2 seconds"})
    deadline_s = time.monotonic() + WAIT_SECONDS
    while not (checkpoint / "commits" / "2").exists() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert (checkpoint / "commits" / "2").exists(), "three micro-batches"
    staged = statuses(sink.read(spark, staged=True))
    lingers = not sink.table_exists(spark)
    refused = [refusal(sink.flush)]
    sink.close()
    closed = statuses(sink.read(spark))
    seen = {"staged": staged, "lingers": lingers, "refused": refused, "closed": closed}
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


def read_log_host(spark: SparkSession, folder: Path) -> None:
    for name, value in STATE_STORE_SETTINGS.items():
        spark.conf.set(name, value)
    read_gauges(spark, folder, replace(PURGATORY, host="transformWithState"))


def read_gauges(spark: SparkSession, folder: Path, purgatory: Purgatory = PURGATORY) -> None:
    """What waits, before a stream has run and after."""
    checkpoint = str(folder / "checkpoint")
    seen: dict[str, object] = {"before": refusal(lambda: gauges(spark, checkpoint=checkpoint))}
    streams = [
        spark.readStream.schema(schema).parquet(str(folder / name))
        for schema, name in (("id bigint, at timestamp", "operations"), ("key bigint, at timestamp", "completions"))
    ]
    query = (
        purgatory.resolve(streams[0], streams[1]).writeStream.format("noop").option("checkpointLocation", checkpoint)
    )
    query.trigger(availableNow=True).start().awaitTermination()
    seen["after"] = gauges(spark, checkpoint=checkpoint)
    seen["pending"] = {row["id"]: row["progress"] for row in pending(spark, checkpoint=checkpoint).collect()}
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def land(folder: Path, name: str, hour: int, key: str, keys: range) -> None:
    """One file of rows, all of one time."""
    (folder / name).mkdir(exist_ok=True)
    times = pa.array([NOON + timedelta(hours=hour)] * len(keys), pa.timestamp("us", "UTC"))
    path = folder / name / f"{hour}.parquet"
    pq.write_table(pa.table({key: list(keys), "at": times}), path)
    os.utime(path, (1_700_000_000 + hour, 1_700_000_000 + hour))


def run_child(role: str, folder: Path) -> None:
    """A part of `connect_child`; it must end well."""
    with only_connect_server():
        run_module("tests.support.connect_child", role, str(folder))


if __name__ == "__main__":
    ROLES: dict[str, Callable[[SparkSession, Path], None]] = {
        "sink": write_through_sink,
        "gauges": read_gauges,
        "gauges of the log host": read_log_host,
    }
    role, at = sys.argv[1], Path(sys.argv[2])
    ROLES[role](session(at, with_delta=role == "sink"), at)
