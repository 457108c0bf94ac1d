"""``python -m tools.dashboard``: the Grafana dashboard and the alerts, made from the catalogue.

It needs grafana-foundation-sdk (in the extra ``dev``), Grafana's own builder, so that the JSON is what Grafana reads.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from spark_purgatory.job.report import COLOURS
from spark_purgatory.metrics.catalog import BY_NAME, PREFIX

UNITS = {"ms": "ms", "bytes": "bytes", "ratio": "none"}
RUNBOOK = "https://github.com/spark-purgatory/spark-purgatory/blob/main/docs/looks_wrong.md"
STATS: tuple[tuple[str, str, str, float | None], ...] = (
    ("Waiting", "pending", "sum({})", None),
    ("Outcomes a second", "outcomes_total", "sum(rate({}[$__rate_interval]))", None),
    ("Watermark behind the clock", "watermark_lag_ms", "max({})", 3.6e6),
    ("Last micro-batch took", "batch_duration_ms", "max({})", None),
    ("Largest shard", "largest_shard_state_bytes", "max({})", 1e8),
    ("Drains that failed, 10 min", "drain_retries_total", "sum(increase({}[10m]))", 5),
)
"""The first row: title, metric, how it is summed up, and from where on it is red, as its alert has it."""
ROWS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Outcomes": (
        ("Operations that wait", ("pending",)),
        ("Outcomes a second", ("outcomes_total",)),
        ("Oldest waiting, next deadline (event time)", ("oldest_pending_age_ms", "next_deadline_ms")),
        ("Rejected a second", ("rejected_total", "events_rejected_total")),
    ),
    "Inputs": (
        ("Watermark lag", ("watermark_lag_ms",)),
        ("Records of Kafka not read yet", ("source_lag_records",)),
        ("Events a second: received, late", ("events_received_total", "events_late_total")),
        ("Operations a second: received, late", ("operations_received_total", "operations_late_total")),
    ),
    "State": (
        ("A micro-batch takes", ("batch_duration_ms",)),
        ("State", ("state_bytes", "largest_shard_state_bytes")),
        ("Skew of the shards (1: even)", ("shard_skew",)),
    ),
    "Table": (
        ("Staged for the table", ("staged_bytes", "buffer_available_bytes")),
        ("Age of what is staged, length of a drain", ("staged_age_ms", "drain_duration_ms")),
        ("Retries of drains", ("drain_retries_total",)),
    ),
}
PANELS = tuple(panel for panels in ROWS.values() for panel in panels)


@dataclass(frozen=True)
class Alert:
    """One of those to watch. ``says`` is a template of Prometheus, which knows the query and the value."""

    name: str
    expression: str
    minutes: int
    severity: str
    """page: someone has to look at once; ticket: in working hours."""
    says: str
    text: str
    runbook: str
    """The section of docs/looks_wrong.md that says what to do."""


ALERTS = (
    Alert(
        "NoMicroBatch",
        # The second half: when the process has ended, its series are missing and cannot stand still.
        f"increase({PREFIX}batches_total[15m]) == 0"
        f" or last_over_time({PREFIX}batches_total[6h]) unless {PREFIX}batches_total",
        5,
        "page",
        "no micro-batch has ended for 15 minutes",
        "The query has stopped, its process has ended (then the alert lasts 6 hours), or a micro-batch hangs: look "
        "at its log and drains. Other alerts do not fire meanwhile.",
        "the-query-stopped",
    ),
    Alert(
        "WatermarkStands",
        f"{PREFIX}watermark_lag_ms / 1000 > 3600",
        10,
        "page",
        "the watermark is {{ $value | humanizeDuration }} behind the clock",
        "The watermark is an hour behind the clock. Either a source is silent, or the query is too slow. Nothing "
        "expires meanwhile.",
        "nothing-expires",
    ),
    Alert(
        "OperationsExpire",
        f'sum by (query) (rate({PREFIX}outcomes_total{{status="expired"}}[30m]))'
        f' / sum by (query) (rate({PREFIX}outcomes_total{{status!="duplicate",status!="rejected"}}[30m])) > 0.2',
        15,
        "ticket",
        "{{ $value | humanizePercentage }} of the operations that end are EXPIRED",
        "A fifth of the operations that end are EXPIRED: the events that complete them are missing or late.",
        "everything-expires",
    ),
    Alert(
        "RowsComeLate",
        f"sum by (query) (rate({PREFIX}events_late_total[30m]) + rate({PREFIX}operations_late_total[30m]))"
        f" / sum by (query) (rate({PREFIX}events_received_total[30m])"
        f" + rate({PREFIX}operations_received_total[30m])) > 0.05",
        15,
        "ticket",
        "{{ $value | humanizePercentage }} of the rows arrive behind the watermark",
        "One row in twenty arrives behind the watermark, and may be decided wrongly: an operation is EXPIRED although "
        "its event exists. Give the late input a longer delay (watermark).",
        "everything-expires",
    ),
    Alert(
        "RowsOverdue",
        f"({PREFIX}staged_age_ms - {PREFIX}linger_ms) / 1000 > 900",
        0,
        "page",
        "rows wait {{ $value | humanizeDuration }} longer than linger for their file",
        "Rows wait 15 minutes longer than linger for their file. After delivery_timeout the query stops.",
        "the-table-is-empty",
    ),
    Alert(
        "DrainsFail",
        f"increase({PREFIX}drain_retries_total[10m]) > 5",
        0,
        "page",
        "{{ $value | humanize }} drains have failed in 10 minutes",
        "The table accepts no rows: more than 5 drains failed in 10 minutes. After delivery_timeout the query stops.",
        "the-query-stopped",
    ),
    Alert(
        "ShardTooLarge",
        f"{PREFIX}largest_shard_state_bytes > 1e8",
        30,
        "ticket",
        "the largest shard has {{ $value | humanize1024 }}B of state",
        "The state of one shard is larger than 100 MB. More shards help: move the checkpoint.",
        "micro-batches-get-slower",
    ),
    Alert(
        "ShardsUneven",
        f"{PREFIX}shard_skew > 4 and {PREFIX}pending > 10000",
        30,
        "ticket",
        "the fullest shard has {{ $value | humanize }} times the mean number of operations",
        "One shard has four times the mean, and more than 10,000 operations wait: look for a key that many rows share.",
        "micro-batches-get-slower",
    ),
)
"""Which ones to watch, and at what value; change the values to what is usual for you."""


def expression(name: str) -> tuple[str, str]:
    """(the query of a metric, the legend of its lines). Outcomes are added up by status, whose name is the legend."""
    metric = BY_NAME[name]
    series = f'{PREFIX}{name}{{query=~"$query"}}'
    if metric.kind == "counter":
        series = f"rate({series}[$__rate_interval])"
    if name == "outcomes_total":
        return f"sum by (status) ({series})", "{{status}}"
    words = re.sub(r"_(total|ms|bytes)$", "", name).replace("_", " ")
    return series, ", ".join([f"{{{{query}}}}: {words}", *(f"{{{{{label}}}}}" for label, _ in metric.labels)])


def dashboard() -> str:
    """The dashboard as JSON."""
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.builders import prometheus, stat, timeseries
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef

    source = DataSourceRef(type_val="prometheus", uid="${datasource}")
    built: Any = (
        board.Dashboard("spark_purgatory")
        .uid("spark-purgatory")
        .tags(["generated", "spark"])
        .refresh("30s")
        .time("now-6h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(board.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            board.QueryVariable("query")
            .datasource(source)
            .query(f"label_values({PREFIX}batches_total, query)")
            .multi(True)
            .include_all(True)
        )
    )
    for title, name, form, red in STATS:
        figure = stat.Panel().title(title).datasource(source).span(4).height(4)
        figure = figure.unit(UNITS.get(BY_NAME[name].unit, "short")).description(BY_NAME[name].text)
        figure = figure.thresholds(_thresholds(red))
        query = form.format(f'{PREFIX}{name}{{query=~"$query"}}')
        built = built.with_panel(figure.with_target(prometheus.Dataquery().ref_id("A").expr(query)))
    for row, panels in ROWS.items():
        built = built.with_row(board.Row(row))
        for title, names in panels:
            panel = timeseries.Panel().title(title).datasource(source).span(12).height(8)
            panel = panel.unit(UNITS.get(BY_NAME[names[0]].unit, "short")).description(
                " ".join(BY_NAME[name].text for name in names)
            )
            if "outcomes_total" in names:
                for status in dict(BY_NAME["outcomes_total"].labels)["status"]:
                    panel = panel.override_by_name(status, [_fixed(COLOURS[status.upper()])])
            for letter, name in zip(ascii_uppercase, names, strict=False):
                query, legend = expression(name)
                panel = panel.with_target(prometheus.Dataquery().ref_id(letter).expr(query).legend_format(legend))
            built = built.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _fixed(colour: str) -> Any:
    """One colour, whatever the value."""
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _thresholds(red: float | None) -> Any:
    """Green, and red from a value on."""
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsMode

    steps = [Threshold(None, "green"), *([] if red is None else [Threshold(red, "red")])]
    return board.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def alerts_table() -> str:
    """The table of alerts in docs/metrics.md."""
    lines = ["| Alert | Severity | Meaning, and what to do |", "| --- | --- | --- |"]
    lines += [f"| `{each.name}` | {each.severity} | {each.text} |" for each in ALERTS]
    return "\n".join(lines)


def alerts() -> str:
    """The alerts as rules of Prometheus, in YAML."""
    lines = [
        "# Made by `python -m tools.dashboard`.",
        "groups:",
        "  - name: spark_purgatory",
        "    rules:",
    ]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            "        expr: >-",
            f"          {alert.expression}",
            f"        for: {alert.minutes}m",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            "          summary: >-",
            f"            {{{{ $labels.query }}}}: {alert.says}",
            "          description: >-",
            f"            {alert.text}",
            f"          runbook_url: {RUNBOOK}#{alert.runbook}",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/monitoring")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("grafana.json", dashboard()), ("alerts.yml", alerts())):
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
