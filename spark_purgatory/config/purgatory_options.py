"""The options of `Purgatory`: declared here, checked here; `spark_purgatory.spark.operator.purgatory` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Literal

from spark_purgatory.config.options import (
    IN_MS,
    ColumnLike,
    Completions,
    Operations,
    Option,
    duration_us,
    require_column,
)
from spark_purgatory.config.units import Duration
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import ConfigError

HOSTS = ("applyInPandasWithState", "transformWithState")
"""Spark's operators that can hold a purgatory's state, the default first."""
MAX_SHARDS = 1 << 15
"""Shards are scanned for due time-outs in every micro-batch; and 16 bits name one in the exchange."""


def _whole(value: object) -> int:
    """An int as it is; 0, which no limit allows, for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True, kw_only=True)
class PurgatoryOptions:
    """What `Purgatory` takes; its docstring says what each option does."""

    operations: Annotated[Operations, Option("part", "What waits.")]
    completions: Annotated[Completions, Option("part", "What completes it.")]
    criterion: Annotated[Criterion | ByRow, Option("criterion", "When an operation is complete.")]
    emit: Annotated[
        Literal["early", "final"],
        Option("choice", "early: as soon as seen; final: once no earlier event can come.", ("early", "final")),
    ] = "early"
    shards: Annotated[
        int | None, Option("count", "Groups that operations are spread over by key; null: one for each key.")
    ] = 8
    lookback: Annotated[
        Duration, Option("duration", "How long before its operation's created time an event still counts.")
    ] = "0 seconds"
    lookback_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    max_future: Annotated[Duration, Option("duration", "A time further ahead of processing time is rejected.")] = (
        "1 day"
    )
    max_future_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    tick: Annotated[Duration, Option("duration", "Resolution of deadlines, which are rounded up to it.")] = (
        "1 millisecond"
    )
    tick_ms: Annotated[int | None, Option("ms", IN_MS)] = None
    outcome_prefix: Annotated[str, Option("text", "Put before the names of the outcome's columns.")] = ""
    partition_by: Annotated[
        ColumnLike | None,
        Option("column", "A column of both inputs: keys and ids belong to its value, and rows go to shards by it."),
    ] = None
    orphans: Annotated[
        bool | Literal["all"],
        Option(
            "flag or all",
            "Which events that count for no operation become ORPHAN rows: true: control events; all: every event, with "
            "the reason.",
        ),
    ] = False
    max_pending_per_shard: Annotated[
        int, Option("count", "Operations that may wait in one shard; more stop the query.")
    ] = EngineSpec.max_pending
    max_state_bytes_per_shard: Annotated[int, Option("count", "Bytes of one shard's state; more stop the query.")] = (
        EngineSpec.max_state_bytes
    )
    max_broadcast_bytes: Annotated[
        int,
        Option(
            "count",
            "The most bytes of packed events in one micro-batch, if events are broadcast to "
            "all shards; more stop the query.",
        ),
    ] = 128 << 20
    host: Annotated[
        Literal["applyInPandasWithState", "transformWithState"],
        Option("choice", "Spark's operator that holds the state.", HOSTS),
    ] = "applyInPandasWithState"
    max_warm_bytes: Annotated[
        int,
        Option("count", "Under transformWithState: memory for shards in the Python workers of one executor."),
    ] = 4 << 30
    name: Annotated[str, Option("name", "Name of the counters in the query's observedMetrics.")] = "spark_purgatory"

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
        if self.emit not in ("early", "final"):
            raise ConfigError(f"emit={self.emit!r} must be 'early' or 'final'")
        if self.host not in HOSTS:
            raise ConfigError(f"host={self.host!r} must be {' or '.join(map(repr, HOSTS))}")
        if not isinstance(self.orphans, bool) and self.orphans != "all":
            raise ConfigError(f"orphans={self.orphans!r} must be False, True or 'all'")
        if self.shards is not None and not 1 <= _whole(self.shards) <= MAX_SHARDS:
            raise ConfigError(f"shards={self.shards!r} must be None or between 1 and {MAX_SHARDS}")
        if self.partition_by is not None:
            require_column(self.partition_by, "partition_by")
        for field in ("lookback", "max_future", "tick"):
            duration_us(self, field)
        if duration_us(self, "tick") < 1000:
            field, tick = ("tick", self.tick) if self.tick_ms is None else ("tick_ms", self.tick_ms)
            raise ConfigError(f"{field}={tick!r} must be at least 1 millisecond, the watermark's own resolution")
        for field in ("max_pending_per_shard", "max_state_bytes_per_shard", "max_broadcast_bytes", "max_warm_bytes"):
            if _whole(getattr(self, field)) < 1:
                raise ConfigError(f"{field}={getattr(self, field)!r} must be an int of at least 1")
        if not (isinstance(self.name, str) and self.name):
            raise ConfigError(f"name={self.name!r} must be a name for the counters in observedMetrics")
        if not isinstance(self.outcome_prefix, str):
            raise ConfigError(f"outcome_prefix={self.outcome_prefix!r} must be a string")
