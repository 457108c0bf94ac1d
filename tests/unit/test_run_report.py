"""A job's run: one at a time, its exit code and facts for machines, and rows that others removed from the table."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_purgatory.errors import ConfigError, StagingError
from spark_purgatory.job import runner
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.last_run import NAME, Places, _is_done, _now, _places
from spark_purgatory.job.one_run import only_run
from spark_purgatory.job.run_report import ExitCode, RunReport
from spark_purgatory.job.runner import _follow, run_file
from spark_purgatory.job.stopping import StopRequest
from spark_purgatory.job.summary import REBUILD, JobTally, Summary, removed_by, verdict

JOB = Path(__file__).parents[2] / "conf" / "orders.yaml"
QUERY = {"query_id": "q", "run_id": "r", "last_micro_batch": 7, "rows_drained": 2}


def version(number: int, operation: str, noted: object = None, mode: str = "", **metrics: int) -> dict[str, Any]:
    return {
        "version": number,
        "operation": operation,
        "operationParameters": {"mode": mode},
        "operationMetrics": {name: str(count) for name, count in metrics.items()},
        "userMetadata": None if noted is None else json.dumps(noted),
    }


DRAIN = version(0, "WRITE", {"app_id": "a", "drain": 0}, "Append", numOutputRows=10)


@pytest.mark.parametrize(
    ("changes", "removed"),
    [
        ([], 0),
        ([version(1, "DELETE", numDeletedRows=3), version(2, "OPTIMIZE"), version(3, "UPDATE", numUpdatedRows=2)], 3),
        ([version(1, "MERGE", numTargetRowsDeleted=1, numTargetRowsInserted=4)], -3),
        ([version(1, "WRITE", mode="Append", numOutputRows=2)], -2),
        ([version(1, "WRITE", {REBUILD: [10, 8]}, "Overwrite", numOutputRows=8)], 2),
        ([version(1, "WRITE", mode="Overwrite", numOutputRows=8)], None),
        ([version(1, "DELETE")], None),
        ([version(1, "RESTORE")], None),
    ],
)
def test_the_history_shows_the_rows_that_others_removed(changes: list[dict[str, Any]], removed: int | None) -> None:
    assert removed_by([DRAIN, *changes]) == removed


def test_a_history_that_was_cut_shows_nothing() -> None:
    assert removed_by([version(4, "DELETE", numDeletedRows=3)]) is None


@pytest.mark.parametrize(
    ("in_table", "removed", "says", "code"),
    [
        (8, 0, "Nothing lost", ExitCode.RIGHT),
        (5, 3, "Nothing lost: 3 rows of the table were removed later, by others or by a rebuild", ExitCode.RIGHT),
        (5, 2, "DOES NOT ADD UP", ExitCode.DOES_NOT_ADD_UP),
        (5, 0, "DOES NOT ADD UP", ExitCode.DOES_NOT_ADD_UP),
        (5, None, "3 outcomes are no longer in the table, and its history does not show who", ExitCode.RIGHT),
        (9, 0, "1 row(s) of the table are not of this checkpoint, but of others or of a rebuild", ExitCode.RIGHT),
    ],
)
def test_rows_that_others_removed_are_no_loss(in_table: int, removed: int | None, says: str, code: ExitCode) -> None:
    summary = Summary({"EXPIRED": in_table}, {}, [1], JobTally(10, 8, 2), removed=removed)
    assert verdict(summary).startswith(says)
    assert RunReport(query=QUERY, summary=summary).exit_code() == code


def test_an_operation_that_is_neither_decided_nor_waiting_is_a_loss_whatever_others_removed() -> None:
    summary = Summary({"EXPIRED": 8}, {}, [1], JobTally(11, 8, 2), removed=None)
    assert RunReport(query=QUERY, summary=summary).exit_code() == ExitCode.DOES_NOT_ADD_UP


def test_a_refusal_and_a_failure_have_their_own_codes() -> None:
    assert RunReport(error=ConfigError("no")).exit_code() == ExitCode.REFUSED
    assert RunReport(error=StagingError("no"), query=QUERY).exit_code() == ExitCode.FAILED
    assert RunReport(error=OSError("no")).exit_code() == ExitCode.FAILED


@pytest.mark.parametrize(("late", "code"), [(1, ExitCode.RIGHT), (2, ExitCode.ABOVE_SHARE)])
def test_late_and_rejected_rows_above_a_share_have_a_code_on_request(late: int, code: ExitCode) -> None:
    report = RunReport(query=QUERY)
    counted = {"received": 100, "operations_late": late - 1, "rejected": 1}
    report.totals.add({**counted, "events_received": 1000, "events_rejected": 10})
    assert report.exit_code(0.01) == code
    assert report.exit_code() == ExitCode.RIGHT


@pytest.mark.parametrize(("next_ms", "is_done"), [(5, True), (6, False)])
def test_a_run_that_leaves_an_operation_due_has_not_done_everything(
    next_ms: int, is_done: bool, tmp_path: Path
) -> None:
    for log, body in (("offsets", {"batchWatermarkMs": 5}), ("commits", {"nextBatchWatermarkMs": next_ms})):
        (tmp_path / log).mkdir()
        (tmp_path / log / "7").write_text(f"v1\n{json.dumps(body)}")
    assert _is_done(Places(tmp_path, tmp_path, ()), {"offsets": 7, "commits": 7}) == is_done


def test_the_report_of_a_refused_run_has_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = RunReport(job="orders", error=ConfigError("shards=0: give at least 1"))
    report.write(str(tmp_path / "run.json"), report.exit_code())
    report.write("-", report.exit_code())
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts == json.loads(capsys.readouterr().out) | {"seconds": facts["seconds"]}
    assert (facts["exit_code"], facts["error"]) == (ExitCode.REFUSED, "shards=0: give at least 1")
    assert facts["run_id"] is None and facts["adds_up"] is None


def test_the_numbers_of_a_run_are_gauges_for_prometheus(tmp_path: Path) -> None:
    report = RunReport(job='"a" job', query=QUERY, gauges={"watermark_ms": 1_500})
    report.summary = Summary({"EXPIRED": 3}, {}, [1], JobTally(100, 3, 97), staged=2)
    report.totals.add({"received": 100, "expired": 3})
    report.write_textfile(tmp_path / "run.prom", ExitCode.DOES_NOT_ADD_UP)
    lines = dict(line.rsplit(" ", 1) for line in (tmp_path / "run.prom").read_text().splitlines())
    wanted = {"exit_code": "3.0", "operations_received": "100.0", "outcomes_expired": "3.0", "watermark_seconds": "1.5"}
    wanted |= {"rows_staged": "2.0", "rows_in_table": "1.0"}
    for name, value in wanted.items():
        assert lines[rf'spark_purgatory_run_{name}{{job_name="\"a\" job"}}'] == value
    assert [*tmp_path.iterdir()] == [tmp_path / "run.prom"]


class Query:
    """A query that ends when it is stopped, or has failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.isActive = error, error is None

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False

    def awaitTermination(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("failed", [0, 1], ids=["the job's", "that of the dead letters"])
def test_a_query_that_fails_ends_the_job_with_its_error(failed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[Any] = [Query(), Query()]
    queries[failed] = Query(RuntimeError("the disk is full"))
    polls = iter(range(100))
    progress: Any = SimpleNamespace(update=lambda query: next(polls), stopping=lambda: None)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0)
    with pytest.raises(RuntimeError, match="the disk is full"):
        _follow(queries[0], queries[1], progress, StopRequest())
    assert failed or not queries[0].isActive


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    with only_run(str(tmp_path)):
        code = run_file(JOB, [f"checkpoint={tmp_path}"], json=str(tmp_path / "run.json"))
        assert code == ExitCode.REFUSED
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["error"].startswith(f"checkpoint {tmp_path} is used by another run of the job")


def test_a_run_with_nothing_new_tells_what_waits_and_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [f"checkpoint={tmp_path}", f"output.path={tmp_path}/table"]
    changes += [f"{name}.source.path={tmp_path}/{name}" for name in ("operations", "completions")]
    for name in ("operations/_x", "completions/_x", "metadata", f"table/_delta_log/{0:020d}.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"id": "q"}')
    config = load_config(JOB, changes)
    last = {"summary": asdict(Summary({"EXPIRED": 8}, {}, [1], JobTally(10, 8, 2))), "gauges": {"pending": 2}}
    (noted := tmp_path / NAME).write_text(json.dumps({**last, **(_now(config, cast("Any", _places(config)), 0) or {})}))
    os.utime(noted, (0, 0))
    monkeypatch.setattr(runner, "build_session", None)
    assert run_file(JOB, changes, json=str(tmp_path / "run.json")) == ExitCode.RIGHT
    assert json.loads((tmp_path / "run.json").read_text())["waiting"] == 2
    assert noted.stat().st_mtime > 0, "by which status sees this run"


def test_a_second_run_waits_if_it_may(tmp_path: Path) -> None:
    (tmp_path / "metadata").touch()
    began, ended = threading.Event(), []

    def second() -> None:
        began.set()
        with only_run(str(tmp_path), "1 hour"):
            ended.append("second")

    thread = threading.Thread(target=second)
    with only_run(str(tmp_path)):
        thread.start()
        began.wait()
        ended.append("first")
    thread.join()
    assert ended == ["first", "second"]
