"""The other design for operations with several keys: watchers by key, and behind them the purgatory by operation.

Every operation is split by key and *watched* where its key's events are, so that no event goes anywhere but to its key.
There the first event within an operation's wait becomes a *notice*, which goes on to the operation's shard; the
purgatory takes notices for events. Two state functions in a row: Spark allows it when the first is
``transformWithStateInPandas``, which needs RocksDB and protobuf.

`by_key` gives every key a group and is what the API asks for: lists in a value state, numpy within a group. `by_shard`
gives a group thousands of keys: the library's own engine, hosted as a `StatefulProcessor`, each key of an operation an
operation of its own under any_key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from spark_purgatory import Completions, Operations, criteria
from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.core.arrays.numbers import DOUBLE
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore, save
from spark_purgatory.schema import COUNTERS
from spark_purgatory.spark.host import exchange
from spark_purgatory.spark.host.blob_host import blob_hosted, stream_function
from spark_purgatory.spark.host.exchange import (
    EVENTS,
    OPERATIONS,
    WATERMARK_METADATA,
    exchanged,
    from_blob,
    to_blob,
    unpacker,
)
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.operator.field_types import payload_roles
from spark_purgatory.spark.operator.inputs import Fields, events_input, operations_input
from spark_purgatory.spark.operator.payload import arrow_schema
from spark_purgatory.spark.operator.purgatory import OUTCOME

SHARDS = 8
COUNTED = "spark_purgatory"
"""Under which a `Purgatory` counts what it received, and the one behind the watchers does."""
NOTICE_DDL = "op string, key string, time_us bigint"
NOTICES = pa.schema([("op", pa.string()), ("key", pa.string()), ("time_us", pa.int64())])
WATCHED_DDL = "op array<string>, created_us array<bigint>, deadline_us array<bigint>, time_us array<bigint>"


def options_for(keys: str) -> PurgatoryOptions:
    """What both stages read of operations with these keys, and of events."""
    operations = Operations(id="op", keys=keys, created="created", deadline="deadline", watermark="0 seconds")
    completions = Completions(key="key", time="time", watermark="0 seconds")
    return PurgatoryOptions(operations=operations, completions=completions, criterion=criteria.all_keys())


def by_key(operations: DataFrame, events: DataFrame) -> DataFrame:
    """Outcomes, with a group for every key."""
    watched = operations.withWatermark("created", "0 seconds").select(
        F.explode("keys").alias("key"),
        "op",
        F.unix_micros("created").alias("time_us"),
        F.unix_micros("deadline").alias("deadline_us"),
    )
    heard = events.withWatermark("time", "0 seconds").select(
        "key",
        F.lit(None).cast("string").alias("op"),
        F.unix_micros("time").alias("time_us"),
        F.lit(None).cast("bigint").alias("deadline_us"),
    )
    marker = F.lit(None).cast("timestamp").alias("marker", metadata={WATERMARK_METADATA: 0})
    both = watched.unionByName(heard).select("*", marker)
    notices = both.groupBy("key").transformWithStateInPandas(WatchersOfKey(), NOTICE_DDL, "Append", "EventTime")
    return _resolved(operations, notices)


def by_shard(operations: DataFrame, events: DataFrame) -> DataFrame:
    """Outcomes, with a group for every shard of keys."""
    single = operations.select("op", F.explode("keys").alias("key"), "created", "deadline")
    options = options_for("key")
    spec = EngineSpec(
        criteria.any_key(), identity_width=2, control_events=False, roles=payload_roles(single.schema, options)
    )
    left = operations_input(Fields(single, options), spec, several=False)
    right = events_input(Fields(events.select("key", "time"), options), DOUBLE)
    packed = exchanged(left, OPERATIONS, SHARDS).unionByName(exchanged(right, EVENTS, SHARDS))
    groups = exchange.by_shard(packed)
    blobs = groups.transformWithStateInPandas(WatchersOfShard(spec), "blob binary", "Append", "EventTime")
    notices = blobs.mapInArrow(unpacker(NOTICES), NOTICE_DDL)
    return _resolved(operations, notices)


def _resolved(operations: DataFrame, notices: DataFrame) -> DataFrame:
    """Operations by the shard of their id, and the notices that are for them."""
    options = options_for("keys")
    roles = payload_roles(operations.schema, options)
    spec = EngineSpec(criteria.all_keys(), control_events=False, roles=roles)
    left = operations_input(Fields(operations, options), spec, several=True)
    right = notices.select(
        "key",
        F.xxhash64("key").alias("key_hash"),
        "time_us",
        F.xxhash64("op").alias("route"),
        F.timestamp_micros("time_us").alias("guarded"),
    )
    packed = exchanged(left, OPERATIONS, SHARDS).unionByName(exchanged(right, EVENTS, SHARDS))
    decided = blob_hosted(exchange.by_shard(packed), stream_function(spec, SHARDS))
    results = decided.observe(COUNTED, *(F.sum(name).alias(name) for name in COUNTERS))
    added = OUTCOME.fields
    schema = T.StructType([*operations.schema.fields, *added])
    return results.mapInArrow(unpacker(arrow_schema(schema)), schema)


class WatchersOfKey(StatefulProcessor):
    """Operations that watch a key, and the key's events that one may still come for."""

    def init(self, handle: Any) -> None:
        """Once a task."""
        self.handle = handle
        self.watched = handle.getValueState("watched", WATCHED_DDL)

    def handleInputRows(  # type: ignore[override]  # rows are what the query asked for, pandas
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """What came for a key."""
        frame = pd.concat(list(rows), ignore_index=True)
        ops, created_us, deadline_us, time_us = self._kept()
        waits = frame["op"].notna().to_numpy()
        ops = np.concatenate((ops, frame["op"].to_numpy(object)[waits]))
        created_us = np.concatenate((created_us, frame["time_us"].to_numpy(np.int64)[waits]))
        deadline_us = np.concatenate((deadline_us, frame["deadline_us"].to_numpy()[waits].astype(np.int64)))
        time_us = np.sort(np.concatenate((time_us, frame["time_us"].to_numpy(np.int64)[~waits])))
        hit, first_us = np.zeros(len(ops), bool), np.zeros(len(ops), np.int64)
        if len(time_us):
            at = time_us.searchsorted(created_us)
            first_us = time_us[np.minimum(at, len(time_us) - 1)]
            hit = (at < len(time_us)) & (first_us <= deadline_us)
        self._keep(ops[~hit], created_us[~hit], deadline_us[~hit], time_us, timerValues.getCurrentWatermarkInMs())
        if hit.any():
            yield pd.DataFrame({"op": ops[hit], "key": key[0], "time_us": first_us[hit]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """What nobody needs any more goes."""
        ops, created_us, deadline_us, time_us = self._kept()
        self._keep(ops, created_us, deadline_us, time_us, timerValues.getCurrentWatermarkInMs())
        return iter([])

    def _kept(self) -> list[np.ndarray]:
        # An array without elements comes back from the state as null.
        row = self.watched.get() if self.watched.exists() else (None,) * len(_TYPES)
        return [np.asarray(() if values is None else values, kind) for values, kind in zip(row, _TYPES, strict=True)]

    def _keep(
        self, ops: np.ndarray, created_us: np.ndarray, deadline_us: np.ndarray, time_us: np.ndarray, watermark_ms: int
    ) -> None:
        waits, open_us = deadline_us > watermark_ms * 1000, time_us[time_us > watermark_ms * 1000]
        if not waits.any() and not len(open_us):
            self.watched.clear()
            return
        columns = (ops[waits], created_us[waits], deadline_us[waits], open_us)
        self.watched.update(tuple(column.tolist() for column in columns))
        last_us = max(deadline_us[waits].max(initial=0), open_us.max(initial=0))
        self.handle.registerTimer(int(last_us) // 1000 + 1)


_TYPES = (object, np.int64, np.int64, np.int64)
"""Of the arrays in `WATCHED_DDL`."""


class WatchersOfShard(StatefulProcessor):
    """The engine of a shard of keys."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec

    def init(self, handle: Any) -> None:
        """Once a task."""
        prepare_worker()
        self.handle = handle
        self.blob = handle.getValueState("engine", "blob binary")

    def handleInputRows(  # type: ignore[override]  # rows are what the query asked for, pandas
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """What came for a shard."""
        sides: dict[int, list[pa.Table]] = {OPERATIONS: [], EVENTS: []}
        for frame in rows:
            for side, blob in zip(frame["side"], frame["blob"], strict=True):
                sides[int(side)].append(from_blob(blob))
        operations, events = (pa.concat_tables(tables) if tables else None for tables in sides.values())
        return self._step(operations, events, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """A watcher's deadline has passed."""
        return self._step(None, None, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def _step(
        self, operations: pa.Table | None, events: pa.Table | None, timers: Any, fired_ms: int | None
    ) -> Iterator[pd.DataFrame]:
        spec = self.spec
        engine = restore(spec, self.blob.get()[0], SHARDS) if self.blob.exists() else EventTimePurgatory(spec)
        outcomes = engine.step(
            None if operations is None else read_operations(operations, spec),
            None if events is None else read_events(events, spec.criterion),
            timers.getCurrentWatermarkInMs(),
        )
        self.blob.update((save(engine, SHARDS),))
        due_ms = engine.next_due_ms()
        # Data and a timer may come in one micro-batch: one timer stands for the next of all deadlines.
        for other_ms in list(self.handle.listTimers()):
            if other_ms not in (fired_ms, due_ms):
                self.handle.deleteTimer(other_ms)
        if due_ms is not None:
            self.handle.registerTimer(due_ms)
        for batch in outcomes:
            done = batch.filter(pc.equal(batch["status"], "COMPLETED"))
            if len(done):
                time_us = done["resolved_at"].cast(pa.int64())
                notices = pa.table({"op": done.column(0), "key": done.column(1), "time_us": time_us})
                yield pd.DataFrame({"blob": [to_blob(notices).to_pybytes()]})
