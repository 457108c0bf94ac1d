"""Key columns, their hashes, and the order of rows by content: against lists, and as published.

That hashes which collide change no outcome is shown by the law, whose streams forge them.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_purgatory.core.arrays import value_column as keys
from spark_purgatory.core.arrays.value_column import ValueColumn, hash_keys, mix64, value_ranks
from spark_purgatory.errors import LimitError

Array = np.ndarray[Any, np.dtype[Any]]


def array(values: Any) -> Array:
    return np.array(values, np.int64)


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


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "ab", "ä", "b" * 40]),
    "int64": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    "binary": (pa.binary(), [b"", b"\xff", b"a", b"\0", b"ab"]),
    "string or null": (pa.string(), [None, "", "a", "ä", None]),
    "decimal or null": (pa.decimal128(38, 2), [None, Decimal("-0.01"), Decimal(10**35), Decimal(0), None]),
    "date or null": (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), None]),
    "boolean or null": (pa.bool_(), [None, True, False, True, None]),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": i, "y": "ab"[i % 2]} for i in range(5)]),
}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 4), max_size=9)),
        st.tuples(st.just("take"), st.lists(st.integers(0, 10**6), max_size=9)),
        st.tuples(st.just("equal"), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), max_size=9)),
        st.tuples(st.just("keep"), st.sets(st.integers(0, 40), max_size=30)),
    ),
    max_size=14,
)
NULLS_FIRST: list[tuple[str, Any]] = [("append", [0, 0])] * 2


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(actions=ACTIONS)
@example([*NULLS_FIRST, ("equal", [(1, 0), (1, 1)]), ("append", [2]), ("take", [4, 3, 0]), ("keep", {1, 2})])
def test_a_key_column_is_a_list(kind: str, actions: list[tuple[str, Any]]) -> None:
    arrow_type, values = KINDS[kind]
    column, model = ValueColumn(), list[Any]()
    for action, what in actions:
        if action == "append":
            column.append(pa.array([values[i] for i in what], arrow_type))
            model += [values[i] for i in what]
        elif action == "keep":
            kept = sorted(place for place in what if place < len(model))
            column.keep(np.isin(np.arange(len(model)), kept))
            model = [model[place] for place in kept]
        elif action == "take" and model:
            places = [place % len(model) for place in what]
            assert column.take(array(places)).to_pylist() == [model[place] for place in places]
        elif action == "equal" and model and kind != "struct":
            places, others = [place % len(model) for place, _ in what], [other for _, other in what]
            same = column.equal(array(places), pa.array(values, arrow_type), array(others))
            assert same.tolist() == [model[p] == values[o] for p, o in zip(places, others, strict=True)]
        assert len(column) == len(model)
        assert column.values.to_pylist() == model
        column.values.validate(full=True)


def test_more_text_than_arrow_can_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_CHARACTERS", 50)
    column = ValueColumn(pa.array(["x" * 30]))
    column.append(pa.array(["x" * 20]))
    with pytest.raises(LimitError, match="would have 51 bytes of text, and the most is 50: use more shards"):
        column.append(pa.array(["y"]))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_null_equals_null_and_nothing_else(kind: pa.DataType) -> None:
    column = ValueColumn(pa.array([None, "a", None], pa.string()).cast(kind))
    column.append(pa.array(["b"]).cast(kind))
    others = pa.array(["a", None, ""], pa.string()).cast(kind)
    pairs = [(mine, theirs) for mine in range(4) for theirs in range(3)]
    same = column.equal(*(array([pair[0] for pair in pairs]), others, array([pair[1] for pair in pairs])))
    assert [pair for pair, equal in zip(pairs, same, strict=True) if equal] == [(0, 1), (1, 0), (2, 1)]


NAN = float("nan")
POINT = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
    (pa.int8(), [None, -128, 127]),
    (pa.float64(), [None, 0.0, -0.0, 1.5, NAN, float("-inf")]),
    (pa.float32(), [None, 0.0, -0.0, 1.5]),
    (pa.bool_(), [None, False, True]),
    (pa.string(), [None, "", "a", "ab", "b", "zażółć"]),
    (pa.binary(), [None, b"", b"\x00", b"\xff\x80"]),
    (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [None, datetime(1582, 10, 15, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]),
    (pa.duration("us"), [None, timedelta(0), timedelta(days=-1)]),
    (pa.decimal128(38, 18), [None, Decimal("-1e-18"), Decimal(0), Decimal("12345678901234567890.5")]),
    (pa.list_(pa.int64()), [None, [], [1], [1, None], [1, 2], [2]]),
    (pa.map_(pa.string(), pa.float64()), [None, [], [("k", 1.0)], [("k", None)], [("k", 1.0), ("l", 1.0)]]),
    (POINT, [None, {"x": None, "y": None}, {"x": 1, "y": []}, {"x": 1, "y": ["p", None]}, {"x": 1, "y": ["p"]}]),
    (pa.list_(POINT), [None, [], [None], [{"x": 1, "y": ["p"]}], [{"x": 1, "y": ["q"]}]]),
    (pa.null(), [None]),
]


def dense(ranks: list[int]) -> list[int]:
    """The same order in numbers from 0 on."""
    return [sorted(set(ranks)).index(rank) for rank in ranks]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_values_have_one_order_whatever_else_is_there_and_share_a_rank_only_where_they_are_equal(
    kind: pa.DataType, values: list[Any]
) -> None:
    first = value_ranks(pa.array(values, kind))
    assert len(set(first.tolist())) == len(values)
    rng = random.Random(1)
    for _ in range(20):
        drawn = [rng.randrange(len(values)) for _ in range(rng.randint(0, 8))]
        padded = pa.array([values[0], *(values[at] for at in drawn), values[-1]], kind)
        # A slice, so that nothing is read from a buffer's beginning by mistake.
        ranks = value_ranks(padded.slice(1, len(drawn))).tolist()
        assert dense(ranks) == dense([int(first[at]) for at in drawn])


def test_rows_are_ordered_by_their_first_column_and_then_by_the_next() -> None:
    rows = pa.array([{"a": 2, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "x"}, {"a": None, "b": "z"}])
    assert value_ranks(rows).tolist() == [3, 2, 1, 0]
