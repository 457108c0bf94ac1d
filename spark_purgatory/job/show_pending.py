"""``spark-purgatory pending``: what waits in a checkpoint, as a table or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from spark_purgatory.job.arguments import log_file, settings_from
from spark_purgatory.job.reading import guarded_reading
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
        rows = [json.loads(str(text)) for text in shown.limit(request.limit).toJSON().collect()]
        found.append((shown.columns, rows, chosen.count()))

    if code := guarded_reading(request.checkpoint, read):
        return code
    columns, rows, count = found[0]
    if request.as_json:
        for row in rows:
            console.out(json.dumps(row, ensure_ascii=False), highlight=False)
    else:
        console.print(_table(columns, rows), soft_wrap=False)
        console.print(f"{count:,} waiting" + (f", {len(rows):,} shown" if len(rows) < count else ""), highlight=False)
    return 0


def _table(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(show_lines=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in names))
    return table


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)
