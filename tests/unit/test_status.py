"""What is said of a query at a glance, without Spark: by `status`, of a checkpoint's files, and by a report's page."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from spark_purgatory.job.report import COLOURS, DUE, Report, page
from spark_purgatory.job.status import MicroBatch, show_status
from spark_purgatory.job.summary import JobTally, Summary
from spark_purgatory.spark.checkpoint.pending import Gauges
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.terminal import terminal

AT = 1_709_284_798_690


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Seven micro-batches, the last of which Spark has not committed; the sixth has 5 rows, the seventh 7."""
    (tmp_path / "metadata").write_text('{"id":"3f0c"}')
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number in range(7):
        facts = {"batchWatermarkMs": AT, "batchTimestampMs": AT + 10_000 * number, "conf": {}}
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{json.dumps(facts)}\n0\n0")
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"\0")
        if number < 6:
            (tmp_path / "commits" / str(number)).write_text("v1\n{}")
    (tmp_path / "staging" / "table").mkdir(parents=True)
    claim = {"path": "/lake/outcomes", "given": "outcomes", "id": ""}
    (tmp_path / "staging" / "table" / "part-0.txt").write_text(json.dumps(claim))
    staging = StagingFolder(str(tmp_path), tmp_path)
    for number, rows in ((5, 5), (6, 7)):
        path = f"rows/generation=0/epoch=0/batch={number}-1-abc"
        body = {"path": path, "rows": rows, "checksum": 0, "plain_bytes": 9, "staged_ms": 1}
        staging.write_entry(cast("Any", None), 0, path.rpartition("/")[2], body)
    return tmp_path


def test_status_says_how_a_query_is(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_status(str(checkpoint), terminal()) == 0
    last, *rest = capsys.readouterr().out.splitlines()
    assert last.startswith("The last micro-batch began ") and "Micro-batch 6 began at 2024-03-01 09:20:58 UTC" in last
    assert "and is not committed: it runs now or at the next start." in last
    assert rest == [
        "Watermark: 2024-03-01 09:19:58 UTC",
        "Table: /lake/outcomes",
        "Staged: 12 rows wait for their file",
    ]
    assert show_status(f"file://{checkpoint}", terminal()) == 0


def test_a_damaged_log_is_named_and_no_folder_is_an_error(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry, *_) = (checkpoint / "staging" / "log").rglob("batch=5*")
    entry.write_text("{")
    assert show_status(str(checkpoint), terminal()) == 2
    assert "is damaged" in capsys.readouterr().err
    (checkpoint / "offsets" / "6").write_text("")
    assert show_status(str(checkpoint), terminal()) == 2
    assert "offsets/6 is empty, as a power loss leaves it" in " ".join(capsys.readouterr().err.split())
    shutil.rmtree(checkpoint / "offsets")
    assert show_status(str(checkpoint), terminal()) == 2
    assert "offsets/5 is missing, but its micro-batch is committed" in " ".join(capsys.readouterr().err.split())
    assert show_status(str(checkpoint / "none"), terminal()) == 2
    assert "run spark-purgatory status --spark" in capsys.readouterr().err


def test_a_folder_that_was_removed_is_named_with_the_remedy(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        (checkpoint / "commits" / str(number)).write_text(f'v2\n{{"stateUniqueIds":{{"0":[["{number}"]]}}}}')
    for folder, said in (("state", "state is missing, but commits/5 names"), ("commits", "commits has no micro-batch")):
        assert show_status(str(checkpoint), terminal()) == 2
        assert f"{said}" in (told := " ".join(capsys.readouterr().err.split())) and "from a copy" in told
        (checkpoint / "state").mkdir(exist_ok=True)
        if folder == "state":
            assert show_status(str(checkpoint), terminal()) == 0
            shutil.rmtree(checkpoint / "commits")


def test_an_entry_of_another_release_and_a_damaged_claim_are_named_with_the_remedy(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StagingFolder(str(checkpoint), checkpoint).write_entry(cast("Any", None), 0, "batch=7-1-abc", {"rows": 1})
    assert show_status(str(checkpoint), terminal()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "staging/log is of another release: run the one that wrote the checkpoint" in said
    (checkpoint / "staging" / "table" / "part-0.txt").write_text("{")
    assert show_status(str(checkpoint), terminal()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is damaged: run spark-purgatory status --spark for a remedy" in said


def test_status_tells_a_program_and_fails_when_a_query_is_silent_or_behind(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_status(str(checkpoint), terminal(), True, "1 hour", "200000 days") == 1
    found = json.loads(capsys.readouterr().out)
    [alarm] = found.pop("alarms")
    assert alarm.startswith("Alarm: No run and no micro-batch has begun for ")
    assert alarm.endswith("(--max-silence 1 hour)")
    assert found == {
        "last_micro_batch": 6,
        "last_micro_batch_began_ms": AT + 60_000,
        "is_committed": False,
        "watermark_ms": AT,
        "tables": ["/lake/outcomes"],
        "last_drain": None,
        "rows_staged": 12,
    }
    (checkpoint / "last_run").touch()
    assert show_status(str(checkpoint), terminal(), max_silence="1 hour") == 0
    assert show_status(str(checkpoint), terminal(), max_lag="1 hour") == 1
    assert "Alarm: The watermark is behind the clock for" in " ".join(capsys.readouterr().out.split())
    assert show_status(str(checkpoint), terminal(), max_lag="soon") == 2


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
        remaining={DUE: 12, 1: 18},
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
    assert "<b>30 wait</b>The oldest was created at" in text
    tiles = text[text.index("<div class='tiles'>") :]
    old = page(report(made_ms=AT + 7 * 86_400_000))
    assert "<b>The last micro-batch began 168.0 h ago</b>Micro-batch 9 began at 2024-03-01 09:19:58 UTC" in old
    assert tiles.index("COMPLETED") < tiles.index("EXPIRED"), "the order of the pictures and their legends"
    assert list(COLOURS)[:2] == ["COMPLETED", "EXPIRED"]
    assert ">due<" in text, "a bar of its own"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"history": tuple(MicroBatch(n, AT + n, AT) for n in range(10))},
            "<b>The watermark stands at 2024-03-01 09:19:58 UTC</b>",
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
