"""The benchmarks without Spark: the engine on workload K, and its growth."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.engine_k import run_purgatory, run_wheel
from benchmarks.growth import Driver, Point
from benchmarks.workload_k import WorkloadK, draw


@pytest.fixture(scope="module")
def workload() -> WorkloadK:
    return draw(20_000, 50)


def test_a_purgatory_restored_and_saved_each_step_ends_as_one_that_lives_on(workload: WorkloadK) -> None:
    lives_on, restored = run_purgatory(workload), run_purgatory(workload, saving=True)
    assert restored.ended == lives_on.ended
    assert restored.coding_s > 0 == lives_on.coding_s
    ended = np.count_nonzero(workload.event >= 0)
    assert (lives_on.ended.completed, lives_on.ended.expired) == (ended, len(workload) - ended)


def test_the_wheel_alone_expires_everything(workload: WorkloadK) -> None:
    assert run_wheel(workload).ended.expired == len(workload)


@pytest.mark.parametrize("hot", [False, True])
def test_as_many_wait_after_a_step_of_growth_and_a_restore_as_before(hot: bool) -> None:
    driver = Driver(Point("pending", 2000, key_bytes=40, payload_bytes=10, hot=hot))
    driver.load()
    if not hot:
        driver.step()
    assert driver.save()[2] > 0
    assert driver.engine.pending == len(driver.waiting) == 2000
    driver.finish()
    assert driver.engine.pending == 0


def test_a_workers_memory_is_told_however_few_wait() -> None:
    driver = Driver(Point("pending", 2000))
    driver.load()
    assert driver.worker_bytes() > 1 << 20
