"""Key columns, hashes, ids: against lists and dictionaries, and with hashes forged so that everything collides.

An index finds by 36 bits of a hash; what it finds counts only if the keys are equal in full. So hashes may be as bad as
anybody likes: it costs time, never a wrong outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.arrays import value_column as keys
from spark_purgatory.core.arrays.sorted_runs import by_first
from spark_purgatory.core.arrays.value_column import MOST_CHUNKS, ValueColumn, hash_keys, mix64
from spark_purgatory.core.engine.deduplication import FORGET_FLOOR, IdRows, SeenIds
from spark_purgatory.core.kafka.watchers import Watchers
from spark_purgatory.core.spec import criteria
from spark_purgatory.core.spec.engine_spec import EngineSpec
from tests.support.engine_driver import Shards, multiset
from tests.support.splits import splits
from tests.support.worlds import random_world

Array = np.ndarray[Any, np.dtype[Any]]


def array(values: Any) -> Array:
    return np.array(values, np.int64)


# --- bad hashes -----------------------------------------------------------------------------------

FORGERIES: dict[str, Callable[[Array], Array]] = {
    "sound": lambda hashes: hashes,
    "all equal": lambda hashes: np.zeros_like(hashes),
    "all the highest": lambda hashes: np.full_like(hashes, 2**63 - 1),
    "all the lowest": lambda hashes: np.full_like(hashes, -(2**63)),
    "two values": lambda hashes: (hashes & 1) - 1,
    "equal in the 36 bits of the index": lambda hashes: hashes & 0xFFF,
    "equal but for the lowest bit": lambda hashes: (hashes & 1) | (1 << 40),
}
forged = pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)


# --- hashes ---------------------------------------------------------------------------------------


def test_integers_hash_as_splitmix64_does() -> None:
    # The first two outputs of splitmix64 seeded with 0, as published with it: mix64 of the seed's two steps.
    steps = [(0x9E3779B97F4A7C15 * i) & (2**64 - 1) for i in (1, 2)]
    mixed = mix64(np.array(steps, np.uint64).view(np.int64)).view(np.uint64)
    assert [hex(value) for value in mixed.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def test_text_and_its_bytes_hash_alike_and_as_blake2b() -> None:
    words = ["", "a", "ä", "a" * 1000, "\0", "a"]
    expected = [int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little", signed=True) for word in words]
    assert hash_keys(pa.array(words)).tolist() == expected
    assert hash_keys(pa.array([word.encode() for word in words], pa.binary())).tolist() == expected


# --- a column of keys is a list -------------------------------------------------------------------

KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "ab", "ä", "b" * 40]),
    "int64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "binary": (pa.binary(), [b"", b"\xff", b"a", b"\0", b"ab"]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": i, "y": "ab"[i % 2]} for i in range(5)]),
}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 4), max_size=9)),
        st.tuples(st.just("take"), st.lists(st.integers(0, 10**6), max_size=9)),
        st.tuples(st.just("equal"), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), max_size=9)),
        st.tuples(st.just("keep"), st.sets(st.integers(0, 40), max_size=30)),
        st.tuples(st.just("merge"), st.none()),
    ),
    max_size=14,
)
A_CHUNK_TOO_MANY = [("append", [0, 1])] * (MOST_CHUNKS + 1)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS)
@example([*A_CHUNK_TOO_MANY, ("append", [2]), ("take", [18, 3, 17]), ("equal", [(18, 2)]), ("merge", None)])
def test_a_key_column_is_a_list(kind: str, actions: list[tuple[str, Any]]) -> None:
    arrow_type, values = KINDS[kind]
    column, model = ValueColumn(), list[Any]()
    for action, what in actions:
        if action == "append":
            column.append(pa.array([values[i] for i in what], arrow_type))
            model += [values[i] for i in what]
        elif action == "keep":
            kept = sorted(place for place in what if place < len(model))
            column.keep(array(kept))
            model = [model[place] for place in kept]
        elif action == "take" and model:
            places = [place % len(model) for place in what]
            assert column.take(array(places)).to_pylist() == [model[place] for place in places]
        elif action == "equal" and model and kind != "struct":
            places, others = [place % len(model) for place, _ in what], [other for _, other in what]
            same = column.equal(array(places), pa.array(values, arrow_type), array(others))
            assert same.tolist() == [model[p] == values[o] for p, o in zip(places, others, strict=True)]
        elif action == "merge":
            column.merge()
        assert len(column) == len(model)
        chunks = [len(chunk) for chunk in column.chunks]
        assert [value for chunk in column.chunks for value in chunk.to_pylist()] == model
        merged = all(a > 2 * b for a, b in pairwise(chunks))
        assert merged or (action != "merge" and len(chunks) <= MOST_CHUNKS), chunks


def test_no_chunk_grows_beyond_what_arrow_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_CHUNK_BYTES", 200)
    column, model = ValueColumn(), [f"{i:020d}" for i in range(40)]
    for i in range(0, 40, 2):
        column.append(pa.array(model[i : i + 2]))
    assert [value for chunk in column.chunks for value in chunk.to_pylist()] == model
    assert all(chunk.nbytes < 200 for chunk in column.chunks)
    assert len(column.chunks) < 12
    assert column.take(array([39, 0, 17])).to_pylist() == [model[39], model[0], model[17]]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_null_equals_null_and_nothing_else(kind: pa.DataType) -> None:
    column = ValueColumn([pa.array([None, "a", None], pa.string()).cast(kind), pa.array(["b"]).cast(kind)])
    others = pa.array(["a", None, ""], pa.string()).cast(kind)
    pairs = [(mine, theirs) for mine in range(4) for theirs in range(3)]
    same = column.equal(*(array([pair[0] for pair in pairs]), others, array([pair[1] for pair in pairs])))
    assert [pair for pair, equal in zip(pairs, same, strict=True) if equal] == [(0, 1), (1, 0), (2, 1)]


# --- ids ------------------------------------------------------------------------------------------

Row = tuple[str, int, int]
"""(id, created, deadline)"""


class PlainIds:
    """Ids in a dictionary: the deadlines of the rows that stand."""

    def __init__(self) -> None:
        self.deduplication: dict[Any, list[int]] = {}

    def duplicates(self, rows: list[Row], watermark_us: int) -> list[bool]:
        repeated = [
            any(deadline > watermark_us and created <= deadline for deadline in self.deduplication.get(name, []))
            for name, created, _ in rows
        ]
        latest: dict[Any, int] = {}
        for i in sorted(range(len(rows)), key=lambda i: (rows[i][1], rows[i][2], i)):
            name, created, deadline = rows[i]
            if repeated[i]:
                continue
            repeated[i] = name in latest and created <= latest[name] and latest[name] > watermark_us
            if not repeated[i]:
                latest[name] = deadline
        for (name, _, deadline), again in zip(rows, repeated, strict=True):
            if not again:
                self.deduplication.setdefault(name, []).append(deadline)
        return repeated


def take(
    ids: SeenIds, rows: list[Row], watermark_us: int, forge: Callable[[Array], Array] = FORGERIES["sound"]
) -> list[bool]:
    """What the engine does with a batch: ask, then remember those that stand."""
    identity = [pa.array([part[i] for part, _, _ in rows], pa.string()) for i in range(len(ids.columns))]
    if len(ids.columns) == 1:
        identity = [pa.array([name for name, _, _ in rows], pa.string())]
    hashes = forge(hash_keys(pa.array([name[0] for name, _, _ in rows], pa.string())))
    created, deadline = (array([row[i] for row in rows]) for i in (1, 2))
    asked = IdRows(identity, hashes, created, deadline, lambda at: np.zeros(len(at), np.int64))
    repeated = ids.duplicates(asked, watermark_us)
    left = np.flatnonzero(~repeated)
    ids.add([column.take(pa.array(left)) for column in identity], hashes[left], deadline[left])
    ids.forget(watermark_us)
    return list(repeated.tolist())


def test_every_batch_of_three_small_rows_is_judged_as_by_a_dictionary() -> None:
    spans = [(created, deadline) for created in (1, 2, 3) for deadline in range(created, 4)]
    for trio in product(spans, repeat=3):
        for watermark in (0, 2):
            rows = [("o", created, deadline) for created, deadline in trio]
            ids, plain = SeenIds(1), PlainIds()
            seen = [("o", 1, 2), ("o", 3, 3)]
            assert take(ids, seen, 0) == plain.duplicates(seen, 0)
            assert take(ids, rows, watermark) == plain.duplicates(rows, watermark), (rows, watermark)


@forged
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_ids_are_told_apart_whatever_their_hashes(seed: int, width: int, forge: Callable[[Array], Array]) -> None:
    rng, ids, plain = random.Random(seed), SeenIds(width), PlainIds()
    watermark, repeats = 0, 0
    for step in range(25):
        rows: list[Any] = []
        for _ in range(rng.randint(1, 12)):
            name = "".join(rng.choice("abcd") for _ in range(width))
            created = watermark + rng.randint(-5, 15)
            rows.append((name, created, created + rng.randint(0, 12)))
        fates = take(ids, rows, watermark, forge)
        assert fates == plain.duplicates(rows, watermark), f"seed {seed}, step {step}: {rows} at {watermark}"
        repeats += sum(fates)
        watermark += rng.choice((0, 1, 6))
    assert repeats > 20


def test_ids_whose_deadline_has_passed_are_forgotten_and_the_others_are_not() -> None:
    ids, plain = SeenIds(1), PlainIds()
    for turn in range(20):
        names = [chr(0x100 + turn * 400 + i) for i in range(400)]
        rows = [(name, turn * 10, turn * 10 + 15) for name in names]
        rows += [(name, turn * 10, turn * 10 + 15) for name in rng_names(turn)]
        assert take(ids, rows, turn * 10) == plain.duplicates(rows, turn * 10)
        assert len(ids) <= 2 * 820 + FORGET_FLOOR + 410, "two turns are live, and their double may lie"
    assert len(ids) < 20 * 400


def rng_names(turn: int) -> list[str]:
    """Ten ids of the turn before, which are live, and ten from three turns ago, which are not."""
    return [chr(0x100 + max(back, 0) * 400 + i) for back in (turn - 1, turn - 3) for i in range(10)]


# --- watchers and the purgatory, with forged hashes -----------------------------------------------


@forged
def test_watch_lists_of_keys_that_collide_stay_apart(forge: Callable[[Array], Array]) -> None:
    watchers, rng, model = Watchers(), random.Random(3), dict[str, list[int]]()
    words = [f"{a}{b}" for a in "abc" for b in "xyz"]
    row = 0
    for _ in range(12):
        keys = [[rng.choice(words) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(1, 9))]
        flat = pa.array([key for each in keys for key in each], pa.string())
        rows = watchers.append(flat, forge(hash_keys(flat)), np.cumsum([0, *map(len, keys)]))
        watchers.watch(rows)
        for each in keys:
            for key in each:
                model.setdefault(key, []).append(row)
            row += 1
        asked = pa.array([*rng.sample(words, 5), "unknown", words[0]])
        needle, entries = watchers.find(asked, forge(hash_keys(asked)))
        assert entries.tolist() == sorted(entries.tolist())
        needle, entries = by_first(needle, entries)
        found = [(int(n), int(r)) for n, r in zip(needle, watchers.rows_of(entries), strict=True)]
        assert found == [(n, r) for n, key in enumerate(asked.to_pylist()) for r in model.get(key, [])]
        dropped = entries[needle == 0]
        watchers.drop(dropped)
        model[asked[0].as_py()] = []
    assert watchers.watched == sum(map(len, model.values()))


# --- the whole engine, with forged hashes ---------------------------------------------------------

COLUMNS = ("id", "row", "status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason")
RULES = [criteria.any_key(), criteria.all_keys(), criteria.count(2), criteria.sum_at_least(1.5), criteria.level(1)]


@pytest.mark.parametrize("bits", [0, 1, 3])
@pytest.mark.parametrize("criterion", RULES, ids=lambda criterion: criterion.rule)
def test_no_outcome_changes_when_hashes_collide(criterion: criteria.Criterion, bits: int) -> None:
    total = 0
    for seed in range(3):
        rng = random.Random(seed)
        world = random_world(
            rng, n_operations=12, n_events=25, n_keys=6, rules=["any_key"], kinds=["complete"], spoiled=True
        )
        batches = splits(rng, world.operations, world.events, 4, lookback_us=500_000)
        spec = EngineSpec(criterion, final=seed % 2 == 0, lookback_us=500_000)
        sound, colliding = (
            multiset(Shards(spec, several=True, hash_bits=n).run(batches), *COLUMNS) for n in (64, bits)
        )
        assert sound == colliding, f"seed {seed}"
        total += sum(sound.values())
    assert total > 36
