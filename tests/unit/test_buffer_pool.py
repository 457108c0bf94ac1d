"""The pool's facts B1 to B11, one test or more each, and its own rules."""

from __future__ import annotations

import pytest

from spark_purgatory.errors import BufferExhaustedError, BugError, ConfigError, LimitError
from tests.conformance.kafka_buffer_pool import AccumulatorClosedError, BufferPool, RecordTooLargeError

pytestmark = pytest.mark.kafka


def parts(pool: BufferPool) -> tuple[int, int, int, int]:
    """unallocated, pooled, held, gathered; they must add up."""
    pool.validate()
    return pool.unallocated_bytes, pool.pooled, pool.held_bytes, pool.gathered_bytes


def give_back(pool: BufferPool, *sizes: int) -> None:
    for size in sizes:
        pool.deallocate(size, size)


def full_pool(memory: int, poolable: int, *held: int) -> BufferPool:
    """A pool that has handed out ``held``."""
    pool = BufferPool(memory, poolable)
    for size in held:
        assert pool.allocate(size) == size
    return pool


def test_the_worked_example_holds() -> None:
    pool = full_pool(100, 40, 40, 40)
    assert parts(pool) == (20, 0, 80, 0)
    ticket = pool.allocate_or_wait(50)
    assert not ticket.is_done and parts(pool) == (20, 0, 80, 0)
    give_back(pool, 40)
    assert ticket.capacity_bytes == 50 and parts(pool) == (10, 0, 90, 0)
    with pytest.raises(BufferExhaustedError):
        pool.allocate(40)
    give_back(pool, 50)
    assert parts(pool) == (60, 0, 40, 0)
    give_back(pool, 40)
    assert parts(pool) == (60, 1, 0, 0)


# --- one thread: B1 to B7 -------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
def test_b1_more_than_the_whole_memory_is_refused_before_anything_else_even_after_close(closed: bool) -> None:
    pool = full_pool(100, 10, 100)
    if closed:
        pool.close()
    for ask in (pool.allocate, pool.allocate_or_wait):
        with pytest.raises(RecordTooLargeError, match="101 bytes were requested and the whole buffer memory is 100"):
            ask(101)
    assert pool.queued == 0


def test_b1_exactly_the_whole_memory_is_allowed() -> None:
    assert full_pool(100, 10).allocate(100) == 100


def test_b2_after_close_nothing_is_handed_out_but_memory_still_comes_back() -> None:
    pool = full_pool(100, 10, 10)
    pool.close()
    for ask in (pool.allocate, pool.allocate_or_wait):
        with pytest.raises(AccumulatorClosedError):
            ask(1)
    give_back(pool, 10)
    assert parts(pool) == (90, 1, 0, 0)


def test_b3_a_request_of_the_poolable_size_takes_a_pooled_buffer() -> None:
    pool = full_pool(100, 10, 10)
    give_back(pool, 10)
    assert pool.allocate(10) == 10
    assert parts(pool) == (90, 0, 10, 0)


def test_b4_pooled_buffers_are_dissolved_one_by_one_only_until_it_is_enough() -> None:
    pool = full_pool(100, 10, *[10] * 10)
    give_back(pool, *[10] * 10)
    assert parts(pool) == (0, 10, 0, 0)
    assert pool.allocate(25) == 25
    assert parts(pool) == (5, 7, 25, 0)


def test_b4_a_request_of_another_size_never_reuses_a_pooled_buffer_while_there_is_other_memory() -> None:
    pool = full_pool(100, 10, 10)
    give_back(pool, 10)
    pool.allocate(9)
    assert parts(pool) == (81, 1, 9, 0)
    pool.allocate(81)
    assert parts(pool) == (0, 1, 90, 0), "exactly what is unallocated dissolves nothing"


def test_b5_a_request_that_times_out_dissolves_nothing() -> None:
    pool = full_pool(40, 10, 10, 10, 15)
    give_back(pool, 10)
    with pytest.raises(BufferExhaustedError, match="16 bytes were requested and 15 of 40 are free"):
        pool.allocate(16)
    assert parts(pool) == (5, 1, 25, 0)


def test_b6_only_a_buffer_whose_size_and_capacity_are_poolable_is_pooled() -> None:
    pool = full_pool(100, 10, 10, 10, 20)
    pool.deallocate(capacity_bytes=17, size_bytes=10)
    assert parts(pool) == (70, 0, 30, 0), "it has grown"
    pool.deallocate(capacity_bytes=10, size_bytes=20)
    assert parts(pool) == (90, 0, 10, 0)
    pool.deallocate(capacity_bytes=10, size_bytes=10)
    assert parts(pool) == (90, 1, 0, 0)


def test_b7_what_a_waiter_has_gathered_is_neither_available_nor_unallocated() -> None:
    pool = full_pool(100, 10, 50, 50)
    pool.allocate_or_wait(80)
    give_back(pool, 50)
    assert (pool.available_bytes, pool.unallocated_bytes, pool.gathered_bytes) == (0, 0, 50)


# --- waiters: B8 to B11 ---------------------------------------------------------------------------


def test_b8_a_waiter_takes_nothing_until_it_is_woken() -> None:
    pool = full_pool(100, 10, 90)
    ticket = pool.allocate_or_wait(20)
    assert parts(pool) == (10, 0, 90, 0) and not ticket.is_done and pool.queued == 1


def test_b8_only_the_first_waiter_is_woken_and_it_keeps_what_it_gathered() -> None:
    pool = full_pool(100, 10, 40, 30, 30)
    first, second = pool.allocate_or_wait(70), pool.allocate_or_wait(5)
    give_back(pool, 40)
    assert (first.gathered_bytes, second.gathered_bytes) == (40, 0), "5 would have been enough for the second"
    give_back(pool, 30)
    assert first.capacity_bytes == 70 and not second.is_done
    give_back(pool, 30)
    assert second.capacity_bytes == 5


def test_b8_a_waiter_for_the_poolable_size_takes_a_pooled_buffer_if_it_has_gathered_nothing() -> None:
    pool = full_pool(25, 10, 10, 10)
    ticket = pool.allocate_or_wait(10)
    give_back(pool, 10)
    assert ticket.is_done and parts(pool) == (5, 0, 20, 0), "the 5 free bytes were not touched"


def test_b8_a_waiter_for_the_poolable_size_dissolves_once_it_has_gathered_something() -> None:
    pool = full_pool(20, 10, 10, 4, 6)
    ticket = pool.allocate_or_wait(10)
    give_back(pool, 4)
    assert ticket.gathered_bytes == 4
    give_back(pool, 10)
    assert ticket.is_done and parts(pool) == (4, 0, 16, 0)


def test_b9_a_waiter_that_was_served_wakes_the_next_if_memory_is_left() -> None:
    pool = full_pool(100, 10, 100)
    tickets = [pool.allocate_or_wait(size) for size in (30, 30, 30, 30)]
    give_back(pool, 100)
    assert [ticket.capacity_bytes for ticket in tickets] == [30, 30, 30, None]
    assert tickets[3].gathered_bytes == 10


def test_b9_a_newcomer_that_times_out_makes_the_first_waiter_gather_what_is_free() -> None:
    pool = full_pool(100, 10, 90)
    ticket = pool.allocate_or_wait(50)
    assert ticket.gathered_bytes == 0
    with pytest.raises(BufferExhaustedError):
        pool.allocate(20)
    assert ticket.gathered_bytes == 10 and parts(pool) == (0, 0, 90, 10)


def test_b9_a_newcomer_that_is_served_makes_the_first_waiter_gather_the_rest() -> None:
    pool = full_pool(100, 10, 90)
    ticket = pool.allocate_or_wait(50)
    assert pool.allocate(4) == 4
    assert ticket.gathered_bytes == 6 and parts(pool) == (0, 0, 94, 6)
    other = full_pool(100, 10, 90)
    waiting = other.allocate_or_wait(50)
    assert other.allocate_or_wait(4).is_done
    assert waiting.gathered_bytes == 6


def test_b9_a_request_refused_for_its_size_wakes_nobody() -> None:
    pool = full_pool(100, 10, 90)
    ticket = pool.allocate_or_wait(50)
    with pytest.raises(RecordTooLargeError):
        pool.allocate(101)
    assert ticket.gathered_bytes == 0


def test_b9_a_waiter_that_times_out_gives_back_what_it_gathered_and_wakes_the_next() -> None:
    pool = full_pool(100, 10, 60, 40)
    first = pool.allocate_or_wait(80, now_ms=0, max_block_ms=100)
    second = pool.allocate_or_wait(30, now_ms=0, max_block_ms=100)
    third = pool.allocate_or_wait(35, now_ms=5)
    give_back(pool, 40)
    assert first.gathered_bytes == 40
    assert pool.expire_waiters(99) == [] and parts(pool) == (0, 0, 60, 40)
    assert pool.expire_waiters(100) == [first], "the second was served by what the first gave back"
    assert isinstance(first.error, BufferExhaustedError) and second.capacity_bytes == 30
    assert third.gathered_bytes == 10 and parts(pool) == (0, 0, 90, 10)
    assert pool.expire_waiters(10**9) == [] and pool.queued == 1, "no deadline: it waits for ever"


def test_b9_waits_end_in_the_order_of_their_deadlines() -> None:
    pool = full_pool(100, 10, 100)
    late, early = pool.allocate_or_wait(50, 0, max_block_ms=9), pool.allocate_or_wait(50, 0, max_block_ms=3)
    assert pool.expire_waiters(20) == [early, late]


def test_b10_a_newcomer_is_served_from_what_is_available_though_others_wait() -> None:
    pool = full_pool(100, 10, 90)
    ticket = pool.allocate_or_wait(50)
    assert pool.allocate(10) == 10
    assert not ticket.is_done and pool.queued == 1


def test_b10_what_waiters_have_gathered_is_out_of_a_newcomers_reach() -> None:
    pool = full_pool(100, 10, 60, 40)
    ticket = pool.allocate_or_wait(90)
    give_back(pool, 60)
    assert ticket.gathered_bytes == 60
    with pytest.raises(BufferExhaustedError):
        pool.allocate(1)


def test_b11_close_ends_every_wait_and_they_give_back_what_they_gathered() -> None:
    pool = full_pool(100, 10, 60, 40)
    tickets = [pool.allocate_or_wait(90), pool.allocate_or_wait(10)]
    give_back(pool, 40)
    pool.close()
    assert all(isinstance(ticket.error, AccumulatorClosedError) for ticket in tickets)
    assert pool.queued == 0 and parts(pool) == (40, 0, 60, 0)


# --- the pool's own rules -------------------------------------------------------------------------


def test_nothing_costs_nothing_even_when_memory_is_out() -> None:
    pool = full_pool(10, 10, 10)
    assert pool.allocate(0) == 0 and pool.allocate_or_wait(0).is_done


@pytest.mark.parametrize(("memory", "poolable"), [(0, 1), (1, 0), (-5, 1)])
def test_a_pool_without_memory_is_refused(memory: int, poolable: int) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        BufferPool(memory, poolable)


@pytest.mark.parametrize("size", [-1, 11])
def test_more_cannot_come_back_than_was_handed_out(size: int) -> None:
    pool = full_pool(100, 10, 10)
    with pytest.raises(ConfigError, match="10 bytes are handed out"):
        pool.deallocate(size, size)
    with pytest.raises(ConfigError, match="must not be negative"):
        pool.allocate(-1)
    assert parts(pool) == (90, 0, 10, 0)


def test_exhaustion_is_a_limit_and_not_a_mistake() -> None:
    assert issubclass(BufferExhaustedError, LimitError) and not issubclass(BufferExhaustedError, ConfigError)


def test_lost_memory_is_found() -> None:
    pool = full_pool(100, 10, 10)
    pool.unallocated_bytes -= 1
    with pytest.raises(BugError, match="of 100 bytes"):
        pool.validate()
    idle = full_pool(100, 10, 100)
    ticket = idle.allocate_or_wait(10)
    ticket.error = BufferExhaustedError("by hand")
    with pytest.raises(BugError, match="waits for nothing"):
        idle.validate()
