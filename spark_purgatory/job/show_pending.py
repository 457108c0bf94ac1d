"""``spark-purgatory pending``: what waits in a checkpoint, as a table or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F
from rich.console import Console

from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.job.reading import guarded_reading
from spark_purgatory.job.rows_text import rows_text
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.checkpoint.pending import pending


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


def show_pending(request: PendingRequest, console: Console) -> int:
    """Print what waits; the exit code."""
    found: list[tuple[list[str], list[dict[str, Any]], int]] = []

    def read() -> None:
        spark = reading_session(settings_from(request.settings), log_file())
        waiting = pending(spark, request.checkpoint, batch_id=request.batch_id, prefix=request.prefix)
        chosen = waiting.where(request.where)
        order_by = request.order_by
        if order_by == "remaining_ms":
            order_by = f"{request.prefix}remaining_ms"
        shown = chosen.selectExpr("*", f"{order_by} AS __order").orderBy("__order").drop("__order")
        if request.columns is not None:
            shown = shown.select(*request.columns)
        rows = [json.loads(text) for (text,) in shown.limit(request.limit).select(F.to_json(F.struct("*"))).collect()]
        found.append((shown.columns, rows, chosen.count()))

    if code := guarded_reading(request.checkpoint, read):
        return code
    columns, rows, count = found[0]
    if request.as_json:
        for row in rows:
            console.out(json.dumps(row, ensure_ascii=False), highlight=False)
    else:
        _print(rows, columns, count, request, console)
    return 0


def _print(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], count: int, request: PendingRequest, console: Console
) -> None:
    empty = [] if request.columns else [name for name in columns if all(row.get(name) is None for row in rows)]
    if rows:
        durations = [f"{request.prefix}{name}" for name in ("age_ms", "remaining_ms")]
        console.print(rows_text(rows, [name for name in columns if name not in empty], durations, console))
    console.print(
        f"{count:,} waiting" + (f", {len(rows):,} shown" if len(rows) < count else ""), highlight=False, markup=False
    )
    if rows and empty:
        console.print(f"Without a value in these rows: {', '.join(empty)}", highlight=False, markup=False)
    if not count and request.where != "true":
        console.print(
            f"Nothing waits where {request.where}: it has ended, and is in the table of outcomes, or its row has not "
            "been read yet",
            highlight=False,
            markup=False,
        )
