"""Time arithmetic: int64 microseconds of event time, milliseconds of the watermark, and what overflows.

Sums saturate at the ends of int64 (292,000 years either side of 1970), so that a hostile duration means "never" or
"always" and no exception. Rounding is towards the future wherever a deadline becomes a tick: never early.
"""

from __future__ import annotations

import numpy as np

from spark_purgatory.core.runs import Int64s

US_PER_MS = 1000
NEVER = int(np.iinfo(np.int64).max)
"""Later than every time; the resolved time of an operation that is not."""
ALWAYS = int(np.iinfo(np.int64).min)


def saturating_add(left_us: Int64s, right_us: Int64s | int) -> Int64s:
    """``left + right`` in int64, clamped to [ALWAYS, NEVER]; (n,) int64."""
    right = np.asarray(right_us, np.int64)
    with np.errstate(over="ignore"):
        total = left_us + right
    over = (right > 0) & (total < left_us)
    under = (right < 0) & (total > left_us)
    return np.where(over, NEVER, np.where(under, ALWAYS, total))


def saturating_multiply(values: Int64s, factor: int) -> Int64s:
    """``values * factor`` in int64, clamped to [ALWAYS, NEVER], factor >= 1; (n,) int64."""
    limit = NEVER // factor
    return np.where(values > limit, NEVER, np.where(values < -limit, ALWAYS, values * np.int64(factor)))


def ceil_ms(times_us: Int64s) -> Int64s:
    """The first millisecond at or after each time, (n,) int64."""
    return -(-np.maximum(times_us, ALWAYS + 1) // US_PER_MS)


def tick_up_ms(times_us: Int64s, tick_ms: int) -> Int64s:
    """The first multiple of ``tick_ms`` at or after each time, in milliseconds, (n,) int64: never early."""
    return -(-ceil_ms(times_us) // tick_ms) * tick_ms


def floor_ms(durations_us: Int64s) -> Int64s:
    """Whole milliseconds, rounded down, (n,) int64."""
    return durations_us // US_PER_MS
