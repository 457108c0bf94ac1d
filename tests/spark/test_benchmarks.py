"""Each benchmark starts, and no figure is told of a run whose outcomes are wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks import harness, latency, long_waits, workload_l, workload_w
from benchmarks.contenders import CONTENDERS
from benchmarks.harness import WrongOutcomeError, check_counts
from benchmarks.latency_feed import Script, Sent, Taken, check_outcomes, latencies_ms, name_of
from benchmarks.long_run import Task, contenders, run_part
from benchmarks.nexmark import COLUMNS, sides, winners
from benchmarks.nexmark import CONTENDERS as OF_NEXMARK
from benchmarks.nexmark_events import prepared as auctions
from benchmarks.rates import Batch, Run, standings, steady_rate
from benchmarks.soak import soak
from benchmarks.workload_l import Shape
from benchmarks.workload_w import START_US, Draw, Expected, expected
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.children import ROOT

pytestmark = pytest.mark.bench

SECOND_US = 1_000_000
SMALL = Shape(waiting=1000, operations=100, batches=5, minutes=20)
PROGRAMS = [
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "typer.Option" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_tells_its_options(program: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{program}".removesuffix(".__main__"), "--help"]
    assert "Usage" in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def by_hand(batches: int, *operations: tuple[int, int, int | None]) -> Draw:
    """Operations as (created, deadline, event or None), in seconds after the start."""
    created, deadline, event = zip(*operations, strict=True)
    return Draw(
        batches=batches,
        created_us=START_US + np.array(created) * SECOND_US,
        deadline_us=START_US + np.array(deadline) * SECOND_US,
        completes=np.array([e is not None for e in event]),
        event_us=START_US + np.array([e or 0 for e in event]) * SECOND_US,
    )


def test_what_workload_w_expects_of_an_example_by_hand() -> None:
    # The clock ends at the slower side's last time, second 50: a deadline there is due, one of second 51 is not.
    drawn = by_hand(1, (0, 10, None), (1, 50, None), (2, 51, None), (3, 100, 90), (50, 60, 55), (49, 229, None))
    assert expected(drawn) == Expected(completed=2, expired=2, pending=2)
    assert expected(drawn, grace_ms=1) == Expected(completed=2, expired=1, pending=3)


def test_what_workload_l_expects_of_an_example_by_hand() -> None:
    # Operations end at second 160, events at 150: that is the clock. Deadlines of 100 and 150 are due, 151 is not.
    drawn = by_hand(
        3, (5, 100, None), (30, 3600, 70), (40, 150, None), (70, 151, None), (130, 3600, 150), (160, 3600, None)
    )
    assert workload_l.ended_at_last(drawn) == workload_l.Ended(2, 2, completed_numbers=1 + 4, expired_numbers=0 + 2)


def test_wrong_outcomes_are_no_result(tmp_path: Path) -> None:
    workload = workload_w.prepared(1000, 3, 1, tmp_path)
    due = expected(workload.drawn)
    right = {"rows": due.completed + due.expired, "COMPLETED": due.completed, "EXPIRED": due.expired}
    check_counts(right, CONTENDERS["ours"], workload)
    for wrong in ({**right, "EXPIRED": due.expired - 1}, {**right, "rows": right["rows"] + 1}, {}):
        with pytest.raises(WrongOutcomeError, match=r"ours at 1,000 operations: .* no time is reported"):
            check_counts(wrong, CONTENDERS["ours"], workload)


def test_milliseconds_are_from_an_event_to_its_outcome() -> None:
    script = Script(waiting=2, rate=1000, rows=9, unmeasured=3)
    first, other = script.completing.tolist()[:2]
    deadline_us = [1_001_000, 1_002_000, 1_010_000, 1_012_000, 1_014_000, 16_500, 1_017_000]
    sent = Sent([1_000, 2_000, 10_000, 12_000, 14_000, 16_000, 17_000], deadline_us, [11_000, 13_000, 15_000, 18_600])
    completed = [(2, 20_000), (first, 19_000), (other, 16_000), (3, 19_100)]
    ends = [(5, "EXPIRED", 19_000), *((number, "COMPLETED", at) for number, at in completed)]
    none = pa.table({"op_id": pa.array([], pa.string()), "status": pa.array([], pa.string())})
    tables = [(at, pa.table({"op_id": [name_of(number)], "status": [status]})) for number, status, at in ends]
    taken = Taken([(0, none), *tables])
    check_outcomes("ours", script, sent, taken)
    assert latencies_ms(script, sent, taken).tolist() == [3.0, 5.0, 0.5]
    with pytest.raises(WrongOutcomeError, match=r"ours: .* were expected, and .* no time is reported"):
        check_outcomes("ours", script, sent, Taken([(0, none), *tables[1:]]))


def run(contender: str, number: int, rate: int) -> Run:
    return Run(contender, number, 1000, (Batch(2, rate, 0, ms=1000),), {})


def test_ratios_are_of_contenders_in_one_round() -> None:
    # A machine twice as slow in round 2: the rates' medians differ, each round's ratio does not.
    runs = [run("ours", 1, 600), run("join", 1, 200), run("ours", 2, 300), run("join", 2, 100)]
    ours, join = standings([*runs, run("ours", 3, 700), run("join", 3, 100)])
    assert (ours.rate, join.rate, join.ours_over, join.ours_over_spread) == (600, 100, 3, (3, 7))


def test_the_steady_rate_begins_at_the_third_batch_and_has_the_tail() -> None:
    batches = [Batch(0, 1000, 100, 9000), Batch(1, 1000, 300, 5000), Batch(2, 1000, 500, 500), Batch(3, 0, 400, 200)]
    assert steady_rate(batches) == pytest.approx(1000 * (1500 + 400) / 700)


def test_contenders_of_workload_w_agree(spark: SparkSession, tmp_path: Path) -> None:
    workload = workload_w.prepared(2000, 3, harness.SEED, tmp_path)
    runs = [harness.run_once(spark, CONTENDERS[name], workload, 1, tmp_path) for name in ("ours", "join")]
    due = expected(workload.drawn)
    assert [each.counts["rows"] for each in runs] == [due.completed + due.expired] * 2


@pytest.mark.parametrize("name", ["blob", "log", "join"])
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


@pytest.mark.parametrize("name", ["blob", "join"])
def test_contenders_of_nexmark_give_the_table_of_plain_sql(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folder = auctions(5_000, 3, 7, tmp_path).folder
    table = OF_NEXMARK[name].build(*sides(spark, folder, streaming=True)).select(*COLUMNS)
    query = table.writeStream.format("memory").queryName(f"nexmark_{name}").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = winners(spark, folder).select(*COLUMNS).collect()
    assert len(rows) > 200 and sorted(spark.table(f"nexmark_{name}").collect()) == sorted(rows)


@pytest.mark.parametrize("name", latency.CONTENDERS)
def test_contenders_of_latency_give_the_table_of_the_feed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    script = Script(waiting=100, rate=100, rows=350, unmeasured=100)
    told = latency.run_once(spark, name, script, 1, tmp_path)
    assert told.events == 150 - script.measured_events and 0 < told.p50 <= told.p99


def test_a_small_soak_ends_with_the_outcomes_that_the_arrays_say(spark: SparkSession, tmp_path: Path) -> None:
    workload = workload_l.prepared(replace(SMALL, minutes=12), 7, tmp_path)
    contender = contenders(12)["log"]
    with settings(spark, contender.settings):
        samples, found = soak(spark, contender, workload, 2, 0.5, 1, tmp_path / "run", lambda sample: None)
    assert found == workload_l.ended_at_last(workload.drawn, contender.grace_ms)
    assert samples and all(at.worker_bytes > 0 and at.checkpoint_files > 0 for at in samples)
