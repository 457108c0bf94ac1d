"""Columns and tables of the state: packed into few bytes, in seven bits each, and back, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_purgatory.core.state.blob import (
    BLOCK,
    DELTA,
    FRAME_OF_REFERENCE,
    GROUP,
    PLAIN,
    SPLIT_FLOOR,
    WIDEST,
    coded_size,
    decode,
    encode,
    join_bytes,
    pack,
    split_bytes,
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


def test_the_worked_example_of_seven_ones_becomes_eight_127s() -> None:
    assert encode(np.array([255] * 7 + [0], np.uint8)).tolist() == [127] * 8
    assert encode(np.array([0x81] + [0] * 7, np.uint8)).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("more", [-8, -7, -6, -1, 0, 1, 6, 7, 8])
def test_bytes_of_several_blocks_come_back(blocks: int, more: int) -> None:
    data = np.random.default_rng(7).integers(0, 256, blocks * BLOCK * GROUP + more, np.uint8)
    coded = encode(np.append(data, np.zeros(GROUP, np.uint8)))
    assert len(coded) == coded_size(len(data)) and int(coded.max()) < 128
    assert np.array_equal(decode(coded)[: len(data)], data)


@given(st.binary(max_size=300))
def test_any_bytes_come_back_and_travel_below_128(data: bytes) -> None:
    coded = encode(np.frombuffer(data + bytes(GROUP), np.uint8))
    assert len(coded) == coded_size(len(data))
    assert coded.size == 0 or int(coded.max()) < 128
    assert decode(np.frombuffer(coded.tobytes(), np.uint8))[: len(data)].tobytes() == data
