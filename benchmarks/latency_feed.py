"""What `benchmarks.latency` feeds and what comes back: rows by the clock, and milliseconds from row to outcome.

The feed is two servers, one a side, whose lines Spark's socket source reads. First come K operations, which wait. Then
come R rows a second: four operations and three events in turn, so that three quarters of the operations get an event,
as in workload W. Every event completes the operation that has waited longest, in a random order of the first K: so
about K wait at any time. Every fourth operation gets no event and has `SHORT_US` at least and twice that at most.

Each row carries the microsecond of the wall clock at which it was given to the socket: its event time and its way in.
An outcome's way out is the microsecond at which the sink has it. Both clocks are this process's.

By hand, of K = 2 operations, numbered 0 and 1, and of seven rows::

    row         0        1              2        3              4        5              6
    operation   2                       3                       4                       5, without an event
    event                of 0 or 1               of the other            of 2
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import pyarrow as pa

from benchmarks.harness import WrongOutcomeError
from benchmarks.workload_w import Bools, Int64s

CYCLE = (True, False, True, False, True, False, True)
"""Whether a row is an operation, by its place; every fourth operation has no event."""
OPERATIONS_A_CYCLE = sum(CYCLE)
EVENTS_A_CYCLE = len(CYCLE) - OPERATIONS_A_CYCLE
SHORT_US = 1_000_000
LONG_US = 3_600_000_000
TICK_S = 0.002
HOST = "127.0.0.1"
CONNECT_S = 120.0
SEED = 42


@dataclass(frozen=True)
class Script:
    """Which rows are fed."""

    waiting: int
    """K, operations that wait when the measured rows begin."""
    rate: int
    """R, rows a second."""
    rows: int
    """After those K."""
    unmeasured: int = 0
    """The first of those rows, which only warm up."""

    @property
    def is_operation(self) -> Bools:
        """Whether each row is an operation, (rows,)."""
        return np.resize(np.array(CYCLE), self.rows)

    @property
    def is_short(self) -> Bools:
        """Which operations get no event and expire soon, by number."""
        arrived = np.arange(int(np.count_nonzero(self.is_operation)))
        return np.concatenate([np.zeros(self.waiting, bool), arrived % OPERATIONS_A_CYCLE == OPERATIONS_A_CYCLE - 1])

    @property
    def completing(self) -> Int64s:
        """The operation that each event completes, by number, in the order of events."""
        first = np.random.default_rng(SEED).permutation(self.waiting)
        later = np.flatnonzero(~self.is_short)[self.waiting :]
        return np.concatenate([first, later])[: int(np.count_nonzero(~self.is_operation))]

    @property
    def measured_events(self) -> int:
        """The first of the events that are measured."""
        return int(np.count_nonzero(~self.is_operation[: self.unmeasured]))


@dataclass
class Sent:
    """When rows were given to the sockets, in microseconds of the wall clock."""

    created_us: list[int] = field(default_factory=list)
    """Of operations, by number."""
    deadline_us: list[int] = field(default_factory=list)
    event_us: list[int] = field(default_factory=list)
    """Of events, in order."""

    @property
    def clock_us(self) -> int:
        """The watermark when all was read: the slower side's latest time, in whole milliseconds."""
        return min(self.created_us[-1], self.event_us[-1]) // 1000 * 1000


@dataclass
class Taken:
    """What a sink has taken: the microsecond of each micro-batch, and its outcomes."""

    batches: list[tuple[int, pa.Table]] = field(default_factory=list)

    def add(self, outcomes: pa.Table) -> None:
        """Outcomes, ``op_id`` and ``status``, that the sink has as of now."""
        self.batches.append((time.time_ns() // 1000, outcomes))

    def outcomes(self) -> tuple[Int64s, Bools, Int64s]:
        """(operation by number, whether completed, microsecond), all (n,)."""
        parts = [(at, table) for at, table in self.batches if len(table)]
        ids = [name for _, table in parts for name in table.column("op_id").to_pylist()]
        completed = [status == "COMPLETED" for _, table in parts for status in table.column("status").to_pylist()]
        at_us = np.repeat([at for at, _ in parts], [len(table) for _, table in parts])
        numbers = np.array([number_of(name) for name in ids], np.int64)
        return numbers, np.array(completed, bool), at_us.astype(np.int64)


def name_of(number: int) -> str:
    """An operation's id and key."""
    return f"order-{number}"


def number_of(name: str) -> int:
    """The number of an operation's id."""
    return int(name.removeprefix("order-"))


class Feed:
    """Two servers on this machine, to each of which one reader connects."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sent = Sent()
        self._completing, self._short = script.completing, script.is_short
        self._servers = [socket.create_server((HOST, 0)) for _ in range(2)]
        self._readers: list[socket.socket] = []
        self._last_us = 0

    @property
    def ports(self) -> tuple[int, int]:
        """Of operations and of events."""
        operations, events = (int(server.getsockname()[1]) for server in self._servers)
        return operations, events

    def preload(self) -> None:
        """Wait for the readers, then send the operations that wait."""
        for server in self._servers:
            server.settimeout(CONNECT_S)
            reader, _ = server.accept()
            # Each row leaves at once: Nagle's algorithm would hold it for up to 40 ms.
            reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._readers.append(reader)
        for _ in range(self.script.waiting):
            self._send_operation()

    def run(self) -> None:
        """Send the other rows, each when it is due."""
        begun, sent, is_operation = time.monotonic(), 0, self.script.is_operation
        while sent < self.script.rows:
            due = min(int((time.monotonic() - begun) * self.script.rate), self.script.rows)
            for row in range(sent, due):
                if is_operation[row]:
                    self._send_operation()
                else:
                    self._send_event()
            sent = due
            time.sleep(TICK_S)

    def _send_operation(self) -> None:
        number, now_us = len(self.sent.created_us), self._now_us()
        delay_us = SHORT_US + number * 7919 % SHORT_US if self._short[number] else LONG_US
        self.sent.created_us.append(now_us)
        self.sent.deadline_us.append(now_us + delay_us)
        self._readers[0].sendall(f"{name_of(number)},{now_us},{now_us + delay_us}\n".encode())

    def _send_event(self) -> None:
        number, now_us = int(self._completing[len(self.sent.event_us)]), self._now_us()
        self.sent.event_us.append(now_us)
        self._readers[1].sendall(f"{name_of(number)},{now_us}\n".encode())

    def _now_us(self) -> int:
        """The wall clock; each row has a time of its own."""
        self._last_us = max(time.time_ns() // 1000, self._last_us + 1)
        return self._last_us

    def __enter__(self) -> Feed:
        """Itself, listening."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close all sockets."""
        for each in (*self._readers, *self._servers):
            each.close()


def check_outcomes(name: str, script: Script, sent: Sent, taken: Taken, grace_ms: int = 0) -> None:
    """Raise `WrongOutcomeError` unless the table is that of the feed, each operation once.

    COMPLETED are those whose event was sent; EXPIRED are those without one whose deadline the watermark has passed,
    ``grace_ms`` later where a contender lets them wait so long.
    """
    numbers, completed, _ = taken.outcomes()
    due_us = np.array(sent.deadline_us) <= sent.clock_us - grace_ms * 1000
    due = {True: np.sort(script.completing), False: np.flatnonzero(script.is_short & due_us)}
    for is_completed, wanted in due.items():
        found = np.sort(numbers[completed == is_completed])
        if not np.array_equal(found, wanted):
            status = "COMPLETED" if is_completed else "EXPIRED"
            raise WrongOutcomeError(
                f"{name}: {len(found):,} {status} came out, {len(wanted):,} were expected, and "
                f"{len(np.setxor1d(found, wanted)):,} differ; no time is reported"
            )


def latencies_ms(script: Script, sent: Sent, taken: Taken) -> np.ndarray:
    """From each measured event to the outcome of its operation, (n,) milliseconds, in the order of events."""
    numbers, completed, at_us = taken.outcomes()
    out_us = np.zeros(len(sent.created_us), np.int64)
    out_us[numbers[completed]] = at_us[completed]
    first = script.measured_events
    return np.asarray((out_us[script.completing[first:]] - np.array(sent.event_us[first:])) / 1000)


def percentile(values: Sequence[float] | np.ndarray, percent: float) -> float:
    """The smallest value that so many percent of all do not exceed (nearest rank)."""
    if not len(values):
        raise ValueError("no value was measured: let the feed run longer than its warm-up")
    ranked = np.sort(np.asarray(values, float))
    return float(ranked[max(int(np.ceil(percent / 100 * len(ranked))), 1) - 1])
