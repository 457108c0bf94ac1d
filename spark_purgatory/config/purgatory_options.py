"""The options of `Purgatory` and their checks; `spark_purgatory.spark.operator.purgatory` runs them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from html import escape
from typing import Literal

from spark_purgatory.config.declared import ColumnLike, Options, Shown
from spark_purgatory.config.options import Completions, Operations
from spark_purgatory.config.units import Duration, Size, is_duration
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import Orphans
from spark_purgatory.errors import ConfigError

LOG_HOST = "transformWithState"
MAX_SHARDS = 1 << 15  # each micro-batch scans shards for due timeouts, and 16 bits name one in the exchange
TWICE = "An event that is delivered twice counts twice: there is no event_id."
COMPLETES = {
    "any_key": "at the first event on any of its keys",
    "all_keys": "when each of its keys has had an event",
    "quorum": "when {need} of its keys have had an event",
    "count": "at event number {need} on its keys",
    "sum_at_least": "when the values of its events add up to {need}",
    "level": "when the largest value on each of its keys has reached {need}",
    "until_deadline": "at its deadline, if an event came by then",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class PurgatoryOptions(Options):
    """The options of `Purgatory`, which describes them."""

    operations: Operations
    completions: Completions
    criterion: Criterion | ByRow
    emit: Literal["early", "final"] = "early"
    shards: int = 8
    lookback: Duration = "0 seconds"
    max_future: Duration = "1 day"
    tick: Duration = "1 millisecond"
    prefix: str = ""
    scope: ColumnLike | None = None
    orphans: Orphans = "none"
    evidence: Literal["none", "all"] = "none"
    max_evidence: int = 100
    evidence_order: Literal["time", "value"] = "time"
    max_pending_per_shard: int = 10_000_000
    max_state_bytes_per_shard: Size = "1 GiB"
    max_broadcast_bytes: Size = "128 MiB"
    host: Literal["applyInPandasWithState", "transformWithState"] = "applyInPandasWithState"
    max_warm_bytes: Size = "2 GiB"
    name: str = "spark_purgatory"

    @property
    def evidence_columns(self) -> tuple[str, ...]:
        """The names of the outcome's columns that carry events, without ``prefix``."""
        if self.evidence == "all":
            return "event", "events"
        return ("event",) if self.completions.names_of("columns") or self.evidence_order == "value" else ()

    @property
    def may_count_twice(self) -> bool:
        """True if a redelivered event changes a count or a sum."""
        adds_up = isinstance(self.criterion, ByRow) or self.criterion.rule in ("count", "sum_at_least")
        return adds_up and self.completions.event_id is None

    def explain(self) -> str:
        """Return the rules in words: what waits, what completes it, which events count, when it expires; an example."""
        texts = (f"{name:<10} {text}" for name, text in _rules(self).items())
        lines = (textwrap.fill(text, 88, subsequent_indent=" " * 11, break_on_hyphens=False) for text in texts)
        return Shown("\n".join(lines))

    def _repr_html_(self) -> str:
        """Return the rules as a table, the options that were set, and the defaults of the others."""
        rules = {name: re.sub("`(.+?)`", r"<code>\1</code>", escape(text)) for name, text in _rules(self).items()}
        rows = "".join(
            f"<tr><td style='color:gray;vertical-align:top;text-align:left'>{name}</td>"
            f"<td style='text-align:left'>{text}</td></tr>"
            for name, text in rules.items()
        )
        left = ", ".join(f"{name}={value!r}" for name, value in self.unset().items())
        return (
            f"<b>{type(self).__name__}</b><table>{rows}</table><pre>{escape(repr(self))}</pre>"
            f"<details><summary>{len(self.unset())} options at their defaults</summary>{escape(left)}</details>"
        )

    def __post_init__(self) -> None:
        for field, kinds, made in (
            ("operations", (Operations,), "Operations(...)"),
            ("completions", (Completions,), "Completions(...)"),
            ("criterion", (Criterion, ByRow), "criteria.any_key() or another of criteria"),
        ):
            if not isinstance(getattr(self, field), kinds):
                raise ConfigError(f"{field}={getattr(self, field)!r} must be made with {made}")
        for side in (self.operations, self.completions):
            if side.outcomes_of is not None and not isinstance(side.outcomes_of, PurgatoryOptions):
                raise ConfigError(
                    f"{side.section}outcomes_of={side.outcomes_of!r} must be the Purgatory whose outcomes the input is"
                )
        super().__post_init__()
        if self.shards > MAX_SHARDS:
            raise ConfigError(f"shards={self.shards!r} must be between 1 and {MAX_SHARDS}")
        if self.us_of("tick") < 1000:
            raise ConfigError(f"tick={self.tick!r} must be at least 1 millisecond, the watermark's own resolution")
        if self.completions.value is None and isinstance(self.criterion, Criterion) and self.criterion.reads_values:
            raise ConfigError("completions.value is missing, but the criterion reads values: name their column")
        if self.evidence_order == "value" and self.completions.value is None:
            raise ConfigError(
                "evidence_order='value' compares event values, but Completions(value=...) is not set: set it, or "
                "remove evidence_order"
            )
        if not self.name:
            raise ConfigError(f"name={self.name!r} must be a name for the counters in observedMetrics")


def _rules(options: PurgatoryOptions) -> dict[str, str]:
    """Describe what waits, what completes it, when it expires, which events count, and when an outcome leaves."""
    operations, completions, criterion = options.operations, options.completions, options.criterion
    keys = operations.keys if isinstance(operations.keys, (list, tuple)) else [operations.keys]
    until = f"until `{operations.deadline}`" if operations.timeout is None else f"`{operations.timeout}`"
    until = f"{operations.timeout}" if is_duration(operations.timeout) else until
    unit = f" {operations.timeout_unit}" if operations.timeout_unit else ""
    by_row = isinstance(criterion, ByRow)
    met = "as its own columns say" if by_row else COMPLETES[criterion.rule].format(need=criterion.need)
    back = "" if options.us_of("lookback") == 0 else f"{options.lookback} before "
    by_id = "" if completions.event_id is None else f" An event of one `{completions.event_id}` counts once."
    once = f" {TWICE}" if options.may_count_twice else by_id
    kinds = "" if completions.kind is None else f" By `{completions.kind}` it may also fail, cancel, force or extend."
    delays = f"{operations.watermark} (operations), {completions.watermark} (completions)"
    silent = [each.section[:-1] for each in (operations, completions) if each.idle_after is None]
    said = {
        "waits": f"each `{operations.id}` waits {until}{unit} from `{operations.created}` for events on "
        f"{', '.join(f'`{key}`' for key in keys)}",
        "completes": f"{met} ({criterion!r}); events come with `{completions.key}` and `{completions.time}`",
        "counts": f"an event from {back}`{operations.created}` to the deadline, both included.{once}{kinds}",
        "expires": "when the watermark reaches the deadline. In a stream it is the newest time of the slower input, "
        f"less its delay: {delays}."
        + (f" While {' or '.join(silent)} are silent, nothing expires: give idle_after." if silent else ""),
        "leaves": "in the micro-batch that sees its end"
        if options.emit == "early"
        else "when no earlier event can come, so that the order of arrival changes nothing",
    }
    said |= {"example": _example(options)} if is_duration(operations.timeout) else {}
    return {name: f"{text.removesuffix('.')}." for name, text in said.items()}


def _example(options: PurgatoryOptions) -> str:
    sides, end_us = (options.operations, options.completions), options.operations.us_of("timeout")
    text = f"created at 12:00:00, its deadline is {_clock(end_us)}. Without events it is EXPIRED there"
    if any(side.watermark is None for side in sides):
        return text
    reached = (_clock(end_us + side.us_of("watermark")) for side in sides)
    return text + ", once operations have reached {} and completions {}".format(*reached)


def _clock(us_after_noon: int) -> str:
    days, second = divmod(us_after_noon // 1_000_000 + 43_200, 86_400)
    later = f" {days:,} day{'s' * (days > 1)} later" if days else ""
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{later}"
