"""A real Prometheus scrapes a real query: each panel of the dashboard shows it, and each alert is evaluated on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.cluster import HOST, free_port
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.recorded_metrics import Shop
from tools.dashboard import ALERTS

pytestmark = pytest.mark.long

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
PANELS = json.loads((MONITORING / "grafana.json").read_text(encoding="utf-8"))["panels"]
WAIT_S = 60
GRAFANAS = {"$__rate_interval": "1m", "$query": "orders"}
"""What Grafana puts in place of its variables."""


def until(wanted: Any, seen: Callable[[], Any]) -> None:
    """Wait for the next scrapes."""
    deadline_s = time.monotonic() + WAIT_S
    while (now := seen()) != wanted:
        assert time.monotonic() < deadline_s, f"after {WAIT_S} s {now}, not {wanted}"
        time.sleep(0.5)


def silent_panels(server: Prometheus) -> list[str]:
    """Titles of the panels that have a query without a series; only a source of Kafka has a lag."""
    silent = []
    for panel in PANELS:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in GRAFANAS.items():
                expression = expression.replace(name, value)
            if not server.query(expression) and "source_lag_records" not in expression:
                silent.append(panel["title"])
    return silent


def states(server: Prometheus) -> dict[str, str]:
    """What each alert is: inactive, pending or firing; one that cannot be evaluated is its error."""
    groups = server.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["name"]: rule["state"] if rule["health"] == "ok" else rule.get("lastError", "") for rule in rules}


def test_the_dashboard_and_the_alerts_see_a_query_that_prometheus_scrapes(spark: SparkSession, tmp_path: Path) -> None:
    port = free_port()
    shop = Shop(spark, tmp_path / "shop", port)
    quiet = dict.fromkeys((alert.name for alert in ALERTS), "inactive")
    try:
        with prometheus(tmp_path, f"{HOST}:{port}", MONITORING / "alerts.yml") as server:
            for step in range(2):
                shop.paid("behind", step, ago=timedelta(hours=2))
            until({**quiet, "WatermarkStands": "pending"}, lambda: states(server))
            for step in range(2):
                shop.paid("well", step)
            until(quiet, lambda: states(server))
            soon = datetime.now(UTC) + timedelta(minutes=30)
            shop.step("waits", [("waits", "nobody", soon)], [("somebody", datetime.now(UTC))])
            until([], lambda: silent_panels(server))
            [received] = server.query("spark_purgatory_operations_received_total")
            assert (received["metric"]["query"], received["value"][1]) == ("orders", "41")
    finally:
        shop.query.stop()
