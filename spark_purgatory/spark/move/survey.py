"""A survey of a stopped query's checkpoint, shard by shard, before it is exported or moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.export.engine_from_tables import history_of
from spark_purgatory.core.spec.engine_spec import MOVABLE, EngineSpec, spec_of
from spark_purgatory.core.state.blob import read_blob, shard_count
from spark_purgatory.core.state.engine_snapshot import PAYLOAD, differences_of
from spark_purgatory.core.state.event_snapshot import event_columns_of
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, shard_states, told_by_states
from spark_purgatory.spark.operator.payload import schema_text

FACTS = ("spec", "columns", "roles", "sources", "texts", "event_columns", "event_value")  # Those about its query


@dataclass(frozen=True)
class ShardFacts:
    facts: dict[str, Any]
    tally: dict[str, Any]
    watermark_ms: int
    shards: int | None
    payload: str | None  # The schema of the operations' own columns (`schema_text`); None if nothing waits
    carried: str | None  # The schema of the events' columns that outcomes carry
    watched: int  # Pairs of a waiting operation and a key
    event_id: str  # Arrow type of event ids
    events: int
    state_bytes: int
    differences: list[str]  # Why the new query cannot take it over


@dataclass(frozen=True)
class Survey:
    states: ShardStates
    found: list[ShardFacts]

    @property
    def operations(self) -> int:
        return self.tally.pending

    @property
    def tally(self) -> Tally:
        return Tally(**history_of([each.tally for each in self.found]))  # type: ignore[arg-type]

    @property
    def watermark_ms(self) -> int:
        return max(each.watermark_ms for each in self.found)

    @property
    def spec(self) -> EngineSpec:
        return spec_of(self.found[0].facts["spec"])


def survey(spark: SparkSession, checkpoint: str, spec: EngineSpec | None = None) -> Survey:
    """Look at every shard of a checkpoint; ``spec``: that of the query that will take it over.

    Raises ConfigError if no micro-batch is committed, and the errors of `shard_states`.
    """
    states = shard_states(spark, checkpoint)
    told = [] if states is None else told_by_states(states.whole, partial(_facts, spec))
    if states is None or not told:
        raise ConfigError(
            f"checkpoint={checkpoint!r} has no state yet, so there is nothing to move or export: start the query with "
            "any settings"
        )
    return Survey(states, [ShardFacts(**each) for each in told])


def _facts(spec: EngineSpec | None, state: ShardState) -> Iterator[dict[str, Any]]:
    """Yield the fields of `ShardFacts` (for `told_by_states`)."""
    blob = state.blob()
    facts, arrays, tables = read_blob(blob, None)
    payload = None
    if PAYLOAD in tables:
        names = facts["columns"]
        held = tables[PAYLOAD][0].schema
        payload = pa.schema([each.with_name(name) for each, name in zip(held, names, strict=True)])
    times = [array for name, array in arrays.items() if name.startswith("log") and name.endswith(".time_us")]
    event_ids = [batches[0].schema.types[0] for name, batches in tables.items() if name.endswith(".event_ids")]
    yield {
        "facts": {name: facts[name] for name in FACTS},
        "tally": facts["tally"],
        "watched": facts["gauges"]["watched"],
        "watermark_ms": facts["numbers"]["watermark_ms"],
        "event_id": str(event_ids[0]) if event_ids else "",
        "shards": shard_count(blob) or None,
        "events": sum(map(len, times)),
        "state_bytes": len(blob),
        "differences": [] if spec is None else differences_of(spec, facts, tables, MOVABLE),
        "payload": schema_text(payload),
        "carried": schema_text(event_columns_of(facts, tables)),
    }
