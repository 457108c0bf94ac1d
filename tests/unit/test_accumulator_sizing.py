"""What staged rows will weigh in a file: the arithmetic of the calibration, its prior and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.accumulator import sizing
from spark_purgatory.accumulator.sizing import (
    MAX_RATIO,
    MIN_RATIO,
    SizeCalibration,
    clamp,
)

MIB = 1 << 20


def calibration() -> SizeCalibration[str]:
    """The prior weighs 1 MiB and half is kept."""
    return SizeCalibration()


def test_the_worked_example_holds() -> None:
    sizes = calibration()
    sizes.observe_staged("x", 4 * MIB, 32_768)
    assert sizes.ratio("x") == 1 and sizes.row_bytes("x") == pytest.approx(128, rel=1e-5)
    sizes.observe_committed("x", 4 * MIB, 2 * MIB)
    assert sizes.ratio("x") == pytest.approx(5 / 9) and sizes.row_bytes("x") == pytest.approx(71.1, abs=0.05)
    sizes.observe_committed("x", 8 * MIB, 4 * MIB)
    assert sizes.ratio("x") == pytest.approx(21 / 41) and sizes.row_bytes("x") == pytest.approx(65.6, abs=0.05)
    assert sizes.rows_for("x", 16 * MIB) == 255_903


def test_partitions_are_told_apart_and_a_new_one_starts_at_what_the_table_has_shown() -> None:
    sizes = calibration()
    for _ in range(10):
        sizes.observe_committed("narrow", 16 * MIB, 8 * MIB)
    assert sizes.ratio("new") == pytest.approx(0.5, abs=0.01)
    sizes.observe_committed("wide", 1 * MIB, 3 * MIB)
    assert sizes.ratio("wide") == pytest.approx((0.5 * 0.5 + 3) / 1.5, abs=0.01), "the table's, with the prior's weight"
    assert sizes.ratio("narrow") == pytest.approx(0.5, abs=0.01)


def test_one_odd_file_is_taken_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "PRIOR_STAGED_BYTES", 1)
    sizes = calibration()
    sizes.observe_committed("x", 1000, 10**12)
    assert sizes.ratio("x") == pytest.approx(MAX_RATIO, rel=0.01)
    sizes.observe_committed("x", 10**9, 0)
    assert sizes.ratio("x") == pytest.approx(MIN_RATIO, rel=0.01)


def test_rows_without_bytes_do_not_make_endless_files() -> None:
    sizes = calibration()
    for _ in range(200):
        sizes.observe_staged("x", 0, 10)
    assert sizes.rows_for("x", 16 * MIB) == 64 * 16 * MIB
    assert sizes.rows_for("x", 0) == 1


def test_only_the_partitions_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "PRIOR_STAGED_BYTES", 1)
    monkeypatch.setattr(sizing, "MAX_PARTITIONS", 2)
    sizes = calibration()
    sizes.observe_committed("a", 100, 400)
    sizes.observe_committed("b", 100, 200)
    sizes.observe_committed("a", 100, 400)
    sizes.observe_committed("c", 100, 100)
    table = sizes.ratio("never seen")
    assert sizes.ratio("a") > 3.9 and sizes.ratio("c") < 1.1
    assert sizes.ratio("b") == table, "forgotten, so it starts at the table's again"


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 10**13), st.integers(0, 10**13)), max_size=30))
def test_no_file_moves_an_estimate_out_of_bounds(commits: list[tuple[str, int, int]]) -> None:
    sizes = calibration()
    for partition, staged_bytes, file_bytes in commits:
        before = sizes.ratio(partition)
        sizes.observe_committed(partition, staged_bytes, file_bytes)
        after = sizes.ratio(partition)
        assert MIN_RATIO <= after <= MAX_RATIO
        if staged_bytes:
            seen = clamp(file_bytes / staged_bytes, MIN_RATIO, MAX_RATIO)
            assert min(before, seen) * (1 - 1e-9) <= after <= max(before, seen) * (1 + 1e-9), "a mean lies between"
