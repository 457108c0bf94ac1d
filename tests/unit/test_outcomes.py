"""Outcomes on their way to Spark: what a micro-batch ships."""

from __future__ import annotations

import pyarrow as pa

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.spark.host.calls import packed
from tests.support.engine_driver import events_table, operations_table
from tests.support.operations import ev, op

WAITING = 10_000


def test_the_outcome_of_one_operation_is_small_however_many_wait() -> None:
    spec = EngineSpec(criterion=criteria.any_key())
    engine = EventTimePurgatory(spec)
    for first in (0, WAITING // 2):
        rows = [op(f"o{i}", keys=[f"k{i}"], created=0, deadline=1000) for i in range(first, first + WAITING // 2)]
        engine.step(read_operations(operations_table(rows, False), spec), None, 0)
    events = read_events(events_table([ev("k7", time=5)], 64, spec), spec.criterion)
    outcomes = engine.step(None, events, 0)
    blob = packed(outcomes)
    assert blob is not None
    assert pa.ipc.open_stream(blob).read_all().num_rows == 1
    assert len(blob) < WAITING, "four bytes for each key that is watched would be 20,000"
