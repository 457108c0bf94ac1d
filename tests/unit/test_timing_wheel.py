"""The wheel against Kafka's, written again in plain Python with bucket lists and a heap.

The model below follows the recorded facts W1 to W14 of Kafka's SystemTimer and shares no idea with the engine: it keeps
every task in a bucket's list and moves it from list to list. A sequence is a list of actions; a difference is shown
with an arrow at the failing one.
"""

from __future__ import annotations

import heapq
import random
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_purgatory.core.kafka.timing_wheel import DROP_FLOOR, NEAR_TICKS, REBASE_FLOOR, SystemTimer
from spark_purgatory.errors import ConfigError
from tests.conformance.kafka_purgatory import bucket_ms, clocks_ms, level_of

YEAR_9999_MS = 253_402_300_799_999

# --- Kafka's timer, plainly -----------------------------------------------------------------------


class Bucket:
    """Tasks in the order they were put there; in the queue from when its expiration changes (W9).

    Kafka's empty bucket has expiration -1, which is also a time before 1970; here it has none.
    """

    def __init__(self) -> None:
        self.expiration: int | None = None
        self.tasks: dict[int, int] = {}


class Level:
    """One wheel; the one above is made when first needed (W1, W5)."""

    def __init__(self, timer: PlainTimer, number: int, unit: int, size: int, start: int) -> None:
        self.timer, self.number, self.unit, self.size = timer, number, unit, size
        self.clock = start - start % unit  # W2
        self.buckets = [Bucket() for _ in range(size)]
        self.above: Level | None = None

    def overflow(self) -> Level:
        if self.above is None:
            unit = self.unit * self.size
            self.above = Level(self.timer, self.number + 1, unit, self.size, self.clock)
        return self.above

    def put(self, task: int, deadline: int) -> tuple[int, int]:
        """(level, bucket's expiration)"""
        if deadline >= self.clock + self.size * self.unit:  # W4
            return self.overflow().put(task, deadline)
        expiration = deadline - deadline % self.unit
        bucket = self.buckets[deadline // self.unit % self.size]
        bucket.tasks[task] = deadline
        if bucket.expiration != expiration:
            bucket.expiration = expiration
            heapq.heappush(self.timer.queue, (expiration, next(self.timer.ties), bucket))
        self.timer.place[task] = bucket
        return self.number, expiration

    def advance(self, to: int) -> None:
        if to >= self.clock + self.unit:  # W8
            self.clock = to - to % self.unit
            if self.above is not None:
                self.above.advance(self.clock)


class PlainTimer:
    """Kafka's SystemTimer, of one thread."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        self.queue: list[tuple[int, int, Bucket]] = []
        self.ties = count()
        self.place: dict[int, Bucket] = {}
        self.tick_ms = tick_ms
        self.lowest = Level(self, 1, tick_ms, wheel_size, start_ms)

    @property
    def size(self) -> int:
        return len(self.place)

    @property
    def clocks_ms(self) -> list[int]:
        level: Level | None = self.lowest
        clocks = []
        while level is not None:
            clocks.append(level.clock)
            level = level.above
        return clocks

    @property
    def next_due_ms(self) -> int | None:
        ticks = [bucket.tasks[task] // self.tick_ms for task, bucket in self.place.items()]
        return min(ticks) * self.tick_ms if ticks else None

    def add(self, task: int, deadline: int) -> tuple[int, int] | None:
        """Level and bucket; None where it runs at once (W3). An armed task leaves its old bucket first (W12)."""
        self.cancel(task)
        if deadline < self.lowest.clock + self.tick_ms:
            return None
        return self.lowest.put(task, deadline)

    def cancel(self, task: int) -> bool:
        bucket = self.place.pop(task, None)
        if bucket is not None:
            del bucket.tasks[task]
        return bucket is not None

    def advance(self, to: int) -> list[int]:
        """W6, W7"""
        fired = []
        while self.queue and self.queue[0][0] <= to:
            expiration, _, bucket = heapq.heappop(self.queue)
            self.lowest.advance(expiration)
            for task, deadline in list(bucket.tasks.items()):
                if self.add(task, deadline) is None:
                    fired.append(task)
            bucket.expiration = None
        return fired


# --- both side by side ----------------------------------------------------------------------------

Action = tuple[Any, ...]
"""("add", {task: deadline_ms}), ("cancel", [tasks]), ("advance", to_ms)"""


def array(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def perform(timer: SystemTimer, action: Action) -> Any:
    """What the engine answers to an action."""
    kind, what = action
    if kind == "add":
        deadlines = array(list(what.values()))
        placed = level_of(timer, deadlines).tolist(), bucket_ms(timer, deadlines).tolist()
        answers = zip(timer.add(array(list(what)), deadlines).tolist(), *placed, strict=True)
        return [(level, bucket) if armed else None for armed, level, bucket in answers]
    if kind == "cancel":
        return timer.cancel(array(what)).tolist()
    return sorted(timer.advance_clock(what).tolist())


def perform_plainly(timer: PlainTimer, action: Action) -> Any:
    kind, what = action
    if kind == "add":
        return [timer.add(task, deadline) for task, deadline in what.items()]
    if kind == "cancel":
        return [timer.cancel(task) for task in what]
    return sorted(timer.advance(what))


def one_by_one(action: Action) -> list[Action]:
    kind, what = action
    if kind == "add":
        return [("add", {task: deadline}) for task, deadline in what.items()]
    return [("cancel", [task]) for task in what] if kind == "cancel" else [action]


def seen(timer: SystemTimer, next_due: bool = True) -> tuple[Any, ...]:
    return timer.size, clocks_ms(timer), timer.next_due_ms() if next_due else None


def compare(
    actions: Sequence[Action],
    tick_ms: int = 1,
    wheel_size: int = 4,
    start_ms: int = 0,
    note: str = "",
    ask_every: int = 1,
) -> tuple[SystemTimer, PlainTimer]:
    """Carry actions out on the engine in batches, on another one by one, and on the model; all must agree.

    The next deadline is asked for in every ``ask_every``-th step only, because asking drops dead entries.
    """
    plain = PlainTimer(tick_ms, wheel_size, start_ms)
    batched, single = (SystemTimer(tick_ms, wheel_size, start_ms) for _ in range(2))
    for i, action in enumerate(actions):
        expected = perform_plainly(plain, action)
        asked = i % ask_every == 0
        now = (plain.size, plain.clocks_ms, plain.next_due_ms if asked else None)
        parts = [perform(single, part) for part in one_by_one(action)]
        singly = parts[0] if action[0] == "advance" else [part[0] for part in parts]
        for how, got, state in (
            ("in batches", perform(batched, action), seen(batched, asked)),
            ("one by one", singly, seen(single, asked)),
        ):
            if (got, state) != (expected, now):
                shown = [f"  {'->' if step is action else '  '} {step}" for step in actions[max(0, i - 30) : i + 1]]
                raise AssertionError(
                    f"{note} tick {tick_ms} size {wheel_size} start {start_ms}, {how}, step {i}:\n"
                    + "\n".join(text[:300] for text in shown)
                    + f"\n  Kafka:  {str(expected)[:500]} {now}\n  engine: {str(got)[:500]} {state}"
                )
    return batched, plain


# --- a worked example -----------------------------------------------------------------------------


def test_a_worked_example() -> None:
    """Tasks go to levels and buckets, a bucket that is due moves its survivors down, and clocks follow polled buckets.

    ::

        add 2, 3, 6, 21     levels 1, 1, 2, 3   buckets 2, 3, 4, 16
        advance 5           runs 2 and 3; bucket 4 is polled, 6 goes to level 1; clocks 4, 4, 0
        add 5               fires at once? no: 5 >= 4 + 1, armed in bucket 5, already due; runs on the next advance
        advance 5           runs 5; clocks 5, 4, 0
    """
    timer = SystemTimer(tick_ms=1, wheel_size=4, start_ms=0)
    deadlines = array([2, 3, 6, 21])
    assert timer.add(array([0, 1, 2, 3]), deadlines).all()
    assert (level_of(timer, deadlines).tolist(), bucket_ms(timer, deadlines).tolist()) == ([1, 1, 2, 3], [2, 3, 4, 16])

    assert timer.advance_clock(5).tolist() == [0, 1]
    assert clocks_ms(timer) == [4, 4, 0]
    assert timer.wheel.queued[0].tolist() == [False, False, True, False], "6 lies on level 1"

    deadlines = array([5])
    assert timer.add(array([4]), deadlines).tolist() == [True]
    assert (level_of(timer, deadlines).tolist(), bucket_ms(timer, deadlines).tolist()) == ([1], [5])

    assert timer.advance_clock(5).tolist() == [4]
    assert clocks_ms(timer) == [5, 4, 0]
    compare([("add", {0: 2, 1: 3, 2: 6, 3: 21}), ("advance", 5), ("add", {4: 5}), ("advance", 5)])


# --- single facts by hand -------------------------------------------------------------------------


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


# --- the next deadline ----------------------------------------------------------------------------


def test_the_next_deadline_is_found_behind_many_cancelled_ones_in_several_runs() -> None:
    timer = SystemTimer()
    for first in (0, 600, 900):  # sizes 600, 300, 100: three runs
        timer.add(array(range(first, 1000)), array(range(first + 1, 1001)))
    timer.cancel(array([row for row in range(1000) if row not in (777, 950)]))
    assert timer.next_due_ms() == 778
    assert timer.advance_clock(778).tolist() == [777]
    assert timer.next_due_ms() == 951


# --- repeats --------------------------------------------------------------------------------------


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
        timer.entries.drop_dead(lambda ticks, rows: timer.armed_tick.values[rows] == ticks)
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


# --- far from the base ----------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("sign", [-1, 1])
def test_deadlines_at_the_edge_of_what_an_entry_can_name_are_kept_apart_and_run_in_time(sign: int, beside: int) -> None:
    far = sign * NEAR_TICKS + beside
    deadlines = [0, far, 5, far + 1]  # the first added is the base
    added: list[Action] = [("add", {0: 0}), ("add", {1: far, 2: 5, 3: far + 1})]
    timer, _ = compare(added, start_ms=-(1 << 36))
    assert len(timer.entries.outlier_ticks) == sum(not -NEAR_TICKS <= deadline < NEAR_TICKS for deadline in deadlines)
    around: list[Action] = [("advance", deadline - before) for deadline in sorted(deadlines) for before in (1, 0)]
    timer, _ = compare(added + sorted(around, key=lambda action: action[1]), start_ms=-(1 << 36))
    assert timer.size == 0


def test_a_first_deadline_far_from_all_others_makes_a_new_base_and_loses_nobody() -> None:
    n, today = REBASE_FLOOR + 500, 1_760_000_000_000
    tasks = {i: today + 7 * (i % 97) for i in range(1, n)}
    timer, plain = compare([("add", {0: 10, n: YEAR_9999_MS}), ("add", tasks), ("cancel", [5]), ("advance", 9)])
    assert timer.entries.base > today - 1, "no new base was chosen"
    assert len(timer.entries.outlier_ticks) == 2, "the first deadline and the last are the outliers now"
    for to in (10, today, today + 300, today + 7 * 97, YEAR_9999_MS):
        assert sorted(timer.advance_clock(to).tolist()) == sorted(plain.advance(to))
        assert (timer.size, clocks_ms(timer), timer.next_due_ms()) == (plain.size, plain.clocks_ms, plain.next_due_ms)
    assert timer.size == 0


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Break off what has not ended by then."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_deadline_at_the_end_of_int64_is_armed() -> None:
    timer = SystemTimer()
    with at_most(0.2):
        timer.add(array([0]), array([2**63 - 1]))
    assert timer.size == 1


def test_deadlines_at_both_ends_of_int64_stay_apart() -> None:
    timer = SystemTimer(start_ms=-(2**63) + 1)
    timer.add(array([0, 1]), array([-(2**63) + 4, 2**63 - 3]))
    assert timer.next_due_ms() == -(2**63) + 4
    assert timer.advance_clock(-(2**63) + 4).tolist() == [0]


# --- random sequences -----------------------------------------------------------------------------

TASKS = st.integers(0, 7)
NEAR = st.integers(-3, 40)
FAR = st.one_of(
    NEAR,
    st.integers(-3, 700),
    st.builds(lambda sign, by: sign * NEAR_TICKS + by, st.sampled_from([-1, 1]), st.integers(-3, 3)),
    st.sampled_from([-(1 << 37), 1 << 37, YEAR_9999_MS]),
)


def sequences(steps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Action]]:
    """Deadlines and jumps are relative to the latest time, so that sequences keep going forward."""
    relative = st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.dictionaries(TASKS, steps, min_size=1, max_size=4)),
            st.tuples(st.just("cancel"), st.lists(TASKS, min_size=1, max_size=3, unique=True)),
            st.tuples(st.just("advance"), steps.map(lambda step: max(step, 0))),
        ),
        max_size=25,
    )
    return relative


def absolute(actions: Sequence[Action], start_ms: int, tick_ms: int) -> list[Action]:
    now, result = start_ms, []
    for kind, what in actions:
        if kind == "add":
            result.append((kind, {task: now + step * tick_ms // 2 for task, step in what.items()}))
        elif kind == "advance":
            now = min(now + what * tick_ms // 2, 1 << 52)
            result.append((kind, now))
        else:
            result.append((kind, what))
    return result


STARTS = st.sampled_from([0, 1, 7, -5, -(1 << 36), 1_760_000_000_123])


@settings(max_examples=250, deadline=None)
@given(sequences(NEAR), st.integers(2, 5), st.sampled_from([1, 2, 3, 10]), STARTS, st.integers(1, 3))
def test_small_worlds_turn_as_kafkas_wheel(
    actions: list[Action], wheel_size: int, tick_ms: int, start_ms: int, ask_every: int
) -> None:
    compare(absolute(actions, start_ms, tick_ms), tick_ms, wheel_size, start_ms, ask_every=ask_every)


@settings(max_examples=250, deadline=None)
@given(sequences(FAR), st.sampled_from([2, 3, 4, 20]), st.sampled_from([1, 1, 7, 1000]), STARTS, st.integers(1, 3))
def test_wide_worlds_turn_as_kafkas_wheel(
    actions: list[Action], wheel_size: int, tick_ms: int, start_ms: int, ask_every: int
) -> None:
    compare(absolute(actions, start_ms, tick_ms), tick_ms, wheel_size, start_ms, ask_every=ask_every)


@pytest.mark.parametrize("seed", range(8))
def test_renumbering_tasks_changes_no_later_run(seed: int) -> None:
    rng = random.Random(seed)
    timer, plain = SystemTimer(wheel_size=4), PlainTimer(1, 4, 0)
    names: list[int] = []  # by row
    fresh, now = count(), 0
    for _ in range(40):
        new = {
            next(fresh): now + rng.choice((1, 5, 100, 1 << 35)) + rng.randint(0, 20) for _ in range(rng.randint(0, 6))
        }
        timer.add(array(range(len(names), len(names) + len(new))), array(list(new.values())))
        names += new
        for name, deadline in new.items():
            plain.add(name, deadline)
        gone = [name for name in names if rng.random() < 0.2]
        assert timer.cancel(array([names.index(name) for name in gone])).tolist() == [plain.cancel(n) for n in gone]
        now += rng.choice((0, 3, 30, 1 << 33))
        fired = [names[row] for row in timer.advance_clock(now).tolist()]
        assert sorted(fired) == sorted(plain.advance(now)), f"seed {seed}"
        if rng.random() < 0.4:
            kept = np.array([name in plain.place for name in names], bool)
            timer.renumber(np.where(kept, np.cumsum(kept) - 1, -1))
            names = [name for name, keep in zip(names, kept, strict=True) if keep]
        assert (timer.size, clocks_ms(timer), timer.next_due_ms()) == (plain.size, plain.clocks_ms, plain.next_due_ms)
