"""What an engine says that it takes in memory."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.held_bytes import held_bytes, own_memory
from spark_purgatory.core.arrays.sorted_runs import GrowableArray
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.spark.host.exchange import from_blob, to_blob
from tests.support.engine_driver import operations_table
from tests.support.operations import op

SPEC = EngineSpec(criterion=criteria.any_key(), identity_width=2)
WAITING = 50_000
STEPS = 10


def blobs() -> list[bytes]:
    rows = [op(f"order-{i}", keys=[f"order-{i}"], created=i, deadline=10**9, row=str(i)) for i in range(WAITING)]
    share = WAITING // STEPS
    tables = [operations_table(rows[at : at + share], several=False) for at in range(0, WAITING, share)]
    return [to_blob(table).to_pybytes() for table in tables]


def test_an_engine_takes_in_memory_what_it_says() -> None:
    steps = [Step(0, [blob]) for blob in blobs()]
    gc.collect()
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()
    engine = EventTimePurgatory(SPEC)
    for step in steps:
        take_step(engine, step, is_kept=True)
    traced, arrow = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes() - arrow_before
    tracemalloc.stop()
    assert engine.pending == WAITING
    assert 0.85 * (traced + arrow) < engine.memory_bytes < 1.15 * (traced + arrow)


def test_the_engine_copies_texts_and_numbers_and_a_kept_step_all_columns() -> None:
    [first, *_] = blobs()
    table = from_blob(first)
    some = pa.array([None, *table["p1"].to_pylist()[1:]], pa.string())
    with_null = to_blob(table.set_column(table.schema.get_field_index("p1"), "p1", some)).to_pybytes()
    engines = {}
    for name, blob, is_kept in (("texts", first, False), ("kept", with_null, True), ("lent", with_null, False)):
        engines[name] = EventTimePurgatory(SPEC)
        take_step(engines[name], Step(0, [blob]), is_kept=is_kept)
    assert engines["kept"].memory_bytes < 0.95 * engines["lent"].memory_bytes, "a column with a null keeps the blob"
    assert engines["texts"].memory_bytes < engines["lent"].memory_bytes - len(first) / 2


def test_a_restored_engine_lets_its_blob_go() -> None:
    engine = EventTimePurgatory(SPEC)
    for blob in blobs():
        take_step(engine, Step(0, [blob]), is_kept=True)
    restored = restore(SPEC, save(engine, 1), 1)
    before = restored.memory_bytes
    own_memory(restored)
    assert restored.memory_bytes < 0.8 * before
    assert save(restored, 1) == save(engine, 1)


@pytest.mark.parametrize("share", [slice(None), slice(0, 10)])
def test_memory_that_two_share_counts_once_and_a_view_counts_whole(share: slice) -> None:
    whole = np.arange(1000)
    assert held_bytes([whole, whole[share], whole]) == whole.nbytes
    values = pa.array(range(1000))
    assert held_bytes([values, values[5:10]]) == values.nbytes
    column = GrowableArray(whole[share])
    assert held_bytes([column]) == whole.nbytes
    column.append(np.arange(3))
    assert held_bytes([column]) == max(2 * len(column), 64) * 8, "what it has reserved counts"
