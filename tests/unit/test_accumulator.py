"""What the policy takes in and hands out: facts A1 to A21 of Kafka's RecordAccumulator, one test or more each.

A1, A2 and A5 are measured with Kafka's record format, as the replayed traces are; the others with records that simply
have a number of bytes. Batches are of 100 bytes, linger is 10 ms, the backoff 5, 10, 20, 40, 40, ... ms, and everything
is led by ``node`` unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from spark_purgatory.accumulator.batch import BatchState, ProducerBatch
from spark_purgatory.accumulator.policy import AccumulatorPolicy, AccumulatorSettings, ExponentialBackoff
from spark_purgatory.errors import BufferExhaustedError
from tests.conformance.accumulator import KafkaRecord, KafkaSizing, varint_bytes
from tests.conformance.kafka_accumulator import KafkaAccumulator
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, RecordTooLargeError
from tests.support.accumulators import AMPLE, NODE, Part, PartSizing, available, numbers, policy, put, queued, take


def test_the_worked_example_holds() -> None:
    settings = AccumulatorSettings(batch_bytes=100, linger_ms=10, delivery_timeout_ms=1000)
    accumulator: AccumulatorPolicy[str, Part, str] = AccumulatorPolicy(
        settings, PartSizing(), ExponentialBackoff(5, 40)
    )
    opened = [accumulator.append("x", Part(name, size), 0) for name, size in (("a", 60), ("b", 50), ("c", 10))]
    assert [(appended.batch.number, appended.is_new_batch) for appended in opened] == [(0, True), (1, True), (1, False)]
    assert accumulator.ripe(0) == ["x"]
    (batch,) = accumulator.drain(["x"], AMPLE, 0)
    assert batch.number == 0 and accumulator.in_flight == (batch,)
    assert accumulator.retry(batch, 1) and numbers(accumulator.queues.of("x").batches) == [0, 1]
    assert accumulator.ripe(1) == []
    assert accumulator.append("y", Part("d", 20), 3).batch.number == 2
    assert accumulator.ripe(6) == ["x"]
    accumulator.complete(*accumulator.drain(["x"], AMPLE, 6), "done")
    assert opened[0].future.result() == "done"
    assert accumulator.ripe(6) == [] and accumulator.ripe(6, everything=True) == ["x", "y"]
    assert accumulator.ripe(10) == ["x", "y"]
    for batch in accumulator.drain(["x", "y"], AMPLE, 10):
        accumulator.complete(batch, "done")
    assert accumulator.ripe(10, everything=True) == [] and accumulator.in_flight == ()


def test_with_a_file_that_is_full_only_those_go_along_that_are_nearly_full() -> None:
    accumulator = policy()
    for partition, size in (("full", 100), ("nearly", 90), ("not yet", 89)):
        put(accumulator, size, partition)
    assert accumulator.ripe(9) == ["full", "nearly"]
    assert accumulator.ripe(10) == ["full", "nearly", "not yet"]


def test_a_transaction_takes_the_full_batches_behind_the_first_that_fit_and_changes_nothing_by_looking() -> None:
    accumulator = policy()
    for name, sizes in (("x", (100, 80, 70, 60, 10)), ("y", (100, 20))):
        for size in sizes:
            put(accumulator, size, name)
    seen = [numbers(accumulator.peek(["x", "y"], AMPLE, 0, everything)) for everything in (False, True, False)]
    assert seen == [[0, 4, 1, 2], [0, 4, 1, 2, 3, 5], [0, 4, 1, 2]]
    assert numbers(accumulator.peek(["x"], 179, 0)) == [0] and numbers(accumulator.peek(["x"], 180, 0)) == [0, 1]
    passed_over = numbers(accumulator.peek(["x", "y"], 225, 0, everything=True))
    assert passed_over == [0, 4, 5], "the 80 bytes that do not fit take no room from what is behind them"
    assert numbers(accumulator.drain(["x", "y"], AMPLE, 0)) == [0, 4] and not accumulator.peek([], AMPLE, 0)
    assert numbers(accumulator.peek(["x", "y"], AMPLE, 0)) == [5, 1, 2], "the round goes on where it stood"


def test_memory_of_kafkas_comes_back_with_the_result() -> None:
    accumulator = policy(memory=200)
    assert not put(accumulator, 60).is_full and queued(accumulator) == [0] and available(accumulator) == 100
    assert put(accumulator, 50).is_full and queued(accumulator) == [0, 1] and available(accumulator) == 0
    appended = put(accumulator, 10)
    assert appended.batch.number == 1 and not appended.is_new_batch
    with pytest.raises(BufferExhaustedError):
        put(accumulator, 10, "y")
    assert accumulator.ready(0).nodes == (NODE,)
    (batch,) = take(accumulator)
    assert batch.number == 0 and queued(accumulator) == [1]
    accumulator.retry(batch, 1)
    assert queued(accumulator) == [0, 1]
    assert (accumulator.ready(1).nodes, accumulator.ready(1).next_check_ms) == ((), 5)
    (batch,) = take(accumulator, at=6)
    assert accumulator.complete(batch, "done", 6) and queued(accumulator) == [1] and available(accumulator) == 100
    assert (accumulator.ready(6).nodes, accumulator.ready(6).next_check_ms) == ((), 4)
    assert accumulator.ready(10).nodes == (NODE,)
    accumulator.complete(take(accumulator, at=10)[0], "done", 10)
    assert queued(accumulator) == [] and available(accumulator) == 200


# --- sizes: A1 to A5 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "length"),
    [(0, 1), (63, 1), (-64, 1), (64, 2), (-65, 2), (8191, 2), (-8192, 2), (8192, 3), (-1, 1), (1 << 40, 6)],
)
def test_a1_a_varint_has_seven_bits_a_byte_with_the_sign_folded_in(number: int, length: int) -> None:
    assert varint_bytes(number) == length


def test_a1_a_record_counts_its_time_and_place_relative_to_the_batch() -> None:
    sizing = KafkaSizing()
    first = KafkaRecord(ts=1000, key_size=None, value_size=91)
    assert sizing.record_bytes(first, []) == 100
    assert sizing.record_bytes(KafkaRecord(900, None, 91), [first]) == 101, "time may go back: -100 takes two bytes"
    assert sizing.record_bytes(KafkaRecord(1000, 20, 91), [first] * 64) == 121, "index 64 takes two bytes, the key 20"
    assert sizing.record_bytes(KafkaRecord(1000, None, None), [first]) == 7


def test_a2_a_new_batch_asks_for_an_upper_bound_though_the_record_would_have_fitted() -> None:
    accumulator = policy(sizing=KafkaSizing())
    appended = accumulator.append("x", KafkaRecord(0, None, 20), 0)
    assert appended.appended_bytes == 61 + 27 == 88 < 100
    assert appended.batch.capacity_bytes == 61 + 21 + 1 + 1 + 20 + 1 == 105


def test_a3_the_limit_of_a_batch_is_the_capacity_of_its_buffer() -> None:
    accumulator = policy()
    large = put(accumulator, 150)
    assert large.batch.capacity_bytes == 150 and large.is_full
    roomy = policy(sizing=KafkaSizing())
    batch = roomy.append("x", KafkaRecord(0, None, 100), 0).batch
    assert (batch.capacity_bytes, batch.bytes) == (186, 170)
    assert roomy.append("x", KafkaRecord(0, None, 5), 0).batch is batch, "the oversized batch takes a small record too"
    assert batch.bytes == 182


def test_a4_the_first_record_always_fits_and_others_up_to_the_limit_itself() -> None:
    class Underestimate(PartSizing):
        def upper_bound_bytes(self, record: Any) -> int:
            return 0

    accumulator = policy(sizing=Underestimate())
    assert put(accumulator, 400).batch.bytes == 400
    exact = put(accumulator, 60, "y").batch
    assert put(accumulator, 40, "y").batch is exact and exact.bytes == 100 and exact.is_full


def test_a4_a_batch_of_no_bytes_is_full_only_at_its_limit() -> None:
    accumulator = policy(batch=1)
    assert [put(accumulator, 0).batch.number for _ in range(3)] == [0, 0, 0]
    assert put(accumulator, 1).is_full


def test_a5_the_bytes_of_an_append_are_the_growth_of_the_batch_its_header_included() -> None:
    accumulator = policy(batch=200, sizing=KafkaSizing())
    record = KafkaRecord(0, None, 10)
    assert accumulator.append("x", record, 0).appended_bytes == 61 + 17
    assert accumulator.append("x", record, 0).appended_bytes == 17


# --- append: A6 to A10 ----------------------------------------------------------------------------


def test_a6_only_the_last_batch_is_tried() -> None:
    accumulator = policy()
    put(accumulator, 60)
    put(accumulator, 50)
    assert put(accumulator, 20).batch.number == 1


def test_a6_a_batch_without_room_is_closed_for_good_even_if_no_memory_is_found() -> None:
    accumulator = policy(memory=100)
    batch = put(accumulator, 60).batch
    with pytest.raises(BufferExhaustedError):
        put(accumulator, 50)
    assert batch.state is BatchState.CLOSED
    with pytest.raises(BufferExhaustedError):
        put(accumulator, 1)
    assert len(batch.records) == 1, "it would have fitted"


def test_a7_a_record_in_a_second_nearly_empty_batch_reports_full() -> None:
    accumulator = policy()
    assert not put(accumulator, 60).is_full
    assert put(accumulator, 50).is_full
    assert put(accumulator, 1).is_full
    take(accumulator)
    assert not put(accumulator, 1).is_full


def test_a8_a_record_for_an_existing_batch_needs_no_memory() -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10)
    assert available(accumulator) == 0
    assert not put(accumulator, 10).is_new_batch


def test_a9_closed_comes_before_anything_else() -> None:
    accumulator = policy(memory=100)
    batch = put(accumulator, 10).batch
    accumulator.close(0)
    for size in (1, 5000):
        with pytest.raises(AccumulatorClosedError):
            put(accumulator, size)
        with pytest.raises(AccumulatorClosedError):
            accumulator.append_or_wait("x", Part("late", size), 0)
    assert batch.state is BatchState.OPEN, "no batch was tried"


def test_a9_a_record_larger_than_all_memory_is_refused_at_once() -> None:
    accumulator = policy(memory=200)
    for ask in (accumulator.append, accumulator.append_or_wait):
        with pytest.raises(RecordTooLargeError, match="201 bytes were requested and the whole buffer memory is 200"):
            ask("x", Part("large", 201), 0)
    with pytest.raises(RecordTooLargeError):
        put(policy(batch=300, memory=200), 1)
    assert available(accumulator) == 200 and not accumulator.has_incomplete


def test_a9_without_memory_an_append_fails_at_once_and_the_record_is_nowhere() -> None:
    accumulator = policy(memory=150)
    put(accumulator, 10)
    with pytest.raises(BufferExhaustedError, match="100 bytes were requested and 50 of 150 are free"):
        put(accumulator, 10, "y")
    assert queued(accumulator, "y") == [] and available(accumulator) == 50


def test_a10_a_batch_is_created_when_its_memory_was_obtained() -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10)
    ticket = accumulator.append_or_wait("y", Part("waits", 10), 3)
    assert not ticket.is_done and accumulator.pool.queued == 1
    accumulator.complete(take(accumulator)[0], None, 50)
    assert ticket.appended is not None and ticket.appended.is_new_batch and ticket.appended.batch.created_ms == 50


def test_a10_a_woken_append_joins_the_last_batch_if_it_can_and_hands_its_memory_back() -> None:
    accumulator = policy(memory=200)
    put(accumulator, 10, "a")
    put(accumulator, 10, "b")
    waiting = [accumulator.append_or_wait("y", Part(name, 10), 0) for name in ("first", "second")]
    accumulator.complete(take(accumulator)[0], None, 1)
    assert [ticket.is_done for ticket in waiting] == [True, False]
    accumulator.complete(accumulator.in_flight[0], None, 2)
    results = [ticket.appended for ticket in waiting if ticket.appended]
    assert [(result.is_new_batch, result.batch.number, result.appended_bytes) for result in results] == [
        (True, 2, 10),
        (False, 2, 10),
    ]
    assert available(accumulator) == 100


def test_a10_an_append_that_needs_no_waiting_is_done_at_once() -> None:
    accumulator = policy()
    tickets = [accumulator.append_or_wait("x", Part("quick", 10), 0) for _ in range(2)]
    assert [ticket.appended.is_new_batch for ticket in tickets if ticket.appended] == [True, False]


def test_a_waiting_append_can_be_given_a_time_after_which_it_ends() -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10)
    ticket = accumulator.append_or_wait("y", Part("waits", 10), 5, max_block_ms=20)
    assert accumulator.expire_waiters(24) == [] and accumulator.expire_waiters(25) == [ticket]
    assert isinstance(ticket.error, BufferExhaustedError) and accumulator.pool.queued == 0
    accumulator.validate()


def test_a_record_that_cannot_be_measured_leaves_everything_as_it_was() -> None:
    class Unmeasurable(PartSizing):
        def record_bytes(self, record: Any, batch: Any) -> int:
            if record.name == "odd":
                raise ZeroDivisionError
            return int(record.bytes)

    accumulator = policy(sizing=Unmeasurable())
    with pytest.raises(ZeroDivisionError):
        put(accumulator, 10, name="odd")
    assert available(accumulator) == 1000 and queued(accumulator) == []
    batch = put(accumulator, 10).batch
    with pytest.raises(ZeroDivisionError):
        put(accumulator, 10, name="odd")
    assert (batch.number, batch.bytes, len(batch.records), batch.state) == (0, 10, 1, BatchState.OPEN)


# --- drain: A17 to A21 ----------------------------------------------------------------------------


def filled(*partitions: str, size: int = 10) -> KafkaAccumulator[Any, Any, Any]:
    """One batch for each partition, in this order."""
    accumulator = policy(memory=5000)
    for partition in partitions:
        put(accumulator, size, partition)
    return accumulator


def partitions_of(batches: list[ProducerBatch[Any, Any, Any]]) -> list[str]:
    return [batch.partition for batch in batches]


def test_a17_a_drain_takes_one_batch_a_partition_and_does_not_ask_whether_it_is_ready() -> None:
    accumulator = filled("x", "y")
    put(accumulator, 95)
    assert accumulator.queues.of("x").head is not None and accumulator.ready(0).nodes == (NODE,)
    assert partitions_of(take(accumulator)) == ["x", "y"]
    assert queued(accumulator) == [2]


def test_a18_after_a_full_round_the_next_begins_where_the_last_one_looked_last() -> None:
    accumulator = filled("x", "y", "z")
    for expected in (["x", "y", "z"], ["z", "x", "y"], ["y", "z", "x"]):
        assert partitions_of(take(accumulator)) == expected
        for partition in "xyz":
            put(accumulator, 10, partition)


def test_a18_a_position_that_gave_nothing_was_looked_at_too() -> None:
    accumulator = filled("x", "y", "z")
    accumulator.mute("z")
    assert partitions_of(take(accumulator)) == ["x", "y"]
    accumulator.unmute("z")
    put(accumulator, 10, "x")
    put(accumulator, 10, "y")
    assert partitions_of(take(accumulator)) == ["z", "x", "y"]


def test_a18_after_a_stop_for_size_the_next_round_begins_with_what_did_not_fit() -> None:
    accumulator = filled("x", "y", "z", size=40)
    assert partitions_of(take(accumulator, size=100)) == ["x", "y"]
    assert partitions_of(take(accumulator, size=100)) == ["z"]


def test_a18_the_position_is_kept_for_each_node_and_taken_modulo_its_partitions() -> None:
    accumulator = filled("x", "y", "z")
    take(accumulator)
    for partition in "xyz":
        put(accumulator, 10, partition)
    accumulator.set_leader("z", "other")
    accumulator.set_leader("y", "other")
    assert partitions_of(take(accumulator, node="other")) == ["y", "z"], "its first round"
    assert partitions_of(take(accumulator)) == ["x"], "position 2 of now 1 partition"
    put(accumulator, 10, "y")
    put(accumulator, 10, "z")
    assert partitions_of(take(accumulator, node="other")) == ["z", "y"], "its position is its own"


def test_a19_a_round_stops_at_the_first_batch_that_does_not_fit() -> None:
    accumulator = filled("x", "y")
    put(accumulator, 80, "y")
    put(accumulator, 10, "z")
    assert partitions_of(take(accumulator, size=99)) == ["x"], "z would have fitted"
    assert partitions_of(take(filled("x", "y", size=40), size=80)) == ["x", "y"], "up to max_bytes itself"


def test_a19_one_batch_goes_out_whatever_its_size() -> None:
    accumulator = filled("x", "y", size=90)
    assert partitions_of(take(accumulator, size=1)) == ["x"]


def test_a19_muted_empty_and_backing_off_partitions_are_passed_over() -> None:
    accumulator = filled("w", "x", "y", "z")
    accumulator.retry(take(accumulator)[3], 0)
    put(accumulator, 10, "w")
    put(accumulator, 10, "y")
    accumulator.mute("w")
    assert partitions_of(take(accumulator, at=4)) == ["y"]


def test_a20_every_node_asked_for_is_in_the_answer() -> None:
    accumulator = filled("x")
    accumulator.set_leader("y", "other")
    drained = accumulator.drain_nodes(["nobody", "other", NODE, NODE], AMPLE, 0)
    assert {node: numbers(batches) for node, batches in drained.items()} == {"nobody": [], "other": [], NODE: [0]}
    assert accumulator.drain_nodes([], AMPLE, 0) == {}
    accumulator.validate()


def test_a21_a_drained_batch_takes_no_more_records() -> None:
    accumulator = policy()
    batch = put(accumulator, 10).batch
    take(accumulator)
    assert batch.state is BatchState.IN_FLIGHT and batch.is_full
    assert put(accumulator, 10).batch is not batch


def test_nothing_is_drained_from_partitions_without_a_leader() -> None:
    accumulator = policy(leader=None)
    put(accumulator, 10)
    assert accumulator.drain_nodes([None, NODE], AMPLE, 0) == {None: [], NODE: []}
