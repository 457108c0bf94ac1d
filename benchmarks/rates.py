"""From micro-batches to numbers: rates, medians, ratios, goals. No Spark in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

FIRST_STEADY_BATCH = 2
"""The third batch: by then workers run, code is compiled and state stands at its usual size."""
OURS = "ours"
GOALS = {
    2_000: {"join": 1.0, "join_rocksdb": 1.0, "identity": 1 / 1.15, "identity_rows": 1 / 1.15},
    250_000: {"join": 2.5, "join_rocksdb": 3.0, "identity": 0.6},
    1 << 62: {"join": 5.0, "join_rocksdb": 5.0, "per_operation": 300.0, "with_timers": 300.0},
}
"""By how many operations a micro-batch has at most, by contender: what ours must reach as a multiple of its rate."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one run."""

    number: int
    operations: int
    events: int
    ms: int
    """Spark's ``triggerExecution``: planning, reading, shuffle, state, sink and the checkpoint's logs."""
    state_bytes: int | None = None
    """What the state is as bytes, where the contender tells."""
    state_memory_bytes: int = 0
    """What Spark's state store says it holds on the heap."""

    @property
    def rows(self) -> int:
        """Rows of both sides."""
        return self.operations + self.events


@dataclass(frozen=True)
class Run:
    """One contender's run over a workload, its outcomes found right."""

    contender: str
    round: int
    workload_operations: int
    batches: tuple[Batch, ...]
    counts: dict[str, int]
    load: float = 0.0
    """The machine's load average of a minute when the run began: far above its own cores, others are at work."""

    @property
    def rate(self) -> float:
        """Rows a second from the third batch on, the tail of batches with events only included."""
        return steady_rate(self.batches)

    @property
    def full_rate(self) -> float:
        """The same without that tail: batches that bring operations and events."""
        return steady_rate([batch for batch in self.batches if batch.operations])


@dataclass(frozen=True)
class Standing:
    """A contender over all rounds."""

    contender: str
    workload_operations: int
    rate: float
    lowest: float
    highest: float
    full_rate: float
    median_batch_ms: float
    """Of the steady batches that bring operations."""
    ours_over: float | None
    """Median over the rounds of ours' rate over this one's in the same round; None if ours did not run."""
    ours_over_spread: tuple[float, float] | None

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (self.highest - self.lowest) / self.rate


@dataclass(frozen=True)
class Verdict:
    """A goal and what was reached."""

    contender: str
    ratio: float
    goal: float

    @property
    def reached(self) -> bool:
        """Whether the ratio is the goal or more."""
        return self.ratio >= self.goal

    def __str__(self) -> str:
        word = "ok" if self.reached else "MISSED"
        ratio = f"{self.ratio:.1f}x" if self.goal > 1 else f"{self.ratio:.2f}"
        return f"{OURS}/{self.contender} {ratio} (goal >= {self.goal:.3g}) {word}"


def steady_rate(batches: Sequence[Batch]) -> float:
    """Rows a second over the batches from the third on."""
    steady = [batch for batch in batches if batch.number >= FIRST_STEADY_BATCH]
    ms = sum(batch.ms for batch in steady)
    if ms <= 0:
        raise ValueError(f"no steady batch among {len(batches)}: run at least {FIRST_STEADY_BATCH + 1}")
    return 1000 * sum(batch.rows for batch in steady) / ms


def standings(runs: Sequence[Run]) -> list[Standing]:
    """One a contender, in the order in which they first ran."""
    return [_standing(name, runs) for name in dict.fromkeys(run.contender for run in runs)]


def verdicts(table: Sequence[Standing], operations_a_batch: int) -> list[Verdict]:
    """Goals for micro-batches of that size whose contenders ran beside ours."""
    goals = next(goals for most, goals in GOALS.items() if operations_a_batch <= most)
    return [
        Verdict(standing.contender, standing.ours_over, goals[standing.contender])
        for standing in table
        if standing.contender in goals and standing.ours_over is not None
    ]


def _standing(name: str, runs: Sequence[Run]) -> Standing:
    mine = [run for run in runs if run.contender == name]
    ours = {run.round: run.rate for run in runs if run.contender == OURS}
    rates = [run.rate for run in mine]
    ratios = [ours[run.round] / run.rate for run in mine if run.round in ours]
    steady = [b.ms for run in mine for b in run.batches if b.number >= FIRST_STEADY_BATCH and b.operations]
    return Standing(
        contender=name,
        workload_operations=mine[0].workload_operations,
        rate=median(rates),
        lowest=min(rates),
        highest=max(rates),
        full_rate=median(run.full_rate for run in mine),
        median_batch_ms=median(steady),
        ours_over=median(ratios) if ratios else None,
        ours_over_spread=(min(ratios), max(ratios)) if ratios else None,
    )
