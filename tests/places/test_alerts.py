"""`promtool` on alerts and dashboard: each fires where it should and nowhere else, on what a real query reported.

`tests/support/recorded_metrics.py` recorded the samples: micro-batches of a query while all is well, while it is two
hours behind, while nobody pays, while rows come late, while the table refuses rows, and while 12,000 operations wait in
one shard. Each is let last for `MINUTES`, scraped every minute.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_purgatory.job.run_report import ExitCode, RunReport
from spark_purgatory.metrics.catalog import PREFIX
from tests.support.recorded_metrics import MINUTES
from tools.dashboard import ALERTS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"
OF_RUNS = RULES.with_name("hourly.yml")
PANELS = json.loads((ROOT / "docs" / "monitoring" / "grafana.json").read_text(encoding="utf-8"))["panels"]
RAISED = {
    "behind": {"WatermarkStands"},
    "well": set(),
    "unpaid": {"OperationsExpire"},
    "late": {"RowsComeLate"},
    "refused": set(),
    "crowd": {"ShardsUneven"},
}
"""What fires at the end of each phase. Two drains that failed in a row raise nothing."""
NAMES = sorted(alert.name for alert in ALERTS)
Series = dict[str, str]


@cache
def recorded() -> list[tuple[str, dict[str, float]]]:
    """(phase, its series) of each micro-batch."""
    text = gzip.decompress((ROOT / "tests" / "data" / "metrics_recorded.jsonl.gz").read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["phase"], line["samples"]) for line in lines]


def ends() -> dict[str, int]:
    """The last minute of each phase."""
    last, found = -1, {}
    for phase, lines in groupby(phase for phase, _ in recorded()):
        last += len(list(lines)) * MINUTES
        found[phase] = last
    return found


def as_series(lines: list[dict[str, float]], then: str = "") -> Series:
    """Series as `promtool` takes them; ``then`` is what follows the last sample."""
    names = {name for line in lines for name in line}
    lines = [line for line in lines for _ in range(MINUTES)]
    return {
        name: " ".join(["_" if name not in x else f"{x[name]:g}" for x in lines] + [then]).strip() for name in names
    }


def ran(folder: Path, series: Series, **tests: list[dict[str, Any]]) -> str:
    """ "" if the tests of alerts or of expressions pass on these series, else what `promtool` says."""
    tool = shutil.which("promtool")
    assert tool, "promtool is not on the PATH: apt-get install prometheus, brew install prometheus"
    given = [{"series": name, "values": values} for name, values in series.items()]
    world = {
        "rule_files": [str(RULES), str(OF_RUNS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, **tests}],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(world), encoding="utf-8")
    ended = subprocess.run([tool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def promtool(folder: Path, series: Series, asked: list[tuple[int, str, list[dict[str, Any]]]]) -> str:
    """ "" if each expression gives the samples at its minute, else what `promtool` says."""
    tests = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples} for minute, expr, samples in asked]
    return ran(folder, series, promql_expr_test=tests)


def firing(minute: int, raised: set[str]) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """What is asked of each alert at a minute."""
    question = 'count(ALERTS{{alertname="{}",alertstate="firing",query="orders"}})'
    yes = [{"labels": "{}", "value": 1}]
    return [(minute, question.format(name), yes if name in raised else []) for name in NAMES]


def test_promtool_reads_the_rules() -> None:
    ran = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and f"{len(ALERTS)} rules found" in ran.stdout, ran.stdout + ran.stderr


def test_each_alert_fires_in_its_phase_and_in_no_other(tmp_path: Path) -> None:
    raised = {name for names in RAISED.values() for name in names}
    assert raised | {"NoMicroBatch", "RowsOverdue", "DrainsFail", "ShardTooLarge"} == set(NAMES), (
        "these have tests of their own"
    )
    series = as_series([line for _, line in recorded()])
    asked = [each for phase, minute in ends().items() for each in firing(minute, RAISED[phase])]
    assert promtool(tmp_path, series, asked) == ""


@pytest.mark.parametrize("then", ["_x40", "stands"], ids=["the process has gone", "the query stands"])
def test_an_alert_fires_where_no_micro_batch_ends(then: str, tmp_path: Path) -> None:
    lines = [line for phase, line in recorded() if phase == "well"]
    series = as_series(lines, "_x40") if then == "_x40" else as_series([*lines, *[lines[-1]] * 5])
    minute = len(lines) * MINUTES - 1
    assert promtool(tmp_path, series, [*firing(minute, set()), *firing(minute + 35, {"NoMicroBatch"})]) == ""


@pytest.mark.parametrize(
    ("alert", "minute", "values", "fires"),
    [
        ("DrainsFail", 19, {"drain_retries_total": "0+1x20"}, True),
        ("DrainsFail", 19, {"drain_retries_total": "0+1x2 2x17"}, False),
        ("RowsOverdue", 5, {"staged_age_ms": f"{46 * 60_000}x5", "linger_ms": f"{30 * 60_000}x5"}, True),
        ("RowsOverdue", 5, {"staged_age_ms": f"{40 * 60_000}x5", "linger_ms": f"{30 * 60_000}x5"}, False),
        ("ShardTooLarge", 35, {"largest_shard_state_bytes": "101000000x40"}, True),
        ("ShardTooLarge", 35, {"largest_shard_state_bytes": "99000000x40"}, False),
    ],
)
def test_an_alert_fires_above_its_bound_alone(
    alert: str, minute: int, values: dict[str, str], fires: bool, tmp_path: Path
) -> None:
    series = {f'{PREFIX}{name}{{query="orders"}}': each for name, each in values.items()}
    asked = [each for each in firing(minute, {alert} if fires else set()) if f'"{alert}"' in each[1]]
    assert asked and promtool(tmp_path, series, asked) == ""


def test_an_alert_says_which_query_and_how_much(tmp_path: Path) -> None:
    rules = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]}
    for name in NAMES:
        assert rules[name]["labels"]["severity"] in ("page", "ticket"), name
        assert "$labels.query" in rules[name]["annotations"]["summary"], name
    said = {"summary": "orders: the watermark is 2h 0m 0s behind the clock"}
    expected = {
        "exp_labels": {"severity": "page", "query": "orders"},
        "exp_annotations": {**rules["WatermarkStands"]["annotations"], **said},
    }
    series = {f'{PREFIX}watermark_lag_ms{{query="orders"}}': "7200000x20"}
    asked = {"eval_time": "15m", "alertname": "WatermarkStands", "exp_alerts": [expected]}
    assert ran(tmp_path, series, alert_rule_test=[asked]) == ""


def test_every_query_of_the_dashboard_finds_samples(tmp_path: Path) -> None:
    lines = [line for _, line in recorded()]
    minute = ends()["crowd"]
    asked = []
    for panel in PANELS:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$query", "orders")
            # Kafka alone has this one.
            found = [] if "source_lag_records" in expr else [{"labels": "{}", "value": 1}]
            asked.append((minute, f"count({expr}) > bool 0", found))
    assert len(asked) > 25
    assert promtool(tmp_path, as_series(lines), asked) == ""


@pytest.mark.parametrize(
    ("minute", "code", "watermark_s", "late", "raised"),
    [
        (119, ExitCode.RIGHT, 0, 5, set()),
        (121, ExitCode.RIGHT, 0, 5, {"NoRun"}),
        (1, ExitCode.REFUSED, 0, 5, {"RunNotRight"}),
        (1, ExitCode.RIGHT, -10_800, 5, {"RunWatermarkStands"}),
        (1, ExitCode.RIGHT, 0, 6, {"RunRowsLate"}),
    ],
)
def test_an_alert_fires_after_a_run_that_was_not_right_or_did_not_happen(
    minute: int, code: ExitCode, watermark_s: int, late: int, raised: set[str], tmp_path: Path
) -> None:
    report = RunReport(job="orders", gauges={"watermark_ms": watermark_s * 1000 or 1})
    report.totals.add({"received": 40, "events_received": 60, "operations_late": late})
    report.write_textfile(tmp_path / "run.prom", code)
    lines = dict(line.rsplit(" ", 1) for line in (tmp_path / "run.prom").read_text().splitlines())
    series = {name: f"{0 if 'ended' in name else value}x{minute}" for name, value in lines.items()}
    names = ("NoRun", "RunNotRight", "RunWatermarkStands", "RunRowsLate")
    yes = [{"labels": "{}", "value": 1}]
    question = 'count(ALERTS{{alertname="{}",alertstate="firing",job_name="orders"}})'
    asked = [(minute, question.format(name), yes if name in raised else []) for name in names]
    assert promtool(tmp_path, series, asked) == ""
