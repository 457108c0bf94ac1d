"""Java that benchmarks and tests run beside Spark: jars from the registry of Maven, sources compiled here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RESOLVED = "resolved.xml"
"""In the folder of jars: the request that they were resolved for."""


def resolved(packages: Sequence[str], ivy: Path, without: Sequence[str] = ()) -> str:
    """Class path of the packages (``group:name:version``) and all that they need, downloaded once into ``ivy``.

    ``without`` names modules (``group:name``) that are left out, with what only they need. It is Apache Ivy that
    resolves them; PySpark brings its jar.
    """
    request = _ivy_file(packages, without)
    known = ivy / RESOLVED
    if not known.exists() or known.read_text(encoding="utf-8") != request:
        ivy.mkdir(parents=True, exist_ok=True)
        asked = ivy / "asked.xml"
        asked.write_text(request, encoding="utf-8")
        [jar] = (spark_home() / "jars").glob("ivy-*.jar")
        pattern = f"{ivy}/jars/[organisation]_[artifact]-[revision](-[classifier]).[ext]"
        where = ["-cache", str(ivy / "cache"), "-ivy", str(asked), "-retrieve", pattern, "-sync"]
        _run(["java", "-jar", str(jar), *where, "-types", "jar", "bundle"])
        asked.rename(known)
    return f"{ivy}/jars/*"


def _ivy_file(packages: Sequence[str], without: Sequence[str]) -> str:
    wanted = [
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->master,runtime"/>'
        for group, name, version in (package.split(":") for package in packages)
    ]
    left_out = [f'<exclude org="{group}" module="{name}"/>' for group, name in (each.split(":") for each in without)]
    lines = [*wanted, *left_out]
    return (
        '<ivy-module version="2.0"><info organisation="spark_purgatory" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies>'
        "</ivy-module>\n"
    )


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
