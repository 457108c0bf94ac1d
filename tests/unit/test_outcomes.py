"""Between Spark and a shard: what a micro-batch brings and ships, and that columns arrive under their names."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import LimitError
from spark_purgatory.spark.host.calls import Broadcast, packed, step_of
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, unpacker
from tests.support.engine_driver import END_MS, events_table, operations_table
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


def test_orphans_that_are_decided_before_an_operation_do_not_move_its_columns() -> None:
    spec = EngineSpec(criterion=criteria.any_key(), orphans="all")
    engine = EventTimePurgatory(spec)
    operations = operations_table([op()], False)
    # Types of the outcome's own columns: where columns went by their places, these were swapped without an error.
    operations = operations.set_column(operations.column_names.index("p1"), "p1", pa.array([7]))
    events = read_events(events_table([ev("b", time=None), ev("b", time=12_000)], 64, spec), spec.criterion)
    outcomes = engine.step(read_operations(operations, spec), events, 0) + engine.step(None, None, END_MS)
    assert [batch.num_rows for batch in outcomes] == [1, 1, 1], "a rejected event first, then the operation, an orphan"
    schema = pa.schema([("order_id", pa.string()), ("quantity", pa.int64()), *OUTCOME_FIELDS, *ORPHAN_FIELDS])
    blobs = pa.RecordBatch.from_pydict({"blob": pa.array([packed(outcomes)], pa.binary())})
    rows = [row for batch in unpacker(schema, orphans=True)(iter([blobs])) for row in batch.to_pylist()]
    assert [(row["order_id"], row["quantity"], row["status"], row["wait_ms"]) for row in rows] == [
        (None, None, "ORPHAN", None),
        ("o", 7, "EXPIRED", 10),
        (None, None, "ORPHAN", None),
    ]


def test_the_events_that_a_shard_is_sent_are_limited_together_and_its_operations_are_not() -> None:
    rows = [(OPERATIONS, bytes(500)), *[(EVENTS, bytes(40))] * 3]
    assert step_of(rows, 0, Broadcast(3, max_bytes=120)).size == 620
    with pytest.raises(LimitError, match="max_broadcast_bytes is 119, but the events of one micro-batch have 120 or"):
        step_of(rows, 0, Broadcast(3, max_bytes=119))
