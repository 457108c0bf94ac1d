"""Rows in a terminal: no value is cut, however narrow it is."""

from __future__ import annotations

import json
import sys
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest

from spark_purgatory.job.show_pending import FoundPending, Kind, PendingRequest, _print, rows_text
from spark_purgatory.terminal import PlainConsole, say, terminal

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
    console = PlainConsole(file=out, width=width)
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


HOSTILE = "order:key:[red]1\x1b[2J\x9b31m\x07\x7f\u202e"
SHOWN = r"order:key:[red]1\u001b[2J\u009b31m\u0007\u007f\u202e"


def test_a_text_is_printed_as_it_is_and_its_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(terminal(), HOSTILE)
    terminal().out(HOSTILE, highlight=False)
    terminal().print(rows_text([{"id": HOSTILE + "\n"}], ["id"], {}, terminal()))
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 3 and SHOWN + r"\n " in out and not set(out) & set("\x1b\x9b\x07\x7f\u202e")


def test_a_stream_of_few_characters_gets_the_others_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(raw, encoding="ascii"))
    say(terminal(), "caf\u00e9 \udcff")
    sys.stdout.flush()
    assert raw.getvalue() == b"caf\\xe9 \\udcff\n"


def pending_text(width: int, texts: list[str], **asked: Any) -> list[str]:
    """What ``pending`` prints of orders."""
    columns = asked.get("columns") or list(json.loads(texts[0]))
    times = ["ordered_at", "created_at", "deadline_at"]
    out = StringIO()
    request = PendingRequest("ck", "true", "remaining_ms", asked.pop("columns", None), 5, None, "", False, [], **asked)
    found = FoundPending(columns, times, texts, 1884, 1_709_284_798_000, 32)
    _print(found, request, PlainConsole(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def waiting(number: int, **own: Any) -> str:
    order, since = f"order-{number}", f"2024-03-01T09:09:{number % 60:02}.986000Z"
    return json.dumps(
        {
            "order_id": order, "ordered_at": since, **own, "watch_keys": [order], "missing_keys": [order], "matched": 0,
            "criterion": "any_key", "reached": 0.0, "needed": 1.0, "progress": "0 of 1", "created_at": since,
            "deadline_at": "2024-03-01T09:19:58.986000Z", "age_ms": 599_000, "remaining_ms": number * 32,
        }
    )  # fmt: skip


def test_what_waits_begins_with_the_total_and_is_a_line_a_row_in_80_columns() -> None:
    lines = pending_text(80, [waiting(n, method="card", note="a remark of forty characters, or so") for n in (1, 95)])
    assert lines[0] == "1,884 wait   watermark 2024-03-01 09:19:58 UTC   next in 32 ms"
    assert [line.split("  ")[0].strip(" \u2500") for line in lines[1:5]] == ["", "order_id", "", "order-1"]
    head, row = lines[2], lines[5]
    assert head.split() == "order_id progress missing waits since (UTC) left method".split()
    assert row.split() == "order-95 0 of 1 order-95 2024-03-01 09:09:35 3.0 s card".split()
    assert "2 of 1,884 shown.   --limit 5   --wide (all columns)" in lines[-2]
    assert max(map(len, lines)) <= 80 and len(lines) == 9
