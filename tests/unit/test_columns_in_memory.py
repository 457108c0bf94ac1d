"""Columns of a live engine: texts that grow in place, rows dropped in place, and payload columns that are kept once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.held_bytes import held_by_part
from spark_purgatory.core.arrays.sorted_runs import BLOCK, EMPTY, GROWTH_FLOOR, GrowableArray
from spark_purgatory.core.arrays.value_column import GrowableTexts, ValueColumn
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.arrivals import read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save

ROLES = (("id", 0), ("keys", 1), ("created_us", 2), ("deadline_us", 3))
SPEC = EngineSpec(criteria.any_key(), identity_width=2, roles=ROLES, control_events=False)
MANY = 2 * BLOCK + 7


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


@pytest.mark.parametrize("n", [5, MANY])
def test_what_is_kept_in_place_is_what_was_there(n: int) -> None:
    rng = np.random.default_rng(n)
    numbers, texts = GrowableArray(EMPTY), GrowableTexts(pa.string())
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


def test_a_column_that_shrinks_and_grows_again_stays_in_its_memory_until_it_is_half_as_long() -> None:
    column = GrowableArray(np.arange(GROWTH_FLOOR * 4))
    place = column.values.ctypes.data
    column.keep(np.arange(GROWTH_FLOOR * 4) < GROWTH_FLOOR * 3)
    column.append(np.arange(GROWTH_FLOOR))
    assert column.values.ctypes.data == place
    column.keep(np.arange(GROWTH_FLOOR * 4) < GROWTH_FLOOR)
    assert held_by_part([column]) == {"": GROWTH_FLOOR * 8}


def test_texts_that_are_all_null_take_no_memory_until_one_is_not() -> None:
    column = ValueColumn()
    for _ in range(20):
        column.append(pa.nulls(1000, pa.string()))
    assert sum(held_by_part(column).values()) < 1000
    assert column.take(np.array([3, 19_999])).equals(pa.nulls(2, pa.string()))
    column.append(pa.array(["a"]))
    assert column.equal(np.array([0, 20_000, 20_000]), pa.array(["a", None]), np.array([1, 0, 1])).tolist() == [
        True,
        True,
        False,
    ]
    column.merge()
    assert [chunk.type for chunk in column.chunks] == [pa.string()] * len(column.chunks)
    assert pa.concat_arrays(column.chunks).to_pylist() == [None] * 20_000 + ["a"]


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
        assert [row for chunk in payload.chunks for row in chunk.to_pylist()] == model
        places = [rng.randrange(len(model)) for _ in range(5)]
        assert payload.take(np.array(places)).to_pylist() == [model[place] for place in places]
        assert engine.rows.ids.take(np.arange(len(model))).to_pylist() == [row["p0"] for row in model]
        shared = all(row["p0"] == row["p1"] for row in model)
        assert (0 in payload._own) == (not shared)
        if rng.random() < 0.4:
            blob = save(engine, 1)
            engine = restore(SPEC, blob, 1)
            assert save(engine, 1) == blob
