"""Which Spark partition a shard's group lands in.

Spark sends group key g to partition ``murmur3(g) mod n``. Small ints as keys would pile up by chance (8 shards on 8
partitions leave 2 or 3 idle on average). murmur3 of an int is a bijection, so every shard gets the int whose hash *is*
the shard's number: shard s lands in partition s mod n, whatever n is, and the labels do not depend on a setting that
may differ after a restart.
"""

from __future__ import annotations

SEED = 42
C1, C2, ADD = 0xCC9E2D51, 0x1B873593, 0xE6546B64
FINAL_1, FINAL_2 = 0x85EBCA6B, 0xC2B2AE35
WORD = 1 << 32


def shard_label(shard: int) -> int:
    """The int (signed, 32 bits) whose Spark hash is ``shard``."""
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
