"""The progress of a job: one line a micro-batch, and on a terminal what the query is at."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from spark_purgatory.job.progress import ProgressDisplay, Totals
from spark_purgatory.job.summary import JobTally, Summary, print_summary, warnings_of
from spark_purgatory.spark.heartbeat import is_theirs


class Counters:
    """What ``observedMetrics`` holds of a purgatory."""

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    def asDict(self) -> dict[str, int]:
        return self._counts


def report(batch_id: int, rows: int, watermark: str = "2024-03-01T08:04:58.000Z", **counts: int) -> dict[str, Any]:
    """Spark's report of a micro-batch, as far as it is shown."""
    return {
        "batchId": batch_id,
        "durationMs": {"addBatch": 1, "triggerExecution": 120_000},
        "sources": [{"numInputRows": rows, "description": "FileStreamSource"}],
        "observedMetrics": {"spark_purgatory": Counters(**counts)},
        "eventTime": {"watermark": watermark},
    }


def query_of(*reports: dict[str, Any], is_working: bool = False) -> Any:
    """A query that runs and has made these reports."""
    return SimpleNamespace(
        lastProgress=reports[-1] if reports else None,
        recentProgress=list(reports),
        isActive=True,
        status={"isTriggerActive": is_working},
    )


def seen(progress: ProgressDisplay, console: Console) -> list[str]:
    with console.capture() as shown:
        console.print(progress.view())
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.fixture
def console() -> Console:
    """A terminal of 80 columns."""
    return Console(file=StringIO(), width=80, force_terminal=True, color_system=None, markup=False)


def test_the_head_line_says_what_the_query_is_at(console: Console) -> None:
    progress = ProgressDisplay(console, name="orders")
    assert "starting the query" in seen(progress, console)[0]
    progress.update(query_of(is_working=True))
    assert "micro-batch 0" in seen(progress, console)[0]
    assert "ctrl-C stops it" in seen(progress, console)[0]
    progress.update(query_of(report(0, 5, received=5)))
    assert "waiting for rows" in seen(progress, console)[0]
    assert isinstance(console.file, StringIO) and console.file.getvalue().count(" batch 0: 5 rows in") == 1
    progress.stopping()
    progress.update(query_of(report(0, 5, received=5), is_working=True))
    assert "stopping within 10 s, then a drain" in seen(progress, console)[0]
    assert "ctrl-C cuts" in seen(progress, console)[0]


def test_elsewhere_a_micro_batch_is_a_line() -> None:
    out = StringIO()
    with ProgressDisplay(Console(file=out, width=80), name="orders") as progress:
        progress.update(query_of(report(0, 5, received=5, completed=2), is_working=True))
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        progress.update(query_of(report(0, 5), report(1, 1, watermark=now, received=1)))
        progress.stopping()
    old, new, stops = out.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", old[:8])
    assert old[8:] == (
        " batch 0: 5 rows in, 2 decided, 3 waiting, 0 rows/s, took 120.0 s, watermark 2024-03-01 08:04:58 UTC, "
        "this run COMPLETED 2"
    )
    assert stops == "stopping within 10 s, then a drain"
    assert re.search(r"\d m?s behind the clock\), ", new)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([3_900_000], "Files: 1 with 3.7 MiB"),
        ([1 << 20, 3 << 20, 4 << 20], "Files: 3 with 8.0 MiB"),
    ],
)
def test_files_are_told_in_a_sentence(sizes: list[int], says: str, console: Console) -> None:
    summary = Summary({"COMPLETED": 101_000}, {}, sizes, JobTally(110_621, 101_000, 9_621))
    with console.capture() as shown:
        print_summary(console, summary, "/lake/outcomes")
    lines = [line.rstrip() for line in shown.get().splitlines()]
    assert says in lines
    end = " ".join(lines[lines.index(says) + 1 :])
    assert end == "Nothing lost: 110,621 received = 101,000 with an outcome, all in the table + 9,621 waiting"


def test_rows_of_another_checkpoint_and_lost_ones_are_told(console: Console) -> None:
    for tally, says in (
        (
            JobTally(10, 8, 2),
            "but of others or of a rebuild: 10 received = 8 with an outcome, 9 in the",
        ),
        (
            JobTally(12, 9, 2),
            "DOES NOT ADD UP. If nobody deleted rows of the table, please report it with this line: 12 received",
        ),
    ):
        with console.capture() as shown:
            print_summary(console, Summary({"EXPIRED": 9}, {}, [1], tally), "table t")
        assert says in " ".join(shown.get().split())


def totals_of(**counters: Any) -> Totals:
    """The totals of a run of two equal micro-batches."""
    totals = Totals()
    for _ in range(2):
        totals.add(dict(counters))
    return totals


def test_rejected_events_are_in_the_last_lines_of_a_run() -> None:
    reasons = {"events_rejected_null_time": 48, "events_rejected_null_key": 1}
    (warning,) = warnings_of(totals_of(events_received=50, events_rejected=49, rejections=reasons))
    assert warning.startswith(
        "Warning: In this run 98 of 100 events were rejected and complete nothing (the time is null: 96; the key is "
        "null: 2). If"
    )


def test_rows_that_came_late_are_in_the_last_lines_of_a_run() -> None:
    (late,) = warnings_of(totals_of(received=10, events_received=20, events_late=3, operations_late=None))
    assert late == (
        "Warning: In this run 6 of 60 rows arrived behind the watermark (operations: 0, completions: 6) and may be "
        "decided wrongly. Give the late input a longer delay (watermark), or where whole files come late a longer "
        "lookback, with a new checkpoint; rebuild decides these hours again"
    )
    (few,) = warnings_of(totals_of(received=100, events_received=20, events_late=3, operations_late=None))
    assert few == "In this run 6 of 240 rows arrived behind the watermark (operations: 0, completions: 6)"
    assert list(warnings_of(totals_of(received=10, events_received=20))) == []


def test_rows_of_the_librarys_own_sources_are_not_counted() -> None:
    assert not is_theirs("RatePerMicroBatchStream[rowsPerBatch=1]")
    assert not is_theirs("FileStreamSource[file:/lake/_checkpoints/outcomes/newes[t]]")
    assert is_theirs("FileStreamSource[file:/lake/newest]")
