"""``spark-purgatory pending``: what waits in a checkpoint, as a table or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType
from rich.console import Console

from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.rows_text import Kind, rows_text
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.checkpoint.pending import pending
from spark_purgatory.terminal import at_work, say

IN_PROGRESS = ("reached", "needed")
"""What ``progress`` says in words; shown where they are asked for."""


@dataclass(frozen=True)
class PendingRequest:
    """What was asked for on the command line."""

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
    """What the checkpoint holds of it."""

    columns: Sequence[str]
    times: Sequence[str]
    """Columns of timestamps."""
    rows: Sequence[dict[str, Any]]
    count: int
    watermark_ms: int | None


def show_pending(request: PendingRequest, console: Console) -> int:
    """Print what waits; the exit code."""
    found: list[FoundPending] = []

    def read() -> None:
        with at_work(console, "Starting Spark"):
            spark = reading_session(settings_from(request.settings), log_file())
        with at_work(console, "Reading the checkpoint"):
            found.append(_found(spark, request))

    if code := guarded_reading(request.checkpoint, read):
        return code
    if request.as_json:
        for row in found[0].rows:
            console.out(json.dumps(row, ensure_ascii=False), highlight=False)
    else:
        _print(found[0], request, console)
    return 0


def _found(spark: SparkSession, request: PendingRequest) -> FoundPending:
    waiting = pending(spark, request.checkpoint, batch_id=request.batch_id, prefix=request.prefix)
    chosen = _where(waiting, request.where)
    order_by = request.order_by
    if order_by == "remaining_ms":
        order_by = f"{request.prefix}remaining_ms"
    in_order = order_by.replace("{", "{{").replace("}", "}}")
    shown = spark.sql(f"SELECT * FROM {{rows}} ORDER BY {in_order}", rows=chosen)
    if request.columns is not None:
        shown = shown.select(*request.columns)
    rows = [json.loads(text) for (text,) in shown.limit(request.limit).select(F.to_json(F.struct("*"))).collect()]
    seen_ms = F.unix_millis(f"{request.prefix}created_at") + F.col(f"{request.prefix}age_ms")
    count, watermark_ms = chosen.agg(F.count(F.lit(1)), F.max(seen_ms)).first() or (0, None)
    times = [field.name for field in shown.schema if isinstance(field.dataType, TimestampType)]
    return FoundPending(shown.columns, times, rows, count, watermark_ms)


def _where(waiting: DataFrame, condition: str) -> DataFrame:
    try:
        return waiting.where(condition)
    except AnalysisException as error:
        if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            raise
        said = (error.getMessage() or str(error)).splitlines()[0]
        raise ConfigError(f"--where {condition!r}: {said} (Text needs quotes: \"order_id = 'A-7'\")") from error


def _print(found: FoundPending, request: PendingRequest, console: Console) -> None:
    rows, count = found.rows, found.count
    empty, left_out = [], []
    if not request.columns:
        empty = [name for name in found.columns if all(row.get(name) is None for row in rows)]
        left_out = [f"{request.prefix}{name}" for name in IN_PROGRESS]
    if rows:
        kinds = dict.fromkeys(found.times, Kind.TIME)
        kinds |= {f"{request.prefix}{name}": Kind.DURATION for name in ("age_ms", "remaining_ms")}
        console.print(rows_text(rows, [n for n in found.columns if n not in (*empty, *left_out)], kinds, console))
    console.print(f"{count:,} waiting" + (f", {len(rows):,} shown" if len(rows) < count else ""), highlight=False)
    if rows and empty:
        console.print(f"Without a value in these rows: {', '.join(empty)}", highlight=False)
    if found.watermark_ms is not None:
        watermark = datetime.fromtimestamp(found.watermark_ms // 1000, UTC)
        say(
            console,
            f"Watermark: {watermark:%Y-%m-%d %H:%M:%S} UTC. An operation expires when it reaches the "
            "deadline, whatever the clock says.",
        )
    if not count and request.where != "true":
        say(
            console,
            f"Nothing waits where {request.where}: its outcome is in the table, or its row has not been read yet",
        )
