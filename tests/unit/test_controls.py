"""Control events by hand, one sentence a test. Operations are called o, wait for a, and live from 10 ms to 20 ms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.waiting import Waiting
from spark_purgatory.core.events import control_log
from spark_purgatory.core.events.event_log import EventSegment, Spans
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.codes import RULES, EventRejection
from spark_purgatory.core.spec.engine_spec import EngineSpec, Evidence
from tests.support.engine_driver import (
    END_MS,
    Shards,
    events_table,
    final,
    operations_table,
)
from tests.support.law_worlds import carrying
from tests.support.operations import Row, ev, many_operations, op, told
from tests.support.oracle import KINDS

ANY = EngineSpec(criteria.any_key(), operation_ids=True, event_ids=True)
HELD = final(ANY)
both = pytest.mark.parametrize("spec", [ANY, HELD], ids=["early", "final"])


def alone(words: str) -> list[Row]:
    """Events of `told` without their key."""
    return [{**event, "key": None} for event in told(words)]


def test_what_remains_until_the_deadline_of_an_operation_that_waits_includes_its_extensions() -> None:
    shards = Shards(replace(EngineSpec(criteria.any_key()), operation_ids=True))
    shards.step([op(), op("p", "b")], [ev(kind="extend", value=0.03)], 12)
    waiting = Waiting(shards.engine(0), 12_000)
    assert waiting.column("remaining_ms").to_pylist() == [33, 8]


def test_an_operation_that_waits_shows_its_events_and_one_that_expires_none_unless_all_are_asked_for() -> None:
    given = [op(), ev(value=1.0, note="x")]
    spec = carrying(EngineSpec(criteria.count(2)), 100)
    shards = Shards(spec)
    shards.step(given[:1], given[1:], 0)
    [[event]] = Waiting(shards.engine(0), None).column("events").to_pylist()
    assert (event["key"], event["note"]) == ("a", "x")
    (outcome,) = Shards(replace(spec, evidence=Evidence(True))).run([(given[:1], given[1:], 0), ([], [], END_MS)])
    assert (outcome["status"], outcome["event"]) == ("EXPIRED", None) and "events" not in outcome


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


LAST = 2**63 - 1
TIMES = (None, 0, 1, -1, LAST, -LAST, -(2**63), 253_402_300_799_999_999, -12_219_292_800_000_000, 86_400_000_000)
NUMBERS = (None, 0.0, -0.0, -1.0, 0.5, 5e-324, 1.7e308, float("inf"), float("-inf"), float("nan"), 2.0**62, 1e-13)
TEXTS = (None, "", "a", "\0", "ä", "\u2028", "🙂", "x" * (1 << 17), "null", "a:1", "0:")
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


def test_no_boundary_value_raises_or_drops_a_row_silently() -> None:
    """In a row of each rule, and beside rows that are sound."""
    spec = EngineSpec(criteria.by_row("rule", "need", "levels"), final=True, operation_ids=True, event_ids=True)
    for side, field, value in BOUNDARIES:
        rows = [op(f"o-{rule}", rule=rule, need=1.0, level=None) for rule in RULES]
        event: Row = ev(value=1.0, kind=None, operation_id=None, event_id="x")
        for changed in rows if side == "operation" else [event]:
            changed[field] = value
        rows.append(op("p", "zz", rule="any_key", need=1.0, level=None))
        engine = EventTimePurgatory(spec)
        arrivals = read_operations(operations_table(rows, True, 64, True), spec)
        batches = engine.step(arrivals, read_events(events_table([event, ev()], 64, spec), spec.criterion), 0)
        batches += engine.step(None, None, END_MS)
        assert sum(map(len, batches)) == len(rows), (side, field, value)
        assert (engine.outcomes.tally.events_received, engine.pending) == (2, 0)


def many_controls(kind: Callable[[int], str], n: int) -> list[Row]:
    return [ev("hot", 20_000 + i, kind=kind(i), value=0.001, event_id=f"e{i % (n - 20)}") for i in range(n)]


def test_a_hot_key_with_control_events_costs_its_operations_and_its_events_not_their_product(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec, n = replace(ANY, criterion=criteria.count(1_000_000)), 50_000
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
    assert set(decided[0]["matched"].to_pylist()) == {1990} and seconds < 10
    with capsys.disabled():
        print(f"\n{n:,} operations on one key, 4,000 events of which 20 come twice, a cancel: {seconds:.1f} s")


def test_extensions_far_before_1970_do_not_overflow() -> None:
    before, keys = -(2**62), pa.array(["a", "b"])
    segment = EventSegment.build(
        keys, np.array([0, 1 << 40]), np.array([before, before + 5]), np.array([5, MAX_TIME_US])
    )
    spans = Spans(segment, np.array([0, 0]), segment.start[:-1], segment.start[:-1], segment.start[1:])
    assert control_log.extended([spans], np.array([before])).tolist() == [before + 5 + MAX_TIME_US]
