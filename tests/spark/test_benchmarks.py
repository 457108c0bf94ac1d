"""Each benchmark starts, and no figure is told of a run whose outcomes are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import harness, long_waits, workload_l, workload_w
from benchmarks.contenders import CONTENDERS
from benchmarks.harness import WrongOutcomeError
from benchmarks.long_run import Task, contenders, run_part
from benchmarks.workload_l import Shape
from benchmarks.workload_w import expected
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.children import ROOT

pytestmark = pytest.mark.bench

SMALL = Shape(waiting=1000, operations=100, batches=5, minutes=20)
PROGRAMS = [
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "typer.Option" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_tells_its_options(program: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{program}".removesuffix(".__main__"), "--help"]
    assert "Usage" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_contenders_of_workload_w_agree(spark: SparkSession, tmp_path: Path) -> None:
    workload = workload_w.prepared(2000, 3, harness.SEED, tmp_path)
    runs = [harness.run_once(spark, CONTENDERS[name], workload, 1, tmp_path) for name in ("ours", "join")]
    due = expected(workload.drawn)
    assert [each.counts["rows"] for each in runs] == [due.completed + due.expired] * 2


@pytest.mark.parametrize("name", ["blob", "join"])
def test_contenders_of_workload_l_end_all_through_a_restart(spark: SparkSession, tmp_path: Path, name: str) -> None:
    workload = workload_l.prepared(SMALL, 7, tmp_path)
    with settings(spark, contenders(SMALL.minutes)[name].settings):
        parts = [
            run_part(spark, Task(name, SMALL, 2, str(workload.folder), str(tmp_path / "run"), files, "1g"), tmp_path)
            for files in (5, 6)
        ]
    counts = [part.counts for part in parts]
    long_waits.check_outcomes(name, counts, workload, SMALL)
    for key in counts[0].keys() - {"rows"}:
        with pytest.raises(WrongOutcomeError, match=rf"{name} at .* no time is reported"):
            long_waits.check_outcomes(name, [{**counts[0], key: counts[0][key] + 1}, counts[1]], workload, SMALL)
