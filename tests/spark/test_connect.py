"""The same two lines through Spark Connect: no JVM at hand, and the sink in the server's worker, not in the client."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.children import only_connect_server, run_module

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


@pytest.mark.spark
def test_a_purgatory_and_its_sink_run_under_spark_connect(tmp_path: Path) -> None:
    for hour, keys in enumerate((range(0, 10, 2), range(100, 101))):
        land(tmp_path, "operations", hour, "id", range(10 * hour, 10 * hour + 10))
        land(tmp_path, "completions", hour, "key", keys)
    run_child("sink", tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    decided = {"COMPLETED": 5, "EXPIRED": 5}
    assert seen["staged"] == decided
    assert seen["lingers"]
    assert seen["closed"] == decided
    assert seen["refused"] == [
        "ConfigError: Spark Connect has no flush() of a running query: the sink runs in the server. Call close(), or "
        "shorten linger",
        "ConfigError: Spark Connect has no futures(): the sink runs in the server. Give RecordAccumulator "
        "on_delivery=, called there",
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_time_goes_on_over_a_silent_stream_under_spark_connect(tmp_path: Path) -> None:
    run_child("silence", tmp_path)
