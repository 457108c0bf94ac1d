"""Ways in which a stream may deliver rows: in any order and any micro-batches, with every row on time.

A row is *on time* if its time is above the watermark before its batch. The watermark after a batch is the smaller of
both sides' latest time - delay, in whole milliseconds. It is 0 until both sides have had rows, and never goes back. For
example, with a delay of 5 ms on both sides:

    batch 1   created 10 ms, 20 ms   events 18 ms   before: 0    after: min(20, 18) - 5 = 13 ms
    batch 2   created 14 ms          events none    before: 13   after: 13 ms, because no side got later
    batch 3   created none           events 30 ms   before: 13   after: min(20, 30) - 5 = 15 ms

The operation created at 10 ms could not have come in batch 2 or later.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]

LAST_US = 2**63 - 1  # the last time


class Batch(NamedTuple):
    """One micro-batch: its rows, and the watermark before them."""

    operations: list[Row]
    events: list[Row]
    watermark_ms: int


def splits(
    rng: random.Random,
    operations: Sequence[Row],
    events: Sequence[Row],
    n_batches: int,
    *,
    operations_delay_us: int = 0,
    events_delay_us: int = 0,
    lookback_us: int = 0,
) -> list[Batch]:
    """Cut rows into `n_batches` micro-batches in a random order, with every row on time.

    Three empty batches follow. The first has the watermark after all rows, the last one at which everything is decided.
    Rows without a time may be in any batch and do not move the watermark.
    """
    waiting = [("created", row) for row in operations] + [("time", row) for row in events]
    times = [row[field] for field, row in waiting if row.get(field) is not None]
    if min(times, default=1) <= 0:
        raise ValueError(f"a row at {min(times)} us can never be on time: give one after the first watermark, 0")
    if min(operations_delay_us, events_delay_us, lookback_us) < 0 or n_batches < 1:
        durations = f"{operations_delay_us=}, {events_delay_us=}, {lookback_us=}"
        raise ValueError(f"{n_batches=} must be at least 1, and durations must not be negative: {durations}")
    delays_us = {"created": operations_delay_us, "time": events_delay_us}
    _shuffle_loosely(rng, waiting, times or [0])
    cuts = sorted(rng.randint(0, len(waiting)) for _ in range(n_batches - 1))
    shares = [end - start for start, end in zip([0, *cuts], [*cuts, len(waiting)], strict=True)]
    batches: list[Batch] = []
    latest_us: dict[str, int] = {}
    watermark_us = 0
    for number, share in enumerate(shares, start=1):
        last = number == n_batches
        chosen, waiting = (waiting, []) if last else (waiting[:share], waiting[share:])
        after_us = watermark_us_after(chosen, latest_us, delays_us, watermark_us)
        # Rows that would be late in the next batch come in this one. They are behind their side's latest.
        chosen += [(field, row) for field, row in waiting if _is_at_most(row.get(field), after_us)]
        waiting = [(field, row) for field, row in waiting if not _is_at_most(row.get(field), after_us)]
        rng.shuffle(chosen)
        sides = {side: [row for field, row in chosen if field == side] for side in ("created", "time")}
        batches.append(Batch(sides["created"], sides["time"], watermark_us // 1000))
        watermark_us = after_us
    end_ms = min(max(watermark_us, _horizon_us(operations, events) + lookback_us), LAST_US) // 1000 + 1
    between_ms = rng.randint(watermark_us // 1000, end_ms)
    return batches + [Batch([], [], ms) for ms in (watermark_us // 1000, between_ms, end_ms)]


def watermark_us_after(
    rows: Iterable[tuple[str, Row]], latest_us: dict[str, int], delays_us: dict[str, int], before_us: int
) -> int:
    """Return the watermark after a batch of (time field, row), and update `latest_us`, each field's latest time."""
    for field, row in rows:
        if row.get(field) is not None:
            latest_us[field] = max(row[field], latest_us.get(field, row[field]))
    if len(latest_us) < len(delays_us):
        return before_us
    return max(before_us, min(latest_us[field] - delays_us[field] for field in delays_us) // 1000 * 1000)


def _shuffle_loosely(rng: random.Random, waiting: list[tuple[str, Row]], times: list[int]) -> None:
    """Order the rows by time with a lag of nothing, some or everything; rows without a time may be anywhere."""
    first, last = min(times), max(times)
    lag_us = rng.choice((0, (last - first) // 8, (last - first) // 2, 4 * (last - first)))

    def place(one: tuple[str, Row]) -> int:
        field, row = one
        time_us = rng.randint(first, last) if row.get(field) is None else row[field]
        return int(time_us) + rng.randint(0, lag_us)

    rng.shuffle(waiting)
    waiting.sort(key=place)


def _is_at_most(time_us: int | None, watermark_us: int) -> bool:
    return time_us is not None and time_us <= watermark_us


def _horizon_us(operations: Sequence[Row], events: Sequence[Row]) -> int:
    """Return a time by which everything is over: the latest of all times, with each extension granted in full."""
    ends = [row.get(field) or 0 for row in operations for field in ("created", "deadline")]
    ends += [event.get("time") or 0 for event in events]
    ends += [granted_us(event) for event in events if event.get("kind") == "extend"]
    return max(ends, default=0)


def granted_us(extension: Row) -> int:
    """Return the deadline that an `extend` event gives; its own time if it has no valid value."""
    seconds = extension.get("value") or 0
    granted_us = max(0, round(seconds * 1_000_000)) if math.isfinite(seconds) else 0
    return min(LAST_US, (extension.get("time") or 0) + granted_us)
