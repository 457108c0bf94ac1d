"""``status``: a checkpoint of files, as Spark and the sink lay them, read without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from spark_purgatory.job.status import show_status
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
    assert (
        "and is not committed. One usually begins every 10.0 s. The query stopped within it, or is still at it. "
        in last
    )
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
    assert "staging/table should name the table of the checkpoint but is damaged: bring its file back" in said


def test_status_tells_a_program_and_fails_when_a_query_is_silent_or_behind(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_status(str(checkpoint), terminal(), True, "1 hour", "200000 days") == 1
    found = json.loads(capsys.readouterr().out)
    [alarm] = found.pop("alarms")
    assert alarm.startswith("Alarm: No run and no micro-batch has begun for ")
    assert alarm.endswith("(--max-silence 1 hour)")
    assert found == {
        "is_running": False,
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
