"""What the report's page says at a glance: of losses, of the watermark, of what waits and what ends next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_purgatory.job.report import NEWER, MicroBatch, Report
from spark_purgatory.job.report_page import COLOURS, page
from spark_purgatory.job.summary import Summary
from spark_purgatory.job.tally import JobTally
from spark_purgatory.spark.checkpoint.gauges import NOTHING, Gauges

AT = 1_709_284_798_690
"""2024-03-01 09:19:58 UTC."""
GAUGES = Gauges(
    **{
        **NOTHING,
        "pending": 30,
        "watermark_ms": AT,
        "batch_id": 9,
        "oldest_created_ms": AT - 5_000,
        "next_due_ms": AT + 1_000,
    }
)


def report(**changes: Any) -> Report:
    """A report on a query that is well."""
    made = Report(
        table="/lake/<outcomes>",
        checkpoint="/lake/checkpoint",
        made_ms=AT,
        summary=Summary(
            {"EXPIRED": 40, "COMPLETED": 60}, {"COMPLETED": [1000, 2000, 3000]}, [4096], JobTally(130, 100, 30)
        ),
        in_table=90,
        gauges=GAUGES,
        by_hour={"EXPIRED": {474801: 40}, "COMPLETED": {474800: 60}},
        waits={"EXPIRED": {3: 40}, "COMPLETED": {1: 60}},
        ages={NEWER: 12, 1: 18},
        remaining={1: 10, 3: 20},
        criteria={"any_key": 30},
        history=tuple(MicroBatch(n, AT + n, AT - 9 + n) for n in range(10)),
    )
    return replace(made, **changes)


def test_what_is_well_is_green_and_in_one_order() -> None:
    text = page(report())
    assert "<title>&lt;outcomes&gt;: report</title>" in text and "<outcomes>" not in text
    assert "verdict warn" not in text
    assert (
        "<b>Nothing lost</b>130 received = 100 with an outcome + 30 waiting. 90 rows are in the table, 10 are" in text
    )
    assert "<b>The watermark is at 2024-03-01 09:19:58 UTC</b>" in text
    assert "<b>30 wait</b>" in text and "12 are newer than the watermark" in text
    tiles = text[text.index("<div class='tiles'>") :]
    assert tiles.index("COMPLETED") < tiles.index("EXPIRED"), "the order of the pictures and their legends"
    assert list(COLOURS)[:2] == ["COMPLETED", "EXPIRED"]
    assert ">newer than<" in text, "a bar of its own"


def test_what_expires_as_the_watermark_moves_adds_up() -> None:
    rows = page(report())
    table = rows[rows.index("if the watermark moves by") :]
    cells = table[: table.index("</table>")].replace("</td>", "").split("<td>")[1:]
    assert [cell.split("</tr>")[0] for cell in cells] == ["10 s", "10", "1 min", "10", "5 min", "30"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"history": tuple(MicroBatch(n, AT + n, AT) for n in range(10))},
            "<b>The watermark stands at 2024-03-01 09:19:58 UTC</b>",
        ),
        ({"gauges": Gauges(**{**GAUGES, "watermark_ms": 0})}, "<b>There is no watermark yet</b>"),
        (
            {"summary": Summary({"EXPIRED": 99}, {}, [], JobTally(140, 100, 30))},
            "<b>DOES NOT ADD UP, please report it with this line</b>",
        ),
    ],
)
def test_what_is_not_well_is_orange(changes: dict[str, Any], says: str) -> None:
    assert f"<div class='verdict warn'>{says}" in page(report(**changes))


def test_few_files_are_a_sentence_and_many_a_picture() -> None:
    assert "The table has 1 file: 4.0 KiB.</p>" in page(report())
    many = replace(report().summary, file_bytes=[4096] * 20)
    assert "Files of the table by size" in page(report(summary=many))


def test_a_narrow_screen_scrolls_tables_and_pictures_by_themselves_and_dark_mode_has_its_colours() -> None:
    text = page(report())
    assert text.count("<table>") + text.count("<svg") == text.count("<div class='wide'>")
    assert "prefers-color-scheme:dark" in text
