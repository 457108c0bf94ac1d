"""``spark-purgatory doctor``: the findings that were asked for, as a table or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_purgatory.doctor.machine import Finding, machine_findings
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.terminal import at_work, say, terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLOURS = {"ok": "green", "NO": "red", "note": "yellow"}


def run_doctor(console: Console, spark: bool, settings: Sequence[str], as_json: bool) -> int:
    """Print the findings; return the exit code: 1 if something must be done, 2 for a wrong argument."""
    try:
        given = settings_from(settings)
    except ConfigError as error:
        say(terminal(stderr=True), str(error))
        return 2
    with at_work(console, "Looking"):
        findings = list(findings_of(spark, given))
    wrong = [finding for finding in findings if finding.remedy]
    if as_json:
        console.out(
            json.dumps({"ok": not wrong, "findings": as_objects(findings)}, ensure_ascii=False), highlight=False
        )
    else:
        show_findings(findings, console)
    return int(bool(wrong))


def as_objects(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [{"what": each.what, "found": each.found, "status": each.status, "remedy": each.remedy} for each in findings]


def show_findings(findings: Sequence[Finding], console: Console) -> None:
    is_wrong = any(finding.remedy for finding in findings)
    say(console, verdict(findings), style="bold red" if is_wrong else "bold green")
    console.print(_table(findings))


def verdict(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    notes = f", and {counts['note']:,} to know" if counts["note"] else ""
    if not counts["NO"]:
        return f"All fits: {counts['ok']:,} right{notes}."
    return f"{counts['NO']:,} to mend (NO, with a remedy), {counts['ok']:,} right{notes}."


def findings_of(spark: bool, settings: Mapping[str, str]) -> Iterator[Finding]:
    here = machine_findings()
    yield from here
    if not spark:
        return
    if any(finding.remedy and finding.what in ("Java", "pyspark", "delta-spark") for finding in here):
        yield Finding("Spark session", "not started", "mend what is wrong above first")
        return
    session = session_or_finding(settings)
    if isinstance(session, Finding):
        yield session
        return
    from spark_purgatory.doctor.session import session_findings

    yield from session_findings(session)


def session_or_finding(settings: Mapping[str, str]) -> SparkSession | Finding:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_purgatory.job.session import reading_session

    log = log_file()
    try:
        return reading_session(settings, log, delta=True)
    except (ConfigError, PySparkException, Py4JError, OSError, RuntimeError) as error:
        return Finding("Spark session", f"did not start: {sentence_of(error)}", f"what Spark printed is in {log}")


def _table(findings: Iterable[Finding]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.status, COLOURS[finding.status]), finding.what, finding.found)
        if finding.remedy:
            table.add_row("", "", f"-> {finding.remedy}")
    return table
