"""The log host between Spark's calls: the head that it writes for a shard, and timers of more than a batch holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_purgatory.core.spec.criteria import any_key
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.shard_head import read_head
from spark_purgatory.spark.host.log_host import LogHost
from tests.simulation.tasks import Executor, Query, Rows, Sent, States, arrived, log_task
from tests.support.engine_driver import from_blob, outcome_rows
from tests.support.operations import op

SPEC = EngineSpec(any_key(), operation_ids=True, identity_width=2)


def test_a_restart_with_another_kind_of_deadline_is_noted_in_the_head() -> None:
    """A log is replayed with the kind under which it was written."""
    states = States()
    for number, is_sum in enumerate((False, True, True, False)):
        query = Query(replace(SPEC, deadline_is_sum=is_sum), "log", 1, False, 1)
        rows = Rows([op(str(number), row="r")], [], 1, str(number))
        worker = Executor().worker(random.Random(0))
        log_task(query, states, arrived(query, rows, 0), 1, worker, lambda point: None)
        head = read_head(states[0].values["head"])
        assert head.deadline_is_sum == is_sum
    assert (head.log_entries, head.log_bytes) == (0, 0), "the log begins anew with the snapshot"


Call = Callable[[dict[int, Sent], int], list[str]]


@pytest.fixture
def three() -> tuple[States, Call]:
    """Three shards in each of which an operation waits until 20 s, and a task's call: rows, and what left."""
    states, query, worker = States(), Query(SPEC, "log", 3, False, 1), Executor().worker(random.Random(0))

    def call(sent: dict[int, Sent], watermark_ms: int) -> list[str]:
        results = log_task(query, states, sent, watermark_ms, worker, lambda point: None)
        return [row["row"] for each in results if each["blob"] for row in outcome_rows(from_blob(each["blob"]))]

    names = (str(number) for number in range(100))
    while len(states) < 3:
        waits: dict[str, Any] = {"created": 10_000_000, "deadline": 20_000_000}
        name = next(names)
        sent = arrived(query, Rows([op(name, [name], row="r", **waits)], [], 1, name), 0)
        call({shard: each for shard, each in sent.items() if shard not in states}, 1)
    return states, call


def timers(states: States) -> dict[int, set[int]]:
    return {shard: state.timers for shard, state in states.items() if state.timers}


def test_what_does_not_fit_into_a_batch_expires_when_the_watermark_moves(
    three: tuple[States, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    states, call = three
    monkeypatch.setattr(LogHost, "most_expired_bytes", 0)
    assert timers(states) == {0: {20_000}, 1: {20_000}, 2: {20_000}}
    assert len(call({}, 99_000)) == 1
    assert timers(states) == {1: {99_001}, 2: {99_001}}
    assert call({}, 99_000) == []
    assert [len(call({}, watermark_ms)) for watermark_ms in (99_001, 120_000)] == [1, 1]
    assert timers(states) == {}


def test_a_shard_that_was_postponed_takes_rows_before_its_timer(
    three: tuple[States, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    states, call = three
    monkeypatch.setattr(LogHost, "most_expired_bytes", 0)
    call({}, 99_000)
    assert len(call({1: ()}, 99_000)) == 1
    assert timers(states) == {2: {99_001}}
