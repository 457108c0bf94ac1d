"""`metrics.progress()`: the lines and the table of samples that a real query gave."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_purgatory import metrics
from spark_purgatory.metrics.catalog import BY_NAME, PREFIX

FILE = Path(__file__).resolve().parents[1] / "data" / "metrics_recorded.jsonl.gz"
AT_MS = 1_764_163_200_000
"""2025-11-26 13:20:00 UTC."""


def recorded(first_batch: int = 0, **more: float) -> Iterator[metrics.Sample]:
    """What was recorded, as samples; the checkpoint was new."""
    for line in gzip.decompress(FILE.read_bytes()).decode().splitlines():
        values: dict[str, dict[tuple[str, ...], float]] = {}
        for series, number in json.loads(line)["samples"].items():
            [family] = text_string_to_metric_families(f"{series} {number}\n")
            [sample] = family.samples
            name = sample.name.removeprefix(PREFIX)
            labels = (value for label, value in sample.labels.items() if label != "query")
            values.setdefault(name, {})[tuple(labels)] = number
        assert set(values) <= set(BY_NAME)
        values |= {name: {(): number} for name, number in more.items()}
        batch = first_batch + int(values["batches_total"][()]) - 1
        yield metrics.Sample("<orders>", AT_MS, values, batch)


def printed(samples: Iterator[metrics.Sample], capsys: pytest.CaptureFixture[str]) -> list[str]:
    report = metrics.progress()
    for sample in samples:
        report(sample)
        report(sample)  # the state was read: the same micro-batch once more
    return [re.sub(r"^\d\d:\d\d:00 ", "", line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_a_micro_batch_or_the_end_of_a_drain(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(recorded(), capsys)
    assert lines[0] == (
        "batch 0: 20 rows in, 10 decided, 0 waiting, 1 rows/s, took 34.4 s, watermark none yet, this run COMPLETED 10"
    )
    assert lines[1] == (
        "batch 2: 20 rows in, 10 decided, 0 waiting, 3 rows/s, took 7.8 s, watermark 2025-11-26 11:19:10 UTC "
        "(2.0 h behind the clock), this run COMPLETED 20"
    ), "batch 1 only passed the time"
    assert lines[3] == "drain 1 ended after 44.8 s: 10 rows in 1 file"
    assert "2 drains ended, the last after 26.4 s: 20 rows in 2 files" in lines
    assert ": 20 rows in, 10 decided, 12,000 waiting, " in lines[-2]
    assert lines[-2].endswith("this run COMPLETED 280, EXPIRED 60")
    ends = [re.findall(r"(?:^drain | ended.*: )(\d+)", line) for line in lines if line.startswith("drain ")]
    assert len(ends) == 16 and sum(int(rows) for _, rows in ends) == 320 - 20


def test_a_drain_begins_once(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes on over micro-batches; a new one begins where another has ended."""
    lines = [line for line in printed(recorded(draining_rows=7), capsys) if line.startswith("drain ")]
    assert lines[:4] == [
        "drain 1 began: 7 rows",
        "drain 1 ended after 44.8 s: 10 rows in 1 file",
        "drain 2 began: 7 rows",
        "drain 2 ended after 29.8 s: 20 rows in 1 file",
    ]
    assert lines[-1] == "drain 19 began: 7 rows"


def test_the_table_has_the_last_micro_batches_and_the_drain() -> None:
    report = metrics.progress()
    assert report._repr_html_() == repr(report) == "no micro-batch so far"
    for sample in recorded():
        report(sample)
    page = ElementTree.fromstring(f"<div>{report._repr_html_()}</div>".replace("<br>", "<br/>"))
    assert page.findtext("b") == "<orders>"
    head, *rows = ([cell.text for cell in row] for row in page.iter("tr"))
    assert head == ["batch", "rows in", "decided", "waiting", "rows/s", "took", "watermark (UTC)"]
    assert [row[0] for row in rows] == ["30", "31", "32", "33", "34", "35", "36", "37"]
    assert rows[-1][1:6] == ["20", "10", "12,000", "1", "15.3 s"]
    said = "".join(page.find("p").itertext())  # type: ignore[union-attr]
    assert said == "this run COMPLETED 280, EXPIRED 60" + "drain 18 ended after 16.0 s: 70 rows in 1 file"


def test_a_notebook_gets_one_display_that_is_updated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By IPython's interface, as documented: the project's environment has no IPython."""
    shown: list[tuple[str, str]] = []

    def display(what: metrics.Reporter, display_id: bool) -> Any:
        shown.append((f"display_id={display_id}", what._repr_html_()))  # type: ignore[attr-defined]
        return SimpleNamespace(update=lambda what: shown.append(("update", what._repr_html_())))

    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    assert len(printed(recorded(), capsys)) > 30 and not shown, "IPython on a terminal"
    shell.kernel = object()
    assert not printed(recorded(), capsys)
    assert [how for how, _ in shown] == ["display_id=True"] + ["update"] * 36
    assert shown[0][1] == "no micro-batch so far" and "drain 18 ended" in shown[-1][1]
