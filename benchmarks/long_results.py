"""From runs of workload L to numbers: medians, ratios, table, picture. No Spark in here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

COLOURS = {"blob": "#546e7a", "log": "#1f6f8b", "join": "#b03a2e", "flink_rocksdb": "#8a5a00", "flink_heap": "#6a4c93"}
"""Text in them can be read on white; `tools/pictures.py` has those for dark ground."""


@dataclass(frozen=True)
class LongRun:
    """One contender's run, its outcomes found right."""

    contender: str
    series: str
    waiting: int
    round: int
    ms: tuple[int, ...]
    """Of each steady micro-batch with rows; Flink's with the checkpoint after it."""
    first_ms: int
    """The micro-batch that brings what waits."""
    cpu_s: float
    """A micro-batch, mean: of all processes."""
    checkpoint_bytes: int
    """By how much the checkpoint grew in a micro-batch, mean."""
    worker_bytes: int | None = None
    """The most memory of Python workers."""
    steady_worker_bytes: int | None = None
    """Their memory as the last steady micro-batch begins."""
    restart_ms: int | None = None
    """The first micro-batch in another process."""
    cold_ms: int | None = None
    """A micro-batch of a few rows as the first one of a process."""
    checkpoint_ms: tuple[int, ...] = ()
    """Of ``ms``, what the checkpoint took, where it is told apart."""
    checkpoint_cpu_s: float | None = None
    """The same of ``cpu_s``."""

    @property
    def median_ms(self) -> float:
        """Of a micro-batch."""
        return median(self.ms)


@dataclass(frozen=True)
class Death:
    """A run that gave no number, because its process ended."""

    contender: str
    series: str
    waiting: int
    round: int
    memory: str
    """Heap of its JVM."""
    why: str


@dataclass(frozen=True)
class Standing:
    """A contender at one size, over all rounds: medians."""

    contender: str
    series: str
    waiting: int
    ms: float
    worst_ms: float
    mean_ms: float
    checkpoint_bytes: float
    cpu_s: float
    worker_bytes: float | None
    restart_ms: float | None
    cold_ms: float | None
    it_over_base: float | None
    """Median over the rounds of its median milliseconds over the base's in the same round; None without a base."""
    it_over_base_spread: tuple[float, float] | None
    checkpoint_ms: float | None = None
    checkpoint_cpu_s: float | None = None
    steady_worker_bytes: float | None = None


def standings(runs: Sequence[LongRun], base: str) -> list[Standing]:
    """One a contender and size, in the order in which they first ran."""
    places = dict.fromkeys((run.series, run.waiting, run.contender) for run in runs)
    return [
        _standing([run for run in runs if (run.series, run.waiting, run.contender) == at], runs, base) for at in places
    ]


def _standing(mine: list[LongRun], runs: Sequence[LongRun], base: str) -> Standing:
    one = mine[0]
    bases = {
        run.round: run.median_ms
        for run in runs
        if (run.series, run.waiting, run.contender) == (one.series, one.waiting, base)
    }
    ratios = [run.median_ms / bases[run.round] for run in mine if run.round in bases]
    checkpoints = [ms for run in mine for ms in run.checkpoint_ms]
    return Standing(
        contender=one.contender,
        series=one.series,
        waiting=one.waiting,
        ms=median(run.median_ms for run in mine),
        worst_ms=median(max(run.ms) for run in mine),
        mean_ms=median(sum(run.ms) / len(run.ms) for run in mine),
        checkpoint_bytes=median(run.checkpoint_bytes for run in mine),
        cpu_s=median(run.cpu_s for run in mine),
        worker_bytes=_median(mine, lambda run: run.worker_bytes),
        restart_ms=_median(mine, lambda run: run.restart_ms),
        cold_ms=_median(mine, lambda run: run.cold_ms),
        it_over_base=median(ratios) if ratios else None,
        it_over_base_spread=(min(ratios), max(ratios)) if ratios else None,
        checkpoint_ms=median(checkpoints) if checkpoints else None,
        checkpoint_cpu_s=_median(mine, lambda run: run.checkpoint_cpu_s),
        steady_worker_bytes=_median(mine, lambda run: run.steady_worker_bytes),
    )


def _median(runs: Sequence[LongRun], value: Callable[[LongRun], float | None]) -> float | None:
    values = [found for found in map(value, runs) if found is not None]
    return median(values) if values else None


def table_of(table: Sequence[Standing], base: str) -> Table:
    """A row a contender and size."""
    shown = Table(title="Workload L: a micro-batch, medians over the rounds", title_justify="left")
    names = ("series", "waiting", "contender", "ms", "mean", "worst", "CPU s", "checkpoint MB", "restart s", "cold s")
    for name in (*names, "workers MB", "steady", f"ms / {base}", "lowest .. highest"):
        shown.add_column(name, justify="left" if name in ("series", "contender") else "right", no_wrap=True)
    for at in table:
        spread = at.it_over_base_spread
        shown.add_row(
            at.series,
            f"{at.waiting:,}",
            at.contender,
            *(f"{ms:,.0f}" for ms in (at.ms, at.mean_ms, at.worst_ms)),
            f"{at.cpu_s:.2f}",
            f"{at.checkpoint_bytes / 1e6:,.2f}",
            _cell(at.restart_ms, 1000, 1),
            _cell(at.cold_ms, 1000, 1),
            _cell(at.worker_bytes, 1e6, 0),
            _cell(at.steady_worker_bytes, 1e6, 0),
            _cell(at.it_over_base, 1, 2),
            "" if spread is None else f"{spread[0]:.2f} .. {spread[1]:.2f}",
        )
    return shown


def checkpoint_lines(table: Sequence[Standing]) -> list[str]:
    """Of contenders that tell the checkpoint apart: what it took."""
    return [
        f"{at.contender}, {at.series}, {at.waiting:,} waiting: of these the checkpoint {at.checkpoint_ms:,.0f} ms, "
        f"{at.checkpoint_cpu_s:.2f} CPU s; the rows {at.ms - at.checkpoint_ms:,.0f} ms, "
        f"{at.cpu_s - at.checkpoint_cpu_s:.2f} CPU s"
        for at in table
        if at.checkpoint_ms is not None and at.checkpoint_cpu_s is not None
    ]


def _cell(value: float | None, unit: float, digits: int) -> str:
    return "" if value is None else f"{value / unit:,.{digits}f}"


def death_lines(deaths: Sequence[Death]) -> list[str]:
    """A line for each contender and size that died."""
    return [
        f"{death.contender}, {death.series}, {death.waiting:,} waiting, round {death.round}: died with a heap of "
        f"{death.memory}. {death.why}"
        for death in deaths
    ]


def write_json(
    path: Path, facts: dict[str, Any], runs: Sequence[LongRun], table: Sequence[Standing], deaths: Sequence[Death]
) -> None:
    """Everything that was measured."""
    document = {
        "machine": facts,
        "standings": [asdict(at) for at in table],
        "runs": [asdict(run) for run in runs],
        "died": [asdict(death) for death in deaths],
    }
    write_document(path, document)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """As JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def draw_picture(path: Path, table: Sequence[Standing]) -> None:
    """Milliseconds of a micro-batch against what waits, both logarithmic; a panel a series."""
    from matplotlib import rc_context  # Only those who want a picture need it.
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    from tools.pictures import TEXT_STYLE, save

    with rc_context(TEXT_STYLE):
        series = list(dict.fromkeys(at.series for at in table))
        figure = Figure(figsize=(1 + 5 * len(series), 4.4), layout="constrained")
        panels = figure.subplots(1, len(series), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, series, strict=True):
            for contender in dict.fromkeys(at.contender for at in table):
                points = sorted((at.waiting, at.ms) for at in table if (at.series, at.contender) == (name, contender))
                if not points:
                    continue
                colour = COLOURS.get(contender)
                axes.plot(*zip(*points, strict=True), marker="o", color=colour)
                label = LABELS.get(contender, contender)
                axes.annotate(label, points[-1], xytext=(7, -3), textcoords="offset points", color=colour)
            axes.set_xscale("log")
            axes.set_yscale("log")
            sizes = sorted({at.waiting for at in table if at.series == name})
            axes.set_xticks(sizes, [f"{size / 1e6:g} M" if size >= 1e6 else f"{size / 1e3:g} k" for size in sizes])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axes.set_xlim(right=sizes[-1] * max(2.0, (sizes[-1] / sizes[0]) ** 0.55))
            axes.set_xlabel("operations that wait")
            axes.set_title(SERIES_TITLES.get(name, name), fontsize=10)
            axes.grid(True, which="both", linewidth=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("milliseconds of a micro-batch, median")
        save(figure, path)


LABELS = {
    "log": "transformWithState",
    "blob": "applyInPandasWithState",
    "join": "stream-stream join",
    "flink_rocksdb": "Flink, RocksDB",
}
"""The names by which readers know the contenders."""
SERIES_TITLES = {
    "follows": "events and expiries grow with what waits",
    "fixed": "the same events and expiries at every size",
}
