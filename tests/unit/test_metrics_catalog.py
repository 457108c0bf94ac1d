"""The catalogue of metrics, its page, the dashboard and the alerts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import yaml

from spark_purgatory.metrics.catalog import BY_NAME, PREFIX
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
