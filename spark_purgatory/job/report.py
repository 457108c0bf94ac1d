"""``spark-purgatory report``: the numbers of a checkpoint and its table, and the page that shows them."""

from __future__ import annotations

import html
import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.job.status import MicroBatch, instant, last_batch, written
from spark_purgatory.job.summary import NOTHING_LOST, JobTally, Summary, files_line, summarise, sums_of, verdict
from spark_purgatory.readable import readable_bytes, readable_ms
from spark_purgatory.spark.checkpoint.pending import Gauges, counted, pending_in
from spark_purgatory.spark.checkpoint.shard_states import shard_states
from spark_purgatory.spark.sink.record_accumulator import RecordAccumulator
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.storage.checkpoint_files import committed_batches
from spark_purgatory.spark.storage.storage_access import in_checkpoint, literal
from spark_purgatory.version import LOOKS_WRONG, __version__

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
BOUNDS_MS = (  # Between the bars of the picture of what waits
    *(SECOND, 10 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 3 * DAY, 7 * DAY, 30 * DAY, 365 * DAY),
)
DUE = -1  # The bin of negative values
REASONS_SHOWN = 10
OF_WAITING = ["report_remaining_ms", "report_criterion"]


@dataclass(frozen=True)
class Report:
    name: str
    table: str
    checkpoint: str
    made_ms: int
    summary: Summary  # The summary of the table and of what is staged for it
    in_table: int
    gauges: Gauges
    by_hour: dict[str, dict[int, int]] = field(default_factory=dict)  # By status, then by hour since 1970
    # Pending operations by bin: the number of `BOUNDS_MS` at or below the time until their deadline, or `DUE`
    remaining: dict[int, int] = field(default_factory=dict)
    criteria: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)  # REJECTED operations by reason, the most frequent first
    history: tuple[MicroBatch, ...] = ()
    moved_on: bool = False  # The query committed a micro-batch while the numbers were read: they may differ by its rows


def read_report(
    spark: SparkSession,
    checkpoint: str,
    sink: RecordAccumulator,
    prefix: str = "",
    name: str | None = None,
) -> Report:
    table = sink.read(spark, staged=True, checkpoint=checkpoint)
    states = shard_states(spark, checkpoint)
    found, received, decided = counted(states)
    remaining, criteria = _of_pending(pending_in(spark, states, OF_WAITING, "report_"))
    written = sink.read(spark) if sink.table_exists(spark) else None
    file_bytes = [] if written is None else opened(with_format(spark, sink.options)).file_sizes(spark)
    tally = JobTally(received, decided, criteria.total())
    summary = summarise(table, tally, file_bytes, prefix)
    by_hour, reasons = _of_table(table, prefix)
    last = committed_batches(spark, checkpoint)
    return Report(
        name=name or str(sink).rstrip("/").rpartition("/")[2],
        table=str(sink),
        checkpoint=checkpoint,
        made_ms=time.time_ns() // 1_000_000,
        summary=summary,
        in_table=0 if written is None else written.count(),
        gauges=found,
        by_hour=by_hour,
        remaining=remaining,
        criteria=criteria,
        reasons=dict(reasons.most_common(REASONS_SHOWN)),
        history=_history(spark, checkpoint),
        moved_on=found["batch_id"] != (last[-1] if last else None),
    )


def _of_pending(waits: DataFrame) -> tuple[Counter[int], Counter[str]]:
    remaining, criteria = Counter[int](), Counter[str]()
    for at, criterion, count in waits.groupBy(_bin(F.col(OF_WAITING[0])), OF_WAITING[1]).count().collect():
        remaining.update({} if at is None else {at: count})
        criteria.update({criterion: count})
    return remaining, criteria


def _of_table(table: DataFrame, prefix: str) -> tuple[dict[str, dict[int, int]], Counter[str]]:
    """Return the outcomes by status and hour, and the REJECTED ones by reason."""
    status, resolved, reason = (F.col(prefix + name) for name in ("status", "resolved_at", "reason"))
    by = (status, F.floor(F.unix_millis(resolved) / HOUR), F.when(status == "REJECTED", reason))
    by_hour, reasons = dict[str, dict[int, int]](), Counter[str]()
    for name, hour, why, count in table.groupBy(*by).count().collect():
        if hour is not None:
            of_status = by_hour.setdefault(name, Counter())
            of_status[hour] += count
        if why is not None:
            reasons[why] += count
    return by_hour, reasons


def _bin(column: Column) -> Column:
    """Return the number of `BOUNDS_MS` at or below a value, `DUE` below 0."""
    count = sum(((column >= bound).cast("int") for bound in BOUNDS_MS), F.lit(0))
    return F.when(column < 0, DUE).when(column.isNotNull(), count)


def _history(spark: SparkSession, checkpoint: str) -> tuple[MicroBatch, ...]:
    reader = spark.read.text(in_checkpoint(literal(checkpoint.rstrip("/")), "offsets"), wholetext=True)
    rows = reader.select("value", "_metadata.file_name").collect()
    found = (MicroBatch.read(int(name), text) for text, name in rows if name.isdigit())
    return tuple(sorted(found, key=lambda batch: batch.batch_id))


HOURS_SHOWN = 72  # Most bars of the picture of outcomes over time
FEW_BARS = 24  # Most bars that have room for a number on each
STILL = 3  # Micro-batches with one watermark, after which it is said to stand
COLOURS = {  # In the order in which statuses are stacked and listed; the dashboard has the same
    "COMPLETED": "#2e7d32",
    "EXPIRED": "#ef6c00",
    "FAILED": "#c62828",
    "CANCELLED": "#6a1b9a",
    "DUPLICATE": "#546e7a",
    "REJECTED": "#8d6e63",
    "ORPHAN": "#9e9d24",
}
WAITING = "#1565c0"
HEAD = Template(Path(__file__).with_name("report_head.html").read_text(encoding="utf-8"))


def page(report: Report) -> str:
    found = report.gauges
    batch = "before the first micro-batch" if found["batch_id"] is None else f"after micro-batch {found['batch_id']:,}"
    where = f"table {report.table}, checkpoint {report.checkpoint}; made at {instant(report.made_ms)}, {batch}"
    waits, last = _in_order(report.summary.waits_ms), report.history[-1] if report.history else None
    parts = [
        HEAD.substitute(title=html.escape(report.name)),
        f"<h1>{html.escape(report.name)}</h1><p class='sub'>{html.escape(where)}</p>",
        _card(last is not None, *last_batch(last, found["batch_id"], report.made_ms)),
        *(_card(*each(report)) for each in (_nothing_lost, _watermark, _waiting)),
        "<h2>Outcomes</h2>",
        _tiles(report),
        _table(("wait", "p50", "p95", "p99"), [(status, *map(readable_ms, times)) for status, times in waits.items()]),
        _table(("why operations were REJECTED", "operations"), _counts(report.reasons)),
        "<h2>What waits, and what happens next</h2>",
        _picture(_remaining, report.remaining, "Waiting by time until the deadline, from the watermark"),
        _table(("criterion", "waiting"), sorted(_counts(report.criteria))),
        "<h2>Over time</h2>",
        _picture(_by_hour, _in_order(report.by_hour), "Outcomes by hour of resolved_at (UTC)"),
        "<h2>Table and state</h2>",
        f"<p>{files_line(report.summary.file_bytes)}. State: {readable_bytes(found['state_bytes'])} in "
        f"{found['shards']:,} shards, the largest {readable_bytes(found['largest_shard_state_bytes'])} with "
        f"{found['largest_shard_pending']:,} waiting.</p>",
        f"<p class='sub'>If something looks wrong: <a href='{LOOKS_WRONG}'>what to look at</a>. "
        f"Written by spark_purgatory {__version__}.</p></main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _nothing_lost(report: Report) -> tuple[bool, str, str]:
    tally, summary = report.summary.tally, report.summary
    staged = sum(summary.by_status.values()) - report.in_table
    text = f"{sums_of(tally)}. {report.in_table:,} rows are in the table, {staged:,} are staged for it."
    if report.moved_on:
        return True, "Read while the query went on", f"{text} These numbers may differ by a micro-batch."
    line = verdict(summary)
    return line == NOTHING_LOST, line, text


def _watermark(report: Report) -> tuple[bool, str, str]:
    at = report.gauges["watermark_ms"]
    if not at:
        return False, "There is no watermark yet", "It begins when both inputs have had rows. Nothing expires before."
    last = report.history[-1] if report.history else None
    same = [batch for batch in report.history if last and batch.watermark_ms == last.watermark_ms]
    rule = "An operation expires when the watermark reaches its deadline. It moves with newer rows of both inputs"
    if last is None or len(same) < STILL:
        return True, f"The watermark is at {instant(at)}", f"{rule}."
    text = f"{rule}: since micro-batch {same[0].batch_id:,} none did. If an input may be silent, give it idle_after."
    return False, f"The watermark stands at {instant(at)}", text


def _waiting(report: Report) -> tuple[bool, str, str]:
    found = report.gauges
    if not found["pending"]:
        return True, "Nothing waits", "Every operation that was received has its outcome."
    at, now = found["next_due_ms"], found["watermark_ms"]
    due = f"when the watermark is at {instant(at)}"
    if at and now:
        due = "now" if at <= now else f"when the watermark has moved by {readable_ms(at - now)}, to {instant(at)}"
    text = f"The oldest was created at {instant(found['oldest_created_ms'])}."
    return True, f"{found['pending']:,} wait", f"{text} The next outcome is due {due}."


def _card(is_good: bool, title: str, text: str) -> str:
    kind = "verdict" if is_good else "verdict warn"
    return f"<div class='{kind}'><b>{html.escape(title)}</b>{html.escape(text)}</div>"


def _tiles(report: Report) -> str:
    summary = report.summary
    tiles = []
    for status, count in _in_order(summary.by_status).items():
        share = "" if status == "ORPHAN" else f"{count / max(summary.outcomes, 1):.1%}"
        tiles.append(f"<div class='tile'><b>{count:,}</b>{status} <span>{share}</span></div>")
    return f"<div class='tiles'>{''.join(tiles)}</div>" if tiles else "<p>None yet.</p>"


def _bound(at: int) -> str:
    if at == len(BOUNDS_MS):
        return "more"
    units = (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND))
    return next(f"{BOUNDS_MS[at] // size:,} {unit}" for unit, size in units if not BOUNDS_MS[at] % size)


def _bin_name(at: int) -> str:
    if at == DUE:
        return "due"
    return f"< {_bound(at)}" if at < len(BOUNDS_MS) else f">= {_bound(at - 1)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    top = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in head) + "</tr>"
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table>{top}{body}</table></div>"


def _counts(by_name: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{count:,}") for name, count in by_name.items()]


def _in_order(by_status: dict[str, Any]) -> dict[str, Any]:
    return {status: by_status[status] for status in COLOURS if status in by_status}


def _picture(draw: Callable[[Axes, Any], None], data: Any, title: str) -> str:
    if not data:
        return ""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "spark_purgatory", "font.size": 9}):
        figure = Figure(figsize=(9.2, 2.8), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", pad=16)  # Above the label of a bar as high as the picture.
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes, data)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return f"<div class='wide'>{text.getvalue()[text.getvalue().index('<svg') :]}</div>"


def _by_hour(axes: Axes, data: dict[str, dict[int, int]]) -> None:
    hours = sorted({at for counts in data.values() for at in counts})
    step = max(1, -(-(hours[-1] - hours[0] + 1) // HOURS_SHOWN))
    groups = range(hours[0] // step, hours[-1] // step + 1)
    grouped = {status: dict.fromkeys(groups, 0) for status in data}
    for status, counts in data.items():
        for at, count in counts.items():
            grouped[status][at // step] += count
    names = [written(at * step * 3600, "%d %b %H:%M") for at in groups]
    _stacked(axes, grouped, groups, names, what="outcomes", every=-(-len(groups) // 7))


def _remaining(axes: Axes, data: dict[int, int]) -> None:
    bins = range(min(data), max(data) + 1)
    _stacked(axes, {"": data}, bins, [_bin_name(at) for at in bins], what="operations")


def _stacked(
    axes: Axes, data: dict[str, dict[int, int]], bins: range, names: Sequence[str], what: str, every: int = 1
) -> None:
    """Draw a bar for each bin, with the statuses from below in the order of ``data``, which is the legend's too."""
    below = [0] * len(bins)
    for status, counts in data.items():
        heights = [counts.get(at, 0) for at in bins]
        bars = axes.bar(range(len(bins)), heights, bottom=below, label=status, color=COLOURS.get(status, WAITING))
        below = [low + high for low, high in zip(below, heights, strict=True)]
    if len(bins) <= FEW_BARS:
        axes.bar_label(bars, [f"{count:,}" if count else "" for count in below], padding=2)
    axes.set_xticks(range(0, len(bins), every), names[::every])
    axes.set_ylabel(what)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if "" not in data:
        axes.legend(frameon=False, ncols=len(data), loc="upper left", bbox_to_anchor=(0, -0.15))
