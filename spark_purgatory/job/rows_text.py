"""Rows for a terminal: a table where it is wide enough, else a block for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table

from spark_purgatory.job.readable import readable_ms

ANY_WIDTH = 1 << 20


class Kind(Enum):
    """How a column's values are written, where not as they are."""

    DURATION = "milliseconds, which are given in words too"
    TIME = "a timestamp as JSON has it"


def rows_text(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], kinds: Mapping[str, Kind], console: Console
) -> RenderableType:
    """A line for each row if the console has room for whole values, else a block for each, with a line a column."""
    texts = [[_text(row.get(name), kinds.get(name)) for name in names] for row in rows]
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


def _text(value: Any, kind: Kind | None = None) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if kind is Kind.DURATION and value is not None:
        return f"{value} ({readable_ms(value)})"
    if kind is Kind.TIME and str(value).endswith("Z"):
        return f"{value[:-1].replace('T', ' ').removesuffix('.000')} UTC"
    return "" if value is None else str(value)
