"""Findings with their remedies, and those about this machine, made without starting Spark."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from spark_purgatory.worker_python import arrow_remedy, release_numbers, why_unfit

FILE = Path(__file__).with_name("verified.json")  # What `make test-matrix` wrote
OLDEST_SPARK = (4, 0)  # Releases before it lack what the library calls
TAKE = "take Spark 4.0.5 or later: pip install 'spark-purgatory[spark]'"


@dataclass(frozen=True)
class Finding:
    """A check: its subject, what was found, and what to do about it ("" if nothing)."""

    what: str
    found: str
    remedy: str = ""
    is_note: bool = False  # Worth knowing, but neither right nor wrong

    @property
    def status(self) -> str:
        """``ok``, ``NO`` where something must be done, ``note``."""
        return "NO" if self.remedy else "note" if self.is_note else "ok"


def note(what: str, found: str) -> Finding:
    return Finding(what, found, is_note=True)


@cache
def verified() -> dict[str, Any]:
    """The file: ``date``, ``cells`` (an environment each with its tests' results), ``upgrades`` of checkpoints."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def verified_releases() -> list[str]:
    return sorted({cell["spark"] for cell in verified()["cells"] if not cell["failed"]}, key=release_numbers)


def release_finding(what: str, found: str) -> Finding:
    """Report whether a release of Spark was tested. An untested one is a note, not a fault."""
    if release_numbers(found)[:2] < OLDEST_SPARK:
        return Finding(what, found, TAKE)
    tested = verified_releases()
    if found in tested:
        return Finding(what, f"{found}, tested on {verified()['date']}")
    return note(what, f"{found}; tested are {', '.join(tested)} ({verified()['date']})")


JAVA_MIN = 17
INSTALL_SPARK = "pip install 'spark-purgatory[spark]'"
DELTA_SPARK, WITHOUT_JARS = "4.4.0", "4.4.1"  # The tested release of Delta, and one that has a wheel but no jars
INSTALL_JAVA = (
    "install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
    "and put it on the PATH or in JAVA_HOME"
)
MIN_FREE_BYTES = 2 << 30  # The jars take 90 MB; the rest is for shuffles and a demo


def java_finding() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return Finding("Java", f"none at {java}" if java else "none", INSTALL_JAVA)
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    if (match := re.search(r'version "(\d+)', printed)) is None:
        return Finding("Java", f"{java} does not print its version", INSTALL_JAVA)
    return Finding("Java", f"{match[1]} ({java})", "" if int(match[1]) >= JAVA_MIN else INSTALL_JAVA)


def pyspark_finding() -> Finding:
    """Report Spark's release. Clusters have it without a distribution named pyspark."""
    try:
        release = str(import_module("pyspark").__version__)
    except ModuleNotFoundError:
        return Finding("pyspark", "not installed", INSTALL_SPARK)
    arrow = version("pyarrow")
    if remedy := arrow_remedy(release, arrow):
        return Finding("pyspark", f"{release} fails with pyarrow {arrow}", remedy)
    return release_finding("pyspark", release)


def delta_finding() -> Finding:
    what = "delta-spark"
    try:
        found = version(what)
    except PackageNotFoundError:
        return Finding(what, "not installed", INSTALL_SPARK)
    if found == WITHOUT_JARS:
        return Finding(what, found, f"pip install {what}=={DELTA_SPARK} (the jars of {found} were never published)")
    return Finding(what, found) if found == DELTA_SPARK else note(what, f"{found}; tested is {DELTA_SPARK}")


def worker_python_finding() -> Finding:
    name = "PYSPARK_PYTHON"
    value, remedy = os.environ.get(name), f"export {name}={sys.executable}"
    why = why_unfit(value or "python3")
    if value:
        return Finding(name, f"{value}, {why}" if why else value, remedy if why else "")
    if why:  # A note: the demo and the jobs set it to this Python
        return note(name, f"not set: a script of your own would run its workers with python3, {why}; {remedy}")
    return Finding(name, "not set: workers run python3, which fits")


def folder_finding(what: str, folder: Path, remedy: str) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(what, f"{folder}: {error.strerror}", remedy)
    found = f"{folder}, {free / (1 << 30):.0f} GiB free"
    return Finding(what, found, "" if free >= MIN_FREE_BYTES else f"make room: {remedy}")


def machine_findings() -> list[Finding]:
    """Return all that the demo and the jobs need, in the order in which it would fail."""
    local = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])
    return [
        Finding("Python", f"{platform.python_version()} ({sys.executable})"),
        java_finding(),
        pyspark_finding(),
        delta_finding(),
        worker_python_finding(),
        folder_finding("this folder", Path.cwd(), "change to a folder that you own"),
        folder_finding("Spark's scratch folder", local, "set SPARK_LOCAL_DIRS to a folder that you own"),
        folder_finding("jar cache", Path.home() / ".ivy2.5.2", "set HOME to a folder that you own"),
    ]
