"""Java that benchmarks and tests run beside Spark: jars from the registry of Maven, sources compiled here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RESOLVED = "resolved.xml"
"""In the folder of jars: the request that they were resolved for."""
WITHOUT_POMS = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>'
)
"""For a file that needs no other: what its release depends on is not asked for."""


def resolved(packages: Sequence[str], ivy: Path) -> str:
    """Class path of the packages (``group:name:version``) and all that they need, downloaded once into ``ivy``.

    It is Apache Ivy that resolves them; PySpark brings its jar.
    """
    wanted = [
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default->master,runtime"/>'
        for group, name, version in (package.split(":") for package in packages)
    ]
    _retrieve("".join(wanted), ivy, ["jar", "bundle"])
    return f"{ivy}/jars/*"


def retrieved(group: str, name: str, version: str, classifier: str, extension: str, ivy: Path) -> Path:
    """One file of a release that is no jar, an archive for instance, downloaded once into ``ivy``."""
    artifact = f'<artifact name="{name}" type="{extension}" ext="{extension}" m:classifier="{classifier}"/>'
    wanted = f'<dependency org="{group}" name="{name}" rev="{version}" transitive="false">{artifact}</dependency>'
    ivy.mkdir(parents=True, exist_ok=True)
    settings = ivy / "settings.xml"
    settings.write_text(WITHOUT_POMS, encoding="utf-8")
    _retrieve(wanted, ivy, [extension], ["-settings", str(settings)])
    return ivy / "jars" / f"{group}_{name}-{version}-{classifier}.{extension}"


def _retrieve(dependencies: str, ivy: Path, types: Sequence[str], options: Sequence[str] = ()) -> None:
    request = (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="spark_purgatory" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>\n"
    )
    known = ivy / RESOLVED
    ivy.mkdir(parents=True, exist_ok=True)
    with (ivy / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if known.exists() and known.read_text(encoding="utf-8") == request:
            return
        asked = ivy / "asked.xml"
        asked.write_text(request, encoding="utf-8")
        [jar] = (spark_home() / "jars").glob("ivy-*.jar")
        pattern = f"{ivy}/jars/[organisation]_[artifact]-[revision](-[classifier]).[ext]"
        where = ["-cache", str(ivy / "cache"), "-ivy", str(asked), "-retrieve", pattern, "-sync"]
        _run(["java", "-jar", str(jar), *options, *where, "-types", *types])
        asked.rename(known)


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
