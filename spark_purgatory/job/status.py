"""``spark-purgatory status``: a query's progress from its checkpoint's own files, and the checks of its start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from spark_purgatory.config.units import parse_duration
from spark_purgatory.doctor.machine import Finding
from spark_purgatory.errors import START_OVER, ConfigError, PurgatoryError, StorageError
from spark_purgatory.job.arguments import settings_from
from spark_purgatory.job.doctor import as_objects, session_or_finding, show_findings
from spark_purgatory.job.last_run import NAME as LAST_RUN
from spark_purgatory.readable import readable_ms
from spark_purgatory.spark.sink.staging.ledger import Ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table.table_place import CLAIM
from spark_purgatory.spark.storage.checkpoint_files import body_of, damages_on_disk
from spark_purgatory.terminal import at_work, say, terminal

LATE, LATE_MS = 3, 60_000  # A query is late after so many of its usual intervals, and this time, without a micro-batch


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


def last_batch(history: tuple[MicroBatch, ...], committed: int | None, now_ms: int) -> tuple[bool, str, str]:
    """Report whether the query is running, by its last micro-batch and the pace of the earlier ones."""
    if not history:
        return False, "No micro-batch has begun", "The query has not run yet."
    last = history[-1]
    ago_ms = max(0, now_ms - last.began_ms)
    every = sorted(later.began_ms - earlier.began_ms for earlier, later in pairwise(history))
    usual_ms = every[len(every) // 2] if every else 0
    is_whole = last.batch_id == committed
    text = f"Micro-batch {last.batch_id:,} began at {instant(last.began_ms)} and is {'not ' * (not is_whole)}committed."
    text += f" One usually begins every {readable_ms(usual_ms)}." if every else ""
    is_late = ago_ms > max(LATE * usual_ms, LATE_MS)
    if is_late and is_whole:
        text += " The query has ended, or nothing arrives. If it is started now and then, this is its pause."
    elif is_late:
        text += " The query stopped within it, or is still at it. The next start runs it again."
    return not is_late, f"The last micro-batch began {readable_ms(ago_ms)} ago", text


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
        print(json.dumps({**(facts.as_dict(now_ms) if facts else {}), "alarms": alarms, **found}))
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
    last = facts.history[-1] if facts.history else None
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

    history: tuple[MicroBatch, ...]
    committed: int | None
    tables: tuple[str, ...] = ()
    ledger: Ledger | None = None
    idle_run_ms: int = 0
    """The end of the last run, if it had nothing to do or left nothing to do; 0 if that is not known."""

    def lines(self, now_ms: int) -> Iterator[str]:
        _, title, text = last_batch(self.history, self.committed, now_ms)
        yield f"{title}. {text}"
        watermark_ms = self.history[-1].watermark_ms if self.history else 0
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

    def as_dict(self, now_ms: int) -> dict[str, Any]:
        """Return the status for programs; times are in milliseconds since 1970."""
        last = self.history[-1] if self.history else None
        intent = None if self.ledger is None else self.ledger.intent
        return {
            "is_late": not last_batch(self.history, self.committed, now_ms)[0],
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
    history = tuple(_batch(folder / "offsets" / str(number)) for number in _numbers_in(folder / "offsets"))
    committed = max(_numbers_in(folder / "commits"), default=None)
    run = folder / LAST_RUN
    idle_run_ms = run.stat().st_mtime_ns // 1_000_000 if run.is_file() else 0
    if not (folder / CLAIM).is_dir():
        return QueryStatus(history, committed)
    files = [each for each in (folder / CLAIM).glob("part-*") if each.stat().st_size]
    try:
        claims = [dict(json.loads(each.read_text())) for each in files]
    except (ValueError, TypeError) as error:
        what = f"{folder / CLAIM} should name the table of the checkpoint but is damaged"
        raise ConfigError(f"{what}: bring its file back from a copy, or {START_OVER}") from error
    ledger = read_ledger(cast("Any", None), StagingFolder(checkpoint, folder), others_write=True)
    tables = tuple(str(claim.get("path") or claim.get("table")) for claim in claims)
    return QueryStatus(history, committed, tables, ledger, idle_run_ms)


def _numbers_in(log: Path) -> list[int]:
    return sorted(int(each.name) for each in log.glob("*") if each.name.isdigit())


def _batch(file: Path) -> MicroBatch:
    try:
        return MicroBatch.read(int(file.name), file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{file} is damaged: run spark-purgatory status --spark for a remedy") from error
