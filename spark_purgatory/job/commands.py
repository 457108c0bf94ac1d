"""Commands on what a job has written: ``repair``, ``move``, ``report``, ``pending``, and what all share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType
from rich import box
from rich.console import Console
from rich.table import Table

from spark_purgatory.core.engine.waiting import WAITING_FIELDS
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.job.arguments import Consent, log_file, settings_from, writing_to
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.session import build_session, reading_session
from spark_purgatory.job.sources import MICROSECONDS, outcomes_of
from spark_purgatory.job.status import instant
from spark_purgatory.readable import readable_ms
from spark_purgatory.spark.checkpoint.pending import pending
from spark_purgatory.spark.move.move import move_checkpoint
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.repair import conflicts, repair
from spark_purgatory.spark.sink.table.table_place import claimed_by
from spark_purgatory.terminal import at_work, printable, say


def started(settings: Sequence[str], console: Console, delta: bool = False) -> SparkSession:
    """Start a session that reads; ``settings``: NAME=VALUE each."""
    with at_work(console, "Starting Spark"):
        return reading_session(settings_from(settings), log_file(), delta=delta)


def show_repair(checkpoint: str, consent: Consent, settings: Sequence[str], console: Console) -> None:
    consent.check()
    spark = started(settings, console, delta=True)
    with at_work(console, "Reading the staging log and the table"):
        found = conflicts(spark, checkpoint)
    for conflict in found:
        say(console, str(conflict))
    if not found:
        say(console, "No two entries of the staging log differ: there is nothing to repair")
    elif consent.given(console, "All runs of the query must be stopped. Remove the entries that are not true?"):
        repair(spark, checkpoint, found)
        say(console, "Removed what is not true: start the query again")


def show_move(job_file: Path, changes: Sequence[str], consent: Consent, console: Console, **how: Any) -> None:
    """Move what waits to the checkpoint of a job's file; ``how``: arguments of `move_checkpoint`."""
    config = load_config(job_file, changes)
    consent.check()
    with at_work(console, "Starting Spark"):
        spark = build_session(config, log_file(), short=True)
    how |= {"target": config.checkpoint, "progress": partial(say, console)}
    step = partial(move_checkpoint, spark, outcomes_of(spark, config), **how)
    if not consent.yes:
        with at_work(console, "Looking at what waits"):
            say(console, str(step(dry_run=True)))
    if consent.given(console, "Move it?"):
        with only_run(str(how["source"])), at_work(console, "Moving what waits"):
            say(console, str(step()))
        say(console, f"Start it: spark-purgatory run {job_file}")


def write_report(checkpoint: str, output: Path, settings: Sequence[str], console: Console, **shown: Any) -> None:
    try:
        from spark_purgatory.job.report import page, read_report
    except ImportError as error:
        raise ConfigError("the report draws with matplotlib: pip install 'spark-purgatory[plot]'") from error
    with writing_to("--output", output):  # Before Spark: reading takes a minute
        output.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=output.parent).close()
    spark = started(settings, console, delta=True)
    with at_work(console, "Reading the checkpoint and the table"):
        table = claimed_by(spark, checkpoint)
        if not table:
            raise ConfigError(f"{checkpoint=} names no table: name the checkpointLocation of a RecordAccumulator")
        sink = RecordAccumulator(path=table.get("path"), table=table.get("table"))
        text = page(read_report(spark, checkpoint, sink, **shown))
    with writing_to("--output", output):
        output.write_text(text, encoding="utf-8")
    say(console, f"Written: {output} ({len(text):,} bytes)")


# --- ``spark-purgatory pending``: what waits, as a table or as JSON lines ---------------------------------------------

ADVICE = "An operation ends when the watermark (not the clock) reaches its deadline."


@dataclass(frozen=True)
class PendingRequest:
    checkpoint: str
    where: str
    order_by: str
    columns: Sequence[str] | None
    limit: int
    batch_id: int | None
    prefix: str
    as_json: bool
    settings: Sequence[str]


@dataclass(frozen=True)
class FoundPending:
    columns: Sequence[str]
    times: Sequence[str]  # Columns of timestamps
    texts: Sequence[str]  # The rows in Spark's JSON
    count: int
    watermark_ms: int | None
    next_ms: int | None  # The time from the watermark until the first deadline

    def rows(self) -> list[dict[str, Any]]:
        """The rows, with the digits of every number as Spark wrote them, and times as a person writes them."""
        rows = [json.loads(text, parse_float=str) for text in self.texts]
        return [row | {name: _plain_time(row[name]) for name in self.times if row.get(name)} for row in rows]


def show_pending(request: PendingRequest, console: Console) -> None:
    spark = started(request.settings, console)
    with at_work(console, "Reading the checkpoint"):
        found = _found(spark, request)
    if not request.as_json:
        _print(found, request, console)
        return
    for text in found.texts:
        console.out(text, highlight=False)


def _found(spark: SparkSession, request: PendingRequest) -> FoundPending:
    waiting = pending(spark, checkpoint=request.checkpoint, batch_id=request.batch_id, prefix=request.prefix)
    try:
        chosen = waiting.where(request.where)
    except AnalysisException as error:
        if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            raise
        fault = f"--where {request.where!r}: {sentence_of(error)} (Text needs quotes: \"order_id = 'A-7'\")"
        raise ConfigError(fault) from error
    order_by = f"{request.prefix}remaining_ms" if request.order_by == "remaining_ms" else request.order_by
    in_order = order_by.replace("{", "{{").replace("}", "}}")
    shown = spark.sql(f"SELECT * FROM {{rows}} ORDER BY {in_order}", rows=chosen)
    if request.columns is not None:
        shown = shown.select(*request.columns)
    as_json = F.to_json(F.struct("*"), MICROSECONDS)
    seen_ms = F.unix_millis(f"{request.prefix}created_at") + F.col(f"{request.prefix}age_ms")
    facts = (F.count(F.lit(1)), F.max(seen_ms), F.min(f"{request.prefix}remaining_ms"))
    count, watermark_ms, next_ms = chosen.agg(*facts).first() or (0, None, None)
    times = [field.name for field in shown.schema if isinstance(field.dataType, TimestampType)]
    texts = [text for (text,) in shown.limit(request.limit).select(as_json).collect()]
    return FoundPending(shown.columns, times, texts, count, watermark_ms=watermark_ms, next_ms=next_ms)


def _print(found: FoundPending, request: PendingRequest, console: Console) -> None:
    rows = found.rows()
    say(console, _total(found))
    if not rows:
        if request.where != "true":
            why = "its outcome is in the table, or its row has not been read yet"
            say(console, f"Nothing waits where {request.where}: {why}")
        return
    texts = {name: [text_of(row.get(name)) for row in rows] for name in found.columns}
    console.print(table_of(texts if request.columns else dict(_short(texts, rows, request.prefix))))
    more = "" if request.columns else "   --columns a,b"
    say(console, f'{len(rows):,} of {found.count:,} shown.   --limit {request.limit}{more}   --where "..."   --json')
    if found.watermark_ms is not None:
        say(console, ADVICE)


def _total(found: FoundPending) -> str:
    text = f"{found.count:,} wait{'s' * (found.count == 1)}"
    if found.watermark_ms is None:
        return text
    next_ms = found.next_ms or 0
    due = f"in {readable_ms(next_ms)}" if next_ms > 0 else "is due"
    return f"{text}   watermark {instant(found.watermark_ms)}   next {due}"


def _short(
    texts: Mapping[str, list[str]], rows: Sequence[Mapping[str, Any]], prefix: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield the operations' own column that tells the rows apart, and what they wait for."""
    added = {prefix + name for name in (*(field.name for field in WAITING_FIELDS), "events")}
    own = [name for name in texts if name not in added]
    for name in [*(name for name in own if len(set(texts[name])) == len(rows)), *own][:1]:
        yield name, texts[name]
    yield "progress", texts[f"{prefix}progress"]
    if any(texts[f"{prefix}missing_keys"]):
        yield "missing", texts[f"{prefix}missing_keys"]
    yield "waits since (UTC)", [row[f"{prefix}created_at"][:19] for row in rows]
    left = [row.get(f"{prefix}remaining_ms") for row in rows]
    if any(each is not None for each in left):
        yield "left", ["" if each is None else readable_ms(each) if each > 0 else "due" for each in left]


def table_of(columns: Mapping[str, Sequence[str]]) -> Table:
    """A table with whole values: one that is longer than its column goes on below."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name == "left" else "left")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _plain_time(text: str) -> str:
    """Return a time of Spark's JSON, such as 2026-11-28T10:00:00.000000Z, as 2026-11-28 10:00:00 UTC."""
    return f"{text.removesuffix('Z').removesuffix('.000000').replace('T', ' ')} UTC"


def text_of(value: Any) -> str:
    """Return a JSON value as text; one that is text already, such as a number's digits, stays as it is."""
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {text_of(each)}' for name, each in value.items())}}}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else printable(str(value)).replace("\n", "\\n")
