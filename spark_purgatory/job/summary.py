"""What the job says at its end: the table's outcomes, its files, and whether anything was lost.

Conservation is checked, not assumed: what the operator's own state says it received and still holds is read
back from the checkpoint, and set against the rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from spark_purgatory.job.tally import JobTally

WAIT_PERCENTILES = (0.5, 0.95, 0.99)


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


def summarise(table: DataFrame, tally: JobTally, file_bytes: list[int], prefix: str = "") -> Summary:
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
    for status, count in summary.by_status.items():
        waits = [readable_ms(wait) for wait in summary.waits_ms.get(status, [])]
        table.add_row(status, f"{count:,}", f"{count / max(summary.outcomes, 1):.1%}", *waits)
    console.print(table)
    console.print(_files_line(summary.file_bytes), soft_wrap=True, highlight=False)
    tally = summary.tally
    console.print(
        f"Conservation: {tally.received:,} received = {tally.decided:,} decided + {tally.pending:,} pending; "
        f"{summary.outcomes:,} in the table: {verdict(summary)}",
        soft_wrap=True,
        highlight=False,
    )


def topic_line(tally: JobTally) -> str:
    """What the checkpoint says of a job whose outcomes are in no table."""
    adds_up = "OK" if tally.received == tally.decided + tally.pending else "DOES NOT ADD UP; please report it"
    return (
        f"Conservation: {tally.received:,} received = {tally.decided:,} decided + {tally.pending:,} pending: {adds_up}"
    )


def verdict(summary: Summary) -> str:
    """OK, or what does not add up."""
    if summary.conserved:
        return "OK"
    more = summary.outcomes - summary.tally.decided
    if more > 0 and summary.tally.received == summary.tally.decided + summary.tally.pending:
        return f"{more:,} rows are not of this checkpoint"
    return "DOES NOT ADD UP; please report it with this line"


def _files_line(file_bytes: list[int]) -> str:
    if not file_bytes:
        return "Files: none"
    median = file_bytes[len(file_bytes) // 2]
    return (
        f"Files: {len(file_bytes):,} of {readable_bytes(file_bytes[0])} to {readable_bytes(file_bytes[-1])}, "
        f"median {readable_bytes(median)}, together {readable_bytes(sum(file_bytes))}"
    )


def readable_ms(ms: float) -> str:
    """``90061000`` -> ``25.0 h``: the largest unit that leaves at least one."""
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if abs(ms) >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"


def readable_bytes(size: float) -> str:
    """``131072`` -> ``128.0 KiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} B"
