"""The command line: ``run`` runs a job, ``demo`` shows the library at work, ``doctor`` checks this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_purgatory.version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spark-purgatory {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


JAVA_MIN, PYTHON_MIN = 17, (3, 11)
PYSPARK, DELTA_SPARK = "4.2.0", "4.4.0"
DELTA_JAR = f"io.delta_delta-spark_4.2_2.13-{DELTA_SPARK}.jar"
INSTALL_JAVA = (
    "install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
    "and put it on the PATH or in JAVA_HOME"
)
MIN_FREE_BYTES = 2 << 30
"""The jars take 90 MB; the rest is for shuffles and a demo."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what it is, what was found, and what to do about it ("" if nothing)."""

    what: str
    found: str
    remedy: str = ""


def java_finding() -> Finding:
    """Whether there is a Java that Spark can start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return Finding("Java", f"none at {java}" if java else "none", INSTALL_JAVA)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    if match is None:
        return Finding("Java", f"{java} does not tell its version", INSTALL_JAVA)
    major = int(match[1])
    return Finding("Java", f"{major} ({java})", "" if major >= JAVA_MIN else INSTALL_JAVA)


def python_finding() -> Finding:
    """Whether this Python is recent enough."""
    needed = ".".join(map(str, PYTHON_MIN))
    remedy = "" if sys.version_info >= PYTHON_MIN else f"make an environment with Python {needed} or later"
    return Finding("Python", f"{platform.python_version()} ({sys.executable})", remedy)


def package_finding(package: str, wanted: str, because: str) -> Finding:
    """Whether a package is there in the one version that works."""
    install = f"pip install {package}=={wanted} ({because})"
    try:
        found = version(package)
    except PackageNotFoundError:
        return Finding(package, "not installed", install)
    return Finding(package, found, "" if found == wanted else install)


def pyspark_finding() -> Finding:
    """Whether Spark is the release that Delta was built for."""
    return package_finding("pyspark", PYSPARK, f"delta-spark {DELTA_SPARK} is built for it")


def delta_finding() -> Finding:
    """Whether Delta is the release whose jars can be had."""
    return package_finding("delta-spark", DELTA_SPARK, "4.4.1 has a wheel, but its jars were never published")


def worker_python_finding() -> Finding:
    """Whether Spark's workers will run this Python, which has the packages."""
    name = "PYSPARK_PYTHON"
    value = os.environ.get(name)
    if value is None:
        return Finding(name, "not set; the demo and the jobs set it to this Python")
    path = shutil.which(value)
    if path is None:
        return Finding(name, f"{value}, which is not there", f"export {name}={sys.executable}")
    if Path(path) == Path(sys.executable):
        return Finding(name, "this Python")
    can = subprocess.run([path, "-c", "import numpy, pandas, pyarrow"], capture_output=True, check=False)
    same = _version_of(path) == sys.version_info[:2]
    remedy = "" if can.returncode == 0 and same else f"export {name}={sys.executable}"
    return Finding(name, f"{path}, another Python{'' if not remedy else ' that does not fit'}", remedy)


def _version_of(python: str) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, said.split()))


def jars_finding() -> Finding:
    """Whether Delta's jars were downloaded already, or where they would come from."""
    cache = Path.home() / ".ivy2.5.2" / "jars"
    if (cache / DELTA_JAR).exists():
        return Finding("Delta's jars", f"cached in {cache}")
    return Finding("Delta's jars", "not cached; the first start downloads 90 MB from Maven Central")


def folder_finding(what: str, folder: Path, remedy: str) -> Finding:
    """Whether files can be made in a folder, and whether there is room."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Finding(what, f"{folder}: {error.strerror}", remedy)
    found = f"{folder}, {free / (1 << 30):.0f} GiB free"
    return Finding(what, found, "" if free >= MIN_FREE_BYTES else f"make room: {remedy}")


def findings() -> list[Finding]:
    """Everything that the demo and the jobs lean on, in the order in which it would fail."""
    local = Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])
    return [
        python_finding(),
        java_finding(),
        pyspark_finding(),
        delta_finding(),
        worker_python_finding(),
        jars_finding(),
        folder_finding("this folder", Path.cwd(), "change to a folder that you own"),
        folder_finding("Spark's scratch folder", local, "set SPARK_LOCAL_DIRS to a folder that you own"),
        folder_finding("jar cache", Path.home() / ".ivy2.5.2", "set HOME to a folder that you own"),
    ]


@app.command()
def doctor() -> None:
    """Check Java, Spark, Delta, Python and folders; say what to do about each that does not fit."""
    console = Console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    all_findings = findings()
    for finding in all_findings:
        table.add_row("[red]NO[/red]" if finding.remedy else "[green]ok[/green]", finding.what, finding.found)
        if finding.remedy:
            table.add_row("", "", f"-> {finding.remedy}")
    console.print(table)
    raise typer.Exit(int(any(finding.remedy for finding in all_findings)))


def require_spark(what: str, needs_delta: bool = True) -> None:
    """Exit with a message where what Spark needs is missing; ``what`` is the command that needs it."""
    for finding in (java_finding(), pyspark_finding(), *([delta_finding()] if needs_delta else [])):
        if finding.remedy:
            sentence = f"{what} runs on Spark, which needs {finding.what} ({finding.found}): {finding.remedy}."
            Console(stderr=True).print(sentence, soft_wrap=True, highlight=False)
            raise typer.Exit(1)


@app.command()
def demo(
    dir: Annotated[
        Path | None, typer.Option(help="Folder of the demo, kept if named. [default: a temporary one]")
    ] = None,
    operations: Annotated[int, typer.Option(min=1000, help="Orders to make up.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same orders.")] = 7,
    keep: Annotated[bool, typer.Option(help="Keep a temporary folder, too.")] = False,
) -> None:
    """Orders and payments through the purgatory into a Delta table, then counted again in plain SQL."""
    require_spark("The demo")
    from spark_purgatory.demo.runner import DemoRequest, run_demo

    raise typer.Exit(run_demo(DemoRequest(dir, operations, seed, keep or dir is not None), Console()))


@app.command()
def run(
    conf: Annotated[Path, typer.Argument(help="The job's YAML file; conf/ has examples.", show_default=False)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: operations.timeout='5 minutes'.")
    ] = None,
    spark_log: Annotated[
        Path | None, typer.Option(help="Write what Spark prints on stderr into this file instead.")
    ] = None,
    traceback: Annotated[bool, typer.Option(help="Show the whole traceback of an error.")] = False,
) -> None:
    """Wait for the completion of operations, as a YAML file describes; their outcomes go to a Delta table.

    Exit code: 0 done or stopped by SIGTERM, 130 stopped by ctrl-C, 1 the query failed, 2 the file is wrong.
    """
    require_spark("The job")
    from spark_purgatory.job.runner import run_file

    raise typer.Exit(run_file(conf, set_ or (), spark_log, traceback))


@app.command()
def pending(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation.", show_default=False)],
    where: Annotated[str, typer.Option(help='Only these, in SQL: "order_id = 7".')] = "true",
    order_by: Annotated[str, typer.Option(help="In SQL; by default what ends first comes first.")] = "remaining_ms",
    columns: Annotated[str | None, typer.Option(help="Columns, with commas between them; by default all.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows shown.")] = 20,
    batch_id: Annotated[int | None, typer.Option(help="After which micro-batch. [default: the latest]")] = None,
    prefix: Annotated[str, typer.Option(help="Before the names of our columns, where yours have them.")] = "",
    json: Annotated[bool, typer.Option("--json", help="A JSON object for each row, in place of a table.")] = False,
    spark: Annotated[list[str] | None, typer.Option(help="A setting of the Spark session: NAME=VALUE.")] = None,
) -> None:
    """Show what waits in a checkpoint: keys, what is missing, progress, deadline. The query may run.

    Exit code: 0 shown, also if nothing waits, 2 an argument is wrong.
    """
    require_spark("This command", needs_delta=False)
    from spark_purgatory.job.show_pending import PendingRequest, show_pending

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    request = PendingRequest(checkpoint, where, order_by, names, limit, batch_id, prefix, json, spark or [])
    raise typer.Exit(show_pending(request, Console()))


@app.command()
def report(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation.", show_default=False)],
    table: Annotated[str, typer.Argument(help="The outcomes' Delta table: a path, or a name.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    outcome_prefix: Annotated[str, typer.Option(help="The purgatory's outcome_prefix.")] = "",
    spark: Annotated[list[str] | None, typer.Option(help="A setting of the Spark session: NAME=VALUE.")] = None,
) -> None:
    """Write one HTML page on a query: outcomes, waits, what is pending, files, state. The query may run.

    Exit code: 0 written, 1 Spark could not read, 2 an argument is wrong.
    """
    require_spark("The report")
    from spark_purgatory.job.show_report import write_report

    raise typer.Exit(write_report(checkpoint, table, output, outcome_prefix, spark or [], Console()))
