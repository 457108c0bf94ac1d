"""Rows for a terminal: a table where it is wide enough, else a block for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.rule import Rule
from rich.table import Table

from spark_purgatory.readable import readable_ms
from spark_purgatory.terminal import printable

ANY_WIDTH = 1 << 20
_DIGITS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
MICROSECONDS = {"timestampFormat": f"{_DIGITS}XXX", "timestampNTZFormat": _DIGITS}  # Options of ``to_json``


class Kind(Enum):
    """Kinds of columns that are written in their own way: milliseconds also in words, JSON's timestamps in UTC."""

    DURATION, TIME = "duration", "time"


def rows_text(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], kinds: Mapping[str, Kind], console: Console
) -> RenderableType:
    """Return a table if the console has room for whole values, else a block for each row with a line a column."""
    texts = [[text_of(row.get(name), kinds.get(name)) for name in names] for row in rows]
    if fits(table := lines(dict.fromkeys(names, False), texts), console):
        return table
    return Group(*(_block(number, names, cells) for number, cells in enumerate(texts, 1)))


def lines(columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> Table:
    """A table with a line for each row; ``columns``: True for each that is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_right in columns.items():
        table.add_column(name, no_wrap=True, justify="right" if is_right else "left")
    for cells in rows:
        table.add_row(*cells)
    return table


def fits(table: Table, console: Console) -> bool:
    """Return True if every value is whole on a line of the console."""
    return Measurement.get(console, console.options.update(max_width=ANY_WIDTH), table).maximum <= console.width


def _block(number: int, names: Sequence[str], cells: Sequence[str]) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in zip(names, cells, strict=True):
        grid.add_row(name, text)
    return Group(Rule(f"{number}", align="left", style="dim"), grid)


def text_of(value: Any, kind: Kind | None = None) -> str:
    """Return a JSON value as text; one that is text already, such as a number's digits, stays as it is."""
    if isinstance(value, list):
        return ", ".join(map(text_of, value))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {text_of(each)}' for name, each in value.items())}}}"
    if kind is Kind.DURATION and value is not None:
        return f"{value} ({readable_ms(value)})"
    if kind is Kind.TIME and str(value).endswith("Z"):
        return f"{value[:-1].replace('T', ' ').rstrip('0').removesuffix('.')} UTC"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else printable(str(value)).replace("\n", "\\n")
