"""Time arithmetic: int64 microseconds of event time, milliseconds of the watermark, and overflow.

Sums saturate at the ends of int64 (292,000 years on either side of 1970): a huge duration means "never" or "always"
and raises nothing. Deadlines are rounded up to ticks, so that none is early.
"""

from __future__ import annotations

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import Int64s

US_PER_MS = 1000
END_OF_TIME_MS = -(-(2**63) // US_PER_MS)  # a watermark that has passed every time
MAX_TIME_US = int(np.iinfo(np.int64).max)  # later than every time; the resolved time of an unresolved operation
MIN_TIME_US = int(np.iinfo(np.int64).min)


def saturating_add(left_us: Int64s, right_us: Int64s | int) -> Int64s:
    """Return ``left + right`` in int64, clamped to [MIN_TIME_US, MAX_TIME_US]; (n,) int64."""
    right = np.asarray(right_us, np.int64)
    with np.errstate(over="ignore"):
        total = left_us + right
    over = (right > 0) & (total < left_us)
    under = (right < 0) & (total > left_us)
    return np.where(over, MAX_TIME_US, np.where(under, MIN_TIME_US, total))


def tick_up_ms(times_us: Int64s, tick_ms: int) -> Int64s:
    """Return the first multiple of ``tick_ms`` at or after each time, in milliseconds, (n,) int64."""
    return -(-np.maximum(times_us, MIN_TIME_US + 1) // (US_PER_MS * tick_ms)) * tick_ms


def clock_ms(watermark_ms: int, tick_ms: int) -> int:
    """Round the watermark down to a tick. The end of time is rounded up, because it has passed every tick."""
    if watermark_ms >= END_OF_TIME_MS:
        return -(-watermark_ms // tick_ms) * tick_ms
    return watermark_ms // tick_ms * tick_ms


def elapsed_ms(until_us: Int64s, from_us: Int64s) -> Int64s:
    """Return the milliseconds between two times, rounded down, (n,) int64; exact even if microseconds overflow."""
    borrowed = until_us % US_PER_MS < from_us % US_PER_MS
    return until_us // US_PER_MS - from_us // US_PER_MS - borrowed
