"""Java that the benchmarks compare with: jars through Spark's own package resolution, sources compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RESOLVED = "resolved.txt"
"""In the folder of jars: the packages that they were resolved for."""


def resolved(packages: Sequence[str], ivy: Path) -> str:
    """Class path of the packages (``group:name:version``) and all that they need, downloaded once into ``ivy``."""
    known = ivy / RESOLVED
    if not known.exists() or known.read_text(encoding="utf-8").split() != list(packages):
        ivy.mkdir(parents=True, exist_ok=True)
        nothing = ivy / "nothing.py"
        nothing.write_text("", encoding="utf-8")
        submit = str(spark_home() / "bin" / "spark-submit")
        command = [submit, "--packages", ",".join(packages), "--conf", f"spark.jars.ivy={ivy}", str(nothing)]
        _run(command)
        known.write_text("\n".join(packages) + "\n", encoding="utf-8")
    return f"{ivy}/jars/*"


def spark_home() -> Path:
    """The folder of the installed Spark."""
    command = [sys.executable, "-m", "pyspark.find_spark_home"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def compiled(sources: Sequence[Path], jars: str, classes: Path) -> str:
    """Class path of the compiled sources and of the jars that they need."""
    classes.mkdir(parents=True, exist_ok=True)
    # Warnings are about annotations of libraries that the jars themselves do not need.
    command = ["javac", "-nowarn", "-Xlint:none", "-proc:none", "-d", str(classes), "-cp", jars, *map(str, sources)]
    _run(command)
    return f"{classes}{os.pathsep}{jars}"


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr}")
