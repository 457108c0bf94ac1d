"""What a stopped query's checkpoint holds, shard by shard, before it is exported or moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_purgatory.core.arrays.numbers import scale_of
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.spec.engine_spec import MOVABLE, EngineSpec, spec_of
from spark_purgatory.core.state.blob import read_blob, shard_count
from spark_purgatory.core.state.engine_snapshot import PAYLOAD, differences_of, listed
from spark_purgatory.core.state.event_snapshot import event_columns_of
from spark_purgatory.core.state.payload_evolution import merged
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.checkpoint.shard_states import ShardStates, collected, shard_states, states_in

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
    payload: pa.Schema | None
    """The operations' own columns, by name; None where nothing waits."""
    carried: pa.Schema | None
    """What is kept of events for outcomes, by name."""
    event_id: str
    """Arrow type of event ids."""
    events: int
    ids: int
    state_bytes: int
    differences: list[str]
    """Why the query to move to cannot take it over."""

    def to_json(self) -> dict[str, Any]:
        """What an export keeps of it: of what query it is."""
        return {"facts": self.facts, "payload": _text(self.payload), "carried": _text(self.carried)}


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
        return _merged([each.payload for each in self.found])

    def carried(self) -> list[pa.Field] | None:
        """What is kept of events for outcomes; None: nothing was asked for."""
        if all(each.carried is None for each in self.found):
            return None
        return _merged([each.carried for each in self.found])

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
    rows = collected(states.whole.mapInArrow(_looker(spec), "said binary, payload binary, carried binary"))
    if not rows:
        raise ConfigError(
            f"checkpoint={checkpoint!r}: no shard has state yet, so there is nothing to move: start the "
            "query with any settings"
        )
    found = [
        ShardFacts(**json.loads(row["said"]), payload=_schema(row["payload"]), carried=_schema(row["carried"]))
        for row in rows
    ]
    return Survey(states, found)


def check_takes_over(found: Iterable[ShardFacts]) -> None:
    """Raise StateMismatchError where the query cannot take over every shard."""
    if every := list(dict.fromkeys(text for each in found for text in each.differences)):
        raise StateMismatchError(listed(every))


def read_facts(said: dict[str, Any], spec: EngineSpec) -> list[str]:
    """Why a query cannot take over what an export says (`ShardFacts.to_json`)."""
    facts = {**said["facts"], "numbers": {"segments": 1}, "logs": []}
    held = {PAYLOAD: said["payload"], "log.0.columns": said["carried"]}
    schemas = {name: _schema(bytes.fromhex(text)) for name, text in held.items() if text is not None}
    return differences_of(spec, facts, {name: [_empty(schema)] for name, schema in schemas.items() if schema}, MOVABLE)


def _looker(spec: EngineSpec | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for state in states_in(batch):
                said, payload, carried = _said(state.blob(), spec)
                schemas = [None if each is None else each.serialize().to_pybytes() for each in (payload, carried)]
                columns = [pa.array([each], pa.binary()) for each in (json.dumps(said).encode(), *schemas)]
                yield pa.RecordBatch.from_arrays(columns, names=["said", "payload", "carried"])

    return look


def _said(blob: bytes, spec: EngineSpec | None) -> tuple[dict[str, Any], pa.Schema | None, pa.Schema | None]:
    facts, arrays, tables = read_blob(blob, None)
    payload = None
    if PAYLOAD in tables:
        names = facts["columns"]
        held = tables[PAYLOAD][0].schema
        payload = pa.schema([each.with_name(name) for each, name in zip(held, names, strict=True)])
    times = [array for name, array in arrays.items() if name.startswith("log") and name.endswith(".time_us")]
    event_ids = [batches[0].schema.types[0] for name, batches in tables.items() if name.endswith(".event_ids")]
    said = {
        "facts": {name: facts[name] for name in FACTS},
        "tally": facts["tally"],
        "watermark_ms": facts["numbers"]["watermark_ms"],
        "event_id": str(event_ids[0]) if event_ids else "",
        "shards": shard_count(blob) or None,
        "events": sum(map(len, times)),
        "ids": len(arrays["ids.deadline_us"]),
        "state_bytes": len(blob),
        "differences": [] if spec is None else differences_of(spec, facts, tables, MOVABLE),
    }
    return said, payload, event_columns_of(facts, tables)


def _merged(schemas: Iterable[pa.Schema | None]) -> list[pa.Field]:
    known = {schema.serialize().to_pybytes(): schema for schema in schemas if schema is not None}
    return merged([list(schema) for schema in known.values()]) if known else []


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _text(schema: pa.Schema | None) -> str | None:
    return None if schema is None else schema.serialize().to_pybytes().hex()


def _schema(data: bytes | None) -> pa.Schema | None:
    return None if data is None else pa.ipc.read_schema(pa.py_buffer(bytes(data)))
