"""The purgatory on small worlds: by hand, against lists and dictionaries, and batches against single calls.

An operation is a letter and watches keys written as letters too: `watch("p ab 5")` is operation p on keys a and b with
5 ms to wait. It is complete when every one of its keys has happened; nothing completes until somebody looks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.kafka.purgatory import ENDED, TRANSITIONS, WAITING, DelayedOperationPurgatory
from spark_purgatory.core.kafka.timing_wheel import SystemTimer
from spark_purgatory.errors import BugError
from tests.conformance.kafka_purgatory import KafkaPurgatory, validate

Array = np.ndarray[Any, np.dtype[Any]]


class World:
    """A purgatory whose operations have names; every call ends in `validate`."""

    def __init__(self, **options: Any) -> None:
        self.purgatory = KafkaPurgatory(
            SystemTimer(tick_ms=1, wheel_size=4),
            try_complete=self._try,
            on_complete=lambda rows: self._note(self.completed, rows),
            on_expiration=lambda rows: self._note(self.expired, rows),
            **options,
        )
        self.names: list[str] = []  # by row
        self.keys: dict[str, str] = {}
        self.happened: set[str] = set()
        self.now = 0
        self.tried = 0
        self.completed: list[str] = []
        self.expired: list[str] = []

    def _try(self, rows: Array) -> Array:
        self.tried += len(rows)
        return np.array([set(self.keys[self.names[row]]) <= self.happened for row in rows.tolist()], bool)

    def _note(self, where: list[str], rows: Array) -> None:
        where += [self.names[row] for row in rows.tolist()]

    def rows(self, names: str) -> Array:
        return np.array([self.names.index(name) for name in names], np.int64)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Watched, delayed, estimated."""
        return self.purgatory.watchers.watched, self.purgatory.timer.size, self.purgatory.estimated_total

    @property
    def waiting(self) -> str:
        return "".join(self.names[row] for row in self.purgatory.waiting())

    def watch(self, *words: str) -> list[bool]:
        """`watch("p ab 5", "q a 7")`"""
        parts = [word.split() for word in words]
        self.names += [name for name, _, _ in parts]
        self.keys |= {name: keys for name, keys, _ in parts}
        flat = pa.array([key for _, keys, _ in parts for key in keys], pa.string())
        offsets = np.cumsum([0, *(len(keys) for _, keys, _ in parts)])
        deadlines = np.array([self.now + int(delay) for _, _, delay in parts], np.int64)
        _, completed = self.purgatory.watch(flat, offsets, deadlines)
        validate(self.purgatory)
        return list(completed.tolist())

    def check(self, keys: str) -> list[int]:
        counts = self.purgatory.check(pa.array(list(keys), pa.string()))
        validate(self.purgatory)
        return list(counts.tolist())

    def happen(self, keys: str) -> None:
        self.happened |= set(keys)

    def force(self, names: str) -> list[bool]:
        done = self.purgatory.force_complete(self.rows(names))
        validate(self.purgatory)
        return list(done.tolist())

    def cancel(self, key: str) -> str:
        rows = self.purgatory.cancel_for_key(key)
        validate(self.purgatory)
        return "".join(self.names[row] for row in rows)

    def advance(self, by: int) -> str:
        self.now += by
        rows = self.purgatory.advance(self.now)
        validate(self.purgatory)
        return "".join(self.names[row] for row in rows)

    def rearm(self, names: str, *delays: int) -> None:
        self.purgatory.rearm(self.rows(names), np.array([self.now + delay for delay in delays], np.int64))
        validate(self.purgatory)

    def compact(self) -> None:
        new_row = self.purgatory.compact()
        validate(self.purgatory)
        self.names = [name for name, row in zip(self.names, new_row, strict=True) if row >= 0]


# --- by hand --------------------------------------------------------------------------------------


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


def test_a_rearmed_operation_expires_at_its_new_deadline_only() -> None:
    world = World()
    world.watch("p a 5", "q a 5", "r a 5")
    world.rearm("pq", 8, 2)
    assert [world.advance(1) for _ in range(9)] == ["", "q", "", "", "r", "", "", "p", ""]
    assert world.expired == ["q", "r", "p"]


def test_one_rearmed_to_the_past_expires_at_the_next_advance_and_not_before() -> None:
    world = World()
    world.watch("p a 5", "q a 9", "r a 3")
    assert world.advance(3) == "r", "the wheel's clock stands at 3"
    world.rearm("p", -2)
    assert (world.expired, world.counts) == (["r"], (3, 2, 3))
    assert (world.advance(1), world.advance(1)) == ("p", "")


def test_every_pair_that_is_no_transition_changes_nothing() -> None:
    assert {
        (state, event) for state, event in product((WAITING, ENDED), ("complete", "expire"))
    } - TRANSITIONS.keys() == {
        (ENDED, "complete"),
        (ENDED, "expire"),
    }
    world = World()
    world.watch("p a 5", "q a 5")
    world.happen("a")
    world.check("a")
    before = world.completed[:], world.expired[:], world.counts
    assert world.force("pq") == [False, False]
    assert (world.check("a"), world.advance(50)) == ([0], "")
    assert (world.completed, world.expired, world.counts) == before


# --- validate -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "spoil"),
    [
        ("watched", lambda p: setattr(p.watchers, "watched", 5)),
        ("ended", lambda p: setattr(p, "ended", 7)),
        ("armed", lambda p: setattr(p.timer, "size", 9)),
        ("indexed", lambda p: p.watchers.index.runs.clear()),
        ("armed after the end", lambda p: p.state.writable.__setitem__(0, ENDED)),
    ],
)
def test_validate_finds_what_does_not_add_up(named: str, spoil: Any) -> None:
    world = World()
    world.watch("p ab 5", "q b 5")
    spoil(world.purgatory)
    with pytest.raises(BugError, match=f"^bug: .*'{named}'"):
        validate(world.purgatory)


# --- against lists and dictionaries ---------------------------------------------------------------


class PlainWorld:
    """The same, as lists and dictionaries; deadlines lie at least 1 ms ahead."""

    def __init__(self, purge_interval: int = 1000) -> None:
        self.purge_interval = purge_interval
        self.lists: dict[str, list[str]] = {}
        self.keys: dict[str, str] = {}
        self.armed: dict[str, int] = {}
        self.ended: list[str] = []
        self.expired: list[str] = []
        self.happened: set[str] = set()
        self.now = self.estimated = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        return sum(map(len, self.lists.values())), len(self.armed), self.estimated

    def _end(self, name: str) -> bool:
        if name in self.ended:
            return False
        self.ended.append(name)
        self.armed.pop(name, None)
        return True

    def _holds(self, name: str) -> bool:
        return set(self.keys[name]) <= self.happened

    def watch(self, *words: str) -> list[bool]:
        answers = []
        for name, keys, delay in (word.split() for word in words):
            self.keys[name] = keys
            answers.append(self._holds(name) and self._end(name))
            if not answers[-1]:
                for key in keys:
                    self.lists.setdefault(key, []).append(name)
                self.estimated += 1
                self.armed[name] = self.now + int(delay)
        return answers

    def check(self, keys: str) -> list[int]:
        counts = []
        for key in keys:
            counts.append(sum(self._end(name) for name in dict.fromkeys(self.lists.get(key, [])) if self._holds(name)))
            self.lists[key] = [name for name in self.lists.get(key, []) if name not in self.ended]
        return counts

    def happen(self, keys: str) -> None:
        self.happened |= set(keys)

    def force(self, names: str) -> list[bool]:
        return [self._end(name) for name in names]

    def cancel(self, key: str) -> str:
        names = self.lists.pop(key, [])
        for name in names:
            self.armed.pop(name, None)
        return "".join(names)

    def advance(self, by: int) -> str:
        self.now += by
        due = sorted((deadline, name) for name, deadline in self.armed.items() if deadline <= self.now)
        for _, name in due:
            self._end(name)
            self.expired.append(name)
        if self.estimated - len(self.armed) > self.purge_interval:
            self.estimated = len(self.armed)
            self.lists = {key: [n for n in names if n not in self.ended] for key, names in self.lists.items()}
        return "".join(name for _, name in due)


START = ("watch", "p ab 2", "q b 3")
ALPHABET: tuple[tuple[Any, ...], ...] = (
    ("happen", "a"),
    ("happen", "b"),
    ("check", "b"),
    ("force", "p"),
    ("cancel", "b"),
    ("advance", 2),
    ("watch", "r bb 1"),
)


def play(actions: Sequence[tuple[Any, ...]], **options: Any) -> World:
    """Carry actions out in both worlds; an arrow shows where they differ."""
    world, plain = World(**options), PlainWorld(**options)
    for i, (name, *given) in enumerate(actions):
        got, expected = getattr(world, name)(*given), getattr(plain, name)(*given)
        engine = (got, world.completed, world.expired, world.counts)
        lists = (expected, plain.ended, plain.expired, plain.counts)
        if engine != lists:
            shown = "\n".join(f"  {'->' if j == i else '  '} {action}" for j, action in enumerate(actions))
            raise AssertionError(f"\n{shown}\n  lists:  {lists}\n  engine: {engine}")
    return world


@pytest.mark.parametrize("first", ALPHABET, ids=lambda action: " ".join(map(str, action)))
def test_every_world_of_four_steps_is_what_lists_make_of_it(first: tuple[Any, ...]) -> None:
    for rest in product(ALPHABET, repeat=3):
        if [first, *rest].count(ALPHABET[-1]) > 1:
            continue  # a name is watched once
        world = play([START, first, *rest], purge_interval=1)
        assert max(Counter(world.completed).values(), default=1) == 1
        assert set(world.expired) <= set(world.completed)
        assert set(world.completed).isdisjoint(world.waiting)


def random_actions(rng: random.Random, soonest: int) -> list[tuple[Any, ...]]:
    """Forty actions on up to 26 operations and four keys; a watch and a force take several at once."""
    names, known, actions = list("abcdefghijklmnopqrstuvwxyz"), "", list[tuple[Any, ...]]()
    for _ in range(40):
        kind = rng.choice(("watch", "watch", "happen", "check", "check", "force", "cancel", "advance"))
        keys = "".join(rng.choice("abcd") for _ in range(rng.randint(1, 4)))
        if kind == "watch" and names:
            new = [names.pop(0) for _ in range(min(rng.randint(1, 3), len(names)))]
            known += "".join(new)
            watched = ["".join(rng.choice("abcd") for _ in range(rng.randint(1, 3))) for _ in new]
            delays = [rng.choice((soonest, 1, 3, 9, 40)) for _ in new]
            words = [f"{name} {keys} {delay}" for name, keys, delay in zip(new, watched, delays, strict=True)]
            actions.append((kind, *words))
        elif kind == "happen" and rng.random() < 0.4:
            actions.append((kind, rng.choice("abcd")))
        elif kind == "check":
            actions.append((kind, keys))
        elif kind == "force" and known:
            actions.append((kind, "".join(rng.sample(known, min(2, len(known))))))
        elif kind == "cancel" and rng.random() < 0.3:
            actions.append((kind, keys[0]))
        elif kind == "advance":
            actions.append((kind, rng.choice((0, 1, 2, 7))))
    return actions


# --- batches --------------------------------------------------------------------------------------


def one_by_one(world: World, name: str, given: Sequence[Any]) -> Any:
    """The same action in single calls."""
    if name == "watch":
        return [world.watch(word)[0] for word in given]
    if name == "check":
        return [world.check(key)[0] for key in given[0]]
    if name == "force":
        return [world.force(each)[0] for each in given[0]]
    return getattr(world, name)(*given)


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_answers_as_its_calls_one_by_one(seed: int) -> None:
    batched, single = World(purge_interval=3), World(purge_interval=3)
    for i, (name, *given) in enumerate(random_actions(random.Random(seed), soonest=-1)):
        answers = getattr(batched, name)(*given), one_by_one(single, name, given)
        where = f"seed {seed}, step {i}: {name} {given}"
        assert answers[0] == answers[1], where
        assert Counter(batched.completed) == Counter(single.completed), where
        assert (batched.expired, batched.counts) == (single.expired, single.counts), where


def test_the_order_of_completion_within_a_batch_of_checks_is_that_of_the_keys_and_then_of_the_lists() -> None:
    world = World()
    world.watch("p b 9", "q ab 9", "r a 9", "s b 9")
    world.happen("ab")
    assert (world.check("abab"), world.completed) == ([2, 2, 0, 0], ["q", "r", "p", "s"])


# --- compacting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_compacting_changes_nothing_that_happens_later(seed: int) -> None:
    rng = random.Random(seed)
    compacted, untouched, times = World(), World(), 0
    for i, (name, *given) in enumerate(random_actions(rng, soonest=-1)):
        where = f"seed {seed}, step {i}: {name} {given}"
        if name == "force":  # those forgotten have ended
            given = ["".join(each for each in given[0] if each in compacted.names)]
        answers = [getattr(world, name)(*given) for world in (compacted, untouched)]
        if name == "cancel":  # ended operations stand on the lists of the one that kept them
            answers = ["".join(each for each in answer if each in untouched.waiting) for answer in answers]
        assert answers[0] == answers[1], where
        assert (compacted.completed, compacted.expired) == (untouched.completed, untouched.expired), where
        assert (compacted.waiting, compacted.counts[1]) == (untouched.waiting, untouched.counts[1]), where
        if rng.random() < 0.3:
            compacted.compact()
            times += 1
            assert "".join(compacted.names) == compacted.waiting, where
            assert compacted.purgatory.next_row == len(compacted.waiting), where
    assert times, f"seed {seed}: never compacted"


def test_compacting_nothing_and_everything_leaves_a_purgatory_that_works() -> None:
    world = World()
    world.compact()
    world.watch("p a 9")
    world.force("p")
    world.compact()
    assert (world.counts, world.purgatory.next_row) == ((0, 0, 0), 0)
    world.watch("q a 9")
    world.happen("a")
    assert (world.check("a"), world.completed) == ([1], ["p", "q"])


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
