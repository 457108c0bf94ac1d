"""``spark-purgatory pending``: what waits in a checkpoint, as a table or as JSON lines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from rich.console import Console
from rich.table import Table

from spark_purgatory.errors import ConfigError, PurgatoryError
from spark_purgatory.job.session import reading_session
from spark_purgatory.spark.checkpoint.pending import pending

EXIT_WRONG = 2


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
    errors = Console(stderr=True)
    try:
        settings = dict(_setting(text) for text in request.settings)
        log = Path(tempfile.mkdtemp(prefix="spark_purgatory_")) / "spark.log"
        spark = reading_session(settings, log)
        waiting = pending(spark, request.checkpoint, batch_id=request.batch_id, prefix=request.prefix)
        chosen = waiting.where(request.where)
        order_by = request.order_by
        if order_by == "remaining_ms":
            order_by = f"{request.prefix}remaining_ms"
        shown = chosen.selectExpr("*", f"{order_by} AS __order").orderBy("__order").drop("__order")
        if request.columns is not None:
            shown = shown.select(*request.columns)
        rows = [json.loads(str(text)) for text in shown.limit(request.limit).toJSON().collect()]
        count = chosen.count()
    except (PurgatoryError, AnalysisException) as error:
        said = str(error) if isinstance(error, PurgatoryError) else error.getMessage() or str(error)
        errors.print(said.splitlines()[0], soft_wrap=True, highlight=False)
        return EXIT_WRONG
    except PySparkException as error:
        errors.print(f"Spark could not read {request.checkpoint}: {error}", soft_wrap=True, highlight=False)
        return 1
    if request.as_json:
        for row in rows:
            console.out(json.dumps(row, ensure_ascii=False), highlight=False)
    else:
        console.print(_table(shown.columns, rows), soft_wrap=False)
        console.print(f"{count:,} waiting" + (f", {len(rows):,} shown" if len(rows) < count else ""), highlight=False)
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--spark {text!r} must be NAME=VALUE, for example spark.master=local[4]")
    return name, value


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
