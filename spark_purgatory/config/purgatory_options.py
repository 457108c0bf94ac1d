"""The options of `Purgatory`: declared here, checked here; `spark_purgatory.spark.operator.purgatory` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Literal

from spark_purgatory.config.declared import ColumnLike, Options
from spark_purgatory.config.options import Completions, Operations
from spark_purgatory.config.units import Duration, Size
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import Orphans
from spark_purgatory.errors import ConfigError

LOG_HOSTS = ("transformWithState", "transformWithStateInPandas")
"""One host under two names of Spark's: 4.0 has only the second, and a checkpoint keeps its name."""
MAX_SHARDS = 1 << 15
"""Shards are scanned for due time-outs in every micro-batch; and 16 bits name one in the exchange."""


@dataclass(frozen=True, kw_only=True)
class PurgatoryOptions(Options):
    """What `Purgatory` takes; its docstring says what each option does."""

    operations: Annotated[Operations, "What waits."]
    completions: Annotated[Completions, "What completes it."]
    criterion: Annotated[Criterion | ByRow, "When an operation is complete."]
    emit: Annotated[
        Literal["early", "final"],
        "early: as soon as seen; final: once no earlier event can come.",
    ] = "early"
    shards: Annotated[int | None, "Groups that operations are spread over by key; null: one for each key."] = 8
    lookback: Annotated[Duration, "How long before its operation's created time an event still counts."] = "0 seconds"
    max_future: Annotated[Duration, "A time further ahead of processing time is rejected."] = "1 day"
    tick: Annotated[Duration, "Resolution of deadlines, which are rounded up to it."] = "1 millisecond"
    prefix: Annotated[str, "Put before the names of the outcome's columns."] = ""
    scope: Annotated[
        ColumnLike | None,
        "A column of both inputs: keys and ids belong to its value, and rows go to shards by it.",
    ] = None
    orphans: Annotated[
        Orphans,
        "Which events that count for no operation become ORPHAN rows. control: control events; all: every event, with "
        "the reason.",
    ] = "none"
    evidence: Annotated[
        Literal["none", "all"],
        "all: outcomes carry all events that counted, in the array `events`, and the deciding one, in `event`; none: "
        "only the deciding one, if `completions.columns` names columns.",
    ] = "none"
    max_evidence: Annotated[int, "The most events that one outcome lists: the first in `evidence_order`."] = 100
    evidence_order: Annotated[
        Literal["time", "value"],
        "time: events in the order of their times, and `event` is the one that decided; value: by "
        "`completions.value`, the largest first, and `event` is the largest.",
    ] = "time"
    max_pending_per_shard: Annotated[int, "Operations that may wait in one shard; more stop the query."] = 10_000_000
    max_state_bytes_per_shard: Annotated[Size, "Bytes of one shard's state; more stop the query."] = "1 GiB"
    max_broadcast_bytes: Annotated[
        Size,
        "The most bytes of packed events in one micro-batch, if events are broadcast to all shards; more stop the "
        "query.",
    ] = "128 MiB"
    host: Annotated[
        Literal["applyInPandasWithState", "transformWithState", "transformWithStateInPandas"],
        "Spark's operator that holds the state.",
    ] = "applyInPandasWithState"
    max_warm_bytes: Annotated[
        Size,
        "Under transformWithState: memory for shards in the Python workers of one executor.",
    ] = "4 GiB"
    name: Annotated[str, "Name of the counters in the query's observedMetrics."] = "spark_purgatory"

    @property
    def evidence_columns(self) -> tuple[str, ...]:
        """Names of the outcome's columns that carry events, before ``prefix``."""
        if self.evidence == "all":
            return "event", "events"
        return ("event",) if self.completions.names_of("columns") or self.evidence_order == "value" else ()

    def __post_init__(self) -> None:
        expected: dict[str, type | UnionType] = {
            "operations": Operations,
            "completions": Completions,
            "criterion": Criterion | ByRow,
        }
        for field, kind in expected.items():
            if not isinstance(getattr(self, field), kind):
                made = (
                    f"{kind.__name__}(...)" if isinstance(kind, type) else "criteria.any_key() or another of criteria"
                )
                raise ConfigError(f"{field}={getattr(self, field)!r} must be made with {made}")
        for side in (self.operations, self.completions):
            if side.outcomes_of is not None and not isinstance(side.outcomes_of, PurgatoryOptions):
                raise ConfigError(
                    f"{side.section}outcomes_of={side.outcomes_of!r} must be the Purgatory whose outcomes the input is"
                )
        super().__post_init__()
        if self.shards is not None and self.shards > MAX_SHARDS:
            raise ConfigError(f"shards={self.shards!r} must be None or between 1 and {MAX_SHARDS}")
        if self.us_of("tick") < 1000:
            raise ConfigError(f"tick={self.tick!r} must be at least 1 millisecond, the watermark's own resolution")
        if self.evidence_order == "value" and self.completions.value is None:
            raise ConfigError(
                "evidence_order='value' compares event values, and Completions(value=...) is not set: set it, or "
                "remove evidence_order"
            )
        if not self.name:
            raise ConfigError(f"name={self.name!r} must be a name for the counters in observedMetrics")
