"""Seven bits a byte: nothing is lost, everything is ASCII."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.state.blob import BLOCK, GROUP, coded_size, decode, encode


def test_the_worked_example_of_seven_ones_becomes_eight_127s() -> None:
    assert encode(np.full(7, 255, np.uint8)).tolist() == [127] * 8
    assert encode(np.array([0x81, 0], np.uint8)).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("more", [-8, -7, -6, -1, 0, 1, 6, 7, 8])
def test_bytes_of_several_blocks_come_back(blocks: int, more: int) -> None:
    data = np.random.default_rng(7).integers(0, 256, blocks * BLOCK * GROUP + more, np.uint8)
    coded = encode(data)
    assert len(coded) == coded_size(len(data)) and int(coded.max()) < 128
    assert np.array_equal(decode(coded, len(data)), data)


@given(st.binary(max_size=300))
def test_any_bytes_come_back_and_travel_below_128(data: bytes) -> None:
    coded = encode(np.frombuffer(data, np.uint8))
    assert len(coded) == coded_size(len(data))
    assert coded.size == 0 or int(coded.max()) < 128
    assert decode(np.frombuffer(coded.tobytes(), np.uint8), len(data)).tobytes() == data
