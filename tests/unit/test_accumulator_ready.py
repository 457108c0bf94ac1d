"""When something is ready to be sent: facts A11 to A16, the backoff and leader epochs included."""

from __future__ import annotations

from typing import Any

import pytest

from spark_purgatory.accumulator.batch import KEPT_PARTITIONS
from spark_purgatory.accumulator.policy import ExponentialBackoff
from tests.conformance.kafka_accumulator import KafkaAccumulator
from tests.support.accumulators import NODE, Part, policy, put, take

pytestmark = pytest.mark.kafka

Accumulator = KafkaAccumulator[Any, Any, Any]


def check(accumulator: Accumulator, at: int = 0) -> tuple[list[Any], int | None]:
    """Nodes ready, and the delay till the next look."""
    accumulator.validate()
    result = accumulator.ready(at)
    return list(result.nodes), result.next_check_ms


NOTHING: tuple[list[Any], None] = ([], None)
READY = ([NODE], None)


# --- ready: A11 to A14 ----------------------------------------------------------------------------


def test_a11_only_the_first_batch_of_a_queue_counts_and_an_empty_one_says_nothing() -> None:
    accumulator = policy()
    assert check(accumulator) == NOTHING
    accumulator.set_leader("x", NODE)
    assert check(accumulator) == NOTHING
    put(accumulator, 10)
    assert check(accumulator) == ([], 10)


def test_a11_without_a_leader_only_that_is_said_even_if_muted() -> None:
    accumulator = policy(leader=None)
    put(accumulator, 100)
    accumulator.mute("x")
    assert accumulator.ready(500).unknown_leaders == ("x",) and check(accumulator, 500) == NOTHING
    accumulator.set_leader("x", NODE)
    accumulator.unmute("x")
    assert accumulator.ready(500).unknown_leaders == () and check(accumulator, 500) == READY


def test_a11_a_muted_partition_is_skipped_without_touching_the_next_check() -> None:
    accumulator = policy()
    put(accumulator, 10)
    accumulator.mute("x")
    assert check(accumulator, 500) == NOTHING
    accumulator.unmute("x")
    assert check(accumulator, 500) == READY


def test_a11_the_next_check_depends_on_the_order_of_partitions() -> None:
    first_waits, first_is_full = policy(), policy()
    put(first_waits, 10, "x")
    put(first_waits, 100, "y")
    put(first_is_full, 100, "y")
    put(first_is_full, 10, "x")
    assert check(first_waits) == ([NODE], 10), "x was seen before its node was ready"
    assert check(first_is_full) == READY


def test_a12_linger_runs_from_the_batches_creation_not_from_its_last_record() -> None:
    accumulator = policy()
    put(accumulator, 10, at=0)
    put(accumulator, 10, at=9)
    assert check(accumulator, 9) == ([], 1)
    assert check(accumulator, 10) == READY


def test_a12_a_clock_that_went_back_has_waited_nothing() -> None:
    accumulator = policy()
    put(accumulator, 10, at=100)
    assert check(accumulator, 50) == ([], 10)


def test_a12_a_batch_that_came_back_is_full_so_linger_never_delays_it_again() -> None:
    accumulator = policy(linger=10_000)
    put(accumulator, 10)
    accumulator.retry(take(accumulator)[0], 0)
    assert check(accumulator, 4) == ([], 1)
    assert check(accumulator, 5) == READY


def test_a13_a_full_batch_or_a_second_one_is_ready_at_once() -> None:
    full, two = policy(), policy()
    put(full, 100)
    put(two, 60)
    put(two, 60)
    assert check(full) == check(two) == READY


def test_a13_with_linger_zero_everything_is_ready_at_once() -> None:
    accumulator = policy(linger=0)
    put(accumulator, 1)
    assert check(accumulator) == READY


@pytest.mark.parametrize("cause", ["exhausted", "closed", "flushing"])
def test_a13_waiting_appends_close_and_flush_make_everything_ready(cause: str) -> None:
    accumulator = policy(memory=100)
    put(accumulator, 10)
    assert check(accumulator) == ([], 10)
    if cause == "exhausted":
        accumulator.append_or_wait("y", Part("waits", 10), 0)
    elif cause == "closed":
        accumulator.close(0)
    else:
        accumulator.begin_flush()
    assert check(accumulator) == READY


@pytest.mark.parametrize("cause", ["full", "closed", "flushing"])
def test_a13_backoff_beats_full_flush_and_close(cause: str) -> None:
    accumulator = policy()
    put(accumulator, 60)
    put(accumulator, 60)
    accumulator.retry(take(accumulator)[0], 0)
    if cause == "closed":
        accumulator.close(0)
    elif cause == "flushing":
        accumulator.begin_flush()
    assert check(accumulator, 4) == ([], 1)
    assert check(accumulator, 5) == READY


def test_a14_the_next_check_is_the_least_of_what_the_others_still_wait() -> None:
    accumulator = policy()
    for at, partition in ((0, "x"), (3, "y"), (1, "z")):
        put(accumulator, 10, partition, at=at)
    accumulator.set_leader("x", "other")
    assert check(accumulator, 5) == ([], 5)
    assert check(accumulator, 10) == (["other"], 1)


# --- backing off: A15, A16 ------------------------------------------------------------------------


def retried(accumulator: Accumulator, at: int = 0) -> None:
    """One batch, drained and back in the queue with one attempt made."""
    put(accumulator, 10)
    accumulator.ready(at)
    accumulator.retry(take(accumulator)[0], at)


def test_a15_a_higher_epoch_ends_the_backoff_of_the_attempt_at_which_it_is_seen() -> None:
    accumulator = policy()
    accumulator.set_leader("x", NODE, epoch=1)
    retried(accumulator)
    assert check(accumulator) == ([], 5)
    accumulator.set_leader("x", "other", epoch=2)
    assert check(accumulator) == (["other"], None)
    (batch,) = take(accumulator, node="other")
    accumulator.retry(batch, 0)
    assert check(accumulator) == ([], 10), "the second attempt went to the same leader"


def test_a15_without_epochs_a_new_leader_does_not_end_the_backoff() -> None:
    accumulator = policy()
    retried(accumulator)
    accumulator.set_leader("x", "other")
    assert check(accumulator) == ([], 5) and take(accumulator, node="other") == []


@pytest.mark.parametrize("epoch", [1, 0, None])
def test_a15_an_epoch_that_is_not_higher_says_nothing(epoch: int | None) -> None:
    accumulator = policy()
    accumulator.set_leader("x", NODE, epoch=1)
    retried(accumulator)
    accumulator.set_leader("x", NODE, epoch=epoch)
    assert check(accumulator) == ([], 5)


def test_a15_the_first_epoch_seen_after_a_failure_counts_as_a_change() -> None:
    accumulator = policy()
    retried(accumulator)
    accumulator.set_leader("x", NODE, epoch=1)
    assert check(accumulator) == READY


def test_a15_the_epoch_at_which_a_batch_was_first_drained_is_no_change() -> None:
    accumulator = policy()
    accumulator.set_leader("x", NODE, epoch=1)
    put(accumulator, 10)
    accumulator.retry(take(accumulator)[0], 0)
    assert check(accumulator) == ([], 5)


def test_a15_ready_notes_an_epoch_even_without_a_leader_or_while_muted() -> None:
    for node, muted in ((None, False), (NODE, True)):
        accumulator = policy()
        accumulator.set_leader("x", NODE, epoch=1)
        retried(accumulator)
        accumulator.set_leader("x", node, epoch=2)
        if muted:
            accumulator.mute("x")
        accumulator.ready(0)
        accumulator.set_leader("x", NODE, epoch=None)
        accumulator.unmute("x")
        assert check(accumulator) == READY


def test_a15_drain_notes_an_epoch_but_skips_muted_partitions_first() -> None:
    accumulator = policy()
    accumulator.set_leader("x", NODE, epoch=1)
    retried(accumulator)
    accumulator.set_leader("x", NODE, epoch=2)
    accumulator.mute("x")
    assert take(accumulator) == []
    head: Any = accumulator.queues.of("x").head
    assert head is not None and head.leader_epoch == 1
    accumulator.unmute("x")
    assert take(accumulator) == [head] and head.leader_epoch == 2


@pytest.mark.parametrize(
    ("initial_ms", "max_ms", "table"),
    [
        (100, 1000, [100, 200, 400, 800, 1000, 1000]),
        (50, 503, [50, 100, 200, 400, 503, 503]),
        (10, 53, [10, 20, 40, 52, 52, 52]),
        (10, 13, [10, 13, 13, 13]),
        (100, 100, [100, 100]),
        (100, 3, [3, 3]),
        (0, 50, [0, 0, 0]),
        (0, 0, [0, 0]),
    ],
)
def test_a16_the_backoff_doubles_up_to_its_maximum(initial_ms: int, max_ms: int, table: list[int]) -> None:
    backoff_ms = ExponentialBackoff(initial_ms, max_ms)
    assert [backoff_ms(retry) for retry in range(len(table))] == table
    assert backoff_ms(10**6) == table[-1]


def test_a16_the_backoff_is_asked_for_once_for_each_attempt() -> None:
    drawn: list[int] = []

    def backoff_ms(retry: int) -> int:
        drawn.append(retry)
        return 7

    accumulator = policy(backoff=backoff_ms)
    retried(accumulator)
    assert [check(accumulator, at) for at in (0, 3, 7)] == [([], 7), ([], 4), READY]
    accumulator.retry(take(accumulator, at=7)[0], 8)
    assert drawn == [0, 1]


# --- partitions -----------------------------------------------------------------------------------


def test_partitions_are_visited_in_the_order_in_which_they_became_known() -> None:
    accumulator = policy()
    for partition in ("z", "x", "y"):
        put(accumulator, 10, partition)
    assert [queue.partition for queue in accumulator.queues] == ["z", "x", "y"]
    assert [batch.partition for batch in take(accumulator)] == ["z", "x", "y"]


def test_idle_partitions_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_purgatory.accumulator.batch.KEPT_PARTITIONS", 4)
    accumulator = policy()
    queues = accumulator.queues
    for partition in ("idle", "muted", "led", "busy"):
        queues.of(partition)
    accumulator.mute("muted")
    accumulator.set_leader("led", NODE)
    put(accumulator, 10, "busy")
    accumulator.mute("new")
    assert [queue.partition for queue in queues] == ["muted", "led", "busy", "new"]
    assert queues.of("one more").partition == "one more", "partitions that wait are never refused"
    assert len(queues) == 5 and KEPT_PARTITIONS > 4
