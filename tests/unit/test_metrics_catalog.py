"""The catalogue of metrics, its page, the dashboard and the alerts; a query's monitor and `metrics.progress()`."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from spark_purgatory import metrics
from spark_purgatory.metrics.catalog import BY_NAME, PREFIX, Sample
from spark_purgatory.spark.checkpoint.pending import Gauges
from spark_purgatory.spark.monitoring import monitor
from spark_purgatory.spark.monitoring.monitor import QueryMonitor
from tools.dashboard import ALERTS, PANELS, STATS, alerts, alerts_table, dashboard
from tools.metrics_page import reference

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_table_and_every_metric_is_drawn_or_watched() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert reference() in page and alerts_table() in page
    drawn = {name for _, names in PANELS for name in names} | {name for _, name, _, _ in STATS}
    watched = {name for name in BY_NAME for alert in ALERTS if f"{PREFIX}{name}" in alert.expression}
    rest = set(BY_NAME) - drawn - watched
    assert rest == {
        "batch_input_rows", "state_bytes_written", "watched", "shards", "draining_rows", "drains_total",
        "drained_rows_total", "drained_files_total", "drained_bytes_total", "file_bytes_avg",
    }  # fmt: skip


def test_the_dashboard_and_the_alerts_are_those_in_the_repository_and_ask_for_metrics_that_exist() -> None:
    folder = ROOT / "docs" / "monitoring"
    assert dashboard() == (folder / "grafana.json").read_text(encoding="utf-8")
    assert alerts() == (folder / "alerts.yml").read_text(encoding="utf-8")
    panels = json.loads(dashboard())["panels"]
    rules = yaml.safe_load(alerts())["groups"][0]["rules"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", ())] + [
        rule["expr"] for rule in rules
    ]
    assert len(rules) == 8 and len(asked) > 20
    for expression in asked:
        plain = expression.replace("$__rate_interval", "5m")
        promql_parser.parse(plain)
        names = re.findall(rf"{PREFIX}(\w+)", plain)
        assert names and set(names) <= set(BY_NAME), expression


def test_an_alert_has_one_condition_with_its_unit_and_a_section_to_read() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "docs" / "looks_wrong.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {section.lower().replace(" ", "-") for section in sections}
    for rule in yaml.safe_load(alerts())["groups"][0]["rules"]:
        address, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert address.endswith("docs/looks_wrong.md") and section in anchors, rule["alert"]
        # "or" joins values of two units; the second half of NoMicroBatch is the same condition for a lost process.
        assert rule["alert"] == "NoMicroBatch" or " or " not in rule["expr"] + rule["annotations"]["summary"]


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


def test_a_line_is_a_micro_batch_that_did_something(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(recorded(), capsys)
    assert lines[0] == (
        "batch 0: 20 rows in, 10 decided, 0 waiting, 1 rows/s, took 34.4 s, watermark none yet, this run COMPLETED 10"
    )
    assert lines[1] == (
        "batch 2: 20 rows in, 10 decided, 0 waiting, 3 rows/s, took 7.8 s, watermark 2025-11-26 11:19:10 UTC "
        "(2.0 h behind the clock), this run COMPLETED 20"
    ), "batch 1 only passed the time"
    assert ": 20 rows in, 10 decided, 12,000 waiting, " in lines[-1]
    assert lines[-1].endswith("this run COMPLETED 280, EXPIRED 60")


def report(batch_id: int, run: str = "run") -> Any:
    return SimpleNamespace(
        batchId=batch_id, runId=run, durationMs={"addBatch": 1, "triggerExecution": 5}, sources=[], eventTime={},
        observedMetrics={},
    )  # fmt: skip


def test_ages_and_times_of_the_state_are_measured_at_the_watermark() -> None:
    told: Any = dict.fromkeys(Gauges.__annotations__, 50) | {"oldest_created_ms": 20, "next_due_ms": 57}
    values = monitor._of_gauges(told)
    assert (values["oldest_pending_age_ms"], values["next_deadline_ms"]) == (30, 7)


def broken(sample: Sample) -> None:
    raise RuntimeError("the disk is full")


@pytest.mark.parametrize("earlier", [[], [0], [0, 1]])
def test_a_micro_batch_is_counted_once_however_often_it_is_reported_though_another_reporter_raises(
    earlier: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = SimpleNamespace(streams=SimpleNamespace(addListener=lambda listener: None))
    monkeypatch.setattr(monitor, "_session_of", lambda query: session)
    samples = list[Sample]()
    query: Any = SimpleNamespace(name="q", id="id", runId="run", isActive=True, recentProgress=[*map(report, earlier)])
    listener = QueryMonitor(query, (broken, samples.append), None, 60_000, "spark_purgatory")
    for again in (*earlier, *earlier, 2, 2):
        listener.onQueryProgress(SimpleNamespace(progress=report(again)))
    listener.onQueryProgress(SimpleNamespace(progress=report(9, run="another")))
    assert samples[-1].values["batches_total"] == {(): len(earlier) + 1}
    assert samples[-1].batch == 2
    assert "a reporter of query" in caplog.text
