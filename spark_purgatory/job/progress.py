"""The job's progress, from Spark's own reports: a line for each micro-batch, and on a terminal its work below them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.text import Text

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.metrics.reporters import batch_line
from spark_purgatory.readable import readable_bytes
from spark_purgatory.schema import DECIDED
from spark_purgatory.spark.heartbeat import is_theirs
from spark_purgatory.spark.monitoring.monitor import watermark_ms_of
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.terminal import printable, say

Query = StreamingQuery | AccumulatorQuery
STOPPING = "stopping within 10 s, then a drain"


@dataclass
class Totals:
    """Sums over the micro-batches of this run; ``pending`` starts at what the checkpoint held."""

    pending: int = 0
    batches: int = 0
    counted: Counter[str] = field(default_factory=Counter)  # All counters by name, with those of `REJECTION_COUNTERS`

    def add(self, counters: dict[str, Any]) -> None:
        self.counted.update(counters.pop("rejections", None) or {})
        self.counted.update({name: count or 0 for name, count in counters.items()})
        self.batches += 1
        self.pending += (counters.get("received") or 0) - sum(counters.get(name) or 0 for name in DECIDED)

    @property
    def by_status(self) -> dict[str, int]:
        return {name.upper(): self.counted[name] for name in DECIDED if self.counted[name]}


class ProgressDisplay:
    """Follows a query and prints a line for each of its batches; on a terminal also what it is at, below them."""

    def __init__(
        self,
        console: Console,
        counters: str = PurgatoryOptions.name,
        name: str = "",
        spark_log: Path | None = None,
    ) -> None:
        """``counters``: their name in ``observedMetrics``; ``spark_log``: the file with what Spark prints."""
        self.console, self._counters, self._name, self._spark_log = console, counters, name, spark_log
        self.totals = Totals()
        self._last_batch = -1
        self._began_s = time.monotonic()
        self._doing, self._sink = "starting the query", ""
        self._status = console.status(self.view())

    def __enter__(self) -> ProgressDisplay:
        if self.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def update(self, query: Query) -> None:
        last = query.lastProgress
        if last is not None and last["batchId"] > self._last_batch:
            # Spark also reports triggers that found nothing to do.
            ran = [report for report in query.recentProgress if "addBatch" in report["durationMs"]]
            lines = [line for report in ran if report["batchId"] > self._last_batch if (line := self._take(report))]
            if lines:
                self.console.print(*lines, sep="\n", soft_wrap=not self.console.is_terminal, highlight=False)
        if self.console.is_terminal:
            self._look(query)
            self._status.update(self.view())

    def stopping(self) -> None:
        """Show that the query was asked to stop, which may take as long as a micro-batch and a drain."""
        self._doing = STOPPING
        if not self.console.is_terminal:
            say(self.console, STOPPING)

    def view(self) -> Text:
        running = timedelta(seconds=round(time.monotonic() - self._began_s))
        wish = "ctrl-C cuts" if self._doing == STOPPING else "ctrl-C stops it"
        log = f"Spark's own output: {self._spark_log}" if self._spark_log else ""
        below = ". ".join(filter(None, (self._sink, log)))
        return Text(printable(f"{self._name}   running {running}   {self._doing}   {wish}\n{below}"))

    def _look(self, query: Query) -> None:
        if isinstance(query, AccumulatorQuery) and (found := query.metrics()):
            files, staged = found["drained_files_total"], readable_bytes(found["staged_bytes"])
            self._sink = f"Table: {files:,.0f} file{'s' * (files != 1)} by this run, {staged} staged"
        if self._doing != STOPPING and query.isActive:
            is_at_work = query.status["isTriggerActive"]
            self._doing = f"micro-batch {self._last_batch + 1}" if is_at_work else "waiting for rows"

    def _take(self, report: Any) -> str | None:
        self._last_batch = report["batchId"]
        observed = report["observedMetrics"].get(self._counters)
        rows_in = sum(source["numInputRows"] or 0 for source in report["sources"] if is_theirs(source["description"]))
        before = self.totals.pending
        decided = sum(self.totals.by_status.values())
        self.totals.add(observed.asDict() if observed else {})
        if self.totals.batches > 1 and not rows_in and self.totals.pending == before:
            return None
        out, took_ms = sum(self.totals.by_status.values()) - decided, report["durationMs"]["triggerExecution"]
        numbers, at = (str(self._last_batch), rows_in, out, self.totals.pending), report["eventTime"].get("watermark")
        return batch_line(datetime.now(UTC), numbers, took_ms, watermark_ms_of(at), self.totals.by_status)
