"""Give each order, command or upload exactly one outcome, on Spark."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spark_purgatory.doctor.machine import delta_finding, java_finding, pyspark_finding
from spark_purgatory.job.arguments import Consent
from spark_purgatory.terminal import say, terminal
from spark_purgatory.version import DOCUMENTATION, LOOKS_WRONG, __version__

GROUPS = {
    "Try it": ("demo", "doctor"),
    "Run a job": ("example", "check", "run"),
    "See what happens": ("status", "pending", "report"),
    "Change a stopped job": ("rebuild", "move", "repair"),
}
EXAMPLES = (
    "spark-purgatory demo --dir .demo",
    "spark-purgatory pending .demo/checkpoint --where \"order_id = 'order-17'\"",
)


class Commands(TyperGroup):
    """The commands in groups, each with the first sentence of its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        lines = [self.help or "", "", "Usage  spark-purgatory COMMAND [OPTIONS]      spark-purgatory COMMAND --help"]
        for title, names in GROUPS.items():
            lines += ["", title, *(f"  {name:<13}{(self.commands[name].help or '').splitlines()[0]}" for name in names)]
        lines += ["", "Examples", *(f"  {each}" for each in EXAMPLES), "", f"Docs {DOCUMENTATION}"]
        formatter.write("\n".join([*lines, "Something looks wrong?", f"  {LOOKS_WRONG}", ""]))


argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)
Checkpoint = Annotated[str, argument(help="The query's checkpointLocation.")]
JobFile = Annotated[Path, argument(help="The job's YAML file.")]
Settings = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark.")]
Change = typer.Option("--set", metavar="FIELD=VALUE", help="Change a field: operations.timeout='5 minutes'.")
Changes = Annotated[list[str] | None, Change]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the change and write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Make the change without asking, for scripts.")]
app = typer.Typer(
    cls=Commands, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"spark-purgatory {__version__}")
        raise typer.Exit


Version = typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")


@app.callback()
def _options(version: Annotated[bool, Version] = False) -> None:
    pass


@app.command()
def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark and look at its workers and at Delta.")] = False,
    conf: Settings = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check Python, Java, Spark and Delta, with a remedy for each fault.

    For a query and its table: spark-purgatory status CHECKPOINT --spark

    Exit code: 0 everything is right, 1 there is something to do, 2 an argument is wrong.
    """
    from spark_purgatory.job.doctor import run_doctor

    raise typer.Exit(run_doctor(terminal(), spark, settings=conf or [], as_json=json))


def require_spark(what: str, needs_delta: bool = True) -> None:
    """Exit with a message if Java, PySpark or Delta is missing for ``what``, a command."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # Under spark-submit the cluster has its own Spark, and perhaps Delta
        return
    for finding in (java_finding(), pyspark_finding(), *([delta_finding()] if needs_delta else [])):
        if finding.remedy:
            needs = f"{what} runs on Spark, which needs {finding.what} ({finding.found}): {finding.remedy}."
            say(terminal(stderr=True), needs)
            raise typer.Exit(1)


@app.command()
def demo(
    dir: Annotated[Path | None, option(help="Folder of the demo, kept if named. [default: a temporary one]")] = None,
    operations: Annotated[int, typer.Option(min=1000, help="Orders to make up.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same orders.")] = 7,
) -> None:
    """Send sample orders into a table, and recount them in SQL.

    100,000 orders and their payments go through a purgatory.
    """
    require_spark("The demo")
    from spark_purgatory.demo.runner import run_demo

    raise typer.Exit(run_demo(dir, terminal(), operations=operations, seed=seed))


@app.command()
def example() -> None:
    """Print a job's file to begin with: example > job.yaml

    It runs on what demo --dir writes.
    """
    typer.echo((Path(__file__).parent / "demo" / "orders.yaml").read_text(encoding="utf-8"), nl=False)


@app.command()
def run(
    job_file: JobFile,
    set_: Changes = None,
    spark_log: Annotated[
        Path | None, typer.Option(help="File for what Spark prints; /dev/stderr shows it. [default: a temporary one]")
    ] = None,
    complete_until: Annotated[
        list[str] | None, option(metavar="INPUT=TIME", help="An input is complete so far: completions=2026-11-28.")
    ] = None,
    json: Annotated[
        str | None, option(metavar="FILE", help="Write what the run was as a JSON object; - prints it.")
    ] = None,
    textfile: Annotated[
        Path | None, option(metavar="FILE", help="Write its numbers for Prometheus' textfile collector: run.prom.")
    ] = None,
    fail_above: Annotated[
        float | None, option(min=0, max=1, metavar="SHARE", help="Most late or rejected rows of this run: 0.01.")
    ] = None,
    wait: Annotated[
        str | None, option(metavar="TIME", help="Wait so long for another run on the checkpoint to end: '1 hour'.")
    ] = None,
) -> None:
    """Run a job's file: outcomes go to a Delta table or a topic.

    Exit code: 0 done or stopped by SIGTERM, 130 stopped by ctrl-C, 1 the query failed, 2 it was refused and nothing
    was started, 3 the sum of the outcomes does not add up, 4 more rows were late or rejected than --fail-above.
    """
    require_spark("The job")
    from spark_purgatory.job.runner import run_file

    changes = [*(set_ or ()), *(f"complete_until.{each}" for each in complete_until or ())]
    how: dict[str, Any] = {"json": json, "fail_above": fail_above, "textfile": textfile, "wait": wait}
    raise typer.Exit(run_file(job_file, changes, spark_log=spark_log, **how))


@app.command()
def check(job_file: JobFile, set_: Changes = None) -> None:
    """Check a job's file, and show what it would run.

    It starts nothing, and needs neither Spark nor Java.

    Exit code: 0 the file is right, 2 it is wrong, and where. Expressions and places are checked when the job starts.
    """
    from spark_purgatory.job.config_file import check_file

    raise typer.Exit(check_file(job_file, set_ or (), terminal()))


@app.command()
def status(
    checkpoint: Checkpoint,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
    max_silence: Annotated[str | None, option(help="Exit 1 if no micro-batch began for longer: '2 hours'.")] = None,
    max_lag: Annotated[str | None, option(help="Exit 1 if the watermark is further behind: '6 hours'.")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark and check files, states and table.")] = False,
    conf: Settings = None,
) -> None:
    """Show a query's progress at once, without Spark.

    It reads the checkpoint's own files: last micro-batch, watermark, staged rows. With --spark it also makes the checks
    of the query's start, in any storage, with a remedy for each fault.

    Exit code: 0 shown, 1 an allowed time was exceeded or there is something to do, 2 cannot be read.
    """
    if spark:
        require_spark("This check")
    from spark_purgatory.job.status import show_status

    how: dict[str, Any] = {"max_silence": max_silence, "max_lag": max_lag, "spark": spark, "settings": conf or []}
    raise typer.Exit(show_status(checkpoint, terminal(), as_json=json, **how))


@app.command()
def pending(
    checkpoint: Checkpoint,
    where: Annotated[str, typer.Option(help='Only rows that fit, in SQL: "order_id = 7".')] = "true",
    order_by: Annotated[str, typer.Option(help='In SQL: "age_ms DESC".')] = "remaining_ms",
    columns: Annotated[str | None, typer.Option(help="Columns, separated by commas; by default all.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Rows shown.")] = 20,
    batch_id: Annotated[int | None, typer.Option(help="After this micro-batch. [default: the latest]")] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of outcome columns.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each row instead of a table.")] = False,
    conf: Settings = None,
) -> None:
    """Show what still waits, and for what.

    It is read from the checkpoint, while the query runs or after.

    Exit code: 0 shown, also if nothing waits, 2 an argument is wrong.
    """
    require_spark("This command", needs_delta=False)
    from spark_purgatory.job.commands import PendingRequest, show_pending
    from spark_purgatory.job.run_report import guarded

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    how: dict[str, Any] = {"batch_id": batch_id, "prefix": prefix, "as_json": json}
    asked = PendingRequest(checkpoint, where, order_by, names, limit, settings=conf or [], **how)
    raise typer.Exit(guarded(terminal(stderr=True), partial(show_pending, asked, terminal())))


@app.command()
def report(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    name: Annotated[str | None, option(help="The query's name, for the title. [default: the table's]")] = None,
    prefix: Annotated[str, typer.Option(help="Prefix of outcome columns.")] = "",
    conf: Settings = None,
) -> None:
    """Write one HTML page about a query.

    It shows outcomes, waits, pending operations, files and state. The query may be running.

    Exit code: 0 written, 1 Spark could not read, 2 an argument is wrong.
    """
    require_spark("The report")
    from spark_purgatory.job.commands import write_report
    from spark_purgatory.job.run_report import guarded

    given = (checkpoint, output, conf or [], terminal())
    raise typer.Exit(guarded(terminal(stderr=True), partial(write_report, *given, name=name, prefix=prefix)))


@app.command()
def repair(checkpoint: Checkpoint, dry_run: DryRun = False, yes: Yes = False, conf: Settings = None) -> None:
    """Decide between two entries of one staging log.

    Two runs at the same time wrote them. The entry that does not count is removed. Stop all runs of the query
    first. Exit code: 0 done or only shown, 1 Spark could not read, 2 it cannot be decided, or nobody agreed.
    """
    require_spark("This command")
    from spark_purgatory.job.commands import show_repair
    from spark_purgatory.job.run_report import guarded

    given = (checkpoint, Consent(dry_run, yes), conf or [], terminal())
    raise typer.Exit(guarded(terminal(stderr=True), partial(show_repair, *given)))


@app.command()
def rebuild(
    job_file: JobFile,
    event_time_start: Annotated[str | None, option(help="Only operations created at or after this time.")] = None,
    event_time_end: Annotated[str | None, option(help="Only operations created before this time.")] = None,
    missing_files_ok: Annotated[
        bool, option(help="Decide without files that the job has read, and that are gone.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    set_: Changes = None,
) -> None:
    """Decide all rows of the sources again, into the job's table.

    For a source file that was wrong: correct it, run the job once, stop it, and rebuild. One transaction
    replaces the rows of a Delta table, and the job continues. Exit code: 0 rebuilt or only shown, 1 Spark failed,
    2 it cannot be rebuilt, or nobody agreed.
    """
    require_spark("This command")
    from spark_purgatory.job.rebuild import RebuildRequest, show_rebuild
    from spark_purgatory.job.run_report import guarded

    request = RebuildRequest(event_time_start, event_time_end, missing_files_ok)
    given = (job_file, set_ or (), request, Consent(dry_run, yes), terminal())
    raise typer.Exit(guarded(terminal(stderr=True), partial(show_rebuild, *given)))


@app.command()
def move(
    job_file: Annotated[Path, argument(help="The YAML file of the new job.")],
    source: Annotated[str, option("--from", help="The old job's checkpoint.")],
    partitions: Annotated[int | None, typer.Option(min=1, help="State partitions. [default: as before]")] = None,
    where: Annotated[str, option(help="Keep only operations for which this is true. [default: true]")] = "true",
    dry_run: DryRun = False,
    yes: Yes = False,
    set_: Changes = None,
) -> None:
    """Move waiting operations to a new checkpoint: other shards, other host.

    Stop the job, give its file the new settings and a new checkpoint, move, and run it. The old checkpoint is not
    changed. Exit code: 0 moved or only shown, 1 Spark failed, 2 it cannot be moved, or nobody agreed.
    """
    require_spark("This command")
    from spark_purgatory.job.commands import show_move
    from spark_purgatory.job.run_report import guarded

    given = (job_file, set_ or (), Consent(dry_run, yes), terminal())
    how: dict[str, Any] = {"source": source, "partitions": partitions, "where": where}
    raise typer.Exit(guarded(terminal(stderr=True), partial(show_move, *given, **how)))
