"""On a standalone cluster whose nodes lack the package: the wheel is shipped, and parts of the cluster are killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.cluster import HOST, standalone_cluster
from tests.support.children import ROOT
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.places_world import World, differences, folder_sources, orders_job
from tests.support.worker_python import built_wheel, worker_python

FILES = 8


def job_file(folder: Path, master: str, host: str, settings: dict[str, Any]) -> Path:
    ours = {
        "spark.master": master,
        "spark.driver.host": HOST,
        "spark.executor.memory": "1g",
        # That of this checkout, which a real node does not have.
        "spark.executorEnv.PYTHONPATH": "",
    }
    return orders_job(folder / "job.yaml", folder_sources(folder), str(folder), host, {**ours, **settings})


def kill(what: Callable[[list[str]], bool]) -> None:
    """SIGKILL to the first process below this one whose command line is such a one."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if what(process.cmdline()):
                process.kill()
                return
    raise AssertionError("this test has started no such process")


def is_executor(command: list[str]) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in command)


def is_worker(command: list[str]) -> bool:
    return "org.apache.spark.deploy.worker.Worker" in command


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_nothing_is_lost_or_doubled_while_executors_and_a_worker_machine_are_killed(tmp_path: Path, host: str) -> None:
    world = World(orders=54_000)
    size = world.orders // FILES
    for first in range(0, world.orders, size):
        world.land(tmp_path, range(first, first + size))
    wheel = shutil.copy(built_wheel(tmp_path / "dist", ROOT), tmp_path / "spark_purgatory.zip")
    python = worker_python(tmp_path / "node")
    settings = {
        "spark.submit.pyFiles": str(wheel),
        "spark.speculation": True,
        "spark.dynamicAllocation.enabled": True,
        "spark.dynamicAllocation.shuffleTracking.enabled": True,
    }
    with standalone_cluster("1g") as master:
        file = job_file(tmp_path, master, host, settings)
        job = JobProcess(file, tmp_path / "checkpoint", environment={"PYSPARK_PYTHON": str(python)})
        job.start()
        job.wait_for_commit(1)
        kill(is_executor)
        job.wait_for_commit(job.last_commit() + 2)
        kill(is_worker)
        kill(is_executor)
        job.wait_for_commit(job.last_commit() + 2)
        job.kill()
        world.land_closing(tmp_path)
        job.run_to_the_end()
        job.run_to_the_end()
    assert differences(delta_rows(tmp_path / "outcomes", ["order_id", "status"]), world.expected()) == {}
