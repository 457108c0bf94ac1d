"""The benchmarks measure what they say: the workload is W, the expectation is right, rates are what was defined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import harness
from benchmarks.contenders import CONTENDERS
from benchmarks.harness import WrongOutcomeError, check_counts, read_batches
from benchmarks.rates import Batch, Run, Verdict, standings, steady_rate, verdicts
from benchmarks.workload_w import (
    BATCH_US,
    LONGEST_DELAY_US,
    START_US,
    TAIL_BATCHES,
    Draw,
    Expected,
    Workload,
    draw,
    expected,
    prepared,
    rows_by_batch,
)

pytestmark = pytest.mark.bench

SECOND_US = 1_000_000

# --- the workload ---------------------------------------------------------------------------------


def test_a_batch_holds_its_share_of_operations_within_its_minute() -> None:
    drawn = draw(10_000, 10, seed=1)
    assert (np.bincount(drawn.operation_batch, minlength=10) == 1000).all()
    assert (np.diff(drawn.created_us) >= 0).all()
    assert drawn.created_us[0] >= START_US and drawn.created_us[-1] < START_US + 10 * BATCH_US


def test_delays_are_uniform_up_to_three_minutes_and_events_uniform_within_them() -> None:
    drawn = draw(100_000, 10, seed=2)
    delay = (drawn.deadline_us - drawn.created_us) / LONGEST_DELAY_US
    assert delay.min() > 0 and delay.max() <= 1
    # Standard error of the mean of 100,000 uniform draws: 0.0009.
    assert delay.mean() == pytest.approx(0.5, abs=0.005)
    point = (drawn.event_us - drawn.created_us) / (drawn.deadline_us - drawn.created_us)
    assert point.min() >= 0 and point.max() <= 1
    assert point.mean() == pytest.approx(0.5, abs=0.005)
    assert drawn.completes.mean() == pytest.approx(0.75, abs=0.005)


def test_a_seed_always_draws_the_same_workload() -> None:
    one, again, other = draw(1000, 4, seed=3), draw(1000, 4, seed=3), draw(1000, 4, seed=4)
    assert (one.event_us == again.event_us).all() and (one.completes == again.completes).all()
    assert (one.event_us != other.event_us).any()


def test_batches_without_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="batches=11 must lie between 1 and operations=10"):
        draw(10, 11, seed=1)


def test_files_hold_each_row_once_in_the_batch_of_its_event_time(tmp_path: Path) -> None:
    workload = prepared(2000, 5, 7, tmp_path)
    drawn = draw(2000, 5, 7)
    for side, column, rows in (
        ("operations", "created", workload.operation_rows[:5]),
        ("events", "time", workload.event_rows),
    ):
        files = sorted((workload.folder / side).iterdir())
        assert sorted(files, key=lambda file: file.stat().st_mtime) == files
        assert len({file.stat().st_mtime for file in files}) == len(files)
        tables = [pq.read_table(file) for file in files]
        assert tuple(table.num_rows for table in tables) == rows
        for batch, table in enumerate(tables):
            times_us = table[column].cast("int64").to_numpy()
            assert ((times_us - START_US) // BATCH_US == batch).all()
        keys = np.sort(np.concatenate([table["key"].to_numpy() for table in tables]))
        numbers = np.flatnonzero(drawn.completes) if side == "events" else np.arange(2000)
        assert (keys == np.sort([f"order-{number}" for number in numbers])).all()
    assert workload.rows == 2000 + drawn.completes.sum()


def test_a_workload_is_written_once(tmp_path: Path) -> None:
    first = prepared(1000, 3, 1, tmp_path)
    (first.folder / "kept").touch()
    assert prepared(1000, 3, 1, tmp_path).folder == first.folder
    assert (first.folder / "kept").exists()
    assert prepared(1000, 3, 2, tmp_path).folder != first.folder
    assert not [path for path in tmp_path.iterdir() if path.name.endswith("partial")]


def by_hand(*operations: tuple[int, int, int | None]) -> Draw:
    """Operations as (created, deadline, event or None), in seconds after the start, in one batch."""
    created, deadline, event = zip(*operations, strict=True)
    return Draw(
        batches=1,
        created_us=START_US + np.array(created) * SECOND_US,
        deadline_us=START_US + np.array(deadline) * SECOND_US,
        completes=np.array([e is not None for e in event]),
        event_us=START_US + np.array([e or 0 for e in event]) * SECOND_US,
    )


def test_expected_outcomes_of_an_example_by_hand() -> None:
    # The clock ends at the slower side's last time, second 50: a deadline there is due, one of second 51 is not.
    drawn = by_hand((0, 10, None), (1, 50, None), (2, 51, None), (3, 100, 90), (50, 60, 55), (49, 229, None))
    assert expected(drawn) == Expected(completed=2, expired=2, pending=2)
    assert expected(drawn, grace_ms=1) == Expected(completed=2, expired=1, pending=3)
    assert rows_by_batch(drawn) == ((6, 0, 0, 0), (1, 1, 0, 0))


def test_events_that_end_before_operations_hold_the_clock_back() -> None:
    drawn = by_hand((0, 10, None), (1, 50, None), (2, 30, 20), (50, 60, None))
    assert expected(drawn) == Expected(completed=1, expired=1, pending=2)


# --- rates ----------------------------------------------------------------------------------------


def test_the_steady_rate_starts_at_the_third_batch_and_takes_the_tail_in() -> None:
    batches = [
        Batch(0, 1000, 100, ms=9000),
        Batch(1, 1000, 300, ms=5000),
        Batch(2, 1000, 500, ms=500),
        Batch(3, 1000, 500, ms=1000),
        Batch(4, 0, 400, ms=200),
    ]
    assert steady_rate(batches) == pytest.approx(1000 * (1500 + 1500 + 400) / 1700)
    assert run("ours", 1, batches=tuple(batches)).full_rate == pytest.approx(1000 * 3000 / 1500)


def test_a_run_of_two_batches_has_no_steady_rate() -> None:
    with pytest.raises(ValueError, match="no steady batch among 2: run at least 3"):
        steady_rate([Batch(0, 1000, 100, ms=1), Batch(1, 1000, 100, ms=1)])


def run(contender: str, number: int, rate: int = 1, batches: tuple[Batch, ...] = ()) -> Run:
    """A run whose steady rate is ``rate`` rows a second."""
    return Run(contender, number, 1000, batches or (Batch(2, rate, 0, ms=1000),), {})


def test_ratios_are_taken_round_by_round() -> None:
    # A machine twice as slow in round 2: the rates' medians differ, each round's ratio does not.
    runs = [run("ours", 1, 600), run("join", 1, 200), run("ours", 2, 300), run("join", 2, 100)]
    ours, join = standings([*runs, run("ours", 3, 700), run("join", 3, 100)])
    assert (ours.contender, ours.rate, ours.lowest, ours.highest) == ("ours", 600, 300, 700)
    assert join.rate == 100 and join.spread == 1.0
    assert join.ours_over == 3 and join.ours_over_spread == (3, 7)


def test_goals_are_judged_only_beside_ours() -> None:
    assert verdicts(standings([run("join", 1, 100), run("identity", 1, 300)]), 100_000) == []
    ours = run("ours", 1, 240)
    table = standings([ours, run("join", 1, 100), run("identity", 1, 300), run("jvm_only", 1, 1)])
    assert [str(verdict) for verdict in verdicts(table, 100_000)] == [
        "ours/join 2.4x (goal >= 2.5) MISSED",
        "ours/identity 0.80 (goal >= 0.6) ok",
    ]
    assert [str(verdict) for verdict in verdicts(table, 1000)] == [
        "ours/join 2.40 (goal >= 1) ok",
        "ours/identity 0.80 (goal >= 0.87) MISSED",
    ]
    assert [verdict.reached for verdict in verdicts(table, 500_000)] == [False]


def test_a_goal_just_reached_is_reached() -> None:
    assert Verdict("join", 3.0, 3.0).reached
    assert not Verdict("join", 2.999, 3.0).reached


# --- the harness ----------------------------------------------------------------------------------


def test_wrong_outcomes_are_no_result(tmp_path: Path) -> None:
    workload = prepared(1000, 3, 1, tmp_path)
    due = expected(workload.drawn)
    right = {"rows": due.completed + due.expired, "COMPLETED": due.completed, "EXPIRED": due.expired}
    check_counts(right, CONTENDERS["ours"], workload)
    for wrong in (
        {**right, "EXPIRED": due.expired - 1},
        {**right, "COMPLETED": due.completed + 1, "EXPIRED": due.expired - 1},
        {**right, "rows": right["rows"] + 1},
        {},
    ):
        with pytest.raises(WrongOutcomeError, match=r"ours at 1,000 operations: .* no time is reported"):
            check_counts(wrong, CONTENDERS["ours"], workload)
    check_counts({"rows": workload.rows}, CONTENDERS["identity"], workload)


def report(workload: Workload, number: int, rows: int | None = None) -> dict[str, Any]:
    """What Spark reports of a batch that read its files, or of one that read ``rows``."""
    files = workload.operation_rows[number] + workload.event_rows[number]
    return {
        "batchId": number,
        "numInputRows": files if rows is None else rows,
        "durationMs": {"triggerExecution": 10},
        "stateOperators": [],
        "observedMetrics": {},
    }


def test_a_batch_that_read_more_than_its_files_is_no_result(tmp_path: Path) -> None:
    workload = prepared(1000, 3, 1, tmp_path)
    fine = [report(workload, number) for number in range(6)]
    idle = {**fine[0], "batchId": 6, "numInputRows": 0}
    batches = list(read_batches([*fine, idle], workload, CONTENDERS["ours"]))
    assert [batch.rows for batch in batches] == [progress["numInputRows"] for progress in fine]
    twice = [*fine[:2], report(workload, 2, rows=2 * fine[2]["numInputRows"]), *fine[3:]]
    with pytest.raises(WrongOutcomeError, match=r"batch 2 read .* evaluated more than once"):
        list(read_batches(twice, workload, CONTENDERS["ours"]))
    with pytest.raises(WrongOutcomeError, match="5 of 6 batches"):
        list(read_batches(fine[:5], workload, CONTENDERS["ours"]))


# --- with Spark -----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
def test_contenders_agree_on_the_outcomes(spark: SparkSession, tmp_path: Path) -> None:
    runs = harness.measure(spark, ["ours"], 2000, 3, 1, lambda line: None, tmp_path)
    workload = prepared(2000, 3, harness.SEED, tmp_path)
    runs += [harness.run_once(spark, CONTENDERS[name], workload, 1, tmp_path) for name in ("join", "identity")]
    due = expected(workload.drawn)
    assert {one.contender: one.counts["rows"] for one in runs} == {
        "ours": due.completed + due.expired,
        "join": due.completed + due.expired,
        "identity": workload.rows,
    }
    assert [len(one.batches) for one in runs] == [3 + TAIL_BATCHES] * 3
    assert all(batch.state_bytes for batch in runs[0].batches)
    assert not list(tmp_path.glob("checkpoint-*"))
