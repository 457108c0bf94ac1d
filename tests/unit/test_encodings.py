"""Columns and tables of the state: packed into few bytes and back, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_purgatory.core.state.encodings import (
    DELTA,
    FRAME_OF_REFERENCE,
    PLAIN,
    SPLIT_FLOOR,
    WIDEST,
    Arrays,
    join_bytes,
    join_table,
    pack,
    split_bytes,
    split_table,
    streams_of,
    unpack,
)

LOW, HIGH = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize(
    ("values", "recipe", "stored"),
    [
        ([7, 9, 9, 300], ("<i8", "<u2", 7, DELTA), [2, 0, 291]),
        ([1000, 990, 1010], ("<i8", "|u1", 990, FRAME_OF_REFERENCE), [10, 0, 20]),
        ([5], ("<i8", "|u1", 5, DELTA), []),
        ([], ("<i8", "<i8", 0, PLAIN), []),
        ([LOW, 0, HIGH], ("<i8", "<i8", 0, PLAIN), [LOW, 0, HIGH]),
        ([0, 1 << 40, 5], ("<i8", "<i8", 0, FRAME_OF_REFERENCE), [0, 1 << 40, 5]),
    ],
)
def test_the_worked_example_and_the_ends_of_int64(values: list[int], recipe: object, stored: list[int]) -> None:
    found = pack(np.array(values, np.int64))
    assert (found[0], found[1].tolist()) == (recipe, stored)
    assert unpack(found[0], found[1].tobytes()).tolist() == values


NEAR = st.integers(-300, 300) | st.integers(-(1 << 33), 1 << 33) | st.integers(LOW, HIGH)


@settings(deadline=None)
@given(st.lists(NEAR, max_size=40), st.booleans())
def test_every_column_comes_back(values: list[int], ascending: bool) -> None:
    column = np.array(sorted(values) if ascending else values, np.int64)
    recipe, stored = pack(column)
    again = unpack(recipe, stored.tobytes())
    assert again.dtype == column.dtype and again.tolist() == column.tolist()
    assert stored.nbytes <= column.nbytes


def laid_out(values: Any) -> bytes:
    into, planes = np.empty(values.nbytes, np.uint8), streams_of(values)
    split_bytes(values, planes, into)
    assert bytes(join_bytes(into.tobytes(), planes)) == values.tobytes(), values.dtype
    return into.tobytes()


@pytest.mark.parametrize("kind", ["<i8", "<i4", "<u4", "<u2", "|u1", "|b1", "<f8", "|V3", "|V13", "|V64", "|V65"])
@pytest.mark.parametrize("count", [0, 1, SPLIT_FLOOR - 1, SPLIT_FLOOR, 1 << 13, (1 << 13) + 1, 20_001])
def test_values_of_every_type_come_back_from_their_planes(kind: str, count: int) -> None:
    wanted = np.dtype(kind)
    values = np.random.default_rng(count).integers(0, 256, count * wanted.itemsize, np.uint8).view(wanted)
    whole = laid_out(values)
    split = 1 < wanted.itemsize <= WIDEST and wanted.kind != "f" and count >= SPLIT_FLOOR
    assert (streams_of(values) > 1) == split == (whole != values.tobytes())
    if split:
        planes = np.frombuffer(whole, np.uint8).reshape(wanted.itemsize, count)
        assert all(planes[:, row].tobytes() == values[row].tobytes() for row in (0, 1, count // 2, count - 1))


TEXTS = st.text(max_size=5)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.none() | TEXTS, TEXTS), max_size=9), min_size=1, max_size=3))
def test_every_table_comes_back(chunks: list[list[tuple[str | None, str]]]) -> None:
    schema = pa.schema(
        [
            pa.field("maybe", pa.string()),
            pa.field("text", pa.string(), nullable=False, metadata={"kept": "yes"}),
            ("bytes", pa.binary()),
            ("time", pa.timestamp("us", "UTC")),
            ("number", pa.float64()),
            ("maybe_number", pa.int64()),
            ("list", pa.list_(pa.string())),
            ("nothing", pa.null()),
        ]
    )
    batches = []
    for chunk in chunks:
        columns = {
            "maybe": [maybe for maybe, _ in chunk],
            "text": [text for _, text in chunk],
            "bytes": [str(text).encode() for _, text in chunk],
            "time": list(range(len(chunk))),
            "number": [float("nan")] * len(chunk),
            "maybe_number": [None if maybe is None else len(maybe) for maybe, _ in chunk],
            "list": [[text] for _, text in chunk],
            "nothing": [None] * len(chunk),
        }
        whole = pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )
        batches += [whole, whole.slice(len(chunk) // 2)]
    arrays: Arrays = {"another": np.zeros(1)}
    rest = split_table("t", batches, arrays)
    has_null = any(batch.column("maybe_number").null_count for batch in batches)
    assert rest[0].schema.names == [*["maybe_number"] * has_null, "list", "nothing"]
    again = join_table("t", rest, arrays)
    for batch, other in zip(again, batches, strict=True):
        assert batch.schema.equals(other.schema, check_metadata=True)
        # NaN is not equal to itself.
        assert batch.drop_columns("number").equals(other.drop_columns("number"))
        assert np.isnan(batch.column("number").to_numpy()).all() and len(batch) == len(other)
        batch.validate(full=True)
    assert list(arrays) == ["another"], "what is left"
