"""How many state partitions a query begins with, and when there are too many."""

from __future__ import annotations

import pytest

from spark_purgatory.spark.placement import state_partitions, too_many


@pytest.mark.parametrize(
    ("shards", "cores", "expected"),
    [(8, 2, 2), (8, 8, 8), (8, 64, 8), (1, 2, 1), (1600, 16, 16), (8, None, 8)],
)
def test_there_is_one_for_each_shard_or_for_each_core_if_these_are_fewer(
    shards: int, cores: int | None, expected: int
) -> None:
    assert state_partitions(shards, cores) == expected


@pytest.mark.parametrize(
    ("partitions", "shards", "cores", "is_too_many"),
    [
        (200, 8, 2, True),
        (17, 8, 2, True),
        (16, 8, 2, False),  # every second one has a shard
        (8, 8, 2, False),
        (200, 150, 2, False),
    ],
)
def test_more_than_twice_the_shards_are_too_many(
    partitions: int, shards: int, cores: int | None, is_too_many: bool
) -> None:
    assert bool(too_many(partitions, shards, cores)) == is_too_many
