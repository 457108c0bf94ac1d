"""What a stopped query's checkpoint holds, shard by shard, before it is exported or moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_purgatory.core.arrays.numbers import scale_of
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.engine_spec import MOVABLE, EngineSpec, spec_of
from spark_purgatory.core.state.blob import read_blob, shard_count
from spark_purgatory.core.state.engine_snapshot import PAYLOAD, differences_of
from spark_purgatory.core.state.event_snapshot import event_columns_of
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, shard_states, told_by_states
from spark_purgatory.spark.operator.payload import merged_texts, schema_of, schema_text

FACTS = ("spec", "columns", "roles", "sources", "texts", "event_columns", "event_value")
"""What a state says of its query."""


@dataclass(frozen=True)
class ShardFacts:
    """What one shard's state says."""

    facts: dict[str, Any]
    """The `FACTS` that it has."""
    tally: dict[str, Any]
    watermark_ms: int
    shards: int | None
    payload: str | None
    """The schema of the operations' own columns (`schema_text`); None where nothing waits."""
    carried: str | None
    """That of what is kept of events for outcomes."""
    event_id: str
    """Arrow type of event ids."""
    events: int
    state_bytes: int
    differences: list[str]
    """Why the query to move to cannot take it over."""

    def of_query(self) -> dict[str, Any]:
        """What an export keeps: the facts that say of what query the state is."""
        return {"facts": self.facts, "payload": self.payload, "carried": self.carried}


@dataclass(frozen=True)
class Survey:
    """What a checkpoint holds."""

    states: ShardStates
    found: list[ShardFacts]

    @property
    def operations(self) -> int:
        """Operations that wait."""
        return sum(Tally(**each.tally).pending for each in self.found)

    @property
    def state_bytes(self) -> int:
        """Bytes of all shards' states, as blobs."""
        return sum(each.state_bytes for each in self.found)

    @property
    def watermark_ms(self) -> int:
        """The latest watermark that a shard has seen."""
        return max(each.watermark_ms for each in self.found)

    @property
    def spec(self) -> EngineSpec:
        """What the engines do, as far as every one of them says it."""
        return spec_of(self.found[0].facts["spec"])

    @property
    def roles(self) -> dict[str, str]:
        """The operations' own columns that are columns of the engine, by its name of them."""
        facts = self.found[0].facts
        return {role: facts["columns"][at] for role, at in facts["roles"].items()}

    @property
    def is_copied(self) -> bool:
        """Whether shards may each have a copy of an event: those of several keys are sent every one."""
        return len(self.found) > 1 and self.spec.identity_width == 1 and not self.spec.key_prefix

    def payload(self) -> list[pa.Field]:
        """The operations' own columns, of all shards."""
        return merged_texts(each.payload for each in self.found)

    def carried(self) -> list[pa.Field]:
        """What is kept of events for outcomes."""
        return merged_texts(each.carried for each in self.found)

    def key_types(self) -> tuple[str, str, str]:
        """The types of ids, keys and event ids."""
        texts = {name: text for each in self.found for name, text in each.facts["texts"].items()}
        kinds = ["binary" if texts.get(name) == "binary" else "string" for name in ("operations.id", "operations.keys")]
        event_id = next((each.event_id for each in self.found if each.event_id), "string")
        return kinds[0], kinds[1], event_id

    def value_type(self) -> str:
        """The type of events' values."""
        scale = scale_of(self.spec.number)
        return "double" if scale is None else f"decimal(38,{scale})"


def survey(spark: SparkSession, checkpoint: str, spec: EngineSpec | None = None) -> Survey:
    """Look at every shard of a checkpoint; ``spec``: of the query that is to take it over.

    Raises ConfigError where no micro-batch is committed, and what `shard_states` raises.
    """
    states = shard_states(spark, checkpoint)
    if states is None:
        raise ConfigError(f"checkpoint={checkpoint!r}: no micro-batch is committed yet: there is nothing to move")
    found = [ShardFacts(**told) for told in told_by_states(states.whole, partial(_facts, spec))]
    if not found:
        raise ConfigError(
            f"checkpoint={checkpoint!r}: no shard has state yet, so there is nothing to move: start the "
            "query with any settings"
        )
    return Survey(states, found)


def read_facts(said: dict[str, Any], spec: EngineSpec) -> list[str]:
    """Why a query cannot take over what an export says (`ShardFacts.of_query`)."""
    facts = {**said["facts"], "numbers": {"segments": 1}, "logs": []}
    held = {PAYLOAD: said["payload"], "log.0.columns": said["carried"]}
    schemas = {name: schema_of(text) for name, text in held.items() if text is not None}
    tables = {name: [pa.RecordBatch.from_pylist([], schema)] for name, schema in schemas.items() if schema}
    return differences_of(spec, facts, tables, MOVABLE)


def _facts(spec: EngineSpec | None, state: ShardState) -> Iterator[dict[str, Any]]:
    """For `told_by_states`: the fields of `ShardFacts`."""
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
        "watermark_ms": facts["numbers"]["watermark_ms"],
        "event_id": str(event_ids[0]) if event_ids else "",
        "shards": shard_count(blob) or None,
        "events": sum(map(len, times)),
        "state_bytes": len(blob),
        "differences": [] if spec is None else differences_of(spec, facts, tables, MOVABLE),
        "payload": schema_text(payload),
        "carried": schema_text(event_columns_of(facts, tables)),
    }
