"""A Python for Spark's workers that lacks this package, as the nodes of a cluster do."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import files
from pathlib import Path

NODE_HAS = (
    "numpy",
    "pandas",
    "pyarrow",
    "python-dateutil",
    "pytz",
    "tzdata",
    "six",
    "protobuf",
    "googleapis-common-protos",
)
"""What docs/shipping.md asks of a node to which only the wheel is shipped, and what these need."""


def worker_python(folder: Path) -> Path:
    """An interpreter with `NODE_HAS` of this one's environment and nothing else."""
    python = python_with(folder, NODE_HAS)
    lacks = [str(python), "-E", "-c", "import spark_purgatory"]
    said = subprocess.run(lacks, capture_output=True, text=True, check=False, cwd=folder).stderr
    assert "No module named 'spark_purgatory'" in said, said
    return python


def python_with(folder: Path, distributions: Sequence[str]) -> Path:
    """An interpreter with these distributions of this one's environment, by links."""
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = (folder / "lib").glob("python*/site-packages")
    for distribution in distributions:
        for top in {file.parts[0] for file in files(distribution) or [] if ".." not in file.parts}:
            there = _site_packages() / top
            if there.is_dir() and top == "google":
                _link_each(there, packages / top)
            elif there.exists() and not (packages / top).exists():
                (packages / top).symlink_to(there)
    return folder / "bin" / "python"


def packed_environment(folder: Path, root: Path) -> Path:
    """An archive of such an environment with the wheel in it, as venv-pack makes it: whole, with Python as a link."""
    python_with(folder / "jobs", NODE_HAS)
    [packages] = (folder / "jobs" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(built_wheel(folder / "dist", root)) as wheel:
        wheel.extractall(packages)
    archive = folder / "jobs.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        # Python stays a link: it finds its library beside the file that it is.
        for name in ("bin", "pyvenv.cfg"):
            packed.add(folder / "jobs" / name, arcname=name)
        packed.dereference = True
        packed.add(packages, arcname=str(packages.relative_to(folder / "jobs")))
    return archive


def _link_each(there: Path, here: Path) -> None:
    """What several distributions share, a package without a file of its own."""
    here.mkdir(exist_ok=True)
    for part in there.iterdir():
        if not (here / part.name).exists():
            (here / part.name).symlink_to(part)


def _site_packages() -> Path:
    import numpy

    return Path(numpy.__file__).parents[1]


def built_wheel(folder: Path, root: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel
