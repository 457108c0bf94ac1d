"""What the event log keeps and what it forgets. What is read of it is shown by the law.

An event is (key, time, value).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.events.event_log import FORGET_FLOOR, EventLog, EventSegment

Array = np.ndarray[Any, np.dtype[Any]]
Event = tuple[str, int, float]

KEYS = "abcdef"


def array(values: Any) -> Array:
    return np.array(values, np.int64)


def segment_of(events: list[Event]) -> EventSegment:
    keys = pa.array([key for key, _, _ in events], pa.string())
    values = np.array([value for _, _, value in events], float)
    return EventSegment.build(keys, hash_keys(keys), array([time for _, time, _ in events]), values)


def log_of(batches: list[list[Event]]) -> EventLog:
    log = EventLog()
    for batch in batches:
        log.append(segment_of(batch))
    return log


def events_in(segments: list[EventSegment]) -> Counter[Event]:
    """The events of segments, read group by group."""
    found: Counter[Event] = Counter()
    for segment in segments:
        assert segment.value is not None
        for group, key in enumerate(segment.group_keys.to_pylist()):
            inside = slice(segment.start[group], segment.start[group + 1])
            times, values = segment.time_us[inside].tolist(), segment.value[inside].tolist()
            found.update((key, time, value) for time, value in zip(times, values, strict=True))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_log_keeps_every_event_in_at_most_log2_n_plus_2_segments(seed: int) -> None:
    rng, log, model = random.Random(seed), EventLog(), Counter[Event]()
    for _ in range(120):
        events = [(rng.choice(KEYS), rng.randint(0, 9), 1.0) for _ in range(rng.choice((0, 1, 2, 9, 40)))]
        log.append(segment_of(events))
        model.update(events)
        assert len(log.segments) <= math.log2(max(len(log), 1)) + 2
    assert events_in(log.segments) == model
    assert len(log.segments) > 1
    assert len(log.merged()) == 1
    assert events_in(log.segments) == model
    assert EventLog().merged() == []


def nobody(segment: EventSegment) -> Array:
    return np.full(len(segment.group_hash), 2**63 - 1)


def test_where_nobody_waits_a_segment_is_cut_when_half_of_it_is_old_and_goes_when_all_of_it_is() -> None:
    log = log_of([[("ab"[time % 2], time, 0.0) for time in range(10)], [("a", 3, 0.0)], []])
    assert [len(segment) for segment in log.segments] == [10, 1]
    for floor, left in ((2, [10, 1]), (3, [10]), (4, [5]), (5, [5]), (6, [5]), (7, [2]), (8, [1]), (9, [])):
        log.forget(floor)
        assert [len(segment) for segment in log.segments] == left, floor
        assert {time for _, time, _ in events_in(log.segments)} >= set(range(floor + 1, 10))


def test_the_log_stays_bounded_while_the_floor_moves_on() -> None:
    log = EventLog()
    for turn in range(60):
        log.append(segment_of([(KEYS[i % 6], turn * 10 + i % 10, 0.0) for i in range(100)]))
        log.forget((turn - 2) * 10, nobody)
        assert len(log) <= 2 * 300 + FORGET_FLOOR + 100
    assert {time // 10 for _, time, _ in events_in(log.segments)} >= {57, 58, 59}
