"""Control events by hand, one sentence a test. Operations are called o, wait for a, and live from 10 ms to 20 ms."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.engine import relevant_events, resolver
from spark_purgatory.core.engine.evaluation import evaluate
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.waiting import Waiting
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.codes import RULES, EventRejection
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.support.control_events import Row, told
from tests.support.engine_driver import (
    END_MS,
    NAMES,
    Shards,
    events_table,
    final,
    microseconds,
    multiset,
    operations_table,
)
from tests.support.operations import ev, many_operations, op, play, written
from tests.support.oracle import KINDS, decide
from tests.support.splits import splits
from tests.support.worlds import random_world

ANY = EngineSpec(criteria.any_key(), operation_ids=True, event_ids=True)
HELD = final(ANY)
both = pytest.mark.parametrize("spec", [ANY, HELD], ids=["early", "final"])


def fate(spec: EngineSpec, events: list[Row], keys: str = "a") -> tuple[Any, ...]:
    """(status, resolved_at in ms, matched, missing_keys) once everything is decided."""
    (outcome,) = Shards(spec, several=True).run([([op(keys=keys)], events, 0), ([], [], END_MS)])
    missing = None if outcome["missing_keys"] is None else "".join(sorted(outcome["missing_keys"]))
    return outcome["status"], microseconds(outcome["resolved_at"]) / 1000, outcome["matched"], missing


def test_a_failure_that_comes_later_undoes_what_was_held_and_an_extension_moves_its_timer() -> None:
    play(
        HELD,
        (0, [op(), *told("complete:a:18")], ""),
        (5, told("fail:a:15 extend:a:16:1"), ""),
        (15, [], "o FAILED 15000"),
    )
    play(
        replace(HELD, criterion=criteria.all_keys()),
        (0, [op(keys="ab"), *told("complete:a:12")], ""),
        (15, told("extend:b:19:0.011"), ""),
        (29, told("complete:b:30"), ""),
        (30, [], "o COMPLETED 30000"),
        several=True,
    )


# --- by operation alone -------------------------------------------------------------------------


def alone(words: str) -> list[Row]:
    """Events of `told` without their key."""
    return [{**event, "key": None} for event in told(words)]


@both
@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("cancel:-:14@o", "o CANCELLED 14000, p EXPIRED 20000"),
        ("fail:-:14@o", "o FAILED 14000, p EXPIRED 20000"),
        ("force:-:14@o", "o COMPLETED 14000, p EXPIRED 20000"),
        ("extend:-:14:0.02@o", "o EXPIRED 34000, p EXPIRED 20000"),
        ("extend:-:14:0.02@o extend:a:30:0.02@o", "o EXPIRED 50000, p EXPIRED 20000"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_event_with_an_operation_and_no_key_reaches_this_operation_with_all_its_keys(
    spec: EngineSpec, words: str, left: str, first: bool
) -> None:
    spec = replace(spec, criterion=criteria.quorum(2), orphans="all")
    waits, events = [op("o", "abc"), op("p", "abc")], alone(words)
    steps = [([*waits, *([] if first else events)], 0), (events if first else [], 0), ([], 60)]
    shards, outcomes = Shards(spec, several=True), list[Row]()
    for rows, watermark_ms in steps:
        sides = [[row for row in rows if ("id" in row) == is_operation] for is_operation in (True, False)]
        outcomes += shards.step(*sides, watermark_ms)
    assert sorted(map(written, outcomes)) == sorted(left.split(", ")), "and no event is an orphan"


def test_what_remains_until_the_deadline_of_an_operation_that_waits_includes_its_extensions() -> None:
    shards = Shards(replace(EngineSpec(criteria.any_key()), operation_ids=True))
    shards.step([op(), op("p", "b")], [ev(kind="extend", value=0.03)], 12)
    waiting = Waiting(shards.engine(0), 12_000)
    assert waiting.column("remaining_ms").to_pylist() == [33, 8]


def test_under_early_an_operation_that_is_cancelled_by_its_id_alone_leaves_at_once() -> None:
    shards = Shards(replace(ANY, criterion=criteria.all_keys()), several=True)
    shards.step([op("o", "abc"), op("p", "a")], [], 0)
    assert [row["status"] for row in shards.step([], alone("cancel:-:14@o"), 0)] == ["CANCELLED"]


@both
def test_where_events_go_to_the_shard_of_their_key_an_operation_alone_is_rejected_and_counted(spec: EngineSpec) -> None:
    shards = Shards(replace(spec, orphans="all"))
    outcomes = shards.run([([op()], alone("cancel:-:14@o complete:-:14@o"), 0), ([], [], 60)])
    told_of = [outcome["reason"] for outcome in outcomes if outcome["status"] == "ORPHAN"]
    assert told_of == [
        f"cancel on key null for operation o counted for no operation: rejected, "
        f"{EventRejection.OPERATION_ALONE.reason}",
        "complete on key null for operation o counted for no operation: rejected, the key is null",
    ]
    rejections = shards.tallies()[0].event_rejections
    assert rejections[EventRejection.OPERATION_ALONE] == rejections[EventRejection.NULL_KEY] == 1


@both
def test_an_event_that_names_a_waiting_operation_on_a_key_that_this_does_not_have_is_counted(spec: EngineSpec) -> None:
    spec = replace(spec, criterion=criteria.all_keys())
    shards = Shards(spec, shards=3, several=True)
    events = told("cancel:z:14@o complete:z:14@o cancel:a:14@nobody complete:b:14@o complete:a:14") + alone(
        "force:-:14@p"
    )
    shards.run([([op("o", "ab"), op("p", "ab")], [], 0), ([], events, 0)])
    tallies = shards.tallies()
    assert sum(tally.event_rejections[EventRejection.FOREIGN_KEY] for tally in tallies) == 2
    assert sum(tally.events_rejected for tally in tallies) == 0, "an operation of this id that has the key may come yet"


@both
@pytest.mark.parametrize("seconds", [None, -0.001, float("nan"), float("inf")])
def test_an_extension_without_a_duration_is_rejected_and_counted(spec: EngineSpec, seconds: float | None) -> None:
    shards = Shards(spec)
    shards.step([op()], [ev(kind="extend", value=seconds)], 0)
    tally = shards.tallies()[0]
    assert (tally.events_rejected, tally.event_rejections[EventRejection.BAD_EXTENSION]) == (1, 1)


# --- events by id ---------------------------------------------------------------------------------


def test_an_event_delivered_again_counts_once_from_where_an_operation_begins_to_count() -> None:
    again = [ev(time=t * 1000, event_id=name, value=1.0) for t, name in ((5, "x"), (12, "x"), (14, "x"), (15, "y"))]
    for criterion in (criteria.count(2), criteria.sum_at_least(2)):
        assert fate(replace(HELD, criterion=criterion), again) == ("COMPLETED", 15, 2, None)
        assert fate(replace(HELD, criterion=criterion), again[:3]) == ("EXPIRED", 20, 1, None)


def named_events(words: str) -> list[Row]:
    """`x:a:12:2 y:b:13@o`: event id, key, ms, value (1), and the operation it names."""
    events = []
    for word in words.split():
        word, _, name = word.partition("@")
        event_id, key, ms, *value = word.split(":")
        number = float(value[0]) if value else 1.0
        events.append(ev(key, int(ms) * 1000, event_id=event_id, value=number, operation_id=name or None))
    return events


TABLE = "x:a:12 y:a:13 x:a:15 x:b:14 z:b:16"
COUNT, SUM = criteria.count(3), criteria.sum_at_least(3)
DELIVERED = [
    (COUNT, "ab", TABLE, ("COMPLETED", 16, 3, None)),
    (SUM, "ab", TABLE, ("COMPLETED", 16, 3, None)),
    (COUNT, "a", TABLE, ("EXPIRED", 20, 2, None)),
    (criteria.all_keys(), "ab", "x:a:12 x:b:14", ("COMPLETED", 14, 1, "")),
    (criteria.any_key(), "ab", "x:a:12 x:b:12", ("COMPLETED", 12, 1, "")),
    (SUM, "ab", "x:a:12:1 x:b:12:2 y:b:13:2", ("COMPLETED", 13, 2, None)),
    (SUM, "ab", "x:a:12:1 x:b:12:2 y:b:13:1", ("EXPIRED", 20, 2, None)),
    (SUM, "ab", "x:a:12:2 x:b:12:1 y:b:13:1", ("EXPIRED", 20, 2, None)),
    (COUNT, "a", "x:a:12@o x:a:13 x:a:14@o y:a:15@o y:a:16@o", ("EXPIRED", 20, 2, None)),
    (COUNT, "a", "x:a:12@o x:a:13 y:a:15@o z:a:16@o z:a:17", ("COMPLETED", 16, 3, None)),
]


@pytest.mark.parametrize(("criterion", "keys", "words", "expected"), DELIVERED)
def test_an_event_counts_once_whichever_keys_it_comes_on_and_whomever_it_names(
    criterion: Criterion, keys: str, words: str, expected: tuple[Any, ...]
) -> None:
    spec, events = replace(HELD, criterion=criterion), named_events(words)
    assert fate(spec, events, keys) == expected
    # The same, one event a micro-batch: what names the operation is not merged then.
    batches = [([op(keys=keys)], events[:1], 0), *(([], [event], 0) for event in events[1:]), ([], [], END_MS)]
    (outcome,) = Shards(spec, several=True).run(batches)
    assert (outcome["status"], outcome["matched"]) == (expected[0], expected[2])


@pytest.mark.parametrize(("criterion", "keys", "words", "expected"), DELIVERED)
def test_operations_with_many_deliveries_to_compare_are_resolved_in_parts_with_the_same_outcomes(
    criterion: Criterion, keys: str, words: str, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcomes() -> list[Row]:
        rows = [op(f"o{i}", keys, deadline=20_000 + i) for i in range(5)]
        spec = replace(HELD, criterion=criterion, operation_ids=False)
        events = [{**event, "operation_id": None} for event in named_events(words)]
        return Shards(spec, several=True).run([(rows, events, 0), ([], [], END_MS)])

    whole = outcomes()
    resolved: list[int] = []
    monkeypatch.setattr(
        resolver, "evaluate", lambda inputs, *others: resolved.append(len(inputs.rule)) or evaluate(inputs, *others)
    )
    monkeypatch.setattr(relevant_events, "MAX_DELIVERIES", 3)
    assert multiset(outcomes(), *NAMES) == multiset(whole, *NAMES)
    assert max(resolved) == 1, resolved


# --- boundary values, hostile hashes, hot keys ----------------------------------------------------

LAST = 2**63 - 1
TIMES = (None, 0, 1, -1, LAST, -LAST, -(2**63), 253_402_300_799_999_999, -12_219_292_800_000_000, 86_400_000_000)
NUMBERS = (None, 0.0, -0.0, -1.0, 0.5, 5e-324, 1.7e308, float("inf"), float("-inf"), float("nan"), 2.0**62, 1e-13)
TEXTS = (None, "", "a", "\0", "ä", "\u2028", "🙂", "x" * (1 << 20), "null", "a:1", "0:")
BOUNDARIES: list[tuple[str, str, Any]] = [
    *[("operation", field, value) for field in ("created", "deadline") for value in TIMES],
    *[("operation", "id", value) for value in TEXTS],
    *[
        ("operation", "keys", value)
        for value in (None, [], [None], ["a", None], ["a", "a"], *([text] for text in TEXTS))
    ],
    *[("operation", "need", value) for value in NUMBERS],
    *[("operation", "rule", value) for value in (*RULES, None, "", "Any_Key")],
    *[("operation", "level", value) for value in (None, {}, {"a": None}, *NUMBERS)],
    *[("event", "time", value) for value in TIMES],
    *[("event", "key", value) for value in TEXTS],
    *[("event", "value", value) for value in NUMBERS],
    *[("event", "kind", value) for value in (*KINDS, None, "", "Cancel")],
    *[("event", "operation_id", value) for value in TEXTS],
    *[("event", "event_id", value) for value in TEXTS],
]


def test_no_boundary_value_raises_or_drops_a_row_silently(capsys: pytest.CaptureFixture[str]) -> None:
    spec = EngineSpec(criteria.by_row("rule", "need", "levels"), final=True, operation_ids=True, event_ids=True)
    cases = 0
    for side, field, value in BOUNDARIES:
        for rule in RULES:
            row: Row = op(rule=rule, need=1.0, level=None)
            event: Row = ev(value=1.0, kind=None, operation_id=None, event_id="x")
            (row if side == "operation" else event)[field] = value
            engine = EventTimePurgatory(spec)
            arrivals = read_operations(
                operations_table([row, op("p", "zz", rule=rule, need=1.0, level=None)], True, 64, True), spec
            )
            batches = engine.step(arrivals, read_events(events_table([event, ev()], 64, spec), spec.criterion), 0)
            batches += engine.step(None, None, END_MS)
            assert sum(map(len, batches)) == 2, (side, field, value, rule)
            assert (engine.outcomes.tally.events_received, engine.pending) == (2, 0)
            cases += 1
    with capsys.disabled():
        print(f"\nR9: {len(BOUNDARIES)} boundary values, {cases} runs: 0 exceptions, 0 drops")


@pytest.mark.parametrize("bits", [0, 1, 4])
def test_forged_hashes_of_keys_ids_and_operations_change_no_outcome(bits: int) -> None:
    rng = random.Random(bits)
    world = random_world(rng, n_operations=40, n_events=120, n_keys=8, max_keys=1)
    expected = multiset(decide(*world), "row", "id", "status", "resolved_at", "matched")
    spec = EngineSpec(criteria.by_row("rule", "need", "levels"), final=True, operation_ids=True, event_ids=True)
    outcomes = Shards(spec, 3, hash_bits=bits).run(splits(rng, *world, 4))
    assert multiset(outcomes, "row", "id", "status", "resolved_at", "matched") == expected


def many_controls(kind: Callable[[int], str], n: int) -> list[Row]:
    return [ev("hot", 20_000 + i, kind=kind(i), value=0.001, event_id=f"e{i % (n - 20)}") for i in range(n)]


def test_a_hot_key_with_control_events_costs_its_operations_and_its_events_not_their_product(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec, n = replace(ANY, criterion=criteria.count(1_000_000)), 200_000
    engine = EventTimePurgatory(spec)
    engine.step(read_operations(many_operations(0, n).append_column("x", pa.nulls(n)), spec), None, 0)
    began = process_time()
    events = many_controls(lambda i: "extend" if i % 2 else "complete", 4_000)
    assert engine.step(None, read_events(events_table(events, 64, spec), spec.criterion), 0) == []
    decided = engine.step(
        None, read_events(events_table([ev("hot", 25_000, kind="cancel")], 64, spec), spec.criterion), 0
    )
    seconds = process_time() - began
    assert (sum(map(len, decided)), engine.pending) == (n, 0)
    assert set(decided[0]["matched"].to_pylist()) == {1990} and seconds < 20
    with capsys.disabled():
        print(f"\n{n:,} operations on one key, 4,000 events of which 20 come twice, a cancel: {seconds:.1f} s")
