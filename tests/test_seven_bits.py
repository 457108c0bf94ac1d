"""Seven bits a byte: nothing is lost, everything is ASCII."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.core.seven_bits import coded_size, decode, encode


def test_the_worked_example_of_seven_ones_becomes_eight_127s() -> None:
    assert encode(np.full(7, 255, np.uint8)).tolist() == [127] * 8
    assert encode(np.array([0x81, 0], np.uint8)).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


@given(st.binary(max_size=300))
def test_any_bytes_come_back_and_travel_below_128(data: bytes) -> None:
    coded = encode(np.frombuffer(data, np.uint8))
    assert len(coded) == coded_size(len(data))
    assert coded.size == 0 or int(coded.max()) < 128
    assert decode(np.frombuffer(coded.tobytes(), np.uint8), len(data)).tobytes() == data
