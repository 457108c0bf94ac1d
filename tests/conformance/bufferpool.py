"""Traces of BufferPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from spark_purgatory.errors import BufferExhaustedError, PurgatoryError
from tests.conformance.kafka_buffer_pool import (
    AccumulatorClosedError,
    AllocationTicket,
    BufferPool,
    RecordTooLargeError,
)
from tests.conformance.traces import Inputs, Step

ERROR_NAMES: dict[type[PurgatoryError], str] = {
    RecordTooLargeError: "too_large",
    BufferExhaustedError: "exhausted",
    AccumulatorClosedError: "closed",
}
REFUSALS: tuple[type[PurgatoryError], ...] = tuple(ERROR_NAMES)


def error_name(error: PurgatoryError | None) -> str | None:
    """What a trace calls an error; null for none."""
    return None if error is None else ERROR_NAMES[type(error)]


class BufferPoolReplayer:
    """Drives a BufferPool; a blocked thread is a ticket that is not done.

    ``max_block_ms`` makes no difference: nothing is returned while the one thread of the trace waits.
    """

    inputs: ClassVar[Inputs] = {
        "allocate": frozenset({"id", "size", "max_block_ms"}),
        "allocate_wait": frozenset({"id", "size"}),
        "deallocate": frozenset({"id", "capacity", "size"}),
        "close": frozenset(),
    }
    state: ClassVar[frozenset[str]] = frozenset({"available", "unallocated", "pooled", "queued"})
    unordered: ClassVar[frozenset[tuple[str, str]]] = frozenset()
    partial: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: dict[str, Any]) -> None:
        self.pool = BufferPool(config["memory"], config["poolable_size"])
        self.blocked: dict[int, AllocationTicket] = {}
        """By id, the requests that wait."""

    def joins(self, batch: Sequence[Step], step: Step) -> bool:
        """The pool takes one request at a time."""
        return False

    def run(self, batch: Sequence[Step]) -> list[Step]:
        """Carry out one step, and say which blocked requests ended in it."""
        (step,) = batch
        woken: dict[str, Step] = {}
        match step["op"]:
            case "allocate":
                answer = self.allocate(step)
            case "allocate_wait":
                answer = self.allocate_wait(step, woken)
            case "deallocate":
                self.pool.deallocate(step["capacity"], step["size"])
                answer = {}
            case "close":
                self.pool.close()
                answer = {}
            case _:
                return [self.after({})]
        for id_, ticket in list(self.blocked.items()):
            if ticket.is_done:
                del self.blocked[id_]
                woken[str(id_)] = outcome(ticket.error, ticket.capacity_bytes)
        return [self.after({**answer, "woken": woken})]

    def finish(self) -> None:
        self.pool.validate()

    def after(self, answer: Step) -> Step:
        """The answer with what the pool holds after the step; its memory must add up at each."""
        self.pool.validate()
        return {
            **answer,
            "available": self.pool.available_bytes,
            "unallocated": self.pool.unallocated_bytes,
            "pooled": self.pool.pooled,
            "queued": self.pool.queued,
        }

    def allocate(self, step: Step) -> Step:
        """A request that is given up if it is not served at once."""
        try:
            return outcome(None, self.pool.allocate(step["size"]))
        except REFUSALS as error:
            return outcome(error, None)

    def allocate_wait(self, step: Step, woken: dict[str, Step]) -> Step:
        """A request that may wait for ever; one that ends at once goes to ``woken`` too."""
        try:
            ticket = self.pool.allocate_or_wait(step["size"])
        except REFUSALS as error:
            woken[str(step["id"])] = outcome(error, None)
            return {"blocked": False}
        blocked = not ticket.is_done
        self.blocked[step["id"]] = ticket
        return {"blocked": blocked}


def outcome(error: PurgatoryError | None, capacity_bytes: int | None) -> Step:
    return {"err": error_name(error), "capacity": capacity_bytes}
