"""The event log against a plain list of events; small worlds crowded with ties and with hashes that collide.

An event is (key, time, value); a key's hash is whatever the forgery makes of it.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_purgatory.core.arrays.sorted_runs import PREFIX_MASK
from spark_purgatory.core.arrays.value_column import ValueColumn, hash_keys
from spark_purgatory.core.events.event_log import FORGET_FLOOR, EventLog, EventSegment, bisect_within

Array = np.ndarray[Any, np.dtype[Any]]
Event = tuple[str, int, float]

FORGERIES: dict[str, Callable[[Array], Array]] = {
    "sound": lambda hashes: hashes,
    "all equal": lambda hashes: np.zeros_like(hashes),
    "two values": lambda hashes: (hashes & 1) - 1,
    "equal in the 36 bits that order first": lambda hashes: -(1 << 40) | (hashes & 3),
}
forged = pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
KEYS = "abcdef"
EVENTS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(-4, 12), st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0])), max_size=25
)


def array(values: Any) -> Array:
    return np.array(values, np.int64)


def segment_of(events: list[Event], forge: Callable[[Array], Array] = FORGERIES["sound"]) -> EventSegment:
    keys = pa.array([key for key, _, _ in events], pa.string())
    values = np.array([value for _, _, value in events], float)
    return EventSegment.build(keys, forge(hash_keys(keys)), array([time for _, time, _ in events]), values)


def log_of(batches: list[list[Event]], forge: Callable[[Array], Array] = FORGERIES["sound"]) -> EventLog:
    log = EventLog()
    for batch in batches:
        log.append(segment_of(batch, forge))
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


def assert_well_built(segment: EventSegment, hash_of: dict[str, int]) -> None:
    keys = segment.group_keys.to_pylist()
    assert len(set(keys)) == len(keys), "a key has one group"
    assert [hash_of[key] for key in keys] == segment.group_hash.tolist()
    assert segment.group_hash.tolist() == sorted(segment.group_hash.tolist())
    assert (segment.start[0], segment.start[-1]) == (0, len(segment))
    assert (np.diff(segment.start) > 0).all()
    for first, end in zip(segment.start[:-1], segment.start[1:], strict=True):
        times = segment.time_us[first:end].tolist()
        assert times == sorted(times)
    assert segment.keys.to_pylist() == [
        key for key, n in zip(keys, np.diff(segment.start), strict=True) for _ in range(n)
    ]
    assert segment.hashes.tolist() == [hash_of[key] for key in segment.keys.to_pylist()]


def hashes_of(forge: Callable[[Array], Array]) -> dict[str, int]:
    """What a segment keeps of each key's hash: the upper 36 bits."""
    return dict(zip(KEYS, (forge(hash_keys(pa.array(list(KEYS)))) & PREFIX_MASK).tolist(), strict=True))


# --- segments -------------------------------------------------------------------------------------


@forged
@settings(max_examples=80, deadline=None)
@given(events=EVENTS)
def test_a_segment_groups_events_by_key_and_orders_them_by_time(
    events: list[Event], forge: Callable[[Array], Array]
) -> None:
    segment = segment_of(events, forge)
    assert len(segment) == len(events)
    assert events_in([segment]) == Counter(events)
    assert_well_built(segment, hashes_of(forge))


def test_keys_that_share_a_hash_and_take_turns_get_a_group_each() -> None:
    segment = EventSegment.build(pa.array(list("abab")), array([9] * 4), array([1, 2, 3, 4]), None)
    groups = dict(zip(segment.group_keys.to_pylist(), np.split(segment.time_us, segment.start[1:-1]), strict=True))
    assert {key: times.tolist() for key, times in groups.items()} == {"a": [1, 3], "b": [2, 4]}
    assert segment.value is None


@settings(max_examples=80, deadline=None)
@given(events=EVENTS)
def test_the_running_maximum_is_that_of_the_key_up_to_and_with_the_event(events: list[Event]) -> None:
    segment = segment_of(events)
    assert segment.value is not None
    expected = []
    for first, end in zip(segment.start[:-1], segment.start[1:], strict=True):
        values = segment.value[first:end].tolist()
        expected += [max(values[: i + 1]) for i in range(len(values))]
    assert segment.running_max.tolist() == expected


@settings(max_examples=80, deadline=None)
@given(events=EVENTS, floor=st.integers(-5, 13))
def test_the_base_of_a_level_is_the_first_event_to_reach_the_maximum_up_to_the_floor(
    events: list[Event], floor: int
) -> None:
    segment = segment_of(events)
    base = segment.level_base(floor)
    found = {
        key: time
        for key, time, is_base in zip(segment.keys.to_pylist(), segment.time_us.tolist(), base, strict=True)
        if is_base
    }
    expected = {}
    for key in {key for key, time, _ in events if time <= floor}:
        old = [(time, value) for k, time, value in events if k == key and time <= floor]
        highest = max(value for _, value in old)
        expected[key] = min(time for time, value in old if value == highest)
    assert found == expected
    assert int(base.sum()) == len(expected)


# --- bisection within ranges ----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=9).map(sorted), st.integers(-1, 7)), max_size=6))
def test_bisecting_many_ranges_is_bisecting_each(ranges: list[tuple[list[int], int]]) -> None:
    values = array([value for part, _ in ranges for value in part])
    ends = np.cumsum([len(part) for part, _ in ranges], dtype=np.int64)
    starts = ends - array([len(part) for part, _ in ranges])
    targets = array([target for _, target in ranges])
    for after, of_list in ((False, bisect.bisect_left), (True, bisect.bisect_right)):
        got = bisect_within(values, starts, ends, targets, after)
        expected = [start + of_list(part, target) for start, (part, target) in zip(starts, ranges, strict=True)]
        assert got.tolist() == expected
    assert starts.tolist() == (ends - array([len(part) for part, _ in ranges])).tolist(), (
        "the ranges given are not touched"
    )


# --- spans ----------------------------------------------------------------------------------------


@forged
@settings(max_examples=50, deadline=None)
@given(
    batches=st.lists(EVENTS, max_size=5),
    asked=st.lists(st.tuples(st.sampled_from(KEYS + "z"), st.integers(-6, 14), st.integers(-6, 14)), max_size=8),
)
def test_spans_hold_the_events_of_each_key_between_both_times_and_no_other(
    batches: list[list[Event]], asked: list[tuple[str, int, int]], forge: Callable[[Array], Array]
) -> None:
    log = log_of(batches, forge)
    assert len(log) == sum(map(len, batches))
    names = pa.array([key for key, _, _ in asked], pa.string())
    keys = ValueColumn()
    keys.append(pa.array(["unasked"]))
    keys.append(names)
    entries = np.arange(1, len(asked) + 1)
    from_us, to_us = (array([entry[i] for entry in asked]) for i in (1, 2))
    found: Counter[tuple[int, int, float]] = Counter()
    if len(asked):
        for spans in log.spans(keys, entries, forge(hash_keys(names)), from_us, to_us):
            assert spans.segment.value is not None and (spans.low < spans.high).all()
            middle = spans.until(np.full(len(spans.owner), 3))
            for i, owner in enumerate(spans.owner.tolist()):
                inside = slice(spans.low[i], spans.high[i])
                times = spans.segment.time_us[inside].tolist()
                assert middle[i] - spans.low[i] == sum(time <= 3 for time in times)
                assert spans.segment.time_us[spans.group_start[i]] <= min(times)
                values = spans.segment.value[inside].tolist()
                found.update((owner, time, value) for time, value in zip(times, values, strict=True))
    expected = Counter(
        (i, time, value)
        for i, (key, low, high) in enumerate(asked)
        for batch in batches
        for k, time, value in batch
        if k == key and low <= time <= high
    )
    assert found == expected


# --- the log --------------------------------------------------------------------------------------


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
    """No waiting operation needs any event."""
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
