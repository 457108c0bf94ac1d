"""Runs Spark's own declarative pipelines."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.support.children import ROOT, only_connect_server


def run_pipeline(folder: Path, *options: str) -> None:
    """Run the pipeline of a folder to its end, which must be good, with more options of ``spark-submit``; its tables
    lie in ``spark-warehouse``.
    """
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = Path(found.origin).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    }
    command = ["bash", str(home / "bin" / "spark-pipelines"), "run", *options]
    with only_connect_server():
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
