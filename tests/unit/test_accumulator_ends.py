"""How batches end: facts A22 to A31, and the table of a batch's life."""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any

import pytest

from spark_purgatory.accumulator.batch import BatchState
from spark_purgatory.errors import BatchStateError, DeliveryTimeoutError
from tests.conformance.accumulator import KafkaRecord, KafkaSizing
from tests.conformance.kafka_accumulator import KafkaAccumulator, RetryOutcome
from tests.conformance.kafka_batches import ENDED, EVENTS, KAFKA_TRANSITIONS, SETTLED, STATES, KafkaBatch, KafkaState
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError
from tests.support.accumulators import AMPLE, NODE, Part, PartSizing, available, numbers, policy, put, queued, take

pytestmark = pytest.mark.kafka

Accumulator = KafkaAccumulator[Any, Any, Any]
REFUSED = RuntimeError("refused")

# --- a batch's life as a table --------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_a_pair_of_state_and_event_is_in_the_table_or_changes_nothing(state: Enum, event: Enum) -> None:
    batch: KafkaBatch[str, Part, None] = KafkaBatch(7, "x", 100, 0, PartSizing())
    batch.state = state
    wanted = KAFKA_TRANSITIONS.get((state, event))
    if wanted is None:
        with pytest.raises(BatchStateError, match=f"batch 7 .* cannot be {event.value}: it is {state.value}"):
            batch.apply(event)
        assert batch.state is state
    else:
        batch.apply(event)
        assert batch.state is wanted


def test_what_has_ended_stays_ended_and_what_is_settled_never_unsettles() -> None:
    assert {state for state, _ in KAFKA_TRANSITIONS} == set(STATES) - ENDED
    assert all(after in SETTLED for (before, _), after in KAFKA_TRANSITIONS.items() if before in SETTLED)
    assert set(KAFKA_TRANSITIONS.values()) == set(STATES) - {BatchState.OPEN}


# --- finishing: A22 to A27 ------------------------------------------------------------------------


def test_a22_memory_returns_with_the_answer_and_not_with_the_drain() -> None:
    accumulator = policy()
    put(accumulator, 10)
    put(accumulator, 150, "y")
    batches = take(accumulator)
    assert available(accumulator) == 750
    accumulator.complete(batches[0], None, 0)
    assert (accumulator.pool.pooled, accumulator.pool.unallocated_bytes) == (1, 750), "of batch_bytes: pooled"
    accumulator.fail(batches[1], REFUSED, 0)
    assert (accumulator.pool.pooled, accumulator.pool.unallocated_bytes) == (1, 900)


def test_a23_a_retry_puts_the_batch_at_the_front_with_one_attempt_more() -> None:
    accumulator = policy()
    put(accumulator, 60)
    (batch,) = take(accumulator)
    put(accumulator, 60)
    assert accumulator.retried(batch, 7) is RetryOutcome.REENQUEUED
    assert queued(accumulator) == [0, 1]
    assert (batch.attempts, batch.last_attempt_ms, batch.state) == (1, 7, BatchState.CLOSED)
    assert available(accumulator) == 800, "its memory stays taken"


def test_a23_the_last_attempt_is_not_before_the_last_append() -> None:
    accumulator = policy()
    put(accumulator, 10, at=50)
    (batch,) = take(accumulator, at=50)
    accumulator.retry(batch, 40)
    assert batch.last_attempt_ms == 50


def test_a23_without_muting_two_batches_that_fail_in_order_come_back_in_reverse() -> None:
    accumulator = policy()
    put(accumulator, 60)
    put(accumulator, 60)
    first, second = take(accumulator)[0], take(accumulator)[0]
    accumulator.retry(first, 0)
    accumulator.retry(second, 0)
    assert queued(accumulator) == [1, 0]


@pytest.mark.parametrize(("at", "outcome"), [(999, "REENQUEUED"), (1000, "DELIVERY_TIMEOUT")])
def test_a24_the_delivery_timeout_is_reached_at_the_millisecond(at: int, outcome: str) -> None:
    accumulator = policy()
    future = put(accumulator, 10).future
    assert accumulator.retried(take(accumulator)[0], at, REFUSED).name == outcome
    assert future.is_done == (outcome == "DELIVERY_TIMEOUT")
    if future.is_done:
        with pytest.raises(
            DeliveryTimeoutError, match=r"1,000 ms have passed .* delivery_timeout is 1,000 ms"
        ) as raised:
            future.result()
        assert raised.value.__cause__ is REFUSED and available(accumulator) == 1000


def test_a24_created_never_changes_over_retry_and_split() -> None:
    accumulator = policy(batch=200)
    put(accumulator, 60, at=3)
    put(accumulator, 60, at=4)
    accumulator.retry(take(accumulator, at=5)[0], 10)
    (batch,) = take(accumulator, at=20)
    assert batch.created_ms == 3
    assert [part.created_ms for part in accumulator.split(batch, 30)] == [3]
    assert accumulator.retried(take(accumulator, at=1003)[0], 1003) is RetryOutcome.DELIVERY_TIMEOUT


def test_a25_expiry_takes_queued_batches_from_the_front_up_to_the_first_in_time() -> None:
    accumulator = policy(memory=2000)
    for at in (0, 10, 20):
        put(accumulator, 60, at=at)
    put(accumulator, 60, "y", at=5)
    put(accumulator, 60, "z", at=90)
    in_flight = accumulator.drain_nodes([NODE], AMPLE, 90)[NODE][0]
    for batch in accumulator.in_flight[1:]:
        accumulator.reenqueue(batch, 90)
    accumulator.mute("y")
    expiry = accumulator.expire(1010)
    assert numbers(expiry.batches) == [1, 3], "muted and backing off, and yet"
    assert expiry.next_expiry_ms == 1020 and in_flight in accumulator.in_flight
    assert queued(accumulator) == [2] and available(accumulator) == 1700
    assert accumulator.expire(1020).next_expiry_ms == 1090
    assert accumulator.expire(2000).next_expiry_ms is None


def test_a25_a_batch_in_time_protects_those_behind_it() -> None:
    accumulator = policy()
    put(accumulator, 60, at=500)
    put(accumulator, 60, at=0)
    assert accumulator.expire(1000).batches == () and queued(accumulator) == [0, 1]


def test_a25_an_expired_batch_fails_and_its_memory_returns() -> None:
    accumulator = policy()
    future = put(accumulator, 10).future
    (batch,) = accumulator.expire(1000).batches
    assert batch.state is BatchState.FAILED and isinstance(future.exception(), DeliveryTimeoutError)
    assert available(accumulator) == 1000 and not accumulator.has_incomplete and not accumulator.has_undrained


def kafka_batch(*value_sizes: int, batch: int = 400) -> Accumulator:
    """One batch of Kafka's records."""
    accumulator = policy(batch=batch, memory=2000, sizing=KafkaSizing())
    for number, size in enumerate(value_sizes):
        accumulator.append("x", KafkaRecord(number, None, size), 0)
    return accumulator


def test_a26_the_first_split_of_a_normal_batch_gives_one_equal_batch_and_the_second_halves() -> None:
    accumulator = kafka_batch(50, 50, 50, 50)
    (batch,) = take(accumulator)
    accumulator.retry(batch, 0)
    (part,) = accumulator.split(take(accumulator, at=9)[0], 9)
    assert (part.bytes, len(part.records), part.attempts) == (batch.bytes, 4, 0) == (289, 4, 0)
    halves = accumulator.split(take(accumulator, at=9)[0], 9)
    assert [(half.number, len(half.records), half.bytes) for half in halves] == [
        (2, 1, 118),
        (3, 1, 118),
        (4, 1, 118),
        (5, 1, 118),
    ], "half of 289 is 144, less than two records and a header"


def test_a26_a_part_of_a_split_is_cut_at_half_its_size_or_its_largest_record() -> None:
    accumulator = kafka_batch(10, 10, 10, 90, 10, 10)
    (part,) = accumulator.split(take(accumulator)[0], 0)
    assert part.bytes == 245 and part.largest_bound_bytes == 61 + 21 + 1 + 2 + 90 + 1
    parts = accumulator.split(take(accumulator)[0], 0)
    assert [[record.value_size for record in cut.records] for cut in parts] == [[10, 10, 10], [90], [10, 10]]
    assert [cut.capacity_bytes for cut in parts] == [176, 176, 176]


def test_a26_a_split_measures_records_anew_in_their_new_batch() -> None:
    accumulator = policy(batch=1000, memory=2000, sizing=KafkaSizing())
    for ts in (0, 5000, 5001):
        accumulator.append("x", KafkaRecord(ts, None, 300), 0)
    (part,) = accumulator.split(take(accumulator)[0], 0)
    assert part.bytes == 61 + 309 + 310 + 310, "5000 ms after the first takes another byte"
    parts = accumulator.split(take(accumulator)[0], 0)
    assert [cut.bytes for cut in parts] == [370, 370, 370]


def test_a26_parts_go_to_the_front_in_order_closed_and_without_memory_of_the_pool() -> None:
    accumulator = policy(batch=100, memory=200)
    futures = [put(accumulator, 30, name=name).future for name in "abc"]
    (batch,) = take(accumulator)
    put(accumulator, 10, name="d")
    assert available(accumulator) == 0
    accumulator.split(batch, 5)
    assert batch.state is KafkaState.SPLIT and available(accumulator) == 100, "the memory of the batch that was split"
    parts = accumulator.split(take(accumulator)[0], 5)
    assert [[record.name for record in cut.records] for cut in parts] == [["a"], ["b"], ["c"]]
    assert queued(accumulator) == [3, 4, 5, 1]
    assert {cut.state for cut in parts} == {BatchState.CLOSED} and available(accumulator) == 100
    for expected in ("a", "b", "c"):
        (cut,) = take(accumulator)
        accumulator.complete(cut, expected, 6)
    assert available(accumulator) == 100, "they had none to return"
    assert [future.result() for future in futures] == ["a", "b", "c"]


def test_a26_an_oversized_first_record_opens_a_part_of_its_own_size() -> None:
    accumulator = kafka_batch(500, 5)
    (part,) = accumulator.split(take(accumulator)[0], 0)
    assert part.capacity_bytes == 61 + 21 + 1 + 2 + 500 + 1 and len(part.records) == 2


def test_a26_a_batch_of_one_record_cannot_be_split() -> None:
    accumulator = policy()
    put(accumulator, 10)
    (batch,) = take(accumulator)
    with pytest.raises(BatchStateError, match="nothing to cut"):
        accumulator.split(batch, 0)
    assert batch.state is BatchState.IN_FLIGHT and accumulator.in_flight == (batch,)


ANSWERS: dict[str, Any] = {
    "complete": lambda accumulator, batch: accumulator.complete(batch, "late", 9),
    "fail": lambda accumulator, batch: accumulator.fail(batch, REFUSED, 9),
    "retry": lambda accumulator, batch: accumulator.retried(batch, 9) is not RetryOutcome.ALREADY_DONE,
    "retry, out of time": lambda accumulator, batch: accumulator.retried(batch, 5000) is not RetryOutcome.ALREADY_DONE,
    "reenqueue": lambda accumulator, batch: accumulator.reenqueue(batch, 9),
    "split": lambda accumulator, batch: accumulator.split(batch, 9),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a27_a_batch_aborted_in_flight_answers_false_and_only_then_gives_its_memory_back(answer: str) -> None:
    accumulator = policy()
    future = put(accumulator, 10).future
    put(accumulator, 10)
    (batch,) = take(accumulator)
    assert accumulator.abort_incomplete(0) == [batch]
    assert isinstance(future.exception(), AccumulatorClosedError)
    assert not accumulator.has_incomplete and available(accumulator) == 900
    assert not ANSWERS[answer](accumulator, batch)
    assert available(accumulator) == 1000 and queued(accumulator) == [] and accumulator.in_flight == ()
    assert isinstance(future.exception(), AccumulatorClosedError)


# --- flush: A28, A29 ------------------------------------------------------------------------------


def test_a28_a_flush_waits_for_what_was_incomplete_then_queued_and_in_flight() -> None:
    accumulator = policy()
    put(accumulator, 10)
    (first,) = take(accumulator)
    second = put(accumulator, 10).batch
    flush = accumulator.begin_flush()
    assert flush.awaits == (first, second) and accumulator.is_flushing
    later = put(accumulator, 95).batch
    accumulator.complete(first, None, 0)
    take(accumulator)
    assert not flush.is_done and accumulator.ready(0).nodes == (NODE,), "later ones are sent at once meanwhile"
    accumulator.fail(second, REFUSED, 0)
    assert flush.is_done and not accumulator.is_flushing and not later.is_settled


def test_a28_a_flush_of_nothing_is_done_at_once() -> None:
    accumulator = policy()
    assert accumulator.begin_flush().is_done and not accumulator.is_flushing


@pytest.mark.parametrize("end", ["retry too late", "expire", "abort"])
def test_a28_expiry_failure_and_abort_end_a_wait(end: str) -> None:
    accumulator = policy()
    put(accumulator, 10)
    flush = accumulator.begin_flush()
    if end == "expire":
        accumulator.expire(1000)
    elif end == "abort":
        accumulator.abort_incomplete(0)
    else:
        accumulator.retry(take(accumulator)[0], 1000)
    assert flush.is_done and not accumulator.is_flushing


def test_a28_every_flush_waits_for_its_own() -> None:
    accumulator = policy()
    put(accumulator, 10)
    first = accumulator.begin_flush()
    put(accumulator, 95)
    second = accumulator.begin_flush()
    accumulator.complete(take(accumulator)[0], None, 0)
    assert (first.is_done, second.is_done, accumulator.is_flushing) == (True, False, True)
    accumulator.complete(take(accumulator)[0], None, 0)
    assert second.is_done and not accumulator.is_flushing


def test_a28_a_retried_batch_is_still_waited_for() -> None:
    accumulator = policy()
    put(accumulator, 10)
    flush = accumulator.begin_flush()
    accumulator.retry(take(accumulator)[0], 0)
    assert not flush.is_done
    accumulator.complete(take(accumulator, at=5)[0], None, 5)
    assert flush.is_done


def test_a28_a_flush_waits_for_the_parts_of_a_batch_that_was_split_and_for_theirs() -> None:
    accumulator = policy()
    put(accumulator, 40)
    put(accumulator, 40)
    flush = accumulator.begin_flush()
    accumulator.split(take(accumulator)[0], 0)
    assert accumulator.begin_flush().awaits == tuple(accumulator.queues.of("x").batches)
    accumulator.split(take(accumulator)[0], 0)
    accumulator.complete(take(accumulator)[0], None, 0)
    assert not flush.is_done
    accumulator.complete(take(accumulator)[0], None, 0)
    assert flush.is_done and not accumulator.is_flushing


def test_a29_a_flush_closes_no_batch_and_waits_for_records_that_join_one() -> None:
    accumulator = policy()
    batch = put(accumulator, 10).batch
    flush = accumulator.begin_flush()
    joined = put(accumulator, 10)
    assert joined.batch is batch
    accumulator.complete(take(accumulator)[0], "done", 0)
    assert flush.is_done and joined.future.result() == "done"


# --- close and abort: A30, A31 --------------------------------------------------------------------


def test_a30_close_ends_blocked_appends_loses_nothing_queued_and_lets_the_rest_go_on() -> None:
    accumulator = policy(memory=200)
    future = put(accumulator, 60).future
    put(accumulator, 60)
    ticket = accumulator.append_or_wait("y", Part("waits", 10), 0)
    accumulator.close(1)
    assert isinstance(ticket.error, AccumulatorClosedError) and accumulator.pool.queued == 0
    assert queued(accumulator) == [0, 1] and accumulator.ready(1).nodes == (NODE,)
    accumulator.retry(take(accumulator)[0], 1)
    accumulator.complete(take(accumulator, at=6)[0], "late", 6)
    accumulator.complete(take(accumulator, at=6)[0], "later", 6)
    assert future.result() == "late" and available(accumulator) == 200


def test_a31_abort_ends_every_batch_and_drops_all_queues() -> None:
    accumulator = policy()
    futures = [put(accumulator, 60, partition).future for partition in ("x", "x", "y")]
    batches = [*take(accumulator, size=1), *accumulator.queues.of("x").batches, *accumulator.queues.of("y").batches]
    accumulator.close(0)
    assert set(accumulator.abort_incomplete(0)) == set(batches)
    assert not accumulator.has_incomplete and not accumulator.has_undrained
    assert {batch.state for batch in batches} == {KafkaState.ABANDONED, KafkaState.ABORTED}
    assert all(isinstance(future.exception(), AccumulatorClosedError) for future in futures)
    assert available(accumulator) == 900, "that of the batch in flight comes with its answer"
    assert accumulator.abort_incomplete(0) == []


def test_a31_an_append_that_gets_its_memory_from_an_abort_is_aborted_too() -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10)
    ticket = accumulator.append_or_wait("y", Part("waits", 10), 0)
    aborted = accumulator.abort_incomplete(5)
    assert ticket.appended is not None and ticket.appended.batch in aborted and len(aborted) == 2
    assert available(accumulator) == 100 and not accumulator.has_incomplete


def test_a31_parts_of_a_split_are_aborted_without_returning_memory() -> None:
    accumulator = policy()
    put(accumulator, 30)
    put(accumulator, 30)
    accumulator.split(take(accumulator)[0], 0)
    accumulator.split(take(accumulator)[0], 0)
    (in_flight,) = take(accumulator)
    assert available(accumulator) == 1000
    accumulator.abort_incomplete(0)
    assert not accumulator.complete(in_flight, None, 0) and available(accumulator) == 1000
