"""The facts of a run of a job, as one JSON object for schedulers and alerts: ``spark-purgatory run --json``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from rich.console import Console

from spark_purgatory.errors import PurgatoryError, sentence_of
from spark_purgatory.job.arguments import writing_to
from spark_purgatory.job.progress import Query, Totals
from spark_purgatory.job.summary import Summary
from spark_purgatory.schema import DECIDED
from spark_purgatory.spark.sink.accumulator_query import AccumulatorQuery
from spark_purgatory.terminal import say


class ExitCode(IntEnum):
    RIGHT = 0
    FAILED = 1
    REFUSED = 2
    """Nothing was started."""
    DOES_NOT_ADD_UP = 3
    ABOVE_SHARE = 4
    """More rows than ``--fail-above`` allows were late or rejected."""
    INTERRUPTED = 130


@dataclass
class RunReport:
    """The facts of a run, which are added while it goes on: a run that fails has those of its end."""

    job: str = ""
    checkpoint: str = ""
    began_s: float = field(default_factory=time.time)
    query: dict[str, Any] = field(default_factory=dict)
    """The ids of the query, its last micro-batch and its drained rows; empty before it was started."""
    totals: Totals = field(default_factory=Totals)
    summary: Summary | None = None
    gauges: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None

    def see(self, query: Query) -> None:
        """Take the facts of a query, which the JVM has only while it lives."""
        sink, last = query.metrics() if isinstance(query, AccumulatorQuery) else {}, query.lastProgress
        self.query = {
            "query_id": str(query.id),
            "run_id": str(query.runId),
            "last_micro_batch": None if last is None else last["batchId"],
            "rows_drained": int(sink.get("drained_rows_total", 0)),
        }

    @property
    def share_above(self) -> float:
        """The larger share of this run's operations or events that were late or rejected."""
        counted = self.totals.counted
        bad = {
            "received": counted["operations_late"] + counted["rejected"],
            "events_received": counted["events_late"] + counted["events_rejected"],
        }
        return max(count / max(1, counted[name]) for name, count in bad.items())

    def exit_code(self, fail_above: float | None = None) -> ExitCode:
        """Return the exit code of a run that was not interrupted."""
        if self.error is not None:
            refused = not self.query and isinstance(self.error, (PurgatoryError, AnalysisException))
            return ExitCode.REFUSED if refused else ExitCode.FAILED
        if self.summary is not None and not self.summary.adds_up:
            return ExitCode.DOES_NOT_ADD_UP
        return ExitCode.ABOVE_SHARE if fail_above is not None and self.share_above > fail_above else ExitCode.RIGHT

    def facts(self, code: ExitCode) -> dict[str, Any]:
        """Return the object that ``--json`` writes. Counts are those of this run unless their name says otherwise."""
        counted, summary = self.totals.counted, self.summary
        return {
            "job": self.job,
            "checkpoint": self.checkpoint,
            "exit_code": int(code),
            "error": None if self.error is None else sentence_of(self.error),
            "began_at": _instant(self.began_s * 1000),
            "seconds": round(time.time() - self.began_s, 1),
            "query_id": self.query.get("query_id"),
            "run_id": self.query.get("run_id"),
            "micro_batches": self.totals.batches,
            "last_micro_batch": self.query.get("last_micro_batch"),
            "operations_received": counted["received"],
            "events_received": counted["events_received"],
            "outcomes": {name: counted[name] for name in DECIDED if counted[name]},
            "operations_late": counted["operations_late"],
            "events_late": counted["events_late"],
            "events_rejected": counted["events_rejected"],
            "rows_drained": self.query.get("rows_drained", 0),
            "rows_staged": None if summary is None else summary.staged,
            "rows_in_table": None if summary is None else sum(summary.by_status.values()) - summary.staged,
            "waiting": self.gauges.get("pending", self.totals.pending),
            "watermark": _instant(self.gauges.get("watermark_ms")),
            "newest_operation": _instant(self.gauges.get("newest_operation_ms")),
            "newest_event": _instant(self.gauges.get("newest_event_ms")),
            "adds_up": None if summary is None else summary.adds_up,
        }

    def write(self, place: str, code: ExitCode) -> None:
        """Write the object as one line, to a file or ("-") to standard output."""
        line = json.dumps(self.facts(code), ensure_ascii=False) + "\n"
        if place == "-":
            print(line, end="")
            return
        with writing_to("--json", Path(place)):
            Path(place).write_text(line, encoding="utf-8")

    def write_textfile(self, path: Path, code: ExitCode) -> None:
        """Write the numbers as gauges that Prometheus' node exporter reads (``--collector.textfile.directory``)."""
        facts, ended_s = self.facts(code), time.time()
        given = {name: value for name, value in facts.items() if isinstance(value, int | float)}
        given |= {f"outcomes_{name}": count for name, count in facts["outcomes"].items()}
        given["ended_seconds"] = round(ended_s, 3)
        if watermark_ms := self.gauges.get("watermark_ms"):
            given["watermark_seconds"] = watermark_ms / 1000
        job = json.dumps(self.job, ensure_ascii=False)
        lines = [f"spark_purgatory_run_{name}{{job_name={job}}} {float(value)!r}\n" for name, value in given.items()]
        new = path.with_name(f".{path.name}.new")
        with writing_to("--textfile", path):
            new.write_text("".join(lines), encoding="utf-8")
            new.replace(path)


def guarded(console: Console, body: Callable[[], int | None], report: RunReport | None = None) -> int:
    """Run ``body``; an expected kind of failure becomes a message and an exit code instead of a traceback."""
    report = RunReport() if report is None else report
    try:
        return body() or ExitCode.RIGHT
    except (PurgatoryError, PySparkException, Py4JError) as error:
        report.error = error
        say(console, sentence_of(error), style="red")
        return report.exit_code()


def _instant(ms: float | None) -> str | None:
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return None  # Python's datetimes end with the year 9999.
