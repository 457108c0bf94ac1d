"""The same two lines through Spark Connect: no JVM at hand, and the sink in the server's worker, not in the client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.connect_child import land, run_child


@pytest.mark.long
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
