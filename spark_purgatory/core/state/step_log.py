"""A shard's state as a snapshot and a log of the steps since.

The engine is deterministic: the same steps lead to the same state, in any order of their rows. So the log does not have
the state after each step, but its inputs: the packed operations and events as they arrived, and the watermark. An entry
is one step. A snapshot is the whole engine (`engine_snapshot`), and the log starts again with it.

Body of an entry in its `frame`: the size before compression (8 bytes), then, compressed by zstd: the watermark in
milliseconds (8), the number of blobs of operations (4) and of events (4), the length of each blob (8), the blobs. A
blob is an Arrow IPC stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from spark_purgatory.core.arrays.times import MIN_TIME_US
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import newest_us, read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.core.state.engine_snapshot import inspect, restore, save
from spark_purgatory.core.state.frame import decoding, read_frame, write_frame
from spark_purgatory.core.state.payload import check_layout
from spark_purgatory.core.state.shard_head import ShardHead, read_head
from spark_purgatory.errors import START_OVER, StateCorruptError, StateVersionError

MAGIC = b"SPKPLOG\0"
VERSION = 1
WHAT = "an entry of a shard's log"
MOST_COMPRESSED = 1 << 15  # zstd's smallest block has 4 bytes and decodes to at most 128 KiB
# The version of the engine's steps. A release in which a step may lead to another state raises it. Logs of earlier
# releases are then refused, because outcomes of their replay could differ from those that have left.
STEP_VERSION = 2  # 2: the order of a step's rows decides nothing
CODEC = pa.Codec("zstd", compression_level=1)
SIZE = struct.Struct("<Q")
COUNTS = struct.Struct("<qII")


@dataclass(frozen=True)
class Step:
    """The inputs of a step: a watermark, and packed tables (`arrivals`), each an Arrow IPC stream."""

    watermark_ms: int
    operations: Sequence[bytes] = field(default_factory=list)
    events: Sequence[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.operations)) + sum(map(len, self.events))


def write_entry(step: Step) -> bytes:
    blobs = [*step.operations, *step.events]
    counts = COUNTS.pack(step.watermark_ms, len(step.operations), len(step.events))
    body = b"".join((counts, *(SIZE.pack(len(blob)) for blob in blobs), *blobs))
    return write_frame(MAGIC, VERSION, SIZE.pack(len(body)) + CODEC.compress(body, asbytes=True))


@decoding(WHAT)
def read_entry(entry: bytes) -> Step:
    coded = read_frame(MAGIC, VERSION, entry, WHAT)
    [size] = SIZE.unpack_from(coded)
    if size > len(coded) * MOST_COMPRESSED:
        raise StateCorruptError(f"{WHAT} has {len(coded)} bytes, which cannot decode to {size}, so it is damaged")
    body = memoryview(CODEC.decompress(pa.py_buffer(coded[SIZE.size :]), size))
    watermark_ms, operations, events = COUNTS.unpack_from(body)
    at = COUNTS.size
    lengths = struct.unpack_from(f"<{operations + events}Q", body, at)
    at += SIZE.size * len(lengths)
    ends = [*accumulate(lengths, initial=at)]
    if ends[-1] != len(body):
        raise StateCorruptError(f"{WHAT} has {len(body)} bytes, but its lengths add up to {ends[-1]}, so it is damaged")
    blobs = [bytes(body[start:end]) for start, end in pairwise(ends)]
    return Step(watermark_ms, blobs[:operations], blobs[operations:])


def table_of(blobs: Sequence[bytes]) -> pa.Table | None:
    """Return the rows of packed tables as one table; None if there are none."""
    tables = []
    for blob in blobs:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            tables.append(reader.read_all())
    return pa.concat_tables(tables) if tables else None


def take_step(engine: EventTimePurgatory, step: Step, is_kept: bool = False) -> list[pa.RecordBatch]:
    """Take a step; an engine that ``is_kept`` in memory copies columns, which would keep the whole blob's memory."""
    operations, events = table_of(step.operations), table_of(step.events)
    if is_kept and operations is not None:
        operations = pa.table({name: pa.concat_arrays(operations[name].chunks) for name in operations.column_names})
    waiting = None if operations is None else read_operations(operations, engine.spec)
    arrived = None if events is None else read_events(events, engine.spec.criterion, engine.spec.whole_operations)
    engine.outcomes.tally.see(
        MIN_TIME_US if operations is None or waiting is None else newest_us(operations, waiting.created_us),
        MIN_TIME_US if events is None or arrived is None else newest_us(events, arrived.time_us),
    )
    return engine.step(waiting, arrived, step.watermark_ms)


def replay(engine: EventTimePurgatory, entries: Iterable[bytes]) -> None:
    """Take the steps of the entries in order, and drop their outcomes, which left when the steps were first taken."""
    for entry in entries:
        step = read_entry(entry)
        with decoding(WHAT):
            for table in filter(None, map(table_of, (step.operations, step.events))):
                for batch in table.to_batches():
                    check_layout(batch)
            take_step(engine, step, is_kept=True)


def digest(spec: EngineSpec) -> str:
    """Return a digest that two specs share only if each can use the other's log and engine."""
    described = repr(spec).encode()
    columns = b"" if spec.columns is None else spec.columns.serialize().to_pybytes()
    return blake2b(described + columns, digest_size=16).hexdigest()


def load_engine(
    spec: EngineSpec, shards: int, head: ShardHead, snapshot: bytes, entries: Sequence[bytes]
) -> EventTimePurgatory:
    """Return the engine of a snapshot and the entries since, to be kept in memory.

    If the query has changed since, entries are replayed under the settings of that time, and the result is restored.
    """
    if head.spec_digest != digest(spec):
        return restore(spec, merged(head, snapshot, entries), shards)
    engine = restore(spec, snapshot, shards)
    replay(engine, checked(head, entries))
    return engine


def merged(head: ShardHead, snapshot: bytes, entries: Sequence[bytes]) -> bytes:
    """Return a snapshot that includes the entries, for a query of any settings. Raises StateError if one is damaged."""
    steps = checked(head, entries)
    if not steps:
        return snapshot
    engine, _ = inspect(snapshot, head.deadline_is_sum)
    replay(engine, steps)
    return save(engine, head.shards)


def checked(head: ShardHead, entries: Sequence[bytes]) -> Sequence[bytes]:
    """Return the entries if they are complete, and were written by steps of the same version."""
    if len(entries) != head.log_entries:
        raise StateCorruptError(
            f"a shard's log has {len(entries)} entries, but {head.log_entries} by its head, so some are missing"
        )
    if entries and head.step_version != STEP_VERSION:
        raise StateVersionError(
            f"a shard's log has step version {head.step_version}, but this release of spark_purgatory reads "
            f"version {STEP_VERSION}: run the release that wrote the checkpoint, or {START_OVER}"
        )
    return entries


@dataclass(frozen=True)
class ShardState:
    """One shard's state: the blob of one host, or head, snapshot and log of the other."""

    snapshot: bytes | None
    head: bytes | None = None  # None if the whole state is one blob
    log: Sequence[bytes] = ()

    def blob(self) -> bytes:
        """Return the state as one blob (`engine_snapshot`). Raises StateError if it is damaged."""
        if self.snapshot is None:
            raise StateCorruptError("a shard's state has a head but no snapshot, so files are missing")
        return self.snapshot if self.head is None else merged(read_head(self.head), self.snapshot, self.log)

    def metadata(self) -> dict[str, Any]:
        """Return the state's metadata with current counts; a head alone has only ``tally`` and ``gauges``."""
        metadata = {} if self.snapshot is None else read_metadata(self.snapshot)
        head = None if self.head is None else read_head(self.head)
        return metadata if head is None else {**metadata, "tally": dict(head.tally), "gauges": dict(head.gauges)}

    @property
    def size(self) -> int:
        if self.head is None:
            return len(self.snapshot or b"")
        head = read_head(self.head)
        return len(self.head) + head.snapshot_bytes + head.log_bytes
