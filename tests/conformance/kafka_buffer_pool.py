"""A bounded amount of memory, handed out in buffers (Kafka: ``BufferPool``).

Terms. *Memory* is a number of bytes; a buffer here is its capacity, since only its owner uses the content. Buffers of
the *poolable size* are kept when they come back (*pooled*) and handed out again as they are; all other free memory is
*unallocated*. A request that cannot be served becomes a *waiter* and *gathers*: each time it is woken it takes what is
free towards what it lacks, and keeps it.

Kafka blocks a thread; here a waiter is an `AllocationTicket` in a queue, and the call that returns memory serves it.
Only the first waiter is ever woken, so waiters are served in their order. Newcomers are not in that queue: they are
served from what is available even if others have waited longer, and only what waiters have gathered is out of their
reach.

Invariant, after every step: unallocated + pooled * poolable size + held + gathered = memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from spark_purgatory.errors import BufferExhaustedError, BugError, ConfigError, PurgatoryError


class RecordTooLargeError(ConfigError):
    """A record does not fit into the whole memory."""


class AccumulatorClosedError(ConfigError):
    """The accumulator was closed."""


@dataclass(eq=False)
class AllocationTicket:
    """A request for memory, served or waiting (Kafka: a thread inside ``BufferPool.allocate``)."""

    size_bytes: int
    gathered_bytes: int = 0
    """Taken so far and kept; back to 0 once served or ended."""
    capacity_bytes: int | None = None
    """Capacity of the buffer, once served."""
    error: PurgatoryError | None = None
    """Why it was not served: BufferExhaustedError, AccumulatorClosedError."""

    @property
    def is_done(self) -> bool:
        return self.capacity_bytes is not None or self.error is not None


class BufferPool:
    """At most ``memory_bytes`` handed out at a time (Kafka: ``BufferPool``)."""

    def __init__(self, memory_bytes: int, poolable_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.poolable_bytes = poolable_bytes
        self.unallocated_bytes = memory_bytes
        self.pooled = 0
        """Free buffers of the poolable size."""
        self.held_bytes = 0
        """Handed out and not yet returned."""
        self.is_closed = False
        self._waiters: deque[AllocationTicket] = deque()

    @property
    def available_bytes(self) -> int:
        """Free memory, pooled or not, without what waiters have gathered (Kafka: ``availableMemory``)."""
        return self.unallocated_bytes + self.pooled * self.poolable_bytes

    @property
    def queued(self) -> int:
        """Number of waiters (Kafka: ``queued``)."""
        return len(self._waiters)

    def allocate(self, size_bytes: int) -> int:
        """Take memory at once, as ``allocate`` with a blocking time of 0; returns the buffer's capacity in bytes.

        Raises RecordTooLargeError (more than the whole memory), AccumulatorClosedError, BufferExhaustedError.
        """
        self._refuse(size_bytes)
        capacity_bytes = self._take_at_once(size_bytes)
        self._wake_if_memory_is_left()
        if capacity_bytes is None:
            raise self._exhausted(size_bytes)
        return capacity_bytes

    def allocate_or_wait(self, size_bytes: int) -> AllocationTicket:
        """Take memory, or join the waiters (Kafka: ``allocate``).

        The ticket returned is done at once, or ends in a later `deallocate` or `close`. Raises RecordTooLargeError and
        AccumulatorClosedError at once.
        """
        self._refuse(size_bytes)
        ticket = AllocationTicket(size_bytes)
        ticket.capacity_bytes = self._take_at_once(size_bytes)
        if ticket.is_done:
            self._wake_if_memory_is_left()
        else:
            self._waiters.append(ticket)
        return ticket

    def deallocate(self, capacity_bytes: int, size_bytes: int) -> None:
        """Return ``size_bytes`` and wake the first waiter (Kafka: ``deallocate``); also after `close`.

        ``capacity_bytes`` is the buffer's now: one that has grown is not pooled, whatever size it is returned as.
        """
        if not 0 <= size_bytes <= self.held_bytes:
            raise ConfigError(f"{size_bytes:,} bytes cannot be returned: {self.held_bytes:,} bytes are handed out")
        self.held_bytes -= size_bytes
        if size_bytes == capacity_bytes == self.poolable_bytes:
            self.pooled += 1
        else:
            self.unallocated_bytes += size_bytes
        self._wake_first()

    def close(self) -> None:
        """Refuse every further request and end all waits with AccumulatorClosedError (Kafka: ``close``)."""
        self.is_closed = True
        while self._waiters:
            ticket = self._waiters.popleft()
            self.unallocated_bytes += ticket.gathered_bytes
            ticket.gathered_bytes = 0
            ticket.error = AccumulatorClosedError("the accumulator was closed while a record waited for memory")

    def validate(self) -> None:
        """Add everything up again; BugError if memory was lost or made."""
        gathered_bytes = sum(ticket.gathered_bytes for ticket in self._waiters)
        parts = (self.unallocated_bytes, self.pooled * self.poolable_bytes, self.held_bytes, gathered_bytes)
        if sum(parts) != self.memory_bytes or min(parts) < 0:
            raise BugError(f"unallocated, pooled, held, gathered {parts} of {self.memory_bytes} bytes")
        if any(ticket.is_done or ticket.gathered_bytes >= ticket.size_bytes for ticket in self._waiters):
            raise BugError(f"one of {self.queued} waiters waits for nothing")

    def _refuse(self, size_bytes: int) -> None:
        if size_bytes > self.memory_bytes:
            raise RecordTooLargeError(f"{size_bytes:,} bytes were requested, there are {self.memory_bytes:,} in all")
        if self.is_closed:
            raise AccumulatorClosedError(f"{size_bytes:,} bytes were requested after the accumulator was closed")

    def _take_at_once(self, size_bytes: int) -> int | None:
        if size_bytes == self.poolable_bytes and self.pooled:
            self.pooled -= 1
        elif self.available_bytes >= size_bytes:
            self._dissolve(size_bytes)
            self.unallocated_bytes -= size_bytes
        else:
            return None
        self.held_bytes += size_bytes
        return size_bytes

    def _dissolve(self, wanted_bytes: int) -> None:
        """Turn pooled buffers into unallocated memory, only until it is enough (Kafka: ``freeUp``)."""
        while self.pooled and self.unallocated_bytes < wanted_bytes:
            self.pooled -= 1
            self.unallocated_bytes += self.poolable_bytes

    def _wake_if_memory_is_left(self) -> None:
        if self.unallocated_bytes or self.pooled:
            self._wake_first()

    def _wake_first(self) -> None:
        """Wake the first waiter; one that is served wakes the next if memory is left."""
        while self._waiters and self._gather(self._waiters[0]):
            self._waiters.popleft()
            if not self.available_bytes:
                return

    def _gather(self, ticket: AllocationTicket) -> bool:
        """One round of a woken waiter: True if it is served."""
        if ticket.gathered_bytes == 0 and ticket.size_bytes == self.poolable_bytes and self.pooled:
            self.pooled -= 1
            ticket.gathered_bytes = ticket.size_bytes
        else:
            lacking_bytes = ticket.size_bytes - ticket.gathered_bytes
            self._dissolve(lacking_bytes)
            got_bytes = min(lacking_bytes, self.unallocated_bytes)
            self.unallocated_bytes -= got_bytes
            ticket.gathered_bytes += got_bytes
        if ticket.gathered_bytes < ticket.size_bytes:
            return False
        self.held_bytes += ticket.size_bytes
        ticket.gathered_bytes, ticket.capacity_bytes = 0, ticket.size_bytes
        return True

    def _exhausted(self, size_bytes: int) -> BufferExhaustedError:
        return BufferExhaustedError(f"{size_bytes:,} bytes were requested, {self.available_bytes:,} are free")
