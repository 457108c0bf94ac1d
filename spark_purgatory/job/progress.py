"""What the job shows while it runs: one row a micro-batch on a terminal, one plain line a batch elsewhere.

Everything comes from Spark's own progress reports and from the counters that the purgatory adds to them, so
that looking costs no query.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.job.summary import readable_bytes, readable_ms
from spark_purgatory.metrics import Sample
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery

STATUSES = ("COMPLETED", "EXPIRED", "FAILED", "CANCELLED", "DUPLICATE", "REJECTED")
"""Statuses of operations, as the counters name them."""
SHOWN_BATCHES = 8
"""Rows of the live table: what fits a small terminal under a command line."""


@dataclass
class Totals:
    """Sums over the batches of this run; ``pending`` starts at what the checkpoint held."""

    pending: int = 0
    received: int = 0
    rows_in: int = 0
    batches: int = 0
    by_status: dict[str, int] = field(default_factory=dict)

    def add(self, rows_in: int, counters: Mapping[str, int | None]) -> None:
        """Take in one batch."""
        received = counters.get("received") or 0
        decided = {status: counters.get(status.lower()) or 0 for status in STATUSES}
        self.batches += 1
        self.rows_in += rows_in
        self.received += received
        self.pending += received - sum(decided.values())
        for status, count in decided.items():
            if count:
                self.by_status[status] = self.by_status.get(status, 0) + count


@dataclass(frozen=True)
class BatchLine:
    """One batch as it is shown."""

    batch_id: int
    rows_in: int
    out: int
    rows_per_second: float
    seconds: float
    pending: int
    watermark: str
    lag: str
    outcomes: str

    def cells(self) -> tuple[str, ...]:
        """The row of the live table."""
        return (
            str(self.batch_id),
            f"{self.rows_in:,}",
            f"{self.out:,}",
            f"{self.rows_per_second:,.0f}",
            f"{self.seconds:.1f} s",
            f"{self.pending:,}",
            self.watermark,
            self.lag,
        )

    def __str__(self) -> str:
        return (
            f"batch {self.batch_id}: {self.rows_in:,} rows in, {self.out:,} outcomes, "
            f"{self.rows_per_second:,.0f} rows/s, {self.seconds:.1f} s, {self.pending:,} pending, "
            f"watermark {self.watermark}{f' ({self.lag} behind the clock)' if self.lag else ''}, "
            f"so far {self.outcomes or 'no outcomes'}"
        )


class ProgressDisplay:
    """Follows a query and shows each of its batches once."""

    def __init__(self, console: Console, pending: int = 0, counters: str = PurgatoryOptions.name) -> None:
        self._counters = counters
        self.console = console
        self.totals = Totals(pending=pending)
        self._last_batch = -1
        self._next_deadline_ms: float | None = None
        self._lines: deque[BatchLine] = deque(maxlen=SHOWN_BATCHES)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> ProgressDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, query: StreamingQuery | AccumulatorQuery) -> None:
        """Show what ended since the last call."""
        last = query.lastProgress
        if last is None or last["batchId"] <= self._last_batch:
            return
        lines = [line for report in self._unseen(query.recentProgress) if (line := self._take(report))]
        if self._live and lines:
            self._lines.extend(lines)
            totals = f"So far: {lines[-1].outcomes or 'no outcomes'}"
            self._live.update(Group(self._table(), totals, self._sink_line(query)), refresh=True)
        elif lines:
            self.console.print(*map(str, lines), sep="\n", soft_wrap=True, highlight=False)

    def take_sample(self, sample: Sample) -> None:
        """A reporter for `monitor`: the view shows when the next outcome is due."""
        self._next_deadline_ms = sample.flat().get("next_deadline_ms")

    def _sink_line(self, query: StreamingQuery | AccumulatorQuery) -> str:
        """Files, what is staged, and the next deadline, as far as they are known."""
        parts = []
        if isinstance(query, AccumulatorQuery) and (found := query.measure()):
            parts.append(f"{found['drained_files_total']:,.0f} files, {readable_bytes(found['staged_bytes'])} staged")
        if self._next_deadline_ms is not None:
            parts.append(f"next outcome due in {readable_ms(self._next_deadline_ms)} of event time")
        return "; ".join(parts)

    def _unseen(self, reports: Iterable[Any]) -> list[Any]:
        """Reports of batches that ran; Spark also reports triggers that found nothing to do."""
        ran = [report for report in reports if "addBatch" in report["durationMs"]]
        return [report for report in ran if report["batchId"] > self._last_batch]

    def _take(self, report: Any) -> BatchLine | None:
        """The batch's line; None for one that only passed the time."""
        self._last_batch = report["batchId"]
        observed = report["observedMetrics"].get(self._counters)
        rows_in = sum(source["numInputRows"] or 0 for source in report["sources"] if not _is_heartbeat(source))
        before = self.totals.pending
        decided = sum(self.totals.by_status.values())
        self.totals.add(rows_in, observed.asDict() if observed else {})
        if self.totals.batches > 1 and not rows_in and self.totals.pending == before:
            return None
        seconds = report["durationMs"]["triggerExecution"] / 1000
        watermark = report["eventTime"].get("watermark", "")
        so_far = (f"{status} {count:,}" for status, count in self.totals.by_status.items())
        return BatchLine(
            batch_id=report["batchId"],
            rows_in=rows_in,
            out=sum(self.totals.by_status.values()) - decided,
            rows_per_second=rows_in / seconds if seconds else 0.0,
            seconds=seconds,
            pending=self.totals.pending,
            watermark=_readable(watermark),
            lag=_lag(watermark),
            outcomes=", ".join(so_far),
        )

    def _table(self) -> Table:
        table = Table(title="Micro-batches", title_justify="left")
        for name in ("batch", "in", "out", "rows/s", "took", "pending"):
            table.add_column(name, justify="right")
        table.add_column("watermark", no_wrap=True)
        table.add_column("lag", justify="right", no_wrap=True)
        for line in self._lines:
            table.add_row(*line.cells())
        return table


def _is_heartbeat(source: Any) -> bool:
    """Whether a source is one of ours, that makes a row a micro-batch so that time passes."""
    return str(source["description"]).startswith("RatePerMicroBatch")


def _readable(watermark: str) -> str:
    """``2024-03-01T08:10:00.000Z`` -> ``2024-03-01 08:10:00``; Spark's 1970 means that there is none yet."""
    return "none yet" if not watermark or watermark.startswith("1970") else watermark[:19].replace("T", " ")


def _lag(watermark: str) -> str:
    """The time between the watermark and the clock; "" while there is no watermark, and for one ahead of the clock."""
    if not watermark or watermark.startswith("1970"):
        return ""
    lag = datetime.now(UTC) - datetime.fromisoformat(watermark.replace("Z", "+00:00"))
    if lag >= timedelta(days=2):
        return f"{lag.days:,} d"
    return readable_ms(lag / timedelta(milliseconds=1)) if lag > timedelta() else ""
