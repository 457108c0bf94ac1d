"""The Spark partition of a shard's group, and the number of partitions.

Spark sends group key g to partition ``murmur3(g) mod n``. If keys were small ints, 8 shards would leave 2 or 3 of 8
partitions idle on average. murmur3 of an int is a bijection, so every shard gets the int whose hash *is* its number.
Then shard s is in partition s mod n for every n, and no label depends on a setting of the session.
"""

from __future__ import annotations

PARTITIONS = "spark.sql.shuffle.partitions"  # Fixes the number of a query's state partitions at its first start
SEED = 42
C1, C2, ADD = 0xCC9E2D51, 0x1B873593, 0xE6546B64
FINAL_1, FINAL_2 = 0x85EBCA6B, 0xC2B2AE35
WORD = 1 << 32


def state_partitions(shards: int, cores: int | None) -> int:
    """Return the number of state partitions for a query's first start.

    Each one is a task and a state store in every micro-batch, for the life of the checkpoint. More than ``shards``
    would be empty, more than ``cores`` would not run at the same time. ``cores`` is the most that there may ever be,
    None if a cluster may grow.
    """
    return shards if cores is None else min(shards, cores)


def too_many(partitions: int, shards: int, cores: int | None) -> str:
    """Return a warning if more than half of the state partitions are useless, else ""."""
    if partitions <= 2 * shards:
        return ""
    useful = state_partitions(shards, cores)
    return (
        f"{partitions} state partitions for {shards} shards: each micro-batch runs a task and commits a state store "
        "for every one of them, empty or not; 200 take more than ten times the CPU of 2. The "
        "checkpoint keeps the number: stop the query and move the checkpoint with spark-purgatory move --partitions "
        f"{useful} (docs/how-to/move.md). A new query gets a number that fits from RecordAccumulator.write_stream, "
        f"unless the session sets {PARTITIONS}; for any other start set it to {useful} before the first one"
    )


def shard_label(shard: int) -> int:
    """Return the int (signed, 32 bits) whose Spark hash is ``shard``."""
    h = shard % WORD
    # fmix, backwards
    h ^= h >> 16
    h = h * pow(FINAL_2, -1, WORD) % WORD
    h ^= (h >> 13) ^ (h >> 26)
    h = h * pow(FINAL_1, -1, WORD) % WORD
    h ^= h >> 16
    # length, mix of h1 and of k1, backwards
    h ^= 4
    h = (h - ADD) * pow(5, -1, WORD) % WORD
    k = _rotate_right(h, 13) ^ SEED
    k = k * pow(C2, -1, WORD) % WORD
    k = _rotate_right(k, 15) * pow(C1, -1, WORD) % WORD
    return k - WORD if k >= WORD // 2 else k


def _rotate_right(value: int, bits: int) -> int:
    return (value >> bits | value << (32 - bits)) % WORD
