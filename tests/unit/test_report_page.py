"""What the report's page says at a glance: of losses, of the watermark, of what waits and what ends next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_purgatory.job.report import COLOURS, NEWER, Report, page
from spark_purgatory.job.status import MicroBatch
from spark_purgatory.job.summary import JobTally, Summary
from spark_purgatory.spark.checkpoint.pending import Gauges

AT = 1_709_284_798_690
"""2024-03-01 09:19:58 UTC."""
GAUGES = Gauges(
    **{
        **dict.fromkeys(Gauges.__annotations__, 0),
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
        name="orders <eu>",
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
    assert "<title>orders &lt;eu&gt;: report</title>" in text and "<outcomes>" not in text and "<eu>" not in text
    assert "verdict warn" not in text
    assert "<div class='verdict'><b>The last micro-batch began" in text[: text.index("Nothing lost")]
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
        (
            {"made_ms": AT + 7 * 86_400_000},
            "<b>The last micro-batch began 168.0 h ago</b>Micro-batch 9 began at 2024-03-01 09:19:58 UTC and is "
            "committed. One usually begins every 1 ms. The query has ended, or nothing arrives.",
        ),
        ({"history": ()}, "<b>No micro-batch has begun</b>"),
        ({"gauges": Gauges(**{**GAUGES, "watermark_ms": 0})}, "<b>There is no watermark yet</b>"),
        (
            {"summary": Summary({"EXPIRED": 99}, {}, [], JobTally(140, 100, 30))},
            "<b>DOES NOT ADD UP. If nobody deleted rows of the table, please report it with this line</b>",
        ),
    ],
)
def test_what_is_not_well_is_orange(changes: dict[str, Any], says: str) -> None:
    assert f"<div class='verdict warn'>{says}" in page(report(**changes))


def test_a_query_of_a_slow_trigger_is_not_late_within_three_of_its_intervals() -> None:
    slow = tuple(MicroBatch(n, AT - (10 - n) * 600_000, AT - 9 + n) for n in range(10))
    assert "verdict warn" not in page(report(history=slow, made_ms=AT + 900_000))
    late = page(report(history=slow, made_ms=AT + 1_900_000))
    assert "verdict warn'><b>The last micro-batch began 41.7 min ago</b>" in late and "every 10.0 min." in late
    assert "is not committed" in page(report(history=(*slow, MicroBatch(10, AT, AT))))
