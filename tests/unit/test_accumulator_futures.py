"""What an append gives back: futures and their callbacks; and what the policy checks of itself."""

from __future__ import annotations

from typing import Any

import pytest

from spark_purgatory.accumulator.batch import BatchState
from spark_purgatory.errors import BatchStateError, BugError
from tests.support.accumulators import available, policy, put, take

REFUSED = RuntimeError("refused")


def test_a_future_has_the_value_that_its_batch_was_completed_with() -> None:
    accumulator = policy()
    futures = [put(accumulator, 10).future for _ in range(2)]
    with pytest.raises(BatchStateError, match="has not ended yet"):
        futures[0].result()
    accumulator.complete(take(accumulator)[0], {"version": 3}, 0)
    assert [future.result() for future in futures] == [{"version": 3}] * 2
    assert futures[0].exception() is None


def test_a_future_raises_the_error_that_its_batch_failed_with() -> None:
    accumulator = policy()
    future = put(accumulator, 10).future
    accumulator.fail(take(accumulator)[0], REFUSED, 0)
    with pytest.raises(RuntimeError, match="refused"):
        future.result()
    assert future.exception() is REFUSED


def test_none_is_a_value_too() -> None:
    accumulator = policy()
    future = put(accumulator, 10).future
    accumulator.complete(take(accumulator)[0], None, 0)
    assert future.is_done and future.result() is None


def test_callbacks_run_in_the_order_of_appends_and_late_ones_at_once() -> None:
    accumulator = policy()
    heard: list[Any] = []
    for name in "abc":
        future = put(accumulator, 10, name=name).future
        future.add_done_callback(lambda value, error, name=name: heard.append((name, value, error)))
    accumulator.complete(take(accumulator)[0], "done", 0)
    future.add_done_callback(lambda value, error: heard.append(("late", value, error)))
    assert heard == [(name, "done", None) for name in ("a", "b", "c", "late")]


def test_callbacks_of_a_split_batch_hear_of_the_part_that_has_their_record() -> None:
    accumulator = policy()
    heard: list[Any] = []
    for _ in range(2):
        put(accumulator, 40).future.add_done_callback(lambda value, error: heard.append((value, error)))
    accumulator.split(take(accumulator)[0], 0)
    accumulator.split(take(accumulator)[0], 0)
    assert heard == []
    accumulator.complete(take(accumulator)[0], "first", 0)
    accumulator.fail(take(accumulator)[0], REFUSED, 0)
    assert heard == [("first", None), (None, REFUSED)]


def test_a_callback_may_use_the_accumulator_whose_memory_is_back_by_then() -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10).future.add_done_callback(lambda value, error: again.append(put(accumulator, 20, at=1)))
    again: list[Any] = []
    accumulator.complete(take(accumulator)[0], None, 1)
    assert again[0].batch.number == 1 and again[0].batch.state is BatchState.OPEN
    accumulator.validate()


def test_callbacks_that_raise_stop_neither_the_others_nor_the_accumulator() -> None:
    accumulator = policy()
    heard: list[str] = []

    def fail(value: Any, error: Any) -> None:
        raise KeyError("mine")

    first, second = put(accumulator, 10).future, put(accumulator, 10).future
    first.add_done_callback(fail)
    second.add_done_callback(lambda value, error: heard.append(value))
    with pytest.raises(ExceptionGroup, match="1 callbacks of records raised") as raised:
        accumulator.complete(take(accumulator)[0], "done", 0)
    assert raised.group_contains(KeyError) and heard == ["done"]
    assert not accumulator.has_incomplete and accumulator.pool.available_bytes == 1000
    accumulator.validate()


def test_a_batch_that_is_not_in_flight_has_no_answer() -> None:
    accumulator = policy()
    batch = put(accumulator, 10).batch
    with pytest.raises(BatchStateError, match=r"batch 0 .* cannot be answered: success: it is queued, takes records"):
        accumulator.complete(batch, None, 0)
    assert batch.state is BatchState.OPEN
    take(accumulator)
    with pytest.raises(BatchStateError, match="not in flight here"):
        policy().complete(batch, None, 0)
    accumulator.complete(batch, None, 0)
    for answer in (accumulator.complete, accumulator.fail):
        with pytest.raises(BatchStateError):
            answer(batch, RuntimeError(), 0)
    for again in (accumulator.retry, accumulator.reenqueue, accumulator.split):
        with pytest.raises(BatchStateError):
            again(batch, 0)
    assert batch.state is BatchState.SUCCEEDED and available(accumulator) == 1000


# --- settings and self-checks ---------------------------------------------------------------------


def spoil_memory(accumulator: Any) -> None:
    accumulator.pool.allocate(1)


def spoil_queue(accumulator: Any) -> None:
    accumulator.queues.of("x").batches.pop()


def spoil_state(accumulator: Any) -> None:
    accumulator.queues.of("x").batches[0].state = BatchState.OPEN


def spoil_place(accumulator: Any) -> None:
    accumulator.queues.of("x").batches[0].state = BatchState.IN_FLIGHT


def spoil_wait(accumulator: Any) -> None:
    accumulator.append_or_wait("y", put(policy(), 1).batch.records[0], 0)
    accumulator.waiting[0].error = KeyError()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_memory, "batches hold 200 bytes, 201 bytes were handed out"),
        (spoil_queue, "batches hold 100 bytes"),
        (spoil_state, "takes records that is not the last"),
        (spoil_place, "queued and in flight, or neither"),
        (spoil_wait, "waits for memory that it has"),
    ],
)
def test_what_is_kept_twice_is_compared(spoil: Any, said: str) -> None:
    accumulator = policy(memory=250)
    put(accumulator, 60)
    put(accumulator, 60)
    accumulator.validate()
    spoil(accumulator)
    with pytest.raises(BugError, match=said):
        accumulator.validate()


def test_a_split_batch_that_is_lost_is_found() -> None:
    accumulator = policy()
    put(accumulator, 30)
    put(accumulator, 30)
    accumulator.split(take(accumulator)[0], 0)
    accumulator.queues.of("x").batches.clear()
    with pytest.raises(BugError, match="0 of 0 batches are unsettled, 1 incomplete"):
        accumulator.validate()
