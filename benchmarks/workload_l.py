"""Workload L, long waits: many operations wait when it begins, then come micro-batches of few.

Batch 0 brings P operations; B micro-batches of n operations and their events follow. A batch spans one minute of
event time; delays are at most D minutes; `COMPLETING` of the operations get one event. Files, columns and watermarks
are those of workload W. Two series:

| series | of the P operations |
| --- | --- |
| follows | each ends at a uniform moment of the D minutes: a batch brings 0.75 P / D events, and 0.25 P / D expire |
| fixed | E events complete them in each batch and E / 3 expire, whatever P is; the others outlast the run |

For example, P = 100,000 and D = 120: of *follows*, 625 events and 208 expiries a batch; at P = 5,000,000, 31,250 and
10,417. The n operations of each batch are as in workload W: a uniform delay, the event at a uniform point of it.
An event after the last batch is in no file. What must come out follows from the arrays, as in workload W; besides the
counts, the numbers of the operations are added up by status.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.workload_w import (
    BATCH_US,
    COMPLETING,
    START_US,
    Draw,
    Int64s,
    Workload,
    clock_at_end_us,
    stored,
)

FORMAT = 3
"""Part of the cache's name: another number whenever the files of a seed change."""
SERIES = ("follows", "fixed")
EXPIRIES_AN_EVENT = 1 / 3
"""As `COMPLETING` has it: three events to one expiry."""
NEVER_US = 1 << 62


@dataclass(frozen=True)
class Shape:
    """What a workload is drawn from."""

    waiting: int
    """P, operations of batch 0."""
    operations: int
    """n, operations of each later batch."""
    batches: int
    """B, batches after batch 0."""
    minutes: int
    """D, the longest delay."""
    events: int | None = None
    """E of the series "fixed"; None for the series "follows"."""

    @property
    def series(self) -> str:
        """Its name."""
        return SERIES[0] if self.events is None else SERIES[1]

    @property
    def name(self) -> str:
        """For folders."""
        series = "follows" if self.events is None else f"fixed{self.events}"
        return f"l{FORMAT}-{self.waiting}-{self.operations}-{self.batches}-{self.minutes}-{series}"


@dataclass(frozen=True)
class Ended:
    """Operations that ended, and the sum of their numbers, by status."""

    completed: int
    expired: int
    completed_numbers: int
    expired_numbers: int


def draw(shape: Shape, seed: int) -> Draw:
    """Draw a workload; batch 0 counts as one of its batches. The same arguments give the same one."""
    check(shape)
    rng = np.random.default_rng(seed)
    longest_us = shape.minutes * BATCH_US
    waiting = _waiting(shape, rng, longest_us)
    count = shape.operations * shape.batches
    batch = np.repeat(np.arange(1, shape.batches + 1), shape.operations)
    created_us = np.sort(START_US + batch * BATCH_US + rng.integers(0, BATCH_US, count))
    delay_us = rng.integers(1, longest_us, count, endpoint=True)
    later = Draw(
        batches=shape.batches + 1,
        created_us=created_us,
        deadline_us=created_us + delay_us,
        completes=rng.random(count) < COMPLETING,
        event_us=created_us + rng.integers(0, delay_us, endpoint=True),
    )
    parts = {
        name: np.concatenate([getattr(waiting, name), getattr(later, name)])
        for name in ("created_us", "deadline_us", "completes", "event_us")
    }
    drawn = Draw(batches=shape.batches + 1, **parts)
    return replace(drawn, completes=drawn.completes & (drawn.event_batch < drawn.batches))


def check(shape: Shape) -> None:
    """Raise ValueError where a workload cannot be drawn."""
    if min(shape.waiting, shape.operations, shape.batches) < 1:
        raise ValueError(f"{shape}: waiting, operations and batches must be at least 1")
    if shape.minutes < shape.batches + 3:
        raise ValueError(f"{shape}: minutes must be at least batches + 3, or nothing waits any more at the end")
    if shape.events is not None and (shape.events < 0 or sum(_ended_a_batch(shape)) * shape.batches > shape.waiting):
        completed, expired = _ended_a_batch(shape)
        most = int(shape.waiting / shape.batches * COMPLETING)
        raise ValueError(
            f"{shape}: {shape.batches} batches with {completed} events and {expired} expiries each end more operations "
            f"than the {shape.waiting} that wait: set events to at most {most}"
        )


def _ended_a_batch(shape: Shape) -> tuple[int, int]:
    """(events, expiries) of batch 0's operations in each batch of the series "fixed"."""
    events = shape.events or 0
    return events, int(events * EXPIRIES_AN_EVENT)


def _waiting(shape: Shape, rng: np.random.Generator, longest_us: int) -> Draw:
    """Operations of batch 0."""
    created_us = np.sort(START_US + rng.integers(0, BATCH_US, shape.waiting))
    if shape.events is None:
        end_us = created_us + rng.integers(1, longest_us, shape.waiting, endpoint=True)
        completes = rng.random(shape.waiting) < COMPLETING
    else:
        end_us, completes = _fixed_ends(shape, rng, created_us, longest_us)
    # The deadline of one with an event is anywhere between the event and the longest delay.
    later_us = rng.integers(end_us, created_us + longest_us, endpoint=True)
    return Draw(1, created_us, np.where(completes, later_us, end_us), completes, end_us)


def _fixed_ends(
    shape: Shape, rng: np.random.Generator, created_us: Int64s, longest_us: int
) -> tuple[Int64s, np.typing.NDArray[np.bool_]]:
    completed, expired = _ended_a_batch(shape)
    batches = np.arange(1, shape.batches + 1)
    batch = np.concatenate([np.repeat(batches, completed), np.repeat(batches, expired)])
    chosen = rng.permutation(shape.waiting)[: len(batch)]
    outlasts_us = START_US + (shape.batches + 2) * BATCH_US
    end_us = rng.integers(outlasts_us, created_us + longest_us, endpoint=True)
    end_us[chosen] = START_US + batch * BATCH_US + rng.integers(0, BATCH_US, len(batch))
    completes = np.zeros(shape.waiting, np.bool_)
    completes[chosen[: completed * shape.batches]] = True
    return end_us, completes


def ended(drawn: Draw, due_until_us: int) -> Ended:
    """Every operation with an event, and of the others those whose deadline is not after that time."""
    numbers = np.arange(len(drawn))
    expired = ~drawn.completes & (drawn.deadline_us <= due_until_us)
    return Ended(
        completed=int(np.count_nonzero(drawn.completes)),
        expired=int(np.count_nonzero(expired)),
        completed_numbers=int(numbers[drawn.completes].sum()),
        expired_numbers=int(numbers[expired].sum()),
    )


def ended_at_last(drawn: Draw, grace_ms: int = 0) -> Ended:
    """What must have ended when the stream ends, if one expires ``grace_ms`` after its deadline."""
    return ended(drawn, clock_at_end_us(drawn) - grace_ms * 1000)


def clocks_ms(drawn: Draw) -> list[int | None]:
    """The slower side's latest time after each batch, in whole milliseconds; None as long as a side had no row."""
    latest = []
    for batch_of, times_us in (
        (drawn.operation_batch, drawn.created_us),
        (drawn.event_batch[drawn.completes], drawn.event_us[drawn.completes]),
    ):
        highest = np.full(drawn.batches, -1, np.int64)
        np.maximum.at(highest, batch_of, times_us)
        latest.append(np.maximum.accumulate(highest))
    return [int(time_us) // 1000 if time_us >= 0 else None for time_us in np.minimum(*latest)]


def waiting_after(drawn: Draw) -> list[int]:
    """How many operations wait after each batch, which decides by the clock of the one before."""
    clocks_us = [0, *((clock_ms or 0) * 1000 for clock_ms in clocks_ms(drawn))]
    arrived = np.cumsum(np.bincount(drawn.operation_batch, minlength=drawn.batches))
    completed = np.cumsum(np.bincount(drawn.event_batch[drawn.completes], minlength=drawn.batches))
    expire_us = np.sort(drawn.deadline_us[~drawn.completes])
    expired = np.searchsorted(expire_us, clocks_us[: drawn.batches], side="right")
    return [int(each) for each in arrived[: drawn.batches] - completed[: drawn.batches] - expired]


def prepared(shape: Shape, seed: int, root: Path) -> Workload:
    """The workload below ``root``, written now unless it lies there from an earlier run."""
    return stored(draw(shape, seed), root / f"{shape.name}-{seed}", tail_batches=0)
