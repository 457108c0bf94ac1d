"""What the job says at its end: the table's outcomes, its files, and whether anything was lost.

That nothing was lost is checked, not assumed: what the operator's own state says it received and still holds is read
back from the checkpoint, and set against the rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from spark_purgatory.core.spec.codes import EventRejection
from spark_purgatory.job.progress import Totals
from spark_purgatory.job.tally import JobTally
from spark_purgatory.readable import readable_bytes, readable_ms
from spark_purgatory.terminal import say

WAIT_PERCENTILES = (0.5, 0.95, 0.99)
NOTHING_LOST = "Nothing lost"
WRONG_SUM = "DOES NOT ADD UP, please report it with this line"


@dataclass(frozen=True)
class Summary:
    """The end of a run, in numbers; waits in milliseconds, one for each of `WAIT_PERCENTILES`."""

    by_status: dict[str, int]
    waits_ms: dict[str, list[int]]
    file_bytes: list[int]
    tally: JobTally

    @property
    def outcomes(self) -> int:
        """Rows of the table that are the outcome of an operation."""
        return sum(count for status, count in self.by_status.items() if status != "ORPHAN")

    @property
    def conserved(self) -> bool:
        """Whether every operation received is decided or pending, and every decided one in the table."""
        tally = self.tally
        return tally.received == tally.decided + tally.pending and tally.decided == self.outcomes


def file_sizes(table: DataFrame) -> list[int]:
    """Bytes of each of the table's files, ascending."""
    files = table.select("_metadata.file_path", "_metadata.file_size").distinct().collect()
    return sorted(row["file_size"] for row in files)


def summarise(table: DataFrame, tally: JobTally, file_bytes: list[int], prefix: str) -> Summary:
    """Count the table; ``prefix`` is the one of the outcome's columns."""
    waits = F.percentile_approx(f"{prefix}wait_ms", list(WAIT_PERCENTILES), 10_000)
    counts = table.groupBy(F.col(f"{prefix}status").alias("status")).agg(F.count("*").alias("n"), waits.alias("w"))
    rows = sorted(counts.collect(), key=lambda row: -row["n"])
    return Summary(
        by_status={row["status"]: row["n"] for row in rows},
        waits_ms={row["status"]: list(row["w"]) for row in rows if row["w"] is not None},
        file_bytes=file_bytes,
        tally=tally,
    )


def print_summary(console: Console, summary: Summary, target: str) -> None:
    """The tables a person reads."""
    table = Table(title=f"Outcomes in {target}", title_justify="left")
    table.add_column("status")
    for name in ("operations", "share", *(f"wait p{round(p * 100)}" for p in WAIT_PERCENTILES)):
        table.add_column(name, justify="right")
    operations = {status: count for status, count in summary.by_status.items() if status != "ORPHAN"}
    for status, count in operations.items():
        waits = [readable_ms(wait) for wait in summary.waits_ms.get(status, [])]
        table.add_row(status, f"{count:,}", f"{count / max(summary.outcomes, 1):.1%}", *waits)
    console.print(table)
    if orphans := summary.by_status.get("ORPHAN"):
        say(console, f"Beside them {orphans:,} ORPHAN row{'s' * (orphans > 1)}: events that counted for no operation")
    say(console, _files_line(summary.file_bytes))
    tally, outcomes = summary.tally, summary.outcomes
    where = "all in the table" if outcomes == tally.decided else f"{outcomes:,} in the table"
    counted = f"{tally.received:,} received = {tally.decided:,} with an outcome, {where} + {tally.pending:,} waiting"
    say(console, f"{verdict(summary)}: {counted}")


def topic_line(tally: JobTally) -> str:
    """What the checkpoint says of a job whose outcomes are in no table."""
    is_whole = tally.received == tally.decided + tally.pending
    return (
        f"{NOTHING_LOST if is_whole else WRONG_SUM}: {tally.received:,} received = "
        f"{tally.decided:,} with an outcome + {tally.pending:,} waiting"
    )


def rejected_events(totals: Totals) -> str:
    """How many of a run's events were rejected and why, in one sentence; "" if none was."""
    if not totals.events_rejected:
        return ""
    rejected = totals.events_rejected
    is_one = rejected == 1
    share = "All " * (rejected == totals.events and not is_one) + f"{rejected:,}"
    # An event of a foreign key is counted, and nothing rejects it.
    reasons = [
        f"{reason.reason} ({count:,})"
        for reason, count in totals.event_rejections.most_common()
        if count and reason is not EventRejection.FOREIGN_KEY
    ]
    return (
        f"{share} event{'s' * (not is_one)} of this run {'was' if is_one else 'were'} rejected, and complete"
        f"{'s' * is_one} nothing: {'; '.join(reasons)}. If you did not expect this, compare key, time and value of "
        "completions in the job's file with the rows of its source, or look at its dead letters"
    )


def verdict(summary: Summary) -> str:
    """A line that says that nothing was lost, or what does not add up."""
    if summary.conserved:
        return NOTHING_LOST
    more = summary.outcomes - summary.tally.decided
    if more > 0 and summary.tally.received == summary.tally.decided + summary.tally.pending:
        return f"{more:,} row(s) of the table are not of this checkpoint"
    return WRONG_SUM


def _files_line(file_bytes: list[int]) -> str:
    count = len(file_bytes)
    if count < 2:
        return f"Files: 1 of {readable_bytes(file_bytes[0])}" if file_bytes else "Files: none"
    return (
        f"Files: {count:,}, together {readable_bytes(sum(file_bytes))}: {readable_bytes(file_bytes[0])} to "
        f"{readable_bytes(file_bytes[-1])} each, the median {readable_bytes(file_bytes[count // 2])}"
    )
