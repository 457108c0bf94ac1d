"""Rows in a terminal: no value is cut, however narrow it is."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from spark_purgatory.job.rows_text import Kind, rows_text
from spark_purgatory.terminal import terminal

ROWS = [
    {
        "id": "A-1",
        "missing_keys": ["A-1/stock", "A-1/[bold]credit"],
        "remaining_ms": 1_640_000,
        "at": "2024-03-01T09:00:00.000Z",
    },
    {"id": "A-2", "missing_keys": None, "remaining_ms": -90_000, "at": "2024-03-01T09:19:58.986Z"},
]
KINDS = {"remaining_ms": Kind.DURATION, "at": Kind.TIME}


def printed(width: int) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, markup=False)
    console.print(rows_text(ROWS, list(ROWS[0]), KINDS, console))
    return out.getvalue().splitlines()


def test_a_wide_terminal_gets_a_line_for_each_row() -> None:
    lines = printed(width=100)
    [first] = [line for line in lines if "A-1 " in line]
    assert "A-1/stock, A-1/[bold]credit" in first and "1640000 (27.3 min)" in first
    [second] = [line for line in lines if "A-2 " in line]
    assert "-90000 (-1.5 min)" in second and "None" not in second


def test_a_narrow_one_gets_a_block_for_each_row_with_whole_words() -> None:
    lines = [line.rstrip() for line in printed(width=45)]
    assert [line[0] for line in lines if "─" in line] == ["1", "2"], "a heading for each row"
    assert "missing_keys  A-1/stock, A-1/[bold]credit" in lines
    assert "remaining_ms  1640000 (27.3 min)" in lines
    assert {"at            2024-03-01 09:00:00 UTC", "at            2024-03-01 09:19:58.986 UTC"} <= set(lines)


def test_what_to_install_keeps_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    terminal(stderr=True).print("pip install 'spark-purgatory[plot]'", highlight=False)
    assert capsys.readouterr().err == "pip install 'spark-purgatory[plot]'\n"
