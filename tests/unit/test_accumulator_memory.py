"""The pool, which has no threads, beside a model that has.

The model follows what Kafka's BufferPool does with a lock and conditions: every blocked thread is a coroutine that
stands where the thread would stand, and a scheduler hands the lock to those that were signalled, in that order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_purgatory.errors import BufferExhaustedError
from tests.conformance.kafka_buffer_pool import (
    AccumulatorClosedError,
    AllocationTicket,
    BufferPool,
    RecordTooLargeError,
)

pytestmark = pytest.mark.kafka


@dataclass
class Thread:
    """A call of allocate, standing where its thread would stand."""

    number: int
    size: int
    code: Generator[None, bool, str] | None = None
    gathered: int = 0
    result: str | None = None


@dataclass
class ThreadedPool:
    """Threads, a lock handed over in the order of signals, and one condition for each waiting thread."""

    memory: int
    poolable: int
    free: int = 0
    unpooled: int = 0
    closed: bool = False
    waiters: list[Thread] = field(default_factory=list)
    signalled: deque[Thread] = field(default_factory=deque)
    threads: list[Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unpooled = self.memory

    def start(self, size: int, waits: bool) -> Thread:
        """A thread calls allocate; it is run until it blocks or returns, then everyone that it woke is."""
        thread = Thread(len(self.threads), size)
        self.threads.append(thread)
        thread.code = self.allocate(thread)
        self.step(thread, None)
        if thread.result is None and not waits:
            self.step(thread, False)
        self.settle()
        return thread

    def step(self, thread: Thread, woken: bool | None) -> None:
        assert thread.code is not None
        try:
            if woken is None:
                next(thread.code)
            else:
                thread.code.send(woken)
        except StopIteration as stop:
            thread.result = stop.value

    def settle(self) -> None:
        while self.signalled:
            self.step(self.signalled.popleft(), True)

    def signal(self, thread: Thread) -> None:
        if thread not in self.signalled:
            self.signalled.append(thread)

    def signal_first_if_memory(self) -> None:
        if (self.unpooled or self.free) and self.waiters:
            self.signal(self.waiters[0])

    def melt(self, wanted: int) -> None:
        while self.free and self.unpooled < wanted:
            self.free -= 1
            self.unpooled += self.poolable

    def allocate(self, thread: Thread) -> Generator[None, bool, str]:
        if thread.size > self.memory:
            return "too_large"
        if self.closed:
            return "closed"
        try:
            if thread.size == self.poolable and self.free:
                self.free -= 1
            elif self.unpooled + self.free * self.poolable >= thread.size:
                self.melt(thread.size)
                self.unpooled -= thread.size
            else:
                return (yield from self.block(thread))
            return "served"
        finally:
            self.signal_first_if_memory()

    def block(self, thread: Thread) -> Generator[None, bool, str]:
        self.waiters.append(thread)
        try:
            while thread.gathered < thread.size:
                woken = yield
                if self.closed:
                    return "closed"
                if not woken:
                    return "exhausted"
                if thread.gathered == 0 and thread.size == self.poolable and self.free:
                    self.free -= 1
                    thread.gathered = thread.size
                    continue
                self.melt(thread.size - thread.gathered)
                got = min(thread.size - thread.gathered, self.unpooled)
                self.unpooled -= got
                thread.gathered += got
            thread.gathered = 0
            return "served"
        finally:
            self.unpooled += thread.gathered
            thread.gathered = 0
            self.waiters.remove(thread)

    def deallocate(self, capacity: int, size: int) -> None:
        if size == self.poolable == capacity:
            self.free += 1
        else:
            self.unpooled += size
        if self.waiters:
            self.signal(self.waiters[0])
        self.settle()

    def close(self) -> None:
        self.closed = True
        for thread in self.waiters:
            self.signal(thread)
        self.settle()


RESULTS = {RecordTooLargeError: "too_large", AccumulatorClosedError: "closed", BufferExhaustedError: "exhausted"}


class BothPools:
    """The pool and the model, side by side."""

    def __init__(self, memory: int, poolable: int) -> None:
        self.pool, self.model = BufferPool(memory, poolable), ThreadedPool(memory, poolable)
        self.tickets: list[AllocationTicket | str] = []
        """By the model's thread number: a ticket, or what came of the call."""
        self.returned: set[int] = set()

    def allocate(self, size: int, waits: bool) -> None:
        self.model.start(size, waits)
        try:
            if waits:
                self.tickets.append(self.pool.allocate_or_wait(size))
            else:
                assert self.pool.allocate(size) == size
                self.tickets.append("served")
        except tuple(RESULTS) as error:
            self.tickets.append(RESULTS[type(error)])

    def result(self, number: int) -> str | None:
        ticket = self.tickets[number]
        if isinstance(ticket, str):
            return ticket
        return RESULTS[type(ticket.error)] if ticket.error else "served" if ticket.is_done else None

    def deallocate(self, choice: int, grown: int) -> None:
        held = [number for number in range(len(self.tickets)) if self.result(number) == "served"]
        held = [number for number in held if number not in self.returned]
        if held:
            number = held[choice % len(held)]
            self.returned.add(number)
            size = self.model.threads[number].size
            self.model.deallocate(size + grown, size)
            self.pool.deallocate(size + grown, size)

    def check(self) -> None:
        self.pool.validate()
        ours = (self.pool.unallocated_bytes, self.pool.pooled, self.pool.queued, self.pool.gathered_bytes)
        gathered = sum(thread.gathered for thread in self.model.waiters)
        assert ours == (self.model.unpooled, self.model.free, len(self.model.waiters), gathered)
        results = [self.result(number) for number in range(len(self.tickets))]
        assert results == [thread.result for thread in self.model.threads]


ACTIONS = st.one_of(
    st.tuples(st.just("allocate"), st.integers(0, 45), st.booleans()),
    st.tuples(st.just("allocate"), st.just(8), st.booleans()),
    st.tuples(st.just("deallocate"), st.integers(0, 9), st.sampled_from([0, 0, 0, 5])),
)


@given(
    memory=st.integers(1, 40),
    actions=st.lists(ACTIONS, max_size=60),
    close_at=st.none() | st.integers(0, 60),
)
def test_memory_is_conserved_and_every_request_ends_as_with_threads(
    memory: int, actions: list[tuple[Any, ...]], close_at: int | None
) -> None:
    both = BothPools(memory, 8)
    for number, (kind, *arguments) in enumerate(actions):
        if number == close_at:
            both.pool.close()
            both.model.close()
            both.check()
        getattr(both, kind)(*arguments)
        both.check()
