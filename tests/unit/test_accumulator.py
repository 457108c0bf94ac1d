"""The policy of the accumulator, and the sizes that it expects. That it does as Kafka's is shown by the traces.

Batches are of 100 bytes and linger is 10 ms. A record has a number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.accumulator import policy as module
from spark_purgatory.accumulator.policy import (
    MAX_RATIO,
    MIN_RATIO,
    AccumulatorPolicy,
    ProducerBatch,
    SizeCalibration,
)

AMPLE = 10**9
Policy = AccumulatorPolicy[str, int]


def policy() -> Policy:
    return AccumulatorPolicy(100, 10, lambda size, _: size)


def put(accumulator: Policy, size: int, partition: str = "x", at: int = 0) -> None:
    accumulator.append(partition, size, at)


def sizes_of(batches: Iterable[ProducerBatch[int]]) -> list[list[int]]:
    return [batch.records for batch in batches]


def test_the_worked_example_holds() -> None:
    accumulator = policy()
    for size in (60, 50, 10):
        put(accumulator, size)
    assert sizes_of(accumulator.queues["x"]) == [[60], [50, 10]]
    assert accumulator.ripe(0) == ["x"]
    assert sizes_of(accumulator.peek(["x"], AMPLE)) == [[60]]
    accumulator.queues["x"].popleft()
    put(accumulator, 20, "y", at=3)
    assert accumulator.ripe(9) == [] and accumulator.ripe(9, everything=True) == ["x", "y"]
    assert accumulator.ripe(10) == ["x", "y"]
    assert sizes_of(accumulator.peek("xy", AMPLE)) == [[50, 10], [20]]


def test_with_a_file_that_is_full_only_those_go_along_that_are_nearly_full() -> None:
    accumulator = policy()
    for partition, size in (("full", 100), ("nearly", 90), ("not yet", 89)):
        put(accumulator, size, partition)
    assert accumulator.ripe(9) == ["full", "nearly"]
    assert accumulator.ripe(10) == ["full", "nearly", "not yet"]


def test_with_a_file_that_has_lingered_those_go_along_that_have_waited_half_as_long() -> None:
    accumulator = policy()
    for partition, at in (("first", 0), ("half", 5), ("later", 6)):
        put(accumulator, 10, partition, at)
    assert accumulator.ripe(9) == [] and accumulator.ripe(10) == ["first", "half"]


def test_linger_runs_from_the_batchs_creation_and_a_clock_that_went_back_has_waited_nothing() -> None:
    accumulator = policy()
    put(accumulator, 10, at=10)
    put(accumulator, 10, at=19)
    assert [accumulator.ripe(now_ms) for now_ms in (0, 19, 20)] == [[], [], ["x"]]


def test_a_transaction_takes_the_full_batches_behind_the_first_that_fit() -> None:
    accumulator = policy()
    for name, sizes in (("x", (100, 80, 70, 60, 10)), ("y", (100, 20))):
        for size in sizes:
            put(accumulator, size, name)
    full = [[100], [100], [80], [70]]
    assert sizes_of(accumulator.peek("xy", AMPLE)) == full
    assert sizes_of(accumulator.peek("xy", AMPLE, everything=True)) == [*full, [60, 10], [20]]
    assert [len(accumulator.peek("x", most)) for most in (1, 179, 180)] == [1, 1, 2], "one goes whatever its size"
    assert sizes_of(accumulator.peek("xy", 199)) == [[100], [80]] and not accumulator.peek([], AMPLE)
    passed_over = sizes_of(accumulator.peek("xy", 225, everything=True))
    assert passed_over == [[100], [100], [20]], "the 80 bytes that do not fit take no room from what is behind them"


MIB = 1 << 20


def test_the_worked_example_of_sizes_holds() -> None:
    sizes = SizeCalibration()
    sizes.observe_staged(4 * MIB, 32_768)
    assert sizes.ratio == 1 and sizes.row_bytes == pytest.approx(128, rel=1e-5)
    sizes.observe_committed(4 * MIB, 2 * MIB)
    assert sizes.ratio == pytest.approx(5 / 9) and sizes.row_bytes == pytest.approx(71.1, abs=0.05)
    sizes.observe_committed(8 * MIB, 4 * MIB)
    assert sizes.ratio == pytest.approx(21 / 41) and sizes.row_bytes == pytest.approx(65.6, abs=0.05)
    assert sizes.rows_for(16 * MIB) == 255_903


def test_one_odd_file_is_taken_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRIOR_STAGED_BYTES", 1)
    sizes = SizeCalibration()
    sizes.observe_committed(1000, 10**12)
    assert sizes.ratio == pytest.approx(MAX_RATIO, rel=0.01)
    sizes.observe_committed(10**9, 0)
    assert sizes.ratio == pytest.approx(MIN_RATIO, rel=0.01)


def test_rows_without_bytes_do_not_make_endless_files() -> None:
    sizes = SizeCalibration()
    for _ in range(200):
        sizes.observe_staged(0, 10)
    assert sizes.rows_for(16 * MIB) == 64 * 16 * MIB
    assert sizes.rows_for(0) == 1


@given(st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**13)), max_size=30))
def test_no_file_moves_an_estimate_out_of_bounds(commits: list[tuple[int, int]]) -> None:
    sizes = SizeCalibration()
    for staged_bytes, file_bytes in commits:
        before = sizes.ratio
        sizes.observe_committed(staged_bytes, file_bytes)
        after = sizes.ratio
        assert MIN_RATIO <= after <= MAX_RATIO
        if staged_bytes:
            seen = min(max(file_bytes / staged_bytes, MIN_RATIO), MAX_RATIO)
            assert min(before, seen) * (1 - 1e-9) <= after <= max(before, seen) * (1 + 1e-9), "a mean lies between"
