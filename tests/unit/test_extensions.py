"""Extensions that take turns on several keys of an operation: what they reach, and what that costs."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.events import control_log
from spark_purgatory.core.events.event_log import EventSegment, Spans
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.support.engine_driver import END_MS, Shards, microseconds
from tests.support.operations import Row, ev, op

SPEC = EngineSpec(criteria.any_key(), operation_ids=True)


def deadlines(operations: list[Row], events: list[Row], final: bool = False) -> dict[str, int]:
    """When each operation expires, in microseconds."""
    outcomes = Shards(replace(SPEC, final=final), several=True).run([(operations, events, 0), ([], [], END_MS)])
    return {outcome["id"]: microseconds(outcome["resolved_at"]) for outcome in outcomes if outcome["id"]}


def by_hand(operation: Row, events: list[Row]) -> int:
    """The deadline after the extensions, one after the other in the order of their times."""
    deadline: int = operation["deadline"]
    for event in sorted(events, key=lambda event: event["time"]):
        mine = event["key"] in operation["keys"] and event["operation_id"] in (None, operation["id"])
        if mine and operation["created"] <= event["time"] <= deadline:
            deadline = max(deadline, event["time"] + round(event["value"] * 1_000_000))
    return deadline


def renewals(keys: str, n: int, every_us: int = 1_000) -> list[Row]:
    """``n`` renewals by 1.5 times their distance, on each key in turn."""
    return [
        ev(keys[i % len(keys)], 19_999 + i * every_us, kind="extend", value=1.5e-6 * every_us, operation_id=None)
        for i in range(n)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_extensions_on_several_keys_and_by_operation_reach_as_far_as_by_hand(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(control_log, "ROUNDS", 1)
    monkeypatch.setattr(control_log, "MOST_TOGETHER", rng.choice([1, 50, 1 << 19]))
    rows = []
    for i in range(12):
        created = 10_000 + 50 * rng.randrange(40)
        keys = "".join(rng.sample("abcde", rng.randint(1, 4)))
        rows.append(op(f"o{i}", keys, created=created, deadline=created + 100 * rng.randrange(20)))
    events = [
        ev(
            rng.choice("abcdef"),
            9_000 + 10 * rng.randrange(2_000),
            kind="extend",
            value=rng.choice([0.0001, 0.0003, 0.001]),
            operation_id=rng.choice([None, None, "o1", "o2"]),
        )
        for _ in range(rng.choice([5, 60, 200]))
    ]
    assert deadlines(rows, events, rng.random() < 0.5) == {row["id"]: by_hand(row, events) for row in rows}


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


def test_operations_of_the_same_keys_read_their_renewals_together(monkeypatch: pytest.MonkeyPatch) -> None:
    one, many = (passes(400, n, monkeypatch) for n in (1, 500))
    assert many == one


def test_times_far_before_1970_are_put_together_without_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_log, "ROUNDS", 1)
    before, keys = -(2**62), pa.array(["a", "b"])
    segment = EventSegment.build(
        keys, np.array([0, 1 << 40]), np.array([before, before + 5]), np.array([5, MAX_TIME_US])
    )
    spans = Spans(segment, np.array([0, 0]), segment.start[:-1], segment.start[:-1], segment.start[1:])
    assert control_log.extended([spans], np.array([before])).tolist() == [before + 5 + MAX_TIME_US]
