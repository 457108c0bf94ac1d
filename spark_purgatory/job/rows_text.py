"""Rows for a terminal: a table where it is wide enough, else a block for each row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table

from spark_purgatory.job.summary import readable_ms

ANY_WIDTH = 1 << 20


def rows_text(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], durations: Collection[str], console: Console
) -> RenderableType:
    """A line for each row if the console has room for whole values, else a block for each, with a line a column.

    ``durations`` are the columns of milliseconds, which are given in words too.
    """
    texts = [[_text(row.get(name), name in durations) for name in names] for row in rows]
    table = Table()
    for name in names:
        table.add_column(name, no_wrap=True)
    for cells in texts:
        table.add_row(*cells)
    if Measurement.get(console, console.options.update(max_width=ANY_WIDTH), table).maximum <= console.width:
        return table
    return Group(*(_block(number, names, cells) for number, cells in enumerate(texts, 1)))


def _block(number: int, names: Sequence[str], cells: Sequence[str]) -> Group:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, text in zip(names, cells, strict=True):
        lines.add_row(name, text)
    return Group(Rule(f"{number}", align="left", style="dim"), lines)


def _text(value: Any, is_duration: bool = False) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if is_duration and value is not None:
        return f"{value} ({readable_ms(value)})"
    return "" if value is None else str(value)
