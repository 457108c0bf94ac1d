"""conf/spark_event_log.yaml over logs that Spark wrote: the tasks that overran, against a plain count of the log.

A real application runs in a process of its own, twice: once with its log in one file, once with a rolling log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.demo.runner import QUICK_JAVA
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest

ROOT = Path(__file__).resolve().parents[2]
SLA_MS = 400

# Tasks of one stage sleep for 0 to 0.9 seconds: some overrun, the last ones of the application among them.
APPLICATION = dedent(
    """
    import sys, time
    from pyspark.sql import SparkSession

    def nap(batches):
        for batch in batches:
            time.sleep(sum(batch.column(0).to_pylist()) / 10)
            yield batch

    for rolling in ("false", "true"):
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.compress", "false")
            .config("spark.eventLog.rolling.enabled", rolling)
            .config("spark.eventLog.dir", sys.argv[1])
            .config("spark.driver.extraJavaOptions", sys.argv[2])
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        spark.range(0, 10, 1, 10).mapInArrow(nap, "id long").collect()
        spark.stop()
        time.sleep(0.1)
    """
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spark-events")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", APPLICATION, folder.as_uri(), QUICK_JAVA]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


def log_files(logs: Path) -> dict[str, Path]:
    """The file with the events of each application."""
    files = [path for path in logs.rglob("*") if path.name.startswith(("local-", "events_"))]
    return {path.name[path.name.index("local-") :]: path for path in files}


def plain_count(logs: Path) -> Counter[tuple[str, str]]:
    """(application/task, status) of every task, by subtraction of two times."""
    fates: Counter[tuple[str, str]] = Counter()
    for application, path in log_files(logs).items():
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                task = event["Task Info"]
                took_ms = task["Finish Time"] - task["Launch Time"]
                status = "COMPLETED" if took_ms <= SLA_MS else "EXPIRED"
                fates[f"{application}/task {task['Task ID']}", status] += 1
    return fates


@pytest.mark.long
def test_the_tasks_that_overran_are_those_of_a_plain_count(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    places = {
        "operations.source.path": logs,
        "completions.source.path": logs,
        "output.path": tmp_path / "outcomes",
        "checkpoint": tmp_path / "checkpoint",
        "operations.timeout": f"{SLA_MS} ms",
        "operations.source.options.maxFilesPerTrigger": 1,
        "completions.source.options.maxFilesPerTrigger": 1,
    }
    config = load_config(
        ROOT / "conf" / "spark_event_log.yaml", [f"{field}={value}" for field, value in places.items()]
    )
    said = StringIO()
    summary = run(spark, config, Console(file=said, width=200), StopRequest())

    assert summary is not None
    assert summary.conserved, said.getvalue()
    assert summary.tally.pending == 0, said.getvalue()
    expected = plain_count(logs)
    assert len(log_files(logs)) == 2
    assert {status for _, status in expected} == {"COMPLETED", "EXPIRED"}, "the application has both"
    table = spark.read.format("delta").load(str(tmp_path / "outcomes")).where("task <> 'the end'")
    assert Counter((row["task_id"], row["status"]) for row in table.collect()) == expected
