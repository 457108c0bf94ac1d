"""A shard's state as a snapshot and a log of the steps since: what a step was given, as bytes and back.

The engine is deterministic: the same steps lead to the same state, whatever the order of the rows in each. So instead
of the state after each step, what the step was given is enough: the packed operations and events as they arrived, and
the watermark. An entry of the log is one step. A snapshot is the whole engine (`engine_snapshot`); with it the log
begins anew.

Body of an entry, behind its frame (`frame`): the size before compression (8 bytes), then, compressed by zstd: the
watermark in milliseconds (8), the number of blobs of operations (4) and of events (4), the length of each blob (8),
the blobs. A blob is an Arrow IPC stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from spark_purgatory.core.arrays.held_bytes import own_memory
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.spec.arrivals import read_events, read_operations
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.core.state.engine_snapshot import restore, restore_as_written, save
from spark_purgatory.core.state.frame import read_frame, write_frame
from spark_purgatory.core.state.shard_head import ShardHead, read_head
from spark_purgatory.errors import START_OVER, StateCorruptError, StateVersionError

MAGIC = b"SPKPLOG\0"
VERSION = 1
STEP_VERSION = 2
"""The version of the engine's steps. A release in which a step may lead to another state than before raises it: then a
log that an earlier release wrote is refused, since its outcomes have left already and would not be those of the replay.
2: the order of a step's rows decides nothing.
"""
CODEC = pa.Codec("zstd", compression_level=1)
SIZE = struct.Struct("<Q")
COUNTS = struct.Struct("<qII")


@dataclass(frozen=True)
class Step:
    """What a step of an engine is given."""

    watermark_ms: int
    operations: Sequence[bytes] = field(default_factory=list)
    """Packed tables of operations (`arrivals`), each an Arrow IPC stream."""
    events: Sequence[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the packed tables."""
        return sum(map(len, self.operations)) + sum(map(len, self.events))


def write_entry(step: Step) -> bytes:
    """A step as an entry of the log."""
    blobs = [*step.operations, *step.events]
    counts = COUNTS.pack(step.watermark_ms, len(step.operations), len(step.events))
    body = b"".join((counts, *(SIZE.pack(len(blob)) for blob in blobs), *blobs))
    return write_frame(MAGIC, VERSION, SIZE.pack(len(body)) + CODEC.compress(body, asbytes=True))


def read_entry(entry: bytes) -> Step:
    """The step of an entry. Raises StateCorruptError or StateVersionError."""
    coded = read_frame(MAGIC, VERSION, entry, "an entry of a shard's log")
    if len(coded) < SIZE.size:
        raise StateCorruptError(f"an entry of a shard's log has a body of {len(coded)} bytes: truncated")
    body = memoryview(CODEC.decompress(pa.py_buffer(coded[SIZE.size :]), SIZE.unpack_from(coded)[0]))
    watermark_ms, operations, events = COUNTS.unpack_from(body)
    at = COUNTS.size
    lengths = struct.unpack_from(f"<{operations + events}Q", body, at)
    at += SIZE.size * len(lengths)
    blobs = []
    for length in lengths:
        blobs.append(bytes(body[at : at + length]))
        at += length
    return Step(watermark_ms, blobs[:operations], blobs[operations:])


def table_of(blobs: Sequence[bytes]) -> pa.Table | None:
    """The rows of packed tables as one; None of none."""
    tables = []
    for blob in blobs:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            tables.append(reader.read_all())
    return pa.concat_tables(tables) if tables else None


def take_step(engine: EventTimePurgatory, step: Step, is_kept: bool = False) -> list[pa.RecordBatch]:
    """Give the engine a step. Returns outcomes, as `EventTimePurgatory.step` does.

    ``is_kept``: the engine stays in memory. Then it takes copies of the columns, since each column of a blob keeps the
    memory of the whole blob.
    """
    operations, events = table_of(step.operations), table_of(step.events)
    if is_kept and operations is not None:
        operations = pa.table({name: pa.concat_arrays(operations[name].chunks) for name in operations.column_names})
    return engine.step(
        None if operations is None else read_operations(operations, engine.spec),
        None if events is None else read_events(events, engine.spec.criterion, engine.spec.whole_operations),
        step.watermark_ms,
    )


def replay(engine: EventTimePurgatory, entries: Iterable[bytes]) -> None:
    """Take the steps of the entries, in order. Their outcomes left when the steps were first taken."""
    for entry in entries:
        take_step(engine, read_entry(entry), is_kept=True)


def digest(spec: EngineSpec) -> str:
    """Equal for two specs only if the one's log can be replayed, and its engine used, under the other."""
    described = repr(spec).encode()
    columns = b"" if spec.columns is None else spec.columns.serialize().to_pybytes()
    return blake2b(described + columns, digest_size=16).hexdigest()


def load(
    spec: EngineSpec, shards: int, head: ShardHead, snapshot: bytes, entries: Sequence[bytes]
) -> EventTimePurgatory:
    """The engine of a snapshot and the entries since, to be kept in memory.

    Entries say what arrived as the query of then packed it. So where the query has changed since, they are replayed
    under the settings and columns of then, and the result goes on under those of now, as a snapshot does.

    Raises StateError where something is damaged or belongs to another query.
    """
    if head.spec_digest == digest(spec):
        engine = restore(spec, snapshot, shards)
        replay(engine, checked(head, entries))
    else:
        engine = restore(spec, merged(head, snapshot, entries), shards)
    own_memory(engine)
    return engine


def merged(head: ShardHead, snapshot: bytes, entries: Sequence[bytes]) -> bytes:
    """A snapshot that has the entries in it, of a query of any settings. Raises StateError where one is damaged."""
    steps = checked(head, entries)
    if not steps:
        return snapshot
    engine = restore_as_written(snapshot, head.deadline_is_sum)
    replay(engine, steps)
    return save(engine, head.shards)


def checked(head: ShardHead, entries: Sequence[bytes]) -> Sequence[bytes]:
    """The entries, if they are all there and this release takes the steps that the writing release took."""
    if len(entries) != head.log_entries:
        raise StateCorruptError(
            f"a shard's log has {len(entries)} entries and its head says {head.log_entries}: entries are missing from "
            "the checkpoint"
        )
    if entries and head.step_version != STEP_VERSION:
        raise StateVersionError(
            f"a shard's log was written by steps of version {head.step_version}, this version of spark_purgatory takes "
            f"those of {STEP_VERSION}: run the release that wrote the checkpoint, or {START_OVER}"
        )
    return entries


@dataclass(frozen=True)
class ShardState:
    """One shard's state: the blob of the one host, or head, snapshot and log of the other."""

    snapshot: bytes | None
    head: bytes | None = None
    """None where the whole state is one blob."""
    log: Sequence[bytes] = ()

    def blob(self) -> bytes:
        """The state as one blob (`engine_snapshot`). Raises StateError where it is damaged."""
        if self.snapshot is None:
            raise StateCorruptError("a shard's state has a head and no snapshot: files are missing from the checkpoint")
        return self.snapshot if self.head is None else merged(read_head(self.head), self.snapshot, self.log)

    def metadata(self) -> dict[str, Any]:
        """What the state says of itself, with what was counted and what waits now.

        Of a head alone, ``tally`` and ``gauges`` only. Raises StateError where it is damaged.
        """
        said = {} if self.snapshot is None else read_metadata(self.snapshot)
        head = None if self.head is None else read_head(self.head)
        return said if head is None else {**said, "tally": dict(head.tally), "gauges": dict(head.gauges)}

    @property
    def size(self) -> int:
        """Bytes, as the state store keeps them."""
        if self.head is None:
            return len(self.snapshot or b"")
        head = read_head(self.head)
        return len(self.head) + head.snapshot_bytes + head.log_bytes
