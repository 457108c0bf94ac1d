"""``spark-purgatory status``: a query's progress, from its checkpoint's own files, without Spark's JVM."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from spark_purgatory.errors import START_OVER, ConfigError, PurgatoryError
from spark_purgatory.readable import readable_ms
from spark_purgatory.spark.sink.staging.ledger_format import read_ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.table_claim import CLAIM
from spark_purgatory.spark.storage.checkpoint_files import body_of
from spark_purgatory.terminal import say, terminal

LATE, LATE_MS = 3, 60_000  # A query is late after so many of its usual intervals, and this time, without a micro-batch
_BATCH = re.compile(r"/batch=(\d+)-")


@dataclass(frozen=True)
class MicroBatch:
    """The start of a micro-batch, and its watermark; 0: none yet."""

    batch_id: int
    began_ms: int
    watermark_ms: int

    @classmethod
    def read(cls, batch_id: int, offsets: str) -> MicroBatch:
        """The micro-batch of a file of Spark's log of offsets."""
        facts = body_of(offsets)
        return cls(batch_id, facts["batchTimestampMs"], facts["batchWatermarkMs"])


def instant(ms: int | None) -> str:
    """Return a time of the watermark or of the clock as text."""
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


def show_status(checkpoint: str, console: Console) -> int:
    """Print the status of a query; return the exit code."""
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    try:
        for line in _lines(checkpoint, folder):
            say(console, line)
    except (PurgatoryError, OSError) as error:
        say(terminal(stderr=True), str(error))
        return 2
    return 0


def _lines(checkpoint: str, folder: Path) -> Iterator[str]:
    if not (folder / "metadata").is_file():
        raise ConfigError(
            f"checkpoint={checkpoint!r} has no file 'metadata' of a query on this machine's disk: name the "
            "checkpointLocation. If it is in another storage, run spark-purgatory doctor CHECKPOINT, which uses Spark"
        )
    history = tuple(_batch(folder / "offsets" / str(number)) for number in _numbers(folder, "offsets"))
    committed = max(_numbers(folder, "commits"), default=None)
    _, title, text = last_batch(history, committed, time.time_ns() // 1_000_000)
    yield f"{title}. {text}"
    watermark_ms = history[-1].watermark_ms if history else 0
    yield f"Watermark: {instant(watermark_ms)}" if watermark_ms else "Watermark: none yet, so nothing expires"
    if (folder / CLAIM).is_dir():
        yield from _sink(checkpoint, folder)


def _batch(file: Path) -> MicroBatch:
    try:
        return MicroBatch.read(int(file.name), file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{file} is damaged: run spark-purgatory doctor CHECKPOINT for a remedy") from error


def _numbers(folder: Path, name: str) -> list[int]:
    return sorted(int(each.name) for each in (folder / name).glob("*") if each.name.isdigit())


def _sink(checkpoint: str, folder: Path) -> Iterator[str]:
    files = [each for each in (folder / CLAIM).glob("part-*") if each.stat().st_size]
    try:
        claims = [dict(json.loads(each.read_text())) for each in files]
    except (ValueError, TypeError) as error:
        what = f"{folder / CLAIM} should name the table of the checkpoint but is damaged"
        raise ConfigError(f"{what}: bring its file back from a copy, or {START_OVER}") from error
    ledger = read_ledger(cast("Any", None), StagingFolder(checkpoint, folder), others_write=True)
    intent = ledger.intent
    last, left = (-1, 0) if intent is None else (intent.last_batch, sum(piece.rows for piece in intent.left))
    fresh = {int(match[1]): rows for path, rows in ledger.records.items() if (match := _BATCH.search(path))}
    staged = left + sum(rows.rows for batch_id, rows in fresh.items() if batch_id > last)
    for claim in claims:
        yield f"Table: {claim.get('path') or claim.get('table')}"
    if intent is not None:
        state = "is in the table" if ledger.is_done else "is under way, or was cut"
        yield f"Drain {intent.number:,} of {intent.taken_rows:,} rows {state}"
    whole = "Staged: no rows, so every outcome so far is in the table"
    yield whole if ledger.is_done and not staged else f"Staged: {staged:,} rows wait for their file"
