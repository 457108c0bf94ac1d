"""``spark-purgatory doctor``: the findings that were asked for, as a table or as JSON."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_purgatory.doctor.machine import Finding, machine_findings, pyspark_finding
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.terminal import at_work, say, terminal
from spark_purgatory.version import LOOKS_WRONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLOURS = {"ok": "green", "NO": "red", "note": "yellow"}
CONNECT_PORT, CONNECT_SECONDS = 15002, 10


def run_doctor(console: Console, spark: bool, remote: str | None, settings: Sequence[str], as_json: bool) -> int:
    """Print the findings; return the exit code: 1 if something must be done, 2 for a wrong argument."""
    try:
        given = settings_from(settings)
    except ConfigError as error:
        say(terminal(stderr=True), str(error))
        return 2
    with at_work(console, "Looking"):
        findings = list(findings_of(spark, remote, given))
    wrong = [finding for finding in findings if finding.remedy]
    if as_json:
        console.out(
            json.dumps({"ok": not wrong, "findings": as_objects(findings)}, ensure_ascii=False), highlight=False
        )
    else:
        show_findings(findings, console)
        say(console, next_step(spark, wrong))
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


def next_step(spark: bool, wrong: Sequence[Finding]) -> str:
    if wrong:
        return f"To mend: {', '.join(finding.what for finding in wrong)}. Then run this command again."
    if spark:
        return f"All fits. If outcomes look wrong all the same: {LOOKS_WRONG}"
    return "All fits. To look at Spark too: spark-purgatory doctor --spark. To see it work: spark-purgatory demo"


def findings_of(spark: bool, remote: str | None, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about this machine, and about a session if that was asked for."""
    here = machine_findings() if remote is None else [pyspark_finding()]
    yield from here
    if not spark:
        return
    if any(finding.remedy and finding.what in ("Java", "pyspark", "delta-spark") for finding in here):
        yield Finding("Spark session", "not started", "mend what is wrong above first")
        return
    session = session_or_finding(settings, remote)
    if isinstance(session, Finding):
        yield session
        return
    from spark_purgatory.doctor.session import session_findings

    yield from session_findings(session)


def session_or_finding(settings: Mapping[str, str], remote: str | None = None) -> SparkSession | Finding:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from spark_purgatory.job.session import reading_session

    if remote is not None:
        remedy = "start the server, or correct the address, sc://host:15002"
        try:
            address = urlsplit(remote.partition(";")[0])
            place = address.hostname or "", address.port or CONNECT_PORT
            server = "sc://{}:{}".format(*place)  # The rest of an address may be a login or a token
            socket.create_connection(place, CONNECT_SECONDS).close()  # Spark's own client tries for ten minutes
        except OSError as error:
            return Finding("Spark Connect", f"{server}: {error}", remedy)
        except ValueError:  # Its text has parts of the address
            return Finding("Spark Connect", "the address cannot be read", remedy)
        try:
            from pyspark.sql.connect.client import DefaultChannelBuilder

            with DefaultChannelBuilder(remote).toChannel() as channel:
                import_module("grpc").channel_ready_future(channel).result(CONNECT_SECONDS)
            spark = SparkSession.builder.remote(remote).config(map=dict(settings)).getOrCreate()
            _ = spark.version
        except Exception as error:  # gRPC's errors, PySpark's, and imports that fail: all mean that there is no session
            if type(error).__name__ == "FutureTimeoutError":
                found = f"{server}: something listens there, and did not answer as gRPC within {CONNECT_SECONDS} s"
                return Finding("Spark Connect", found, f"{remedy}; with TLS add ;use_ssl=true")
            remedy += "; pip install 'spark-purgatory[connect]'"
            return Finding("Spark Connect", f"{server}: {sentence_of(error)}", remedy)
        return spark
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
