"""The tasks of a micro-batch: rows to shards in any order, attempts on both hosts, state by version.

A state partition's task is tried until it has a result; attempts that end beside it or after it have one, too. In
checkpoint format 2 each attempt's state has a name of its own, and the commit log says which one counts. In format 1
they have one name, and the last that is written counts.

The exchange and the hosts are the product's own. What the blob host's function gives for the same bytes is remembered
(`Calls`), for the histories of a scenario give it the same bytes again and again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import restore
from spark_purgatory.core.state.step_log import ShardState as StoredState
from spark_purgatory.spark.host.blob_host import stream_function
from spark_purgatory.spark.host.exchange import EVENTS, OPERATIONS, packer
from spark_purgatory.spark.host.log_host import LogHost, LogHostOptions
from spark_purgatory.spark.host.warm_engines import Answer, Request, WarmEngines
from spark_purgatory.spark.placement import shard_label
from tests.support.engine_driver import events_table, microseconds, operations_table
from tests.support.spark_state import Handle, ShardState
from tests.support.worlds import STEP_US

MOST_KEPT = 20_000
ORDERS = 3
"""So many orders of a micro-batch's rows are tried."""

Sent = tuple[tuple[int, bytes], ...]
"""A shard's rows of the exchange: side and blob."""


class Lost(Exception):
    """An attempt ends without a result."""


class BlobState(NamedTuple):
    """What Spark keeps of a shard for the blob host."""

    blob: bytes
    timeout_ms: int | None


States = dict[int, Any]
"""By shard: a `BlobState`, or a `ShardState` of the log host."""


class Query(NamedTuple):
    """What the tasks of a run of the query do."""

    spec: EngineSpec
    host: str
    shards: int
    several: bool
    partitions: int
    then: Query | None = None
    """The second purgatory of a chain; the first is on the log host."""

    @property
    def delay_ms(self) -> int:
        """How far its clock is behind Spark's watermark, as that of a chain's second purgatory is."""
        return self.spec.clock_delay_ms


class Rows(NamedTuple):
    """A micro-batch's rows."""

    operations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    watermark_ms: int
    name: str
    """Equal for the same rows."""


CHAINED_RULE = "any_key"
"""The rule of a chain's second purgatory."""


def following(rows: Rows, outcomes: Sequence[dict[str, Any]]) -> Rows:
    """The rows of a chain's second purgatory: what the first has completed, and the micro-batch's events once more."""
    done = sorted((each for each in outcomes if each["status"] == "COMPLETED"), key=lambda each: str(each["row"]))
    operations = [
        {"id": each["row"], "keys": [each["id"]], "created": at_us, "deadline": at_us + 4 * STEP_US, "row": each["row"]}
        for each, at_us in ((each, microseconds(each["resolved_at"])) for each in done)
    ]
    plain = {"kind": None, "value": None, "event_id": None, "operation_id": None}
    events = [
        {**plain, "key": f"op-{event['time'] // STEP_US % 12}", "time": event["time"] + STEP_US}
        for event in rows.events
    ]
    return Rows(operations, events, rows.watermark_ms, f"{rows.name} then {operations}")


class Calls:
    """What was worked out already, by what it was worked out of."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def of(self, key: Any, work: Callable[[], Any]) -> Any:
        if key not in self.known:
            if len(self.known) >= MOST_KEPT:
                self.known.clear()
            self.known[key] = work()
        return self.known[key]


CALLS = Calls()


@dataclass
class StateStore:
    """States by version, partition and, in format 2, attempt."""

    format: int
    files: dict[tuple[int, int, str], States] = field(default_factory=dict)

    def name(self, attempt: str) -> str:
        return attempt if self.format == 2 else ""

    def load(self, version: int, partition: int, names: Mapping[int, str]) -> States:
        return dict(self.files[version, partition, names[partition]]) if version else {}

    def save(self, version: int, partition: int, name: str, states: States) -> None:
        self.files[version, partition, name] = states
        for key in [key for key in self.files if key[0] < version - 3]:
            del self.files[key]


# --- the exchange ----------------------------------------------------------------------------------------------------


def arrived(query: Query, rows: Rows, order: int) -> dict[int, Sent]:
    """Each shard's rows, the micro-batch's rows lying in map tasks and within them in one of `ORDERS` orders."""
    return CALLS.of(("arrived", query, rows.name, order), lambda: _arrived(query, rows, order))


def _arrived(query: Query, rows: Rows, order: int) -> dict[int, Sent]:
    rng, sent = random.Random(f"{rows.name} {order}"), dict[int, list[tuple[int, bytes]]]()
    for side, all_rows in ((OPERATIONS, rows.operations), (EVENTS, rows.events)):
        shuffled = rng.sample(all_rows, len(all_rows)) if order else all_rows
        cut = rng.randint(0, len(shuffled)) if order else len(shuffled)
        for part in (shuffled[:cut], shuffled[cut:]):
            for shard, blob in _packed(query, side, part) if part else ():
                sent.setdefault(shard, []).append((side, blob))
    for blobs in sent.values():
        rng.shuffle(blobs)
    return {shard: tuple(blobs) for shard, blobs in sent.items()}


def _packed(query: Query, side: int, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
    spec, of_label = query.spec, {shard_label(shard): shard for shard in range(query.shards)}
    if side == OPERATIONS:
        table = operations_table(rows, query.several, by_row=spec.by_row, number=spec.number)
        table = table.append_column("route", table["id_hash"]) if query.several else table
    else:
        table = events_table(rows, spec=spec)
    table = table.drop_columns(["ahead"]).append_column("guarded", pa.array([True] * len(rows)))
    is_broadcast = side == EVENTS and query.several
    for batch in packer(side, query.shards, is_broadcast)(iter(table.combine_chunks().to_batches())):
        for label, blob in zip(batch["shard"].to_pylist(), batch["blob"].to_pylist(), strict=True):
            yield of_label[label], blob


# --- the hosts -------------------------------------------------------------------------------------------------------


class GroupState:
    """What Spark gives the function of `applyInPandasWithState`; a call with or without rows ends its time-out."""

    def __init__(self, blob: bytes | None, watermark_ms: int) -> None:
        self.blob, self.watermark_ms = blob, watermark_ms
        self.timeout_ms: int | None = None

    @property
    def exists(self) -> bool:
        return self.blob is not None

    @property
    def get(self) -> tuple[bytes | None]:
        return (self.blob,)

    def update(self, value: tuple[bytes]) -> None:
        (self.blob,) = value

    def getCurrentWatermarkMs(self) -> int:
        return self.watermark_ms

    def setTimeoutTimestamp(self, at_ms: int) -> None:
        assert at_ms >= self.watermark_ms, f"a time-out of {at_ms} at watermark {self.watermark_ms}"
        self.timeout_ms = at_ms


def blob_task(query: Query, states: States, sent: Mapping[int, Sent], watermark_ms: int) -> list[dict[str, Any]]:
    """The calls of a state partition on the blob host; ``states`` are changed."""
    due = [shard for shard, at in states.items() if at.timeout_ms is not None and at.timeout_ms < watermark_ms]
    results = []
    for shard in sorted({*sent, *due}):
        blob = states[shard].blob if shard in states else None
        key = ("blob", query, sent.get(shard, ()), blob, watermark_ms)
        result, states[shard] = CALLS.of(key, partial(_blob_call, *key[1:]))
        results.append(result)
    return results


def _blob_call(query: Query, sent: Sent, blob: bytes | None, watermark_ms: int) -> tuple[dict[str, Any], BlobState]:
    state = GroupState(blob, watermark_ms)
    frame = pd.DataFrame({"side": [side for side, _ in sent], "blob": [each for _, each in sent]})
    (result,) = stream_function(query.spec, query.shards)((0,), iter([frame] if sent else []), state)
    assert state.blob is not None
    return {str(name): result[name][0] for name in result}, BlobState(state.blob, state.timeout_ms)


class Worker(WarmEngines):
    """A Python worker; whom it asks is in the same process."""

    def __init__(self, name: str, executor: Executor) -> None:
        super().__init__(None, name)
        self.executor = executor

    @property
    def address(self) -> str:
        return self._name

    def ask(self, holder: str, request: Request) -> Answer | None:
        worker = self.executor.workers.get(holder)
        return None if worker is None else worker.step(request)


@dataclass
class Executor:
    """Workers by name; those of an earlier run may still be there."""

    workers: dict[str, Worker] = field(default_factory=dict)
    started: int = 0

    def worker(self, rng: random.Random) -> Worker:
        """One that is idle: an old or a new one."""
        if len(self.workers) < 2 or rng.random() < 0.1:
            self.started += 1
            worker = Worker(f"worker {self.started}", self)
            self.workers[worker.address] = worker
        return self.workers[rng.choice(sorted(self.workers))]

    def lose(self, worker: Worker) -> None:
        self.workers.pop(worker.address, None)


class Host(LogHost):
    """The processor of one attempt."""

    def __init__(self, query: Query, worker: Worker, reach: Callable[[str], None]) -> None:
        super().__init__(query.spec, LogHostOptions(query.shards, 1 << 30))
        self.worker, self.reach = worker, reach

    def reached(self, failpoint: str) -> None:
        self.reach(f"host {failpoint}")

    @property
    def warm(self) -> WarmEngines:
        return self.worker


def log_task(
    query: Query, states: States, sent: Mapping[int, Sent], watermark_ms: int, worker: Worker, reach: Any
) -> list[dict[str, Any]]:
    """The same on the log host: rows, then timers; fired ones are deleted afterwards."""
    for shard in states:
        states[shard] = states[shard].copy()
    handle, host = Handle(states), Host(query, worker, reach)
    host.init(handle)  # type: ignore[arg-type]
    values, results = TimerValues(1, watermark_ms), []
    for shard in sorted(sent):
        handle.key = shard
        rows = iter([Row(side=side, blob=blob) for side, blob in sent[shard]])
        results += [row.asDict() for row in host.handleInputRows((shard,), rows, values)]
    due = [(at, shard) for shard, state in states.items() for at in state.timers if at <= watermark_ms]
    for at, shard in sorted(due):
        handle.key = shard
        results += [row.asDict() for row in host.handleExpiredTimer((shard,), values, ExpiredTimerInfo(at))]
        handle.deleteTimer(at)
    return results


# --- what a state says, read from outside ----------------------------------------------------------------------------


def stored(state: BlobState | ShardState) -> StoredState:
    """A shard's state as the product reads it from a checkpoint."""
    if isinstance(state, BlobState):
        return StoredState(state.blob)
    log = [entry for _, entry in sorted(state.maps.get("log", {}).items())]
    return StoredState(state.values.get("snapshot"), state.values["head"], log)


def engine_of(query: Query, state: BlobState | ShardState) -> EventTimePurgatory:
    return restore(query.spec, stored(state).blob(), query.shards)


def entries_of(state: BlobState | ShardState) -> int:
    return 0 if isinstance(state, BlobState) else sum(map(len, state.maps.values()))
