"""``spark-purgatory status``: a query's progress from its checkpoint's own files, and the checks of its start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from spark_purgatory.config.units import parse_duration
from spark_purgatory.doctor.machine import Finding
from spark_purgatory.errors import ConfigError, PurgatoryError, StorageError
from spark_purgatory.job.arguments import settings_from
from spark_purgatory.job.doctor import as_objects, session_or_finding, show_findings
from spark_purgatory.job.last_run import NAME as LAST_RUN
from spark_purgatory.readable import readable_ms
from spark_purgatory.spark.sink.staging.ledger import Ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.table_place import CLAIM
from spark_purgatory.spark.storage.checkpoint_files import body_of, damages_on_disk
from spark_purgatory.terminal import at_work, say, terminal


@dataclass(frozen=True)
class MicroBatch:
    """The start of a micro-batch, and its watermark; 0: none yet."""

    batch_id: int
    began_ms: int
    watermark_ms: int

    @classmethod
    def read(cls, batch_id: int, offsets: str) -> MicroBatch:
        facts = body_of(offsets)
        return cls(batch_id, facts["batchTimestampMs"], facts["batchWatermarkMs"])


def instant(ms: int | None) -> str:
    return "-" if ms is None else f"{written(ms // 1000, '%Y-%m-%d %H:%M:%S')} UTC"


def written(seconds: int, how: str) -> str:
    """Return a time since 1970 as text; Python's datetimes end with the year 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(how)
    except (ValueError, OverflowError):
        return f"{seconds:,} s after 1970"


def last_batch(last: MicroBatch | None, committed: int | None, now_ms: int) -> tuple[str, str]:
    """Return the age of the last micro-batch, and a sentence about it."""
    if last is None:
        return "No micro-batch has begun", "The query has not run yet."
    state = "is committed" if last.batch_id == committed else "is not committed: it runs now or at the next start"
    text = f"Micro-batch {last.batch_id:,} began at {instant(last.began_ms)} and {state}."
    return f"The last micro-batch began {readable_ms(max(0, now_ms - last.began_ms))} ago", text


def show_status(
    checkpoint: str,
    console: Console,
    as_json: bool = False,
    max_silence: str | None = None,
    max_lag: str | None = None,
    spark: bool = False,
    settings: Sequence[str] = (),
) -> int:
    """Print the status of a query; return the exit code: 1 if it is silent or behind for too long, or needs mending.

    ``spark``: with the checks of the query's start, in a session with these ``settings``.
    """
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    now_ms = time.time_ns() // 1_000_000
    findings: list[Finding] = []
    facts, alarms = None, list[str]()
    try:
        if spark:
            findings = _findings(checkpoint, settings_from(settings), console)
        facts = _facts(checkpoint, folder)
        alarms = _alarms(facts, max_silence, max_lag, now_ms)
    except (PurgatoryError, OSError) as error:
        if not findings:  # These have the damage with its remedy, also of a checkpoint in another storage.
            say(terminal(stderr=True), str(error))
            return 2
    if as_json:
        found = {"findings": as_objects(findings)} if spark else {}
        print(json.dumps({**(facts.as_dict() if facts else {}), "alarms": alarms, **found}))
    else:
        for line in [*(facts.lines(now_ms) if facts else ()), *alarms]:
            say(console, line)
        if findings:
            show_findings(findings, console)
    return 1 if alarms or any(finding.remedy for finding in findings) else 0


def _findings(checkpoint: str, settings: Mapping[str, str], console: Console) -> list[Finding]:
    with at_work(console, "Looking"):
        spark = session_or_finding(settings)
        if isinstance(spark, Finding):
            return [spark]
        from spark_purgatory.doctor.session import query_findings

        return list(query_findings(spark, checkpoint))


def _alarms(facts: QueryStatus, max_silence: str | None, max_lag: str | None, now_ms: int) -> list[str]:
    last = facts.last
    began_ms = max(last.began_ms if last else 0, facts.idle_run_ms)
    checks = (
        ("--max-silence", max_silence, "No run and no micro-batch has begun", began_ms),
        ("--max-lag", max_lag, "The watermark is behind the clock", last and last.watermark_ms),
    )
    alarms = []
    for name, text, what, at_ms in checks:
        if text is not None and now_ms - (at_ms or 0) > parse_duration(text, name) // 1000:
            since = f"for {readable_ms(now_ms - at_ms)}" if at_ms else "since its first start"
            alarms.append(f"Alarm: {what} {since} ({name} {text})")
    return alarms


@dataclass(frozen=True)
class QueryStatus:
    """The state of a query, and of its sink if it has one, by the files of its checkpoint."""

    last: MicroBatch | None
    committed: int | None
    tables: tuple[str, ...] = ()
    ledger: Ledger | None = None
    idle_run_ms: int = 0
    """The end of the last run, if it had nothing to do or left nothing to do; 0 if that is not known."""

    def lines(self, now_ms: int) -> Iterator[str]:
        yield ". ".join(last_batch(self.last, self.committed, now_ms))
        watermark_ms = self.last.watermark_ms if self.last else 0
        yield f"Watermark: {instant(watermark_ms)}" if watermark_ms else "Watermark: none yet, so nothing expires"
        yield from (f"Table: {table}" for table in self.tables)
        if self.ledger is None:
            return
        if (intent := self.ledger.intent) is not None:
            state = "is in the table" if self.ledger.is_done else "is under way, or was cut"
            yield f"Drain {intent.number:,} of {intent.taken_rows:,} rows {state}"
        whole = "Staged: no rows, so every outcome so far is in the table"
        rows = self.ledger.recorded_rows
        is_whole = self.ledger.is_done and not rows
        yield whole if is_whole else f"Staged: {rows:,} rows wait for their file"

    def as_dict(self) -> dict[str, Any]:
        """Return the status for programs; times are in milliseconds since 1970."""
        last, intent = self.last, None if self.ledger is None else self.ledger.intent
        return {
            "last_micro_batch": None if last is None else last.batch_id,
            "last_micro_batch_began_ms": None if last is None else last.began_ms,
            "is_committed": last is not None and last.batch_id == self.committed,
            "watermark_ms": None if last is None else last.watermark_ms or None,
            "tables": list(self.tables),
            "last_drain": None if intent is None else intent.number,
            "rows_staged": None if self.ledger is None else self.ledger.recorded_rows,
        }


def _facts(checkpoint: str, folder: Path) -> QueryStatus:
    if not (folder / "metadata").is_file():
        raise ConfigError(
            f"checkpoint={checkpoint!r} has no file 'metadata' of a query on this machine's disk: name the "
            "checkpointLocation. If it is in another storage, run spark-purgatory status --spark"
        )
    # A second look, because a query that is running may have written in the middle of the first.
    if damages_on_disk(folder) and (found := damages_on_disk(folder)):
        raise StorageError(f"checkpoint={checkpoint!r} is damaged. {'; '.join(map(str, found))}")
    begun, committed = (_last_in(folder / name) for name in ("offsets", "commits"))
    try:
        text = "" if begun is None else (folder / "offsets" / str(begun)).read_text(encoding="utf-8")
        last = None if begun is None else MicroBatch.read(begun, text)
        claims = [dict(json.loads(each.read_text())) for each in (folder / CLAIM).glob("part-*") if each.stat().st_size]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{checkpoint=} is damaged: run spark-purgatory status --spark for a remedy") from error
    run = folder / LAST_RUN
    idle_run_ms = run.stat().st_mtime_ns // 1_000_000 if run.is_file() else 0
    if not (folder / CLAIM).is_dir():
        return QueryStatus(last, committed)
    ledger = read_ledger(cast("Any", None), StagingFolder(checkpoint, folder), others_write=True)
    tables = tuple(str(claim.get("path") or claim.get("table")) for claim in claims)
    return QueryStatus(last, committed, tables, ledger, idle_run_ms)


def _last_in(log: Path) -> int | None:
    return max((int(each.name) for each in log.glob("*") if each.name.isdigit()), default=None)
