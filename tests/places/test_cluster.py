"""On a standalone cluster whose nodes lack the package: the wheel is shipped, and parts of the cluster are killed."""

from __future__ import annotations

import shutil
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.children import ROOT
from tests.support.cluster import HOST, free_port, standalone_cluster
from tests.support.delta_files import delta_rows
from tests.support.job_process import JobProcess
from tests.support.places_world import World, differences, folder_sources, orders_job
from tests.support.worker_python import built_wheel, packed_environment, worker_python

pytestmark = [pytest.mark.spark, pytest.mark.long]

FILES = 8


def job_file(folder: Path, master: str, host: str, settings: dict[str, Any]) -> Path:
    ours = {
        "spark.master": master,
        "spark.driver.host": HOST,
        "spark.executor.memory": "1g",
        # That of this checkout, which a real node does not have.
        "spark.executorEnv.PYTHONPATH": "",
    }
    # Table and checkpoint by places that mean another folder in an executor.
    return orders_job(folder / "job.yaml", folder_sources(folder), ".", host, {**ours, **settings})


def kill(what: Callable[[list[str]], bool]) -> None:
    """SIGKILL to the first process below this one whose command line is such a one."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if what(process.cmdline()):
                process.kill()
                return
    raise AssertionError("this test has started no such process")


def seconds_until_two_commits(job: JobProcess, *killed: Callable[[list[str]], bool]) -> float:
    """Kill, and wait."""
    before = job.last_commit()
    began_s = time.monotonic()
    for what in killed:
        kill(what)
    job.wait_for_commit(before + 2)
    return time.monotonic() - began_s


def is_executor(command: list[str]) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in command)


def is_worker(command: list[str]) -> bool:
    return "org.apache.spark.deploy.worker.Worker" in command


def wheel(folder: Path) -> tuple[dict[str, Any], str]:
    """Settings that ship the wheel alone, and the Python that the nodes have."""
    shipped = shutil.copy(built_wheel(folder / "dist", ROOT), folder / "spark_purgatory.zip")
    return {"spark.submit.pyFiles": str(shipped)}, str(worker_python(folder / "node"))


def environment(folder: Path) -> tuple[dict[str, Any], str]:
    """Settings that ship a packed environment, and the Python in it; the log host starts one on the driver, too."""
    archive = packed_environment(folder, ROOT)
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "environment", filter="fully_trusted")
    return {"spark.archives": f"{archive}#environment"}, "./environment/bin/python"


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
@pytest.mark.parametrize("shipped", [wheel, environment])
def test_nothing_is_lost_or_doubled_while_executors_and_a_worker_machine_are_killed(
    tmp_path: Path, host: str, shipped: Callable[[Path], tuple[dict[str, Any], str]]
) -> None:
    world = World(orders=54_000)
    size = world.orders // FILES
    for first in range(0, world.orders, size):
        world.land(tmp_path, range(first, first + size))
    way, python = shipped(tmp_path)
    settings = {
        **way,
        "spark.speculation": True,
        "spark.dynamicAllocation.enabled": True,
        "spark.dynamicAllocation.shuffleTracking.enabled": True,
    }
    with standalone_cluster("1g") as master:
        file = job_file(tmp_path, master, host, settings)
        job = JobProcess(file, tmp_path / "checkpoint", environment={"PYSPARK_PYTHON": python}, folder=tmp_path)
        job.start()
        job.wait_for_commit(1)
        without_an_executor_s = seconds_until_two_commits(job, is_executor)
        without_a_worker_s = seconds_until_two_commits(job, is_worker, is_executor)
        job.kill()
        world.land_closing(tmp_path)
        job.run_to_the_end()
        job.run_to_the_end()
    print(f"{host}: two micro-batches {without_an_executor_s:.0f} s after an executor was killed, ", end="")
    print(f"{without_a_worker_s:.0f} s after a worker and another executor were")
    assert differences(delta_rows(tmp_path / "outcomes", ["order_id", "status"]), world.expected()) == {}


def test_a_master_that_is_not_there_is_named(tmp_path: Path) -> None:
    World(orders=10).land(tmp_path, range(10))
    master = f"spark://{HOST}:{free_port()}"
    job = JobProcess(job_file(tmp_path, master, "applyInPandasWithState", {}), tmp_path / "checkpoint", folder=tmp_path)
    job.start()
    assert job.exit_code() == 2, job.said()
    assert f"spark.master='{master}': no standalone master answers at this address" in job.said()
