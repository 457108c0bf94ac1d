"""A standalone Spark cluster on this machine: a master and two workers of one core, each a process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

HOST = "127.0.0.1"
WORKERS = 2
START_S = 60


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextmanager
def standalone_cluster(memory: str) -> Iterator[str]:
    """The URL of a master with `WORKERS` workers of one core and ``memory``; they end with the context.

    Each has a host of its own, as Spark sees it: it starts no speculative attempt on the host of the first one.
    """
    port, web_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    with TemporaryDirectory(prefix="cluster-") as folder:
        master = ["master.Master", "--host", HOST, "--port", str(port), "--webui-port", str(web_port)]
        worker = ["worker.Worker", "--cores", "1", "--memory", memory, "--work-dir", folder, url]
        workers = [[*worker, "--host", f"127.0.0.{number + 1}"] for number in range(WORKERS)]
        running: list[subprocess.Popen[bytes]] = []
        try:
            for command in (master, *workers):
                running.append(_start(command, Path(folder)))
                if command is master:
                    _wait(web_port, workers=0)
            _wait(web_port, workers=WORKERS)
            yield url
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait()


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    said = folder / f"{command[0]}-{time.monotonic_ns()}.log"
    with said.open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}", *command[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST},
        )


def _wait(web_port: int, workers: int) -> None:
    """Until the master answers and so many workers are there."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{web_port}/json/", timeout=5) as answer:
                if json.load(answer)["aliveworkers"] >= workers:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"no master with {workers} workers at {HOST}:{web_port} within {START_S} s: is a Java 17 there?")
