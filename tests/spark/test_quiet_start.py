"""What a start says: to a session without Delta at once what to add, and to a log nothing that is not Spark's own."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.children import only_connect_server, run_module
from tests.support.connect_child import land, run_child
from tests.support.start_child import STEP

LOGGED = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (WARN|ERROR) ")
STACK = re.compile(r"^\s+at |^(?:Caused by: )?(?:java|org|io|scala)\.[\w.$]+(?:Exception|Error)\b|^Traceback")
SPARKS_OWN = (
    "ResolveWriteToStream: spark.sql.adaptive.enabled is not supported in streaming",
    "SparkStringUtils: Truncated the string representation of a plan",
    "ProcessingTimeExecutor: Current batch is falling behind",
    "DAGScheduler: Failed to cancel job group",
)
"""What the log of any stream into any Delta table says."""


def child(role: str, kind: str, folder: Path) -> str:
    """What `start_child` writes on stderr."""
    with only_connect_server() if kind == "connect" else nullcontext():
        return run_module("tests.support.start_child", role, kind, str(folder))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["classic", pytest.param("connect", marks=pytest.mark.slow)])
def test_a_session_without_delta_is_told_at_once_what_to_add(kind: str, tmp_path: Path) -> None:
    child("bare", kind, tmp_path)
    by_path, by_name = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert by_path["said"] == by_name["said"]
    assert by_path["said"].splitlines()[1:4] == [
        f"    --packages io.delta:delta-spark_4.2_2.13:{version('delta-spark')}",
        "    --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
        "    --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ]
    assert max(by_path["seconds"], by_name["seconds"]) < 180
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.long
@pytest.mark.spark
def test_under_spark_connect_the_sink_sees_files_that_an_earlier_process_of_the_session_could_not(
    tmp_path: Path,
) -> None:
    """Each of its processes counts its reads from 0, and the server remembers what it listed for the same words."""
    child("anew", "connect", tmp_path)
    assert json.loads((tmp_path / "seen.json").read_text(encoding="utf-8")) == [1, 1, 2]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_neither_starts_nor_drains_put_a_warning_or_a_stack_trace_into_the_log(kind: str, tmp_path: Path) -> None:
    said: dict[str, list[str]] = {}
    at = ""
    for line in child("quiet", kind, tmp_path).splitlines():
        if line.startswith(STEP):
            at = line.removeprefix(STEP)
            said[at] = []
        elif at and (LOGGED.search(line) or STACK.search(line)) and not any(words in line for words in SPARKS_OWN):
            said[at].append(line)
    assert list(said)[-1] == "end"
    assert not any(said.values()), json.dumps(said, indent=1)


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
    ]
