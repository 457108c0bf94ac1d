"""Columns of a live engine, which grow and drop rows in place and are kept once, and the bytes that they take."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.held_bytes import held_bytes
from spark_purgatory.core.arrays.sorted_runs import EMPTY, GrowableArray
from spark_purgatory.core.arrays.value_column import ValueColumn
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.spark.host.exchange import to_blob
from tests.support.engine_driver import operations_table
from tests.support.operations import op

ROLES = (("id", 0), ("keys", 1), ("created_us", 2), ("deadline_us", 3))
SPEC = EngineSpec(criteria.any_key(), identity_width=2, roles=ROLES, control_events=False)


def operations(pairs: list[tuple[str, str]]) -> pa.Table:
    ids, keys = (pa.array(column, pa.string()) for column in zip(*pairs, strict=True))
    hashes = np.arange(len(pairs)) << 40
    times = pa.array(np.arange(len(pairs)) + 5_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "id_hash": hashes,
            "key_hashes": hashes,
            "ahead": np.zeros(len(pairs), bool),
            "p0": ids,
            "p1": keys,
            "p2": times,
            "p3": pa.array([10_000_000] * len(pairs)).cast(pa.timestamp("us", "UTC")),
            "p4": pa.array([0.5 * i for i in range(len(pairs))]),
            "p5": pa.array([None if i % 3 else f"note {i}" for i in range(len(pairs))]),
        }
    )


@pytest.mark.parametrize("values", [[f"o-{i:04}" for i in range(99)], list(range(99))])
def test_columns_of_one_array_do_not_change_each_other(values: list[Any]) -> None:
    """An operation's id is a column of the rows and one of the known ids."""
    given = pa.concat_arrays([pa.array(values[:50]), pa.array(values[50:])])  # Memory that Arrow lets others write.
    one, other = ValueColumn(given), ValueColumn(given)
    one.keep(np.arange(99) % 2 == 1)
    one.append(given.slice(0, 3))
    assert other.values.to_pylist() == given.to_pylist() == values
    assert one.values.to_pylist() == [*values[1::2], *values[:3]]


@pytest.mark.parametrize("n", [5, 5000])
def test_what_is_kept_is_what_was_there(n: int) -> None:
    rng = np.random.default_rng(n)
    numbers, texts = GrowableArray(EMPTY), ValueColumn()
    values, words = np.arange(n), [("ä" * int(length)) + str(i) for i, length in enumerate(rng.integers(0, 4, n))]
    numbers.append(values)
    texts.append(pa.array(words))
    for share in (1.0, 0.9, 0.8, 0.0):
        mask = rng.random(len(values)) < share
        numbers.keep(mask)
        texts.keep(mask)
        values, words = values[mask], [words[i] for i in np.flatnonzero(mask)]
        assert numbers.values.tolist() == values.tolist()
        assert texts.values.to_pylist() == words
        texts.values.validate(full=True)
        numbers.append(values[:3])
        values = np.concatenate((values, values[:3]))
        if words:
            texts.append(pa.array(["before", *words[:3]])[1:])
            words += words[:3]
        assert (numbers.values.tolist(), texts.values.to_pylist()) == (values.tolist(), words)


def test_texts_that_are_all_null_take_no_memory_until_one_is_not() -> None:
    column = ValueColumn()
    for _ in range(20):
        column.append(pa.nulls(1000, pa.string()))
    assert held_bytes(column) < 1000
    assert column.take(np.array([3, 19_999])).equals(pa.nulls(2, pa.string()))
    column.append(pa.array(["a"]))
    assert column.equal(np.array([0, 20_000, 20_000]), pa.array(["a", None]), np.array([1, 0, 1])).tolist() == [
        True,
        True,
        False,
    ]
    assert column.values.equals(pa.array([None] * 20_000 + ["a"]))


@pytest.mark.parametrize("seed", range(20))
def test_ids_equal_to_keys_are_kept_once_and_come_out_as_they_came_in(seed: int) -> None:
    rng, number = random.Random(seed), 0
    engine, model = EventTimePurgatory(SPEC), list[dict[str, Any]]()
    differ_from = rng.randrange(4)
    for step in range(6):
        pairs = [(f"o{number + i}", f"o{number + i}") for i in range(rng.randrange(1, 4))]
        number += len(pairs)
        if step >= differ_from and rng.random() < 0.7:
            pairs[-1] = (pairs[-1][0], "another key")
        table = operations(pairs)
        engine.step(read_operations(table, SPEC), None, 0)
        model += table.drop_columns(["id_hash", "key_hashes", "ahead"]).to_pylist()
        payload = engine.rows.payload
        assert payload.take().to_pylist() == model
        places = [rng.randrange(len(model)) for _ in range(5)]
        assert payload.take(np.array(places)).to_pylist() == [model[place] for place in places]
        assert engine.rows.ids.take(np.arange(len(model))).to_pylist() == [row["p0"] for row in model]
        shared = all(row["p0"] == row["p1"] for row in model)
        assert (0 in payload._own) == (not shared)
        if rng.random() < 0.4:
            blob = save(engine, 1)
            engine = restore(SPEC, blob, 1)
            assert save(engine, 1) == blob


ANY = EngineSpec(criterion=criteria.any_key(), identity_width=2)
WAITING = 50_000
STEPS = 10


def blobs() -> list[bytes]:
    rows = [op(f"order-{i}", keys=[f"order-{i}"], created=i, deadline=10**9, row=str(i)) for i in range(WAITING)]
    share = WAITING // STEPS
    tables = [operations_table(rows[at : at + share], several=False) for at in range(0, WAITING, share)]
    return [to_blob(table).to_pybytes() for table in tables]


@pytest.mark.parametrize("is_restored", [False, True])
def test_an_engine_takes_in_memory_what_it_says(is_restored: bool) -> None:
    steps = [Step(0, [blob]) for blob in blobs()]
    engine = EventTimePurgatory(ANY)
    for step in steps if is_restored else ():
        take_step(engine, step, is_kept=True)
    state = save(engine, 1)
    gc.collect()
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()
    engine = restore(ANY, state, 1)
    for step in () if is_restored else steps:
        take_step(engine, step, is_kept=True)
    traced, arrow = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes() - arrow_before
    tracemalloc.stop()
    assert engine.pending == WAITING
    assert 0.85 * (traced + arrow) < engine.memory_bytes < 1.15 * (traced + arrow)


def test_a_step_that_is_kept_copies_the_columns_of_its_blob() -> None:
    [first, *_] = blobs()
    before = sys.getrefcount(first)
    for is_kept in (True, False):
        engine = EventTimePurgatory(ANY)
        take_step(engine, Step(0, [first]), is_kept=is_kept)
        assert (sys.getrefcount(first) == before) == is_kept and engine.pending == WAITING // STEPS


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
