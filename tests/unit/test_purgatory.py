"""The purgatory where no trace of Kafka's goes: deadlines that move while an operation waits, and hooks that are wrong.

That it watches, completes, cancels and expires as Kafka's is shown by the traces of `tests/conformance`; that
compacting changes nothing, by the law, whose small engines compact at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.purgatory import DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from tests.conformance.kafka_purgatory import KafkaPurgatory

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


@pytest.mark.parametrize("answers", [2, 4])
def test_a_hook_that_does_not_answer_for_every_operation_is_an_error(answers: int) -> None:
    """Those left out would be on no list and in no timer."""
    purgatory = KafkaPurgatory(SystemTimer(), try_complete=lambda rows: np.zeros(answers, bool))
    with pytest.raises(IndexError, match="boolean index"):
        purgatory.watch(pa.array(["a", "b", "c"]), np.arange(4), np.full(3, 10))


@pytest.mark.parametrize("given", [2, 4])
def test_a_deadline_for_every_operation_or_an_error(given: int) -> None:
    purgatory = KafkaPurgatory(SystemTimer(), try_complete=lambda rows: np.zeros(len(rows), bool))
    with pytest.raises(IndexError, match="boolean index"):
        purgatory.watch(pa.array(["a", "b", "c"]), np.arange(4), np.full(given, 10))
