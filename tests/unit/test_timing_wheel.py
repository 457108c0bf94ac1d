"""The wheel and the purgatory where no trace of Kafka's goes: the ends of int64, deadlines that are far away or move.

That they turn, watch, complete and expire as Kafka's is shown by the traces of `tests/conformance`, one by one and in
batches; that compacting changes nothing, by the law, whose small engines tidy up at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.purgatory import DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import DROP_FLOOR, NEAR_TICKS, SystemTimer
from spark_purgatory.errors import ConfigError

YEAR_9999_MS = 253_402_300_799_999


def array(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_what_is_due_runs_in_the_order_of_ticks_and_then_of_rows() -> None:
    timer = SystemTimer(tick_ms=10)
    timer.add(array([4, 1, 3, 0, 2]), array([31, 39, 10, 55, YEAR_9999_MS]))
    assert timer.advance_clock(YEAR_9999_MS).tolist() == [3, 1, 4, 0, 2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tick_ms": 0}, "tick_ms must be at least 1, got 0"),
        ({"wheel_size": 1}, "wheel_size must be at least 2, got 1"),
    ],
)
def test_a_wheel_that_cannot_turn_is_refused(options: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        SystemTimer(**options)


def test_the_next_deadline_is_found_behind_many_cancelled_ones_in_several_runs() -> None:
    timer = SystemTimer()
    for first in (0, 600, 900):  # sizes 600, 300, 100: three runs
        timer.add(array(range(first, 1000)), array(range(first + 1, 1001)))
    timer.cancel(array([row for row in range(1000) if row not in (777, 950)]))
    assert timer.next_due_ms() == 778
    assert timer.advance_clock(778).tolist() == [777]
    assert timer.next_due_ms() == 951


@pytest.mark.parametrize("deadline", [10, YEAR_9999_MS], ids=["near", "outlier"])
@pytest.mark.parametrize("dropped", [False, True], ids=["popped", "dropped"])
def test_a_task_armed_again_for_the_same_tick_runs_once(deadline: int, dropped: bool) -> None:
    timer = SystemTimer()
    timer.add(array([0, 1]), array([5, deadline]))
    for other in (deadline, 7, deadline):
        timer.cancel(array([1]))
        timer.add(array([1]), array([other]))
        timer.add(array([1]), array([deadline]))
    assert timer.size == 2
    if dropped:
        timer.make_entries(timer.base)
        assert len(timer.entries) == 2
    assert timer.advance_clock(deadline).tolist() == [0, 1]
    assert timer.size == 0
    assert timer.advance_clock(deadline).tolist() == []


def test_entries_of_cancelled_tasks_are_dropped_before_they_are_many() -> None:
    timer = SystemTimer()
    for turn in range(50):
        rows = array(range(turn * 100, turn * 100 + 100))
        timer.add(rows, array([10**6] * 100))
        timer.cancel(rows)
        assert len(timer.entries) <= DROP_FLOOR + 100
    assert timer.size == 0


@pytest.mark.parametrize("beside", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_deadlines_at_the_edge_of_what_an_entry_can_name_run_in_time(sign: int, beside: int) -> None:
    far = sign * NEAR_TICKS + beside
    deadlines = [0, far, 5, far + 1]  # the first added is the base
    timer = SystemTimer(start_ms=-(1 << 36))
    timer.add(array([0]), array([0]))
    timer.add(array([1, 2, 3]), array([far, 5, far + 1]))
    for deadline in sorted(deadlines):
        assert timer.next_due_ms() == deadline
        assert timer.advance_clock(deadline - 1).tolist() == []
        assert timer.advance_clock(deadline).tolist() == [deadlines.index(deadline)]
    assert timer.size == 0


def test_deadlines_far_from_all_others_run_in_time_and_in_order() -> None:
    n, today = 1500, 1_760_000_000_000
    timer, deadlines = SystemTimer(), {i: today + 7 * (i % 97) for i in range(1, n)}
    timer.add(array([0, n]), array([10, YEAR_9999_MS]))
    timer.add(array([*deadlines]), array([*deadlines.values()]))
    timer.cancel(array([5]))
    assert timer.advance_clock(9).tolist() == []
    left = {**deadlines, 0: 10, n: YEAR_9999_MS}
    del left[5]
    for to in (10, today, today + 300, today + 7 * 97, YEAR_9999_MS):
        due = sorted((deadline, row) for row, deadline in left.items() if deadline <= to)
        assert timer.advance_clock(to).tolist() == [row for _, row in due]
        left = {row: deadline for row, deadline in left.items() if deadline > to}
        assert (timer.size, timer.next_due_ms()) == (len(left), min(left.values(), default=None))


def test_deadlines_at_both_ends_of_int64_stay_apart() -> None:
    timer = SystemTimer(start_ms=-(2**63) + 1)
    timer.add(array([0, 1, 2]), array([-(2**63) + 4, 2**63 - 3, 2**63 - 1]))
    assert (timer.size, timer.next_due_ms()) == (3, -(2**63) + 4)
    assert timer.advance_clock(-(2**63) + 4).tolist() == [0]


def test_a_bucket_holds_a_deadline_far_away_that_lies_at_its_beginning() -> None:
    timer, far = SystemTimer(), 2 * NEAR_TICKS
    timer.add(array([0, 1]), array([0, far]))
    assert timer.filled(far // 4 - 1, far // 4 + 1, 4).tolist() == [False, True]


def test_a_deadline_far_away_is_forgotten_with_its_row() -> None:
    timer, far = SystemTimer(), 2 * NEAR_TICKS
    timer.add(array([0, 1, 2]), array([5, far, far]))
    timer.cancel(array([1]))
    timer.renumber(array([0, -1, 1]))
    assert [timer.advance_clock(to).tolist() for to in (5, far)] == [[0], [1]]


Array = np.ndarray[Any, np.dtype[Any]]


class Moving:
    """Operations that never complete, and whose deadlines are found to be others when they are tried."""

    def __init__(self, *deadlines_ms: int) -> None:
        self.deadlines_ms = np.array(deadlines_ms)
        self.expired: list[int] = []

    def try_complete(self, rows: Array, /) -> tuple[Array, Array]:
        return np.zeros(len(rows), bool), self.deadlines_ms[rows]

    def on_expiration(self, rows: Array, /) -> None:
        self.expired += rows.tolist()


def test_an_operation_that_is_tried_gets_the_deadline_that_was_found() -> None:
    purgatory, moving = DelayedOperationPurgatory(SystemTimer()), Moving(5, 7)
    keys = pa.array(["a", "a"])
    purgatory.try_complete_else_watch(moving, keys, np.arange(3), np.array([2, 2]), hash_keys(keys))
    assert purgatory.advance_clock(moving, 4).tolist() == []
    moving.deadlines_ms = np.array([9, 6])
    assert purgatory.check_and_complete(moving, keys[:1], hash_keys(keys[:1])).tolist() == [0]
    assert [purgatory.advance_clock(moving, now).tolist() for now in (5, 6, 8, 9)] == [[], [1], [], [0]]
    assert moving.expired == [1, 0]


def test_one_rearmed_to_the_past_expires_at_the_next_advance_and_not_before() -> None:
    purgatory, moving, keys = DelayedOperationPurgatory(SystemTimer()), Moving(5, 3), pa.array(["a", "a"])
    purgatory.try_complete_else_watch(moving, keys, np.arange(3), np.array([5, 3]), hash_keys(keys))
    assert purgatory.advance_clock(moving, 3).tolist() == [1], "the wheel's clock stands at 3"
    purgatory.rearm(np.array([0]), np.array([1]))
    assert moving.expired == [1]
    assert purgatory.advance_clock(moving, 4).tolist() == [0]
