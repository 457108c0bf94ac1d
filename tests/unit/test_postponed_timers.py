"""More outcomes in one task's timers than an Arrow batch holds: the rest comes when the watermark next moves."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.spark.host.exchange import OPERATIONS, from_blob, to_blob
from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions
from spark_purgatory.spark.host.warm_engines import WarmEngines
from tests.support.engine_driver import operations_table, outcome_rows
from tests.support.spark_state import Handle, ShardState

SPEC = EngineSpec(criteria.count(1), identity_width=2)
SHARDS = (1, 2, 3)


class Host(LogHost):
    """With engines of its own."""

    engines: WarmEngines

    @property
    def warm(self) -> WarmEngines:
        """The test's."""
        return self.engines


class Alone(WarmEngines):
    """The engines of a worker that nobody asks."""

    address = "here"


@pytest.fixture
def engines() -> WarmEngines:
    return Alone(None)


def host_of(handle: Handle, engines: WarmEngines, most: int) -> Host:
    host = Host(SPEC, LogHostOptions(len(SHARDS), 1 << 30))
    host.engines = engines
    host.most_expired_bytes = most
    host.init(handle)  # type: ignore[arg-type]
    return host


def arrive(host: Host, handle: Handle) -> None:
    """One operation a shard, due at 20 s."""
    for shard in SHARDS:
        name = str(shard)
        row = {"id": name, "keys": [name], "created": 10_000_000, "deadline": 20_000_000, "row": name}
        handle.key = shard
        blob = bytes(to_blob(operations_table([row], several=False)))
        list(host.handleInputRows((shard,), iter([{"side": OPERATIONS, "blob": blob}]), TimerValues(1, 1)))


def fire(host: Host, handle: Handle, watermark_ms: int) -> list[str]:
    """All timers that are due, as Spark calls them; the operations that expired."""
    expired = []
    values = TimerValues(1, watermark_ms)
    due = sorted((at, shard) for shard, state in handle.states.items() for at in state.timers if at <= watermark_ms)
    for at, shard in due:
        handle.key = shard
        for row in host.handleExpiredTimer((shard,), values, ExpiredTimerInfo(at)):
            expired += [outcome["row"] for outcome in outcome_rows(from_blob(row["blob"]))]
        handle.deleteTimer(at)
    return expired


def timers(handle: Handle) -> dict[int, set[int]]:
    return {shard: state.timers for shard, state in handle.states.items() if state.timers}


def test_what_does_not_fit_into_a_batch_expires_when_the_watermark_moves(engines: WarmEngines) -> None:
    handle = Handle(dict[int, ShardState]())
    arrive(host_of(handle, engines, 0), handle)
    assert timers(handle) == {1: {20_000}, 2: {20_000}, 3: {20_000}}
    assert fire(host_of(handle, engines, 0), handle, 99_000) == ["1"]
    assert timers(handle) == {2: {99_001}, 3: {99_001}}
    assert fire(host_of(handle, engines, 0), handle, 99_000) == []
    assert fire(host_of(handle, engines, 0), handle, 99_001) == ["2"]
    assert fire(host_of(handle, engines, 0), handle, 120_000) == ["3"]
    assert timers(handle) == {}


def test_a_shard_that_was_postponed_takes_rows_before_its_timer(engines: WarmEngines) -> None:
    handle = Handle(dict[int, ShardState]())
    arrive(host_of(handle, engines, 0), handle)
    fire(host_of(handle, engines, 0), handle, 99_000)
    handle.key = 2
    host = host_of(handle, engines, 0)
    [answer] = host.handleInputRows((2,), iter(list[Any]()), TimerValues(1, 99_500))
    assert [outcome["row"] for outcome in outcome_rows(from_blob(answer["blob"]))] == ["2"]
    assert timers(handle) == {3: {99_001}}
