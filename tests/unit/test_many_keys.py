"""Workload M is what it says, and what must come of it is what a loop over its rows finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.workload_m import (
    CHECK_MODULO,
    FACTOR,
    SHARED_KEYS,
    WORLDS,
    Draw,
    Expected,
    draw,
    expected,
    prepared,
)
from benchmarks.workload_w import START_US, TAIL_BATCHES

both_worlds = pytest.mark.parametrize("world", WORLDS)


def by_hand(drawn: Draw) -> Expected:
    """Every operation against every event on its keys."""
    clock_us = min(int(drawn.created_us.max()), int(drawn.event_us.max())) // 1000 * 1000
    found = {"completed": 0, "expired": 0, "checksum": 0}
    for n, (created_us, deadline_us) in enumerate(zip(drawn.created_us, drawn.deadline_us, strict=True)):
        times = [drawn.event_us[(drawn.event_key == key) & (drawn.event_us >= created_us)] for key in drawn.keys[n]]
        at_us = max((int(time.min()) for time in times), default=0) if all(map(len, times)) else None
        completes = at_us is not None and at_us <= deadline_us
        if completes or deadline_us <= clock_us:
            found["completed" if completes else "expired"] += 1
            resolved_us = at_us if completes and at_us is not None else int(deadline_us)
            found["checksum"] += (n * FACTOR + resolved_us - START_US + completes) % CHECK_MODULO
    return Expected(**found)


@both_worlds
@pytest.mark.parametrize("n_keys", [1, 2, 8])
def test_what_must_come_out_is_what_a_loop_finds(world: str, n_keys: int) -> None:
    drawn = draw(world, 400, n_keys, 3, seed=5)
    assert expected(drawn) == by_hand(drawn)
    assert min(expected(drawn).completed, expected(drawn).expired) > 10


@both_worlds
def test_an_operations_keys_are_distinct_and_in_the_own_world_nobody_elses(world: str) -> None:
    drawn = draw(world, 2000, 8, 3, seed=6)
    ascending = np.sort(drawn.keys, axis=1)
    assert (ascending[:, 1:] > ascending[:, :-1]).all()
    if world == "own":
        assert len(np.unique(drawn.keys)) == 16_000
        owner = drawn.event_key // 8
        assert (drawn.event_us >= drawn.created_us[owner]).all() and (drawn.event_us <= drawn.deadline_us[owner]).all()
    else:
        assert drawn.keys.min() >= 0 and drawn.keys.max() < SHARED_KEYS


@both_worlds
def test_files_hold_every_row_once_in_the_batch_of_its_time(world: str, tmp_path: Path) -> None:
    drawn, folder = prepared(world, 500, 2, 3, seed=7, root=tmp_path)
    assert prepared(world, 500, 2, 3, seed=7, root=tmp_path)[1] == folder
    for side, counts in zip(("operations", "events"), drawn.by_batch(), strict=True):
        files = sorted((folder / side).iterdir())
        assert [pq.read_table(file).num_rows for file in files] == counts[: len(files)].tolist()
        assert sum(counts) == sum(counts[: len(files)])
    assert len(files) == 3 + TAIL_BATCHES
