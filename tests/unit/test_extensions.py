"""Extensions that take turns on several keys of an operation: what they reach, and what that costs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.events import control_log
from spark_purgatory.core.events.event_log import EventSegment, Spans
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.support.engine_driver import Shards
from tests.support.operations import Row, ev, op

SPEC = EngineSpec(criteria.any_key(), operation_ids=True)


def renewals(keys: str, n: int, every_us: int = 1_000) -> list[Row]:
    """``n`` renewals by 1.5 times their distance, on each key in turn."""
    return [
        ev(keys[i % len(keys)], 19_999 + i * every_us, kind="extend", value=1.5e-6 * every_us, operation_id=None)
        for i in range(n)
    ]


def passes(n_renewals: int, n_operations: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """(passes over spans, events in the largest segment read) of a step after so many renewals on two keys in turn."""
    shards = Shards(SPEC, several=True)
    shards.step([op(f"o{i}", "ab") for i in range(n_operations)], renewals("ab", n_renewals), 0)
    sizes: list[int] = []
    until = Spans.until
    with monkeypatch.context() as patched:
        patched.setattr(
            Spans, "until", lambda span, times_us: sizes.append(len(span.segment.time_us)) or until(span, times_us)
        )
        shards.step([], [ev("a", 20_000, kind="extend", value=0.001, operation_id=None)], 0)
    return len(sizes), max(sizes)


def test_a_step_after_many_renewals_in_turns_passes_over_them_as_often_as_after_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (passes(n, 3, monkeypatch) for n in (200, 20_000))
    assert many[0] == few[0]


def test_times_far_before_1970_are_put_together_without_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_log, "ROUNDS", 1)
    before, keys = -(2**62), pa.array(["a", "b"])
    segment = EventSegment.build(
        keys, np.array([0, 1 << 40]), np.array([before, before + 5]), np.array([5, MAX_TIME_US])
    )
    spans = Spans(segment, np.array([0, 0]), segment.start[:-1], segment.start[:-1], segment.start[1:])
    assert control_log.extended([spans], np.array([before])).tolist() == [before + 5 + MAX_TIME_US]
