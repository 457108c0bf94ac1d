"""Drives shards of the engine without Spark, the way the Spark host does: restore, step, save, for every
micro-batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal, localcontext
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa

from spark_purgatory.core.arrays.numbers import scale_of
from spark_purgatory.core.arrays.times import END_OF_TIME_MS
from spark_purgatory.core.arrays.value_column import hash_keys
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS, Tally, evidence_fields
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.core.state.step_log import Step, take_step
from spark_purgatory.spark.host.blob_host import batch_function
from spark_purgatory.spark.host.calls import packed
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, outcome_columns, to_blob, unpacker
from tests.conformance.kafka_purgatory import validate

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Rows = Sequence[dict[str, Any]]
END_MS = END_OF_TIME_MS


def from_blob(blob: bytes) -> pa.Table:
    """The table of an Arrow IPC stream."""
    with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
        return reader.read_all()


def operations_table(
    rows: Rows, several: bool, hash_bits: int = 64, by_row: bool = False, number: str = "double"
) -> pa.Table:
    """Operations as the exchange delivers them; ``hash_bits`` below 64 forges collisions.

    ``number``, as of `EngineSpec`: needs and levels may be ints and Decimals, and beside ``double`` floats too.
    """
    ids = pa.array([row["id"] for row in rows], pa.string())
    if several:
        keys = pa.array([row["keys"] for row in rows], pa.list_(pa.string()))
        flat = hashes_of(keys.flatten(), hash_bits)
        hashes: pa.Array = pa.ListArray.from_arrays(keys.offsets, flat)
    else:
        keys = pa.array([row["keys"][0] if row["keys"] else None for row in rows], pa.string())
        hashes = hashes_of(keys, hash_bits)
    rules = _rules(rows, several, number) if by_row else {}
    return pa.table(
        {
            **rules,
            "id": ids,
            "id_hash": hashes_of(ids, hash_bits),
            "keys": keys,
            "key_hashes": hashes,
            "created_us": pa.array([row["created"] for row in rows], pa.int64()),
            "deadline_us": pa.array([row["deadline"] for row in rows], pa.int64()),
            "ahead": pa.array([bool(row.get("ahead")) for row in rows]),
            "p0": ids,
            "p1": pa.array([str(row.get("row")) for row in rows]),
        }
    )


def _rules(rows: Rows, several: bool, number: str) -> dict[str, pa.Array]:
    levels = []
    for row in rows:
        level = row.get("need") if row.get("level") is None else row["level"]
        by_key = [level.get(key) if isinstance(level, dict) else level for key in row["keys"] or []]
        levels.append(by_key if several else (by_key or [None])[0])
    needs = [row["need"] for row in rows]
    doubles = [_doubled(each) for each in levels]
    columns = {
        "rule": pa.array([row["rule"] for row in rows], pa.string()),
        "need": pa.array(map(_doubled, needs), pa.float64()),
        "levels": pa.array(doubles, pa.list_(pa.float64()) if several else pa.float64()),
    }
    if (scale := scale_of(number)) is not None:
        kind = pa.decimal128(38, scale)
        columns["need_up"] = pa.array([_rounded_up(need, scale) for need in needs], kind)
        ups = [_rounded_up(each, scale) for each in levels]
        columns["levels_up"] = pa.array(ups, pa.list_(kind) if several else kind)
    return columns


def _doubled(needs: Any) -> Any:
    if isinstance(needs, list):
        return [_doubled(need) for need in needs]
    return None if needs is None else float(needs)


def _rounded_up(needs: Any, scale: int) -> Any:
    """A need or several as decimals of 38 digits, rounded up to the scale; None where they are none, or do not fit."""
    if isinstance(needs, list):
        return [_rounded_up(need, scale) for need in needs]
    need = None if needs is None else Decimal(repr(needs)) if isinstance(needs, float) else Decimal(needs)
    if need is None or not need.is_finite():
        return None
    with localcontext(prec=500, Emin=-999_999, Emax=999_999):
        up = need.quantize(Decimal(1).scaleb(-scale), ROUND_CEILING)
        return up if abs(up.scaleb(scale)) < 10**38 else None


def events_table(rows: Rows, hash_bits: int = 64, spec: EngineSpec | None = None) -> pa.Table:
    """Events as the exchange delivers them; of what a spec reads besides, where one is given."""
    keys = pa.array([row["key"] for row in rows], pa.string())
    others: dict[str, pa.Array] = {}
    if any(row.get("kind") is not None for row in rows):
        others["kind"] = pa.array([row.get("kind") for row in rows], pa.string())
    if spec is not None and spec.operation_ids:
        others["operation_id"] = pa.array([row.get("operation_id") for row in rows], pa.string())
        others["operation_hash"] = hashes_of(others["operation_id"], hash_bits)
    if spec is not None and spec.event_ids:
        others["event_id"] = pa.array([row.get("event_id") for row in rows], pa.string())
    number = "double" if spec is None else spec.number
    kinds = {"double": pa.float64(), "bigint": pa.int64()}
    values = [row.get("value") for row in rows]
    if number not in kinds:
        kinds[number] = pa.decimal128(*map(int, number.removeprefix("decimal(").removesuffix(")").split(",")))
        values = [Decimal(repr(value)) if isinstance(value, float) else value for value in values]
    return pa.table(
        {
            **others,
            "key": keys,
            "key_hash": hashes_of(keys, hash_bits),
            "time_us": pa.array([row["time"] for row in rows], pa.int64()),
            "value": pa.array(values, kinds[number]),
            "ahead": pa.array([bool(row.get("ahead")) for row in rows]),
            **({} if spec is None or spec.event_columns is None else _carried(rows, values, spec.event_columns)),
        }
    )


def _carried(rows: Rows, values: Sequence[Any], columns: pa.Schema) -> dict[str, pa.Array]:
    """What outcomes carry of events: their value, as the query has it, and columns by name."""
    return {
        f"p{i}": pa.array(values if each.name == "value" else [row.get(each.name) for row in rows], each.type)
        for i, each in enumerate(columns)
    }


def hashes_of(keys: pa.Array, bits: int) -> pa.Array:
    hashes = hash_keys(keys.fill_null("null").cast(pa.string()))
    return pa.array((hashes.view(np.uint64) & np.uint64((1 << bits) - 1)).view(np.int64))


class Shards:
    """Several shards, each restored from its blob and saved to it in every step."""

    def __init__(
        self,
        spec: EngineSpec,
        shards: int = 1,
        several: bool = False,
        hash_bits: int = 64,
        restarts: random.Random | None = None,
    ) -> None:
        """``restarts``: chance that restarts a shard after one step in four; None restarts it after every step."""
        whole = several and spec.operation_ids
        self.spec = replace(spec, identity_width=1 if several else 2, whole_operations=whole)
        self.shards, self.several, self.hash_bits = shards, several, hash_bits
        self.restarts = restarts
        self.running: dict[int, EventTimePurgatory] = {}
        self.blobs: list[bytes | None] = [None] * shards
        self.due_ms: list[int | None] = [None] * shards

    def step(self, operations: Rows, events: Rows, watermark_ms: int) -> list[dict[str, Any]]:
        """One micro-batch: shards with rows, or with a time-out due, are called."""
        outcomes = []
        for shard in range(self.shards):
            mine = [
                o for o in operations if self.shard_of(o["id"] if self.several else (o["keys"] or [None])[0]) == shard
            ]
            theirs = [e for e in events if self.several or self.shard_of(e["key"]) == shard]
            due = self.due_ms[shard]
            if mine or theirs or (due is not None and due - 1 < watermark_ms):
                outcomes += self._call(shard, mine, theirs, watermark_ms)
        return outcomes

    def run(self, batches: Iterable[tuple[Rows, Rows, int]]) -> list[dict[str, Any]]:
        """All micro-batches; returns all outcomes."""
        return [outcome for ops, events, watermark_ms in batches for outcome in self.step(ops, events, watermark_ms)]

    def in_one_call(self, operations: Rows, events: Rows, as_of_ms: int) -> list[dict[str, Any]]:
        """All as a batch query over one shard: outcomes of both of its steps, packed and unpacked as Spark gets them.

        Operations have columns of the outcome's own types, `TYPED`, too: each value is made of the row's name.
        """
        table = operations_table(operations, self.several, self.hash_bits, self.spec.by_row, self.spec.number)
        names = [str(row.get("row")) for row in operations]
        for i, field in enumerate(TYPED, len(OWN)):
            table = table.append_column(f"p{i}", pa.array([typed(name, field.type) for name in names], field.type))
        sides = {OPERATIONS: table, EVENTS: events_table(events, self.hash_bits, self.spec)}
        rows = pd.DataFrame(
            {"shard": 0, "side": list(sides), "blob": [to_blob(side).to_pybytes() for side in sides.values()]}
        )
        blobs = pa.RecordBatch.from_pandas(batch_function(self.spec, as_of_ms)(rows)[["blob"]])
        orphans, evidence = self.spec.orphans != "none", evidence_fields(self.spec)
        schema = pa.schema([*OWN, *TYPED, *OUTCOME_FIELDS, *evidence, *(ORPHAN_FIELDS if orphans else ())])
        outcomes = [row for batch in unpacker(schema, evidence, orphans)(iter([blobs])) for row in outcome_rows(batch)]
        for outcome, field in product(outcomes, TYPED):
            given = None if outcome["status"] == "ORPHAN" else typed(outcome["row"], field.type)
            assert outcome[field.name] == given, f"{outcome['row']} has {field.name} {outcome[field.name]!r}"
        return outcomes

    def tallies(self) -> list[Tally]:
        """What each shard has counted since its beginning."""
        return [self.engine(shard).outcomes.tally for shard in range(self.shards)]

    def _sent(self, outcomes: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """The outcomes as Spark gets them: packed, and unpacked by name."""
        orphans = self.spec.orphans != "none"
        evidence = evidence_fields(self.spec)
        schema = pa.schema([*OWN, *OUTCOME_FIELDS, *evidence, *(ORPHAN_FIELDS if orphans else ())])
        blob = packed(outcomes)
        return [
            pa.RecordBatch.from_arrays(outcome_columns(batch, schema, evidence, orphans), schema=schema)
            for batch in (from_blob(blob).to_batches() if blob else [])
        ]

    def shard_of(self, key: str | None) -> int:
        """The shard that a key, or an id, goes to."""
        return sum((key or "").encode()) % self.shards

    def engine(self, shard: int) -> EventTimePurgatory:
        if shard in self.running:
            return self.running[shard]
        blob = self.blobs[shard]
        return EventTimePurgatory(self.spec) if blob is None else restore(self.spec, blob, self.shards)

    def sent(self, operations: Rows, events: Rows, watermark_ms: int) -> Step:
        ops = [operations_table(operations, self.several, self.hash_bits, self.spec.by_row, self.spec.number)]
        sides = ops if operations else [], [events_table(events, self.hash_bits, self.spec)] if events else []
        return Step(watermark_ms, *([to_blob(table).to_pybytes() for table in side] for side in sides))

    def _call(self, shard: int, operations: Rows, events: Rows, watermark_ms: int) -> list[dict[str, Any]]:
        engine = self.engine(shard)
        batches = self._sent(take_step(engine, self.sent(operations, events, watermark_ms)))
        validate(engine.purgatory)
        self.due_ms[shard] = engine.next_due_ms()
        if self.restarts is None or self.restarts.random() < 0.25:
            self.blobs[shard] = save(engine, self.shards)
            self.running.pop(shard, None)
        else:
            self.running[shard] = engine
        return [row for batch in batches for row in outcome_rows(batch)]


OWN = (pa.field("p0", pa.string()), pa.field("p1", pa.string()))
TYPED = tuple(pa.field(f"its_{field.name}", field.type) for field in OUTCOME_FIELDS)
"""Columns of operations that are of the outcome's types."""


def typed(name: str, kind: pa.DataType) -> Any:
    """A value of a row, made of its name."""
    number = crc32(name.encode())
    if pa.types.is_timestamp(kind):
        return EPOCH + timedelta(seconds=number)
    values = {pa.int64(): number, pa.bool_(): bool(number % 2), pa.list_(pa.string()): [name]}
    return values.get(kind, f"its {name}")


NAMES = ["id", "row", "status", "resolved_at", "wait_ms", "matched", "missing_keys", "late", "reason"]


def outcome_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Outcomes of operations that bring an id and a row's name."""
    # ORPHANs have no operation's columns.
    batch = batch.rename_columns([{"p0": "id", "p1": "row"}.get(name, name) for name in batch.schema.names])
    at = batch.schema.get_field_index("resolved_at")
    batch = batch.set_column(at, "resolved_at", batch["resolved_at"].cast(pa.int64()))
    for name in {"event", "events"} & set(batch.schema.names):
        # As microseconds: Python has no times beyond its years.
        kind = _in_microseconds(batch[name].type)
        batch = batch.set_column(batch.schema.get_field_index(name), name, batch[name].cast(kind))
    rows = batch.to_pylist()
    return [{**row, "resolved_at": moment(row["resolved_at"])} for row in rows]


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type of events with their times as numbers."""
    if pa.types.is_list(kind):
        return pa.list_(_in_microseconds(kind.value_type))
    return pa.struct([field.with_type(pa.int64()) if field.name == "time" else field for field in kind])


def moment(time_us: int | None) -> datetime | int | None:
    """A time as a datetime; beyond the years that Python has, as its microseconds."""
    try:
        return None if time_us is None else EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return time_us


def multiset(outcomes: Iterable[dict[str, Any]], *columns: str) -> Counter[tuple[Any, ...]]:
    """Outcomes as a multiset of the columns named; times as int microseconds, missing keys sorted."""
    return Counter(tuple(_plain(outcome[column]) for column in columns) for outcome in outcomes)


def microseconds(time: datetime | int) -> int:
    """Microseconds since 1970, exactly; a time without a zone is local, as Spark's ``collect`` gives it."""
    if isinstance(time, int):
        return time
    return (time.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(sorted(value))
    if isinstance(value, datetime):
        return microseconds(value)
    return value


def final(spec: EngineSpec) -> EngineSpec:
    """The spec under ``emit="final"``."""
    return replace(spec, final=True)
