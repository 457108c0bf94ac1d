"""The end of a job: the table's outcomes, its files, and a check that nothing was lost.

The check compares the rows of the table with what the operator's state in the checkpoint has received and still holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from spark_purgatory.job.progress import Totals
from spark_purgatory.readable import readable_bytes, readable_ms
from spark_purgatory.schema import rejected_text
from spark_purgatory.spark.operator.query_watch import LATE_SHARE
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.terminal import say, table

WAIT_PERCENTILES = (0.5, 0.95, 0.99)
NOTHING_LOST = "Nothing lost"
WRONG_SUM = "DOES NOT ADD UP. If nobody deleted rows of the table, please report it with this line"


class JobTally(NamedTuple):
    received: int = 0
    decided: int = 0
    pending: int = 0


@dataclass(frozen=True)
class Summary:
    """The counts at the end of a run; waits in milliseconds, one for each of `WAIT_PERCENTILES`."""

    by_status: dict[str, int]
    waits_ms: dict[str, list[int]]
    file_bytes: list[int]
    tally: JobTally
    staged: int = 0  # The outcomes among them that wait for their file
    removed: int | None = 0  # Rows that others have removed from the table; None if its history does not show it

    @property
    def outcomes(self) -> int:
        """Rows of the table that are the outcome of an operation."""
        return sum(count for status, count in self.by_status.items() if status != "ORPHAN")

    @property
    def conserved(self) -> bool:
        """True if every operation received is decided or pending, and every decided one is in the table."""
        tally = self.tally
        return tally.received == tally.decided + tally.pending and tally.decided == self.outcomes

    @property
    def adds_up(self) -> bool:
        """True if nothing is missing but what others have removed."""
        return verdict(self) != WRONG_SUM


def summarise(table: DataFrame, tally: JobTally, file_bytes: list[int], prefix: str) -> Summary:
    """Count the table's outcomes; ``prefix`` is the prefix of their columns."""
    waits = F.percentile_approx(f"{prefix}wait_ms", list(WAIT_PERCENTILES), 10_000)
    counts = table.groupBy(F.col(f"{prefix}status").alias("status")).agg(F.count("*").alias("n"), waits.alias("w"))
    rows = sorted(counts.collect(), key=lambda row: -row["n"])
    waits_ms = {row["status"]: list(row["w"]) for row in rows if row["w"] is not None}
    return Summary({row["status"]: row["n"] for row in rows}, waits_ms, file_bytes, tally)


def print_summary(console: Console, summary: Summary, target: str) -> None:
    rows = []
    for status, count in summary.by_status.items():
        if status != "ORPHAN":
            waited = map(readable_ms, summary.waits_ms.get(status, ()))
            rows.append((status, f"{count:,}", f"{count / max(summary.outcomes, 1):.1%}", *waited))
    waits = [f"wait p{round(p * 100)}" for p in WAIT_PERCENTILES]
    console.print(table(f"Outcomes in {target}", ("status", "operations", "share", *waits), rows))
    if orphans := summary.by_status.get("ORPHAN"):
        say(console, f"Also {orphans:,} ORPHAN row{'s' * (orphans > 1)}: events that counted for no operation")
    say(console, files_line(summary.file_bytes))
    tally, outcomes = summary.tally, summary.outcomes
    where = ", all in the table" if outcomes == tally.decided else f", {outcomes:,} in the table"
    if summary.staged:
        where = f", {outcomes - summary.staged:,} in the table and {summary.staged:,} staged for later runs"
    say(console, f"{verdict(summary)}: {sums_of(tally, where)}")


def topic_line(tally: JobTally) -> str:
    line = NOTHING_LOST if tally.received == tally.decided + tally.pending else WRONG_SUM
    return f"{line}: {sums_of(tally)}"


def sums_of(tally: JobTally, where: str = "") -> str:
    return f"{tally.received:,} received = {tally.decided:,} with an outcome{where} + {tally.pending:,} waiting"


def warnings_of(totals: Totals) -> Iterator[str]:
    """Yield the last lines of a run whose rows came late or were rejected. A few late rows are no warning."""
    counted = totals.counted
    if late := counted["events_late"] + counted["operations_late"]:
        rows = counted["events_received"] + counted["received"]
        counts = (
            f"In this run {late:,} of {rows:,} rows arrived behind the watermark (operations: "
            f"{counted['operations_late']:,}, completions: {counted['events_late']:,})"
        )
        many = (
            f"Warning: {counts} and may be decided wrongly. Give the late input a longer delay (watermark), or where "
            "whole files come late a longer lookback, with a new checkpoint; rebuild decides these hours again"
        )
        yield many if late >= LATE_SHARE * rows else counts
    if rejected := counted["events_rejected"]:
        yield (
            f"Warning: In this run {rejected_text(rejected, counted['events_received'], counted)}. If you did not "
            "expect this, compare key, time and value of completions in the job's file with the rows of its source, or "
            "look at its dead letters"
        )


def verdict(summary: Summary) -> str:
    if summary.conserved:
        return NOTHING_LOST
    more = summary.outcomes - summary.tally.decided
    if more > 0 and summary.tally.received == summary.tally.decided + summary.tally.pending:
        return f"{more:,} row(s) of the table are not of this checkpoint, but of others or of a rebuild"
    if summary.tally.received != summary.tally.decided + summary.tally.pending:
        return WRONG_SUM
    # The history counts ORPHAN rows that were deleted, too.
    if summary.removed is None or (summary.removed != -more and "ORPHAN" in summary.by_status):
        return f"{-more:,} outcomes are no longer in the table, and its history does not show who removed them"
    said = f"{NOTHING_LOST}: {-more:,} rows of the table were removed later, by others or by a rebuild"
    return said if summary.removed == -more else WRONG_SUM


def files_line(file_bytes: list[int]) -> str:
    return f"Files: {len(file_bytes):,} with {readable_bytes(sum(file_bytes))}"


# Rows that others have removed from the table, by its history: a DELETE is not a loss of the job.

REBUILD = "spark_purgatory_rebuild"
"""The key of a rebuild's counts, (rows before, rows after), in the version's ``userMetadata``."""
WRITTEN = ("WRITE", "STREAMING UPDATE")
# By operation: metrics of rows that it removed, and of rows that it added.
METRICS: Mapping[str, tuple[str, str | None]] = {
    "DELETE": ("numDeletedRows", None),
    "MERGE": ("numTargetRowsDeleted", "numTargetRowsInserted"),
}
MAY_REMOVE = ("TRUNCATE", "RESTORE", "CLONE", "REPLACE TABLE", "CREATE OR REPLACE TABLE", "DROP PARTITION")


def removed_rows(spark: SparkSession, target: Target) -> int | None:
    """Return how many rows others have removed less those that they added; None if the history does not show it."""
    if target.format != "Delta":
        return None
    history = spark.sql(f"DESCRIBE HISTORY {target.sql_place}")
    names = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")
    return removed_by([row.asDict() for row in history.select(*names).collect()])


def removed_by(versions: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the rows removed in versions of DESCRIBE HISTORY less those added, without the drains'; None: unknown."""
    found = list(versions)
    if min((each["version"] for each in found), default=0) > 0:
        return None
    removed = 0
    for each in found:
        operation, metrics = str(each["operation"]), each["operationMetrics"] or {}
        noted = _noted(each["userMetadata"])
        if REBUILD in noted:
            before, after = noted[REBUILD]
            removed += before - after
        elif operation in METRICS:
            gone, new = METRICS[operation]
            if gone not in metrics:
                return None
            removed += int(metrics[gone]) - int(metrics.get(new, 0))
        elif operation in WRITTEN and "drain" not in noted:
            if (each["operationParameters"] or {}).get("mode") != "Append" or "numOutputRows" not in metrics:
                return None
            removed -= int(metrics["numOutputRows"])
        elif any(operation.startswith(name) for name in MAY_REMOVE):
            return None
    return removed


def _noted(text: str | None) -> dict[str, Any]:
    try:
        noted = json.loads(text or "{}")
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}
