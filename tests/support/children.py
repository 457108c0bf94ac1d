"""Tests in a process of their own; those with a Spark Connect server one at a time, for it has a fixed port."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def only_connect_server() -> Iterator[None]:
    """Wait until no other test process has a Spark Connect server."""
    name = f"spark_purgatory_connect_server_{os.getuid()}.lock"
    with Path(tempfile.gettempdir(), name).open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_module(module: str, *arguments: str, **environment: str) -> str:
    """Run a module to its end, which must be good; returns what it writes on stderr."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, **environment}
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stderr


def until(condition: Callable[[], Any], seconds: float = 600) -> None:
    """Wait for what another thread or process does; AssertionError if it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not reached"
        time.sleep(0.05)
