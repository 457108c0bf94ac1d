"""The order of rows by content: the same for any order of arrival, and equal for equal rows only."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_purgatory.core.arrays.value_column import value_ranks

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
