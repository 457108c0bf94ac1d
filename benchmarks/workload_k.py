"""Workload K: operations on a few of many keys, most completed by a check of their first key, on a logical clock.

Operation i watches 1 to 3 of 100,000 keys for 11 to 2010 ms. A step is 10 ms: advance the clock; every operation
whose event falls into the step has its flag set and its first key checked, by rising i; then the step's operations
register.
Every number comes from SplitMix64 (state = seed = 42), so that a program in any language draws the same workload; the
checksum is the sum over operations of ``(i + 1) * (step in which it ended)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_purgatory.core.arrays.sorted_runs import Int64s

SEED = 42
KEYS = 100_000
STEP_MS = 10
LONGEST_DELAY_MS = 2000
COMPLETING_OF_100 = 75
GAMMA, FIRST, SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
KNOWN = {(1_000_000, 1000): (749_727, 250_273, 364_814_796_139_203)}
"""(operations, steps) -> completed, expired and checksum, as published with the workload."""


@dataclass(frozen=True)
class WorkloadK:
    """N operations by rising arrival."""

    steps: int
    keys: Int64s
    """Watch keys of all operations, flat, repeats within an operation dropped."""
    offsets: Int64s  # (N + 1,)
    delay_ms: Int64s  # (N,)
    arrive: Int64s
    """(N,) step in which the operation registers, ascending."""
    event: Int64s
    """(N,) step of its completion event; -1 where it has none."""

    def __len__(self) -> int:
        return len(self.delay_ms)

    @property
    def last_step(self) -> int:
        """The step after which everything has ended."""
        return self.steps + LONGEST_DELAY_MS // STEP_MS + 2


@dataclass(frozen=True)
class Ended:
    """How a run ended: equal runs have equal numbers."""

    completed: int
    expired: int
    checksum: int


def split_mix(count: int) -> np.ndarray:
    """The first ``count`` values of SplitMix64, halved as ``below`` wants them, (count,) uint64."""
    z = np.uint64(SEED) + GAMMA * np.arange(1, count + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * FIRST
    z = (z ^ (z >> np.uint64(27))) * SECOND
    return (z ^ (z >> np.uint64(31))) >> np.uint64(1)


def draw(operations: int, steps: int) -> WorkloadK:
    """Draw the workload; the same arguments give the same one."""
    values = split_mix(7 * operations)
    counts = (values % np.uint64(3)).astype(np.int64) + 1
    # How many numbers an operation draws depends on the first of them, so where each begins follows from the last.
    jumps = (counts + 4).tolist()
    starts = [0] * operations
    at = 0
    for i in range(operations):
        starts[i] = at
        at += jumps[at]
    start = np.array(starts)
    count = counts[start]
    drawn = (values[start[:, None] + np.arange(1, 4)] % np.uint64(KEYS)).astype(np.int64)
    wanted = np.arange(3) < count[:, None]
    wanted[:, 1] &= drawn[:, 1] != drawn[:, 0]
    wanted[:, 2] &= (drawn[:, 2] != drawn[:, 0]) & (drawn[:, 2] != drawn[:, 1])
    after = start + count
    delay_ms = 11 + (values[after + 1] % np.uint64(LONGEST_DELAY_MS)).astype(np.int64)
    completes = values[after + 2] % np.uint64(100) < COMPLETING_OF_100
    span = ((delay_ms - 1) // STEP_MS).astype(np.uint64)
    arrive = np.arange(operations) * steps // operations
    event = np.where(completes, arrive + 1 + (values[after + 3] % span).astype(np.int64), -1)
    offsets = np.concatenate(([0], np.cumsum(wanted.sum(axis=1))))
    return WorkloadK(steps, drawn[wanted], offsets, delay_ms, arrive, event)
