"""The policy of the accumulator, and the sizes that it expects. That it does as Kafka's is shown by the traces.

Batches are of 100 bytes, linger is 10 ms, the backoff 5, 10, 20, 40, 40, ... ms, the delivery time-out a second. A
record has a number of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.accumulator import sizing
from spark_purgatory.accumulator.policy import (
    TRANSITIONS,
    AccumulatorPolicy,
    AccumulatorSettings,
    Appended,
    BatchEvent,
    BatchState,
    ExponentialBackoff,
    ProducerBatch,
)
from spark_purgatory.accumulator.sizing import (
    MAX_RATIO,
    MIN_RATIO,
    SizeCalibration,
    clamp,
)
from spark_purgatory.errors import BatchStateError, DeliveryTimeoutError

AMPLE = 10**9
Policy = AccumulatorPolicy[str, int, Any]


class Sizing:
    """A batch is as large as its records together."""

    header_bytes = 0

    def record_bytes(self, record: int, batch: Sequence[int]) -> int:
        return record

    def upper_bound_bytes(self, record: int) -> int:
        return record


def policy() -> Policy:
    settings = AccumulatorSettings(batch_bytes=100, linger_ms=10, delivery_timeout_ms=1000)
    return AccumulatorPolicy(settings, Sizing(), ExponentialBackoff(5, 40))


def put(accumulator: Policy, size: int, partition: str = "x", at: int = 0) -> Appended[str, int, Any]:
    return accumulator.append(partition, size, at)


def take(accumulator: Policy, at: int = 0, only: Iterable[str] = "xyz", size: int = AMPLE) -> list[Any]:
    return accumulator.drain(list(only), size, at)


def numbers(batches: Iterable[ProducerBatch[Any, Any, Any]]) -> list[int]:
    return [batch.number for batch in batches]


def queued(accumulator: Policy, partition: str = "x") -> list[int]:
    return numbers(accumulator.queues.of(partition).batches)


def test_the_worked_example_holds() -> None:
    accumulator = policy()
    opened = [put(accumulator, size) for size in (60, 50, 10)]
    assert [(appended.batch.number, appended.is_new_batch) for appended in opened] == [(0, True), (1, True), (1, False)]
    assert accumulator.ripe(0) == ["x"]
    (batch,) = take(accumulator)
    assert batch.number == 0 and accumulator.in_flight == (batch,)
    assert accumulator.retry(batch, 1) and queued(accumulator) == [0, 1]
    assert accumulator.ripe(1) == []
    assert put(accumulator, 20, "y", at=3).batch.number == 2
    assert accumulator.ripe(6) == ["x"]
    accumulator.complete(*take(accumulator, 6, "x"), "done")
    assert opened[0].future.result() == "done"
    assert accumulator.ripe(6) == [] and accumulator.ripe(6, everything=True) == ["x", "y"]
    assert accumulator.ripe(10) == ["x", "y"]
    for batch in take(accumulator, 10):
        accumulator.complete(batch, "done")
    assert accumulator.ripe(10, everything=True) == [] and accumulator.in_flight == ()


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


def test_linger_runs_from_the_batchs_creation_or_its_return_and_a_clock_that_went_back_has_waited_nothing() -> None:
    accumulator = policy()
    put(accumulator, 10, at=10)
    put(accumulator, 10, at=19)
    assert [accumulator.ripe(now_ms) for now_ms in (0, 19, 20)] == [[], [], ["x"]]
    accumulator.retry(*take(accumulator, 20), 21)
    assert [accumulator.ripe(now_ms, everything=True) for now_ms in (25, 26)] == [[], ["x"]]
    assert accumulator.ripe(26) == ["x"], "what came back is closed, and so full"


def test_a_transaction_takes_the_full_batches_behind_the_first_that_fit_and_changes_nothing_by_looking() -> None:
    accumulator = policy()
    for name, sizes in (("x", (100, 80, 70, 60, 10)), ("y", (100, 20))):
        for size in sizes:
            put(accumulator, size, name)
    seen = [numbers(accumulator.peek("xy", AMPLE, 0, everything)) for everything in (False, True, False)]
    assert seen == [[0, 4, 1, 2], [0, 4, 1, 2, 3, 5], [0, 4, 1, 2]]
    assert numbers(accumulator.peek("x", 179, 0)) == [0] and numbers(accumulator.peek("x", 180, 0)) == [0, 1]
    passed_over = numbers(accumulator.peek("xy", 225, 0, everything=True))
    assert passed_over == [0, 4, 5], "the 80 bytes that do not fit take no room from what is behind them"
    assert numbers(take(accumulator)) == [0, 4] and not accumulator.peek([], AMPLE, 0)
    assert numbers(accumulator.peek("xy", AMPLE, 0)) == [5, 1, 2], "the round goes on where it stood"


def test_a_round_takes_one_batch_a_partition_stops_where_one_does_not_fit_and_goes_on_there() -> None:
    accumulator = policy()
    for partition in ("x", "y", "z"):
        put(accumulator, 100, partition)
        put(accumulator, 100, partition)
    assert [batch.partition for batch in take(accumulator, size=200)] == ["x", "y"]
    assert [batch.partition for batch in take(accumulator, size=1)] == ["z"], "one goes whatever its size"
    assert [batch.partition for batch in take(accumulator)] == ["x", "y", "z"]


@pytest.mark.parametrize(("state", "event"), [*product(BatchState, BatchEvent)])
def test_a_pair_of_state_and_event_is_in_the_table_or_changes_nothing(state: BatchState, event: BatchEvent) -> None:
    batch: ProducerBatch[str, int, Any] = ProducerBatch(0, "x", 100, 0, Sizing())
    batch.state = state
    if (state, event) in TRANSITIONS:
        batch.apply(event)
        assert batch.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(BatchStateError, match=f"cannot be {event.value}: it is {state.value}"):
            batch.apply(event)
        assert batch.state is state


@pytest.mark.parametrize(("at_ms", "is_queued"), [(1006, True), (1007, False)])
def test_the_delivery_timeout_is_reached_at_the_millisecond_and_counts_from_the_creation(
    at_ms: int, is_queued: bool
) -> None:
    accumulator, cause = policy(), RuntimeError("refused")
    future = put(accumulator, 100, at=7).future
    assert accumulator.retry(*take(accumulator, 8), 500)
    assert accumulator.retry(*take(accumulator, 600), at_ms, cause) is is_queued
    assert queued(accumulator) == [0] * is_queued
    if not is_queued:
        with pytest.raises(DeliveryTimeoutError, match=r"1,000 ms have passed .* is 1,000 ms") as raised:
            future.result()
        assert raised.value.__cause__ is cause


def test_a_batch_that_is_not_in_flight_has_no_answer() -> None:
    accumulator = policy()
    batch = put(accumulator, 10).batch
    with pytest.raises(BatchStateError, match=r"batch 0 .* cannot be answered: success: it is queued, takes records"):
        accumulator.complete(batch, None)
    take(accumulator)
    with pytest.raises(BatchStateError, match="not in flight here"):
        policy().complete(batch, None)
    accumulator.complete(batch, None)
    with pytest.raises(BatchStateError):
        accumulator.retry(batch, 0)
    assert batch.state is BatchState.SUCCEEDED


def test_callbacks_run_in_the_order_of_appends_late_ones_at_once_and_may_use_the_accumulator() -> None:
    accumulator, heard = policy(), list[Any]()
    futures = [put(accumulator, 10).future for _ in "abc"]
    with pytest.raises(BatchStateError, match="has not ended yet"):
        futures[0].result()
    for name, future in zip("abc", futures, strict=True):
        future.add_done_callback(lambda value, error, name=name: heard.append((name, value, error)))
    futures[0].add_done_callback(lambda value, error: heard.append(put(accumulator, 20, at=1).batch.number))
    accumulator.complete(*take(accumulator), None)
    futures[0].add_done_callback(lambda value, error: heard.append("late"))
    assert heard == [("a", None, None), 1, ("b", None, None), ("c", None, None), "late"]
    assert futures[0].is_done and futures[0].result() is None and futures[0].exception() is None


def test_callbacks_that_raise_stop_neither_the_others_nor_the_accumulator() -> None:
    accumulator, heard = policy(), list[Any]()

    def fail(value: Any, error: Any) -> None:
        raise KeyError("mine")

    first, second = put(accumulator, 10).future, put(accumulator, 10).future
    first.add_done_callback(fail)
    second.add_done_callback(lambda value, error: heard.append(value))
    with pytest.raises(ExceptionGroup, match="1 callbacks of records raised") as raised:
        accumulator.complete(*take(accumulator), "done")
    assert raised.group_contains(KeyError) and heard == ["done"] and accumulator.in_flight == ()


MIB = 1 << 20


def calibration() -> SizeCalibration:
    """The prior weighs 1 MiB and half is kept."""
    return SizeCalibration()


def test_the_worked_example_of_sizes_holds() -> None:
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
