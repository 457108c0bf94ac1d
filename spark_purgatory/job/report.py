"""``spark-purgatory report``: one self-contained page on a query: outcomes, what waits, files, state."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.job.summary import (
    Summary,
    file_sizes,
    readable_bytes,
    readable_ms,
    summarise,
    verdict,
)
from spark_purgatory.job.tally import JobTally, state_tally
from spark_purgatory.spark.checkpoint.gauges import Gauges, gauges
from spark_purgatory.spark.checkpoint.pending import pending
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.storage.commits import committed_batches
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS
from spark_purgatory.version import __version__

TRIES = 3
BOUNDS_MS = tuple(
    1000 * seconds
    for seconds in (1, 10, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400)
)
"""Between the bars of pictures of ages and waits."""
BOUNDS = ("1 s", "10 s", "1 min", "5 min", "15 min", "30 min", "1 h", "3 h", "6 h", "12 h", "1 d", "3 d", "7 d")
BIN_NAMES = (*(f"< {bound}" for bound in BOUNDS), f">= {BOUNDS[-1]}")
HOURS_SHOWN = 72
"""Bars of the picture of outcomes over time, at most."""
MS = 1000.0
COLOURS = {
    "COMPLETED": "#2e7d32",
    "EXPIRED": "#ef6c00",
    "FAILED": "#c62828",
    "CANCELLED": "#6a1b9a",
    "DUPLICATE": "#546e7a",
    "REJECTED": "#212121",
    "ORPHAN": "#9e9d24",
}
Bars = list[tuple[str, int]]


@dataclass(frozen=True)
class Report:
    """What the page shows, in numbers."""

    table: str
    checkpoint: str
    made_ms: int
    summary: Summary
    """The summary of the table and of what is staged for it."""
    in_table: int
    """Rows of the table."""
    gauges: Gauges
    by_hour: dict[str, dict[int, int]] = field(default_factory=dict)
    """Outcomes by status and by hour of ``resolved_at``, in hours since 1970."""
    waits: dict[str, dict[int, int]] = field(default_factory=dict)
    """Outcomes by status and by bin of ``wait_ms`` (`BOUNDS_MS`)."""
    ages: dict[int, int] = field(default_factory=dict)
    """Pending operations by bin of ``age_ms``."""
    remaining: dict[int, int] = field(default_factory=dict)
    """Pending operations by bin of ``remaining_ms``."""
    criteria: dict[str, int] = field(default_factory=dict)
    """Pending operations by criterion."""
    moved_on: bool = False
    """The query committed a micro-batch while the numbers were read: they may differ by its rows."""


def read_report(spark: SparkSession, checkpoint: str, sink: RecordAccumulator, prefix: str = "") -> Report:
    """Read everything that the page shows; again if the query has gone on meanwhile, up to `TRIES` times."""
    for left in range(TRIES - 1, -1, -1):
        try:
            report = _read(spark, checkpoint, sink, prefix)
        except SPARK_FAULTS as error:
            # A drain that ended meanwhile has removed staged files.
            if "FILE_NOT_EXIST" not in str(error) or not left:
                raise
            continue
        if not report.moved_on or not left:
            break
    return report


def _read(spark: SparkSession, checkpoint: str, sink: RecordAccumulator, prefix: str) -> Report:
    table = sink.read(spark, staged=True, checkpoint=checkpoint)
    tally = state_tally(spark, checkpoint)
    found = gauges(spark, checkpoint)
    ages, remaining, criteria = _of_pending(spark, checkpoint, found["batch_id"])
    by_hour: dict[str, dict[int, int]] = {}
    waits: dict[str, dict[int, int]] = {}
    hour = F.floor(F.unix_millis(f"{prefix}resolved_at") / 3_600_000)
    for column, into in (
        (hour, by_hour),
        (F.when(F.col(f"{prefix}wait_ms").isNotNull(), _bin(F.col(f"{prefix}wait_ms"))), waits),
    ):
        counted = table.groupBy(F.col(f"{prefix}status").alias("status"), column.alias("at")).count()
        for row in counted.where("at IS NOT NULL").collect():
            into.setdefault(row["status"], {})[int(row["at"])] = row["count"]
    in_table, file_bytes = 0, list[int]()
    if sink.exists(spark):
        written = sink.read(spark)
        in_table = written.count()
        file_bytes = file_sizes(written)
    last = committed_batches(spark, checkpoint)
    return Report(
        table=str(sink),
        checkpoint=checkpoint,
        made_ms=int(datetime.now(UTC).timestamp() * MS),
        summary=summarise(table, tally or JobTally(), file_bytes, prefix),
        in_table=in_table,
        gauges=found,
        by_hour=by_hour,
        waits=waits,
        ages=ages,
        remaining=remaining,
        criteria=criteria,
        moved_on=found["batch_id"] != (last[-1] if last else None),
    )


def _of_pending(
    spark: SparkSession, checkpoint: str, batch_id: int | None
) -> tuple[dict[int, int], dict[int, int], dict[str, int]]:
    asked = ["report_age_ms", "report_remaining_ms", "report_criterion"]
    waits = pending(spark, checkpoint, batch_id=batch_id, columns=asked, prefix="report_")
    bins = [F.when(F.col(name).isNotNull(), _bin(F.col(name))).alias(name) for name in asked[:2]]
    rows = waits.groupBy(*bins, asked[2]).count().collect()
    ages: dict[int, int] = {}
    remaining: dict[int, int] = {}
    criteria: dict[str, int] = {}
    for age, left, criterion, count in rows:
        criteria[criterion] = criteria.get(criterion, 0) + count
        for at, into in ((age, ages), (left, remaining)):
            if at is not None:
                into[at] = into.get(at, 0) + count
    return ages, remaining, criteria


def _bin(ms: Column) -> Column:
    """How many of `BOUNDS_MS` are at or below."""
    return sum(((ms >= bound).cast("int") for bound in BOUNDS_MS), F.lit(0))


# --- the page -----------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The report as HTML, which needs no other file."""
    found, summary = report.gauges, report.summary
    tally = summary.tally
    facts = [
        ("Table", report.table),
        ("Checkpoint", report.checkpoint),
        ("Made at", _instant(report.made_ms)),
        ("Micro-batch", "none yet" if found["batch_id"] is None else f"{found['batch_id']:,}"),
        ("Watermark", _instant(found["watermark_ms"]) if found["watermark_ms"] else "none yet"),
        ("Oldest waiting since", _instant(found["oldest_created_ms"])),
        ("Next outcome due at", _instant(found["next_due_ms"])),
        ("State", f"{readable_bytes(found['state_bytes'])} in {found['shards']:,} shards"),
        ("Largest shard", f"{readable_bytes(found['largest_shard_state_bytes'])}, "
                          f"{found['largest_shard_pending']:,} pending"),
    ]  # fmt: skip
    conservation = (
        f"{tally.received:,} received = {tally.decided:,} decided + {tally.pending:,} pending; "
        f"{report.in_table:,} in the table and {sum(summary.by_status.values()) - report.in_table:,} staged for it: "
        + ("read while the query went on, so that these may differ" if report.moved_on else verdict(summary))
    )
    waits = {status: [readable_ms(wait) for wait in waits] for status, waits in summary.waits_ms.items()}
    outcomes = [(status, f"{count:,}", *waits.get(status, ["", "", ""])) for status, count in summary.by_status.items()]
    parts = [
        f"<h1>spark_purgatory</h1><p class='sub'>{html.escape(report.table)}</p>",
        _tiles(report),
        f"<p><b>Conservation.</b> {html.escape(conservation)}</p>",
        "<h2>Outcomes</h2>",
        _table(("status", "operations", "wait p50", "p95", "p99"), outcomes),
        _svg(_stacked, report.by_hour, "Outcomes by hour of resolved_at (UTC)"),
        _svg(_waits, report.waits, "How long operations waited"),
        "<h2>What waits</h2>",
        _table(("criterion", "pending"), [(name, f"{n:,}") for name, n in sorted(report.criteria.items())]),
        _svg(_bins, report.ages, "Pending by age"),
        _svg(_bins, report.remaining, "Pending by time until the deadline"),
        "<h2>Files of the table</h2>",
        _svg(_files, summary.file_bytes, "Sizes of files"),
        "<h2>State</h2>",
        _table(("", ""), facts),
        f"<p class='sub'>Ages and remaining times are seen from the watermark. spark_purgatory {__version__}.</p>",
    ]
    return HEAD + "\n".join(parts) + "</main></body></html>\n"


HEAD = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>spark_purgatory report</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{font:15px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fafafa;margin:0}
main{max-width:960px;margin:0 auto;padding:24px}h1{margin:0;font-size:26px}h2{margin:32px 0 8px;font-size:19px}
.sub{color:#5f6368;margin:4px 0 16px}.tiles{display:flex;flex-wrap:wrap;gap:12px}
.tile{background:#fff;border:1px solid #e0e0e0;border-radius:8px;padding:12px 16px;min-width:120px}
.tile b{display:block;font-size:22px}table{border-collapse:collapse;background:#fff;margin:8px 0}
td,th{border:1px solid #e0e0e0;padding:4px 12px;text-align:right}td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto;background:#fff;border:1px solid #e0e0e0;border-radius:8px;margin:8px 0}
</style></head><body><main>
"""


def _tiles(report: Report) -> str:
    found, by_status = report.gauges, report.summary.by_status
    shown = [(status.lower(), f"{count:,}") for status, count in by_status.items()]
    tiles = [("pending", f"{found['pending']:,}"), *shown, ("files", f"{len(report.summary.file_bytes):,}")]
    cells = "".join(f"<div class='tile'><b>{value}</b>{html.escape(name)}</div>" for name, value in tiles)
    return f"<div class='tiles'>{cells}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    top = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>" if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _instant(ms: int | None) -> str:
    return "-" if ms is None else f"{datetime.fromtimestamp(ms / MS, UTC):%Y-%m-%d %H:%M:%S} UTC"


# --- pictures -----------------------------------------------------------------------------------------


def _svg(draw: object, data: object, title: str) -> str:
    if not data:
        return f"<p>{html.escape(title)}: none.</p>"
    assert callable(draw)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "spark_purgatory", "font.size": 9}):
        figure = Figure(figsize=(9.2, 2.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes, data)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _stacked(axes: Axes, data: dict[str, dict[int, int]]) -> None:
    hours = sorted({at for counts in data.values() for at in counts})
    step = max(1, -(-(hours[-1] - hours[0] + 1) // HOURS_SHOWN))
    groups = list(range(hours[0] // step, hours[-1] // step + 1))
    below = [0] * len(groups)
    for status, counts in data.items():
        heights = [0] * len(groups)
        for at, count in counts.items():
            heights[at // step - groups[0]] += count
        axes.bar(range(len(groups)), heights, bottom=below, label=status, color=COLOURS.get(status))
        below = [low + high for low, high in zip(below, heights, strict=True)]
    marks = list(range(0, len(groups), -(-len(groups) // 7)))
    names = [f"{datetime.fromtimestamp(groups[i] * step * 3600, UTC):%d %b %H:%M}" for i in marks]
    _finish(axes, "outcomes", marks, names)
    axes.legend(frameon=False, ncols=7, loc="lower right", bbox_to_anchor=(1, 1))


def _waits(axes: Axes, data: dict[str, dict[int, int]]) -> None:
    bins = range(min(min(counts) for counts in data.values()), max(max(counts) for counts in data.values()) + 1)
    below = [0] * len(bins)
    for status, counts in data.items():
        heights = [counts.get(at, 0) for at in bins]
        axes.bar(range(len(bins)), heights, bottom=below, label=status, color=COLOURS.get(status))
        below = [low + high for low, high in zip(below, heights, strict=True)]
    _finish(axes, "outcomes", list(range(len(bins))), [BIN_NAMES[at] for at in bins])
    axes.legend(frameon=False, ncols=7, loc="lower right", bbox_to_anchor=(1, 1))


def _bins(axes: Axes, data: dict[int, int]) -> None:
    bins = range(min(data), max(data) + 1)
    axes.bar(range(len(bins)), [data.get(at, 0) for at in bins], color="#1565c0")
    _finish(axes, "operations", list(range(len(bins))), [BIN_NAMES[at] for at in bins])


def _finish(axes: Axes, what: str, marks: list[int], names: list[str]) -> None:
    axes.set_xticks(marks, names)
    axes.set_ylabel(what)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _files(axes: Axes, file_bytes: list[int]) -> None:
    powers = [max(0, (size - 1).bit_length()) for size in file_bytes]
    shown = range(min(powers), max(powers) + 1)
    axes.bar(range(len(shown)), [powers.count(power) for power in shown], color="#00838f")
    _finish(axes, "files", list(range(len(shown))), [f"<= {readable_bytes(2.0**power)}" for power in shown])
