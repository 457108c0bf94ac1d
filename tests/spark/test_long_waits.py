"""Workload L is what its page says, what is expected follows from it, and runs become the right table."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from pyspark.sql import SparkSession

from benchmarks import flink_jobs, long_results, waits_picture
from benchmarks.beside_flink import Turn, ratios
from benchmarks.harness import WrongOutcomeError
from benchmarks.long_results import LongRun, standings
from benchmarks.long_run import FIRST_STEADY_BATCH, Marks, Task, bytes_below, contenders, link_inputs, run_part
from benchmarks.long_waits import (
    FLINK,
    arrivals_of,
    check_batches,
    check_outcomes,
    listed,
    measure,
    numbers,
    shapes_of,
    until_fed_ms,
)
from benchmarks.workload_l import NEVER_US, Ended, Shape, clocks_ms, draw, ended, ended_at_last, prepared
from benchmarks.workload_w import BATCH_US, START_US, Draw
from benchmarks.workload_w import prepared as prepared_w
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.children import ROOT

pytestmark = pytest.mark.bench

SECOND_US = 1_000_000

# --- the workload ---------------------------------------------------------------------------------


def test_batch_0_brings_what_waits_and_each_later_one_its_operations() -> None:
    drawn = draw(Shape(waiting=50_000, operations=300, batches=7, minutes=60), seed=1)
    assert np.bincount(drawn.operation_batch).tolist() == [50_000] + 7 * [300]
    assert (np.diff(drawn.created_us) >= 0).all()
    delay_us = drawn.deadline_us - drawn.created_us
    assert delay_us.min() > 0 and delay_us.max() <= 60 * BATCH_US
    assert ((drawn.event_us >= drawn.created_us) & (drawn.event_us <= drawn.deadline_us))[drawn.completes].all()


def ends_by_batch(shape: Shape) -> tuple[list[int], list[int]]:
    """(events, expiries) of batch 0's operations in each later batch."""
    drawn = draw(shape, seed=2)
    first = np.arange(len(drawn)) < shape.waiting
    in_run = drawn.deadline_us < START_US + drawn.batches * BATCH_US
    expiry_batch = (drawn.deadline_us - START_US) // BATCH_US
    events = np.bincount(drawn.event_batch[first & drawn.completes], minlength=drawn.batches)
    expiries = np.bincount(expiry_batch[first & in_run & ~drawn.completes], minlength=drawn.batches)
    return events[1:].tolist(), expiries[1:].tolist()


def test_events_and_expiries_follow_what_waits() -> None:
    events, expiries = ends_by_batch(Shape(waiting=480_000, operations=10, batches=14, minutes=120))
    # 0.75 * 480,000 / 120 = 3000 and 0.25 of it: 1000; a standard error is the root of that.
    assert all(abs(count - 3000) < 5 * 3000**0.5 for count in events), events
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in expiries), expiries


@pytest.mark.parametrize("waiting", [10_000, 200_000])
def test_the_fixed_series_has_the_same_events_and_expiries_at_every_size(waiting: int) -> None:
    events, expiries = ends_by_batch(Shape(waiting, operations=10, batches=14, minutes=120, events=300))
    assert events == 14 * [300]
    assert expiries == 14 * [100]


def test_no_event_is_after_the_last_batch() -> None:
    for events in (None, 60):
        drawn = draw(Shape(waiting=5000, operations=100, batches=6, minutes=20, events=events), seed=3)
        assert drawn.event_batch[drawn.completes].max() == 6
        # Of 5000 that end within 20 minutes, most do so after 6: they wait at the end, whatever they would have had.
        assert 0.1 < drawn.completes[:5000].mean() < 0.4 if events is None else drawn.completes[:5000].sum() == 360


def test_a_seed_always_draws_the_same_workload() -> None:
    shape = Shape(1000, 50, 5, 30)
    one, again, other = draw(shape, 4), draw(shape, 4), draw(shape, 5)
    assert (one.event_us == again.event_us).all() and (one.completes == again.completes).all()
    assert (one.event_us != other.event_us).any()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(0, 1, 1, 10), "must be at least 1"),
        (Shape(100, 10, 8, 10), r"minutes must be at least batches \+ 3"),
        (Shape(100, 10, 5, 10, events=16), "set events to at most 15"),
    ],
)
def test_shapes_that_cannot_be_drawn_are_refused(shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(shape, 1)


def test_the_most_events_that_the_message_names_can_be_drawn() -> None:
    assert draw(Shape(100, 10, 5, 10, events=15), 1).completes[:100].sum() == 75


# --- what must come out ---------------------------------------------------------------------------


def by_hand(*operations: tuple[int, int, int | None]) -> Draw:
    """Operations as (created, deadline, event or None), in seconds after the start, in three batches."""
    created, deadline, event = zip(*operations, strict=True)
    return Draw(
        batches=3,
        created_us=START_US + np.array(created) * SECOND_US,
        deadline_us=START_US + np.array(deadline) * SECOND_US,
        completes=np.array([e is not None for e in event]),
        event_us=START_US + np.array([e or 0 for e in event]) * SECOND_US,
    )


EXAMPLE = by_hand((5, 100, None), (30, 3600, 70), (40, 150, None), (70, 151, None), (130, 3600, 150), (160, 3600, None))


def test_expected_outcomes_of_an_example_by_hand() -> None:
    # Operations end at second 160, events at 150: that is the clock. Deadlines of 100 and 150 are due, 151 is not.
    assert ended_at_last(EXAMPLE) == Ended(completed=2, expired=2, completed_numbers=1 + 4, expired_numbers=0 + 2)
    assert ended_at_last(EXAMPLE, grace_ms=1) == Ended(2, 1, 1 + 4, 0)
    assert ended(EXAMPLE, NEVER_US) == Ended(2, 4, 1 + 4, 0 + 2 + 3 + 5)


def test_clocks_of_an_example_by_hand() -> None:
    # No event in batch 0; batch 1 ends with the event at 70; batch 2 with the one at 150.
    start_ms = START_US // 1000
    assert clocks_ms(EXAMPLE) == [None, start_ms + 70_000, start_ms + 150_000]


def test_files_hold_the_rows_that_the_workload_says(tmp_path: Path) -> None:
    workload = prepared(Shape(2000, 100, 5, 30), 7, tmp_path)
    for side, rows in (("operations", workload.operation_rows), ("events", workload.event_rows)):
        files = sorted((workload.folder / side).iterdir())
        assert [pq.read_metadata(file).num_rows for file in files] == list(rows)
    assert workload.operation_rows == (2000, 100, 100, 100, 100, 100)
    assert sum(workload.event_rows) == workload.drawn.completes.sum()
    assert arrivals_of(workload).startswith("a micro-batch brings 100 operations and ")


def test_wrong_outcomes_are_no_result(tmp_path: Path) -> None:
    shape = Shape(2000, 100, 5, 30)
    workload = prepared(shape, 7, tmp_path)
    due = ended_at_last(workload.drawn)
    right = {
        "rows": due.completed + due.expired,
        "COMPLETED": due.completed,
        "EXPIRED": due.expired,
        "COMPLETED_numbers": due.completed_numbers,
        "EXPIRED_numbers": due.expired_numbers,
    }
    half = {key: value // 2 for key, value in right.items()}
    check_outcomes("blob", [half, {key: right[key] - half[key] for key in right}], workload, shape)
    for key in right.keys() - {"rows"}:
        with pytest.raises(WrongOutcomeError, match=r"blob at .* no time is reported"):
            check_outcomes("blob", [{**right, key: right[key] + 1}], workload, shape)


def test_a_batch_that_read_more_than_its_files_is_no_result(tmp_path: Path) -> None:
    workload = prepared(Shape(2000, 100, 5, 30), 7, tmp_path)
    rows = [sum(pair) for pair in zip(workload.operation_rows, workload.event_rows, strict=True)]
    batches = [{"rows": count, "ms": 1} for count in rows]
    check_batches("blob", [*batches, {"rows": 0, "ms": 1}], workload)
    with pytest.raises(WrongOutcomeError, match="the files hold"):
        check_batches("blob", [{"rows": rows[0] + rows[1], "ms": 1}, *batches[2:]], workload)


# --- runs, results, options -----------------------------------------------------------------------


def run(contender: str, number: int, *ms: int, waiting: int = 1000, series: str = "follows") -> LongRun:
    return LongRun(contender, series, waiting, number, ms, first_ms=1, cpu_s=0.5, checkpoint_bytes=10)


def test_ratios_are_taken_round_by_round_and_size_by_size() -> None:
    # A machine twice as slow in round 2: the medians differ, each round's ratio does not.
    runs = [run("log", 1, 100, 110, 400), run("join", 1, 330), run("log", 2, 200, 220, 900), run("join", 2, 660)]
    log, join, large = standings([*runs, run("join", 1, 9000, waiting=5000)], base="log")
    assert (log.ms, log.worst_ms, log.it_over_base) == (165, 650, 1.0)
    assert join.it_over_base == 3.0 and join.it_over_base_spread == (3.0, 3.0)
    assert large.waiting == 5000 and large.it_over_base is None


def test_the_picture_names_every_contender_and_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    table = standings(
        [
            run(name, 1, ms, waiting=waiting, series=series)
            for series in ("follows", "fixed")
            for name, ms in (("blob", 900), ("log", 300), ("flink_rocksdb", 200))
            for waiting in (1000, 10_000)
        ],
        base="log",
    )
    for name in ("one.svg", "two.svg"):
        long_results.draw_picture(tmp_path / name, table)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    texts = {element.text for element in ElementTree.parse(tmp_path / "one.svg").iter() if element.text}
    assert {"applyInPandasWithState", "transformWithState", "Flink, RocksDB", "operations that wait", "10 k"} <= texts


def test_the_picture_takes_each_contender_and_size_from_the_first_file_that_has_it(tmp_path: Path) -> None:
    first = standings([run("blob", 1, 900), run("log", 1, 300)], base="log")
    second = standings([run("log", 1, 50), run("flink_heap", 1, 200), run("log", 1, 310, waiting=5000)], base="log")
    for name, table in (("one.json", first), ("two.json", second)):
        long_results.write_json(tmp_path / name, {}, [], table, [])
    found = waits_picture.read([tmp_path / "one.json", tmp_path / "two.json"])
    assert [(at.contender, at.waiting, at.ms) for at in found] == [
        ("blob", 1000, 900),
        ("log", 1000, 300),
        ("flink_heap", 1000, 200),
        ("log", 5000, 310),
    ]


def test_a_restart_counts_until_the_first_micro_batch_with_rows() -> None:
    assert until_fed_ms([{"rows": 5, "ms": 700}, {"rows": 0, "ms": 50}]) == 700
    assert until_fed_ms([{"rows": 0, "ms": 600}, {"rows": 5, "ms": 70}, {"rows": 5, "ms": 9}]) == 670


def test_cycles_are_counted_from_the_first_mark_to_the_last(tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    assert marks.cycles() == {}
    marks.taken = [(2, 10.0, 1000, 50), (9, 24.0, 8000, 60)]
    assert marks.cycles() == {"cycles": 7, "cpu_s": 14.0, "checkpoint_bytes": 7000, "steady_worker_bytes": 60}


def test_a_part_finds_the_first_files_and_the_next_part_the_rest(tmp_path: Path) -> None:
    workload = prepared(Shape(500, 50, 5, 30), 7, tmp_path / "inputs")
    for files in (5, 6):
        link_inputs(workload.folder, tmp_path / "run", files)
        for side in ("operations", "events"):
            linked = sorted((tmp_path / "run" / side).iterdir())
            assert [file.name for file in linked] == [f"batch-{number:05d}.parquet" for number in range(files)]
            assert [f.stat().st_mtime for f in linked] == sorted({f.stat().st_mtime for f in linked})
    assert bytes_below(tmp_path / "run") == bytes_below(workload.folder)


def test_sizes_and_series_become_shapes() -> None:
    shapes = shapes_of([100_000, 1_000_000], 10_000, 14, 120, 0, "both")
    # 0.75 * 100,000 / 120 = 625, at both sizes.
    assert [(shape.waiting, shape.series, shape.events) for shape in shapes] == [
        (100_000, "follows", None),
        (1_000_000, "follows", None),
        (100_000, "fixed", 625),
        (1_000_000, "fixed", 625),
    ]
    assert [shape.events for shape in shapes_of([100_000], 10_000, 14, 120, 77, "fixed")] == [77]


def test_lists_on_the_command_line() -> None:
    assert numbers("100_000, 5", "--waiting") == [100_000, 5]
    assert listed("blob,join", ("blob", "log", "join"), "--contenders") == ["blob", "join"]
    for wrong in ("", "blob,blob", "blob,flink"):
        with pytest.raises(typer.BadParameter, match="name some of blob, log, join, each once"):
            listed(wrong, ("blob", "log", "join"), "--contenders")
    for wrong in ("", "1,x", "0"):
        with pytest.raises(typer.BadParameter, match="--waiting"):
            numbers(wrong, "--waiting")


def test_ratios_of_workload_w_are_of_the_same_round() -> None:
    ours, flink = Turn("blob", 1000, 1, 1750, 2.0, 3.0), Turn("flink_heap", 1000, 1, 1750, 1.0, 1.5)
    assert (ours.rate, ours.cpu_s_a_million) == (875, pytest.approx(1714.3, abs=0.1))
    assert ratios([(ours, flink)], lambda turn: turn.rate) == "0.50 (0.50 .. 0.50)"
    assert ratios([], lambda turn: turn.rate) == ""


# --- what processes use ---------------------------------------------------------------------------

SPENT = """
import subprocess, sys
from benchmarks.process_tree import cpu_seconds

SPEND = "import time\\nuntil = time.process_time() + 0.5\\nwhile time.process_time() < until: pass"
before = cpu_seconds()
subprocess.run([sys.executable, "-c", SPEND], check=True)
print(cpu_seconds() - before)
"""
HELD = """
import subprocess, sys, time
from benchmarks.process_tree import SAMPLE_S, sampled

HOLD = "held = bytearray(b'x' * 50_000_000)\\nprint('held', flush=True)\\ninput()"
command = [sys.executable, "-c", HOLD, sys.argv[1]]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    assert process.stdout.readline() == b"held\\n"
    with sampled() as peak:
        looks = 0
        while looks < int(sys.argv[2]) and not peak.worker_bytes:
            time.sleep(SAMPLE_S)
            looks += 1
    process.communicate(b"\\n")
print(peak.worker_bytes)
"""


def printed(code: str, *arguments: str) -> float:
    """The number that code prints in a process of its own: this one has children beside, Spark's."""
    command = [sys.executable, "-c", code, *arguments]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)


def test_cpu_seconds_of_a_child_that_ended_are_counted_once() -> None:
    assert 0.5 <= printed(SPENT) < 0.5 + 0.9


@pytest.mark.parametrize(
    ("mark", "looks", "least", "most"),
    [("other", 4, 0, 0), ("pyspark.daemon", 200, 45_000_000, 120_000_000)],
)
def test_the_peak_is_the_memory_of_workers_and_of_nobody_else(mark: str, looks: int, least: int, most: int) -> None:
    assert least <= printed(HELD, mark, str(looks)) <= most


# --- with Spark and Flink -------------------------------------------------------------------------

SMALL = Shape(waiting=3000, operations=200, batches=5, minutes=20)


@pytest.mark.long
@pytest.mark.spark
def test_a_contender_that_dies_is_told_as_such_and_the_others_go_on(tmp_path: Path) -> None:
    shape = Shape(waiting=1000, operations=10, batches=6, minutes=20)
    said: list[str] = []
    runs, deaths = measure([shape], ["blob", "join"], 1, "20m", said.append, tmp_path)
    assert runs == []
    assert [(death.contender, death.round, death.memory) for death in deaths] == [
        ("blob", 1, "20m"),
        ("join", 1, "20m"),
    ]
    assert all("exit code 1: " in death.why and "JAVA_GATEWAY_EXITED" in death.why for death in deaths), deaths
    assert [line for line in said if "died" in line and "exit code" in line] == said[1:]
    long_results.write_json(tmp_path / "long.json", {}, runs, standings(runs, "blob"), deaths)
    assert "died with a heap of 20m" in long_results.death_lines(deaths)[0]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", ["blob", "log", "join"])
def test_a_run_and_its_restart_bring_the_expected_outcomes(spark: SparkSession, tmp_path: Path, name: str) -> None:
    workload = prepared(SMALL, 7, tmp_path)
    with settings(spark, contenders(SMALL.minutes)[name].settings):
        parts = [
            run_part(spark, Task(name, SMALL, 2, str(workload.folder), str(tmp_path / "run"), files, "1g"), tmp_path)
            for files in (5, 6)
        ]
    check_outcomes(name, [part.counts for part in parts], workload, SMALL)
    check_batches(name, [batch for part in parts for batch in part.batches], workload)
    # Files 0 to 4, and a micro-batch that only moves the clock.
    assert [batch["number"] for batch in parts[0].batches] == [0, 1, 2, 3, 4, 5]
    assert parts[0].cycles == 5 - FIRST_STEADY_BATCH
    assert parts[0].cpu_s > 0 and 0 < parts[0].checkpoint_bytes < bytes_below(tmp_path / "run" / "checkpoint")
    assert name == "join" or parts[0].worker_bytes > 0


@pytest.mark.slow
def test_flink_and_spark_agree_in_processes_of_their_own(tmp_path: Path) -> None:
    names = ["blob", *FLINK]
    runs, deaths = measure([SMALL], names, 1, "1g", lambda line: None, tmp_path)
    assert deaths == []
    assert [run.contender for run in runs] == names
    assert all(len(run.ms) == (3 if run.contender == "blob" else 4) for run in runs)
    blob, *flink = runs
    assert blob.restart_ms is not None and blob.cpu_s > 0 and blob.checkpoint_bytes > 0
    assert all(run.checkpoint_bytes > 0 and len(run.checkpoint_ms) == len(run.ms) for run in flink)


@pytest.mark.slow
@pytest.mark.parametrize("backend", flink_jobs.BACKENDS)
def test_flink_ends_every_operation_of_workload_w(tmp_path: Path, backend: str) -> None:
    workload = prepared_w(5000, 4, 7, tmp_path)
    runs = flink_jobs.run_w(flink_jobs.classpath(), workload, backend, 200, 2, "1g")
    assert len(runs) == 2 and all(run.ms > 0 and run.cpu_s > 0 for run in runs)
