"""The packed exchange: rows become Arrow once and stay Arrow.

The function of `packer` runs in a ``mapInArrow`` before the shuffle. It gathers rows, splits them by shard, and emits
one blob (Arrow IPC) a shard. The function of `unpacker` runs in the ``mapInArrow`` after the group function. Between
them the shuffle and the state function see a few large binary rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F

from spark_purgatory.core.engine.outcomes import ORPHAN_FIELDS, OUTCOME_FIELDS
from spark_purgatory.core.state.payload import conform, conform_batch, plain, sent
from spark_purgatory.spark.host.worker import end_task, prepare_worker
from spark_purgatory.spark.placement import shard_label

OPERATIONS, EVENTS = 0, 1
GATHER_BYTES = 32 << 20  # Rows are gathered up to this size, then split into large blobs. A worker holds twice this
ROUTES = ("route", "key_hashes", "key_hash")  # They may choose a row's shard. The first that a table has does
EXCHANGE_SETTINGS: Mapping[str, str] = {  # Settings of a session that make the exchange cheaper. Results are the same
    # With a limit, Spark adds up the size of all columns after each row, which is a quarter of the cost of handing rows
    # to Python. Without one, spark.sql.execution.arrow.maxRecordsPerBatch alone cuts batches.
    "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
}
SOCKET_FOLDER_LIMIT = 64  # The most characters of a folder of sockets: a path has at most 107, and its name takes 42

Batches = Iterator[pa.RecordBatch]
WATERMARK_METADATA = "spark.watermarkDelayMs"


def unix_sockets(folder: str) -> dict[str, str]:
    """Return settings that a session must start with, for streams whose micro-batches are less than a minute apart.

    TCP costs each Python task 40 ms, in which one end waits for an acknowledgement that the other delays. ``folder``
    must exist on every machine that runs Python. There are no settings if its name is too long for a socket, or on
    Spark 4.0, which has no Unix sockets.
    """
    if pyspark.__version__.startswith("4.0.") or len(os.fsencode(folder)) > SOCKET_FOLDER_LIMIT:
        return {}
    name = "spark.python.unix.domain.socket"
    return {f"{name}.enabled": "true", f"{name}.dir": folder}


def exchanged(
    rows: DataFrame, side: int, shards: int, broadcast: bool = False, columns: pa.Schema | None = None
) -> DataFrame:
    return rows.mapInArrow(packer(side, shards, broadcast, columns), "shard int, side tinyint, blob binary")


def by_shard(packed: DataFrame) -> GroupedData:
    """Return the groups that a host is called with.

    The null column satisfies Spark's analyzer and is never behind, so that late rows arrive and are counted.
    """
    marker = F.lit(None).cast("timestamp").alias("marker", metadata={WATERMARK_METADATA: 0})
    return packed.select("shard", "side", "blob", marker).groupBy("shard")


def packer(side: int, shards: int, broadcast: bool, columns: pa.Schema | None = None) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow`` that packs an input's rows, with ``ahead`` where ``guarded`` is null.

    ``columns`` are the payload's. Blobs have the types of `plain`, whatever the session's settings are.
    """
    labels = np.array([shard_label(shard) for shard in range(shards)], np.int32)
    payload = {} if columns is None else {field.name: field for field in sent(columns)}

    def pack(batches: Batches) -> Batches:
        prepare_worker()
        gathered: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            route = batch.column(_route_index(batch.schema))
            if route.null_count:
                # A heartbeat has no hash. It has moved the watermark, and is not needed any more.
                batch = batch.filter(route.is_valid())
            fields = [payload.get(each.name) or pa.field(each.name, plain(each.type)) for each in batch.schema]
            batch = conform_batch(batch, pa.schema(fields))
            gathered.append(batch)
            size += batch.nbytes
            if size >= GATHER_BYTES:
                yield from _split(gathered, side, labels, broadcast)
                gathered, size = [], 0
        if gathered and sum(map(len, gathered)):
            yield from _split(gathered, side, labels, broadcast)
        del gathered
        end_task()

    return pack


def _split(batches: list[pa.RecordBatch], side: int, labels: np.ndarray, broadcast: bool) -> Batches:
    table = pa.Table.from_batches(batches).combine_chunks()
    route = table.column(_route_index(table.schema)).combine_chunks().to_numpy()
    ahead = table.column("guarded").is_null()
    names = [name for name in table.column_names if name not in ("route", "guarded")]
    table = table.select(names).append_column("ahead", ahead)
    shard = (route.view(np.uint64) % np.uint64(len(labels))).astype(np.uint16)
    if broadcast or len(labels) == 1:
        whole = _blobs(table, [0], [len(table)])
        for i in range(len(labels)):
            yield _rows(labels[i : i + 1], side, whole)
        return
    order = np.argsort(shard, kind="stable")
    table = table.take(pa.array(order))
    ends = np.cumsum(np.bincount(shard, minlength=len(labels)))
    starts = ends - np.diff(ends, prepend=0)
    used = np.flatnonzero(ends > starts)
    yield _rows(labels[used], side, _blobs(table, starts[used].tolist(), ends[used].tolist()))


def _route_index(schema: pa.Schema) -> int:
    return next(at for at in map(schema.get_field_index, ROUTES) if at >= 0)


def _blobs(table: pa.Table, starts: Sequence[int], ends: Sequence[int]) -> pa.Array:
    """Return each range of rows as an Arrow IPC stream. One buffer holds them all."""
    sink, bounds = pa.BufferOutputStream(), [0]
    for start, end in zip(starts, ends, strict=True):
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write(table.slice(start, end - start))
        bounds.append(sink.tell())
    offsets = pa.py_buffer(np.array(bounds))
    return pa.Array.from_buffers(pa.large_binary(), len(starts), [None, offsets, sink.getvalue()])


def _rows(labels: np.ndarray, side: int, blobs: pa.Array) -> pa.RecordBatch:
    columns = [pa.array(labels), pa.array(np.full(len(labels), side, np.int8)), blobs.cast(pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["shard", "side", "blob"])


def to_blob(table: pa.Table | pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


def unpacker(
    schema: pa.Schema, evidence: Sequence[pa.Field] = (), orphans: bool = False
) -> Callable[[Batches], Batches]:
    """Return the function for ``mapInArrow`` that turns blobs into rows (`outcome_columns`)."""

    def unpack(batches: Batches) -> Batches:
        prepare_worker()
        for batch in batches:
            for blob in batch.column(batch.schema.get_field_index("blob")):
                if not blob.is_valid:
                    continue
                with pa.ipc.open_stream(blob.as_buffer()) as reader:
                    for rows in reader:
                        columns = outcome_columns(rows, schema, evidence, orphans)
                        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        end_task()

    return unpack


def outcome_columns(
    rows: pa.RecordBatch, schema: pa.Schema, evidence: Sequence[pa.Field], orphans: bool
) -> list[pa.Array]:
    """Return the engine's outcomes as columns of ``schema``, found by name in any order.

    The engine calls the operation's own columns ``p0``, ``p1``, ...; ORPHANs lack them, and get nulls. In ``schema``
    they come first, by the users' names.
    """
    added = [field.name for field in (*OUTCOME_FIELDS, *evidence, *(ORPHAN_FIELDS if orphans else ()))]
    names = [*(f"p{i}" for i in range(len(schema) - len(added))), *added]
    unknown = set(rows.schema.names) - set(names)
    assert not unknown, f"bug: outcomes have columns {sorted(unknown)} that the query does not"
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    kinds = zip(names, schema.types, strict=True)
    return [conform(given[name], kind) if name in given else pa.nulls(len(rows), kind) for name, kind in kinds]
