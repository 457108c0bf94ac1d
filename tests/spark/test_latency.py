"""The benchmark of latency: what is fed, what must come out, and which milliseconds are told of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.harness import WrongOutcomeError
from benchmarks.latency import CONTENDERS, Timed, batches_ms, run_once, table_of
from benchmarks.latency_feed import Script, Sent, Taken, check_outcomes, latencies_ms, name_of, percentile
from tests.support.now_and_then import now_and_then

pytestmark = pytest.mark.bench

BY_HAND = Script(waiting=2, rate=1000, rows=9, unmeasured=3)
"""Rows: operation 2, event, operation 3, event, operation 4, event, operation 5, operation 6, event."""


def taken_of(*outcomes: tuple[int, str, int]) -> Taken:
    """Outcomes as (operation, status, microsecond), each in a micro-batch of its own."""
    tables = [(at, pa.table({"op_id": [name_of(number)], "status": [status]})) for number, status, at in outcomes]
    return Taken([(0, pa.table({"op_id": pa.array([], pa.string()), "status": pa.array([], pa.string())})), *tables])


def sent_by_hand() -> tuple[Sent, list[int]]:
    """When the rows of `BY_HAND` were sent, and what each event completes."""
    created_us = [1_000, 2_000, 10_000, 12_000, 14_000, 16_000, 17_000]
    deadline_us = [us + 1_000_000 for us in created_us]
    deadline_us[5] = 16_500
    return Sent(created_us, deadline_us, [11_000, 13_000, 15_000, 18_600]), BY_HAND.completing.tolist()


def test_a_script_by_hand() -> None:
    assert np.flatnonzero(BY_HAND.is_operation).tolist() == [0, 2, 4, 6, 7]
    assert np.flatnonzero(BY_HAND.is_short).tolist() == [5]
    first, other, *later = BY_HAND.completing.tolist()
    assert {first, other} == {0, 1} and later == [2, 3]
    assert BY_HAND.measured_events == 1


def test_an_event_comes_after_its_operation_and_as_many_wait_at_any_time() -> None:
    script = Script(waiting=50, rate=1000, rows=7000)
    is_operation, is_short = script.is_operation, script.is_short
    assert len(is_short) == 50 + 4000 and np.count_nonzero(is_short) == 1000
    assert len(script.completing) == 3000 == len(np.unique(script.completing))
    assert not is_short[script.completing].any()
    arrived = 50 + np.cumsum(is_operation)
    at_event = arrived[~is_operation]
    assert (script.completing < at_event).all()
    lasting = 50 + np.cumsum(~is_short[50:])[np.cumsum(is_operation) - 1] - np.cumsum(~is_operation)
    assert lasting.min() >= 49 and lasting.max() <= 51


def test_milliseconds_are_from_the_measured_events_to_their_outcomes() -> None:
    sent, (first, other, *_) = sent_by_hand()
    taken = taken_of(
        (2, "COMPLETED", 20_000), (first, "COMPLETED", 19_000), (5, "EXPIRED", 19_000), (other, "COMPLETED", 16_000),
        (3, "COMPLETED", 19_100),
    )  # fmt: skip
    check_outcomes("ours", BY_HAND, sent, taken)
    assert latencies_ms(BY_HAND, sent, taken).tolist() == [3.0, 5.0, 0.5]


def test_another_table_is_no_result() -> None:
    sent, (first, other, *_) = sent_by_hand()
    completed = [(number, "COMPLETED", 20_000) for number in (first, other, 2, 3)]
    right = [*completed, (5, "EXPIRED", 19_000)]
    # The slower side's last time is that of operation 6, before the deadline of operation 5 in the second case.
    check_outcomes(
        "ours", BY_HAND, replace(sent, deadline_us=[*sent.deadline_us[:5], 17_001, 9**9]), taken_of(*completed)
    )
    sent = replace(sent, deadline_us=[*sent.deadline_us[:5], 17_000, 9**9])
    check_outcomes("ours", BY_HAND, sent, taken_of(*right))
    check_outcomes("join", BY_HAND, sent, taken_of(*completed), grace_ms=1)
    for wrong in (right[1:], [*right, right[0]], completed, [*completed, (5, "COMPLETED", 19_000)]):
        with pytest.raises(WrongOutcomeError, match=r"ours: .* were expected, and .* no time is reported"):
            check_outcomes("ours", BY_HAND, sent, taken_of(*wrong))


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (50, 99, 100)] == [50, 99, 100]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7
    assert percentile([1.0, 2.0], 50) == 1 and percentile([1.0, 2.0], 51) == 2
    with pytest.raises(ValueError, match="let the feed run longer"):
        percentile([], 50)


def test_the_micro_batches_told_are_those_that_began_while_rows_were_fed() -> None:
    reports = [
        {"timestamp": f"2026-01-01T00:00:0{second}.500Z", "durationMs": {"triggerExecution": second}}
        for second in range(5)
    ]
    start_us = 1_767_225_600_000_000
    assert list(batches_ms(reports, start_us + 1_500_000, start_us + 3_400_000)) == [1, 2]


def test_a_contender_is_a_row_with_its_medians() -> None:
    run = Timed("log", 1, load=1, events=10, p50=300, p99=500, batch=280, drained=310, cores=1.2)
    table = table_of([run, replace(run, round=2, p50=200), replace(run, round=3, p50=250)])
    assert [list(column.cells) for column in table.columns][:3] == [["log"], ["250"], ["200 .. 300"]]


@pytest.mark.spark
@pytest.mark.parametrize("name", now_and_then("log", "blob", "timers", "timers_pandas", "join"))
def test_contenders_give_the_table_of_the_feed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    script = Script(waiting=100, rate=100, rows=350, unmeasured=100)
    begun = time.monotonic()
    run = run_once(spark, name, script, 1, tmp_path)
    assert run.events == 150 - script.measured_events
    assert 0 < run.p50 <= run.p99 < (time.monotonic() - begun) * 1000
    assert name in CONTENDERS and not list(tmp_path.glob("latency-*/offsets"))
