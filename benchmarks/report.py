"""What a reader gets: the machine's facts, a table, a line a goal, JSON and a picture."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.table import Table

from benchmarks.harness import SETTINGS
from benchmarks.rates import OURS, Run, Standing, Verdict

TABLE_WIDTH = 110
"""Characters: what the table needs, whatever a pipe says of itself."""
PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas")


def machine_facts(spark: SparkSession) -> dict[str, Any]:
    """Where and with what it was measured."""
    java = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version') AS version").first()
    return {
        **machine(),
        "java": java["version"] if java else "",
        "spark_settings": {name: spark.conf.get(name) for name in ("spark.master", "spark.driver.memory", *SETTINGS)},
    }


def machine() -> dict[str, Any]:
    """The facts that are known without a session."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1m_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def machine_line(facts: dict[str, Any]) -> str:
    """Those in one line."""
    packages = ", ".join(f"{name} {facts[name]}" for name in ("python", *PACKAGES))
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_bytes'] / 2**30:.0f} GiB, "
        f"load {facts['load_1m_at_start']}; {packages}"
    )


def facts_line(facts: dict[str, Any]) -> str:
    """The facts in one line."""
    return f"{machine_line(facts)}; Java {facts['java']}; {facts['spark_settings']['spark.master']}"


def table_of(standings: Sequence[Standing]) -> Table:
    """Contenders with rates and ratios: "no tail" leaves out batches with events only, as does "ms/batch"."""
    table = Table(title="Workload W: rows a second, medians over the rounds", title_justify="left")
    table.add_column("contender", no_wrap=True)
    for column in ("operations", "rows/s", "spread", "no tail", "ms/batch", f"{OURS} / it", "lowest .. highest"):
        table.add_column(column, justify="right", no_wrap=True)
    for standing in standings:
        low_high = standing.ours_over_spread
        table.add_row(
            standing.contender,
            f"{standing.workload_operations:,}",
            f"{standing.rate:,.0f}",
            f"{standing.spread:.0%}",
            f"{standing.full_rate:,.0f}",
            f"{standing.median_batch_ms:,.0f}",
            "" if standing.ours_over is None else f"{standing.ours_over:.2f}",
            "" if low_high is None else f"{low_high[0]:.2f} .. {low_high[1]:.2f}",
        )
    return table


def write_json(
    path: Path,
    facts: dict[str, Any],
    runs: Sequence[Run],
    standings: Sequence[Standing],
    verdicts: Sequence[Verdict],
) -> None:
    """Everything that was measured, down to the micro-batch."""
    document = {
        "machine": facts,
        "standings": [asdict(standing) | {"spread": standing.spread} for standing in standings],
        "goals": [asdict(verdict) | {"reached": verdict.reached} for verdict in verdicts],
        "runs": [asdict(run) | {"rate": run.rate, "full_rate": run.full_rate} for run in runs],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def draw_picture(path: Path, standings: Sequence[Standing], facts: dict[str, Any]) -> None:
    """Bars: the median rate of each contender, its lowest and highest as a whisker."""
    from matplotlib.figure import Figure  # Only those who want a picture need it.

    from tools.pictures import save

    figure = Figure(figsize=(9, 1.6 + 0.6 * len(standings)), layout="constrained")
    axes = figure.subplots()
    rates = [standing.rate for standing in standings]
    below = [standing.rate - standing.lowest for standing in standings]
    above = [standing.highest - standing.rate for standing in standings]
    colours = ["#1f6f8b" if standing.contender == OURS else "#b8c4cc" for standing in standings]
    places = range(len(standings))
    axes.barh(places, rates, xerr=[below, above], color=colours, ecolor="#444444", capsize=4)
    axes.set_yticks(places, [f"{s.contender}\n{s.workload_operations:,} operations" for s in standings])
    axes.invert_yaxis()
    for place, standing in zip(places, standings, strict=True):
        ratio = standing.ours_over
        beside = "" if ratio is None or standing.contender == OURS else f"   {OURS} is {ratio:.2f}x"
        axes.text(standing.highest + max(rates) * 0.015, place, f"{standing.rate:,.0f}{beside}", va="center")
    axes.set_xlim(0, max(standing.highest for standing in standings) * 1.35)
    axes.set_xlabel("rows a second, steady; whisker: lowest and highest round")
    axes.set_title(f"Workload W, {facts['spark_settings']['spark.master']}, pyspark {facts['pyspark']}")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
