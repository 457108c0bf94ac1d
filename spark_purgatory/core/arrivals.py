"""What arrives at a shard: tables of operations and of events, read without copying, checked row by row.

Columns of the tables are fixed here, so that the exchange that writes them and the engine that reads them agree:

operations   ``id``, ``id_hash``, ``keys`` (a value or a list), ``key_hashes`` (likewise), ``created_us``,
``deadline_us``,
             ``ahead`` (created too far ahead of processing time), then the payload, ``p0``, ``p1``, ...;
             a column of `ROLES` that the spec says is a payload column is not sent apart
events       ``key``, ``key_hash``, ``time_us``, ``value`` (where the criterion reads it; null is no value), ``ahead``
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.criteria import SUM_AT_LEAST, Criterion
from spark_purgatory.core.engine_spec import ROLES, EngineSpec
from spark_purgatory.core.event_log import Floats
from spark_purgatory.core.keys import as_bools
from spark_purgatory.core.runs import Bools, Int64s

OPERATION_COLUMNS = ("id", "id_hash", "keys", "key_hashes", "created_us", "deadline_us", "ahead")

REJECTIONS = (
    "",
    "the id is null",
    "the operation has no watch keys",
    "a watch key is null",
    "the created time is null",
    "the deadline or time-out is null",
    "the deadline is before the created time",
    "the created time is too far ahead of processing time (max_future)",
)
"""Reason of a REJECTED operation by code; 0 is no reason."""
EVENT_REJECTIONS = (
    "",
    "the key is null",
    "the time is null",
    "the value is not a number, or negative, where values add up",
    "the time is too far ahead of processing time (max_future)",
)
"""Reason of a rejected event by code."""


@dataclass(frozen=True)
class OperationArrivals:
    """n operations with m watch keys; keys of operation i are ``offsets[i] .. offsets[i + 1]``."""

    ids: pa.Array
    id_hash: Int64s
    keys: pa.Array  # (m,)
    key_hash: Int64s  # (m,)
    offsets: Int64s  # (n + 1,)
    created_us: Int64s
    deadline_us: Int64s
    rejection: Int64s  # (n,) codes of REJECTIONS
    payload: pa.StructArray

    def __len__(self) -> int:
        return len(self.id_hash)

    def take(self, rows: Int64s) -> OperationArrivals:
        """Only the operations at ``rows``, (k,) ascending."""
        if len(rows) == len(self):
            return self
        counts = np.diff(self.offsets)[rows]
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        entries = pa.array(np.flatnonzero(np.repeat(mask, np.diff(self.offsets))))
        at = pa.array(rows)
        return OperationArrivals(
            self.ids.take(at),
            self.id_hash[rows],
            self.keys.take(entries),
            self.key_hash[entries.to_numpy()],
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            self.created_us[rows],
            self.deadline_us[rows],
            self.rejection[rows],
            self.payload.take(at),
        )


@dataclass(frozen=True)
class EventArrivals:
    """n events."""

    keys: pa.Array
    key_hash: Int64s
    time_us: Int64s
    value: Floats | None
    rejection: Int64s  # (n,) codes of EVENT_REJECTIONS

    def __len__(self) -> int:
        return len(self.key_hash)

    def take(self, rows: Int64s) -> EventArrivals:
        """Only the events at ``rows``, (k,) ascending."""
        if len(rows) == len(self):
            return self
        value = None if self.value is None else self.value[rows]
        return EventArrivals(
            self.keys.take(pa.array(rows)), self.key_hash[rows], self.time_us[rows], value, self.rejection[rows]
        )


def read_operations(table: pa.Table, spec: EngineSpec) -> OperationArrivals:
    """Read and check a table of operations."""
    payload = _payload(table)
    ids, keys, created, deadline = (
        _whole(table, name) if spec.role(name) is None else payload_role(payload, spec, name) for name in ROLES
    )
    hashes = _whole(table, "key_hashes")
    created_us, deadline_us = _int64(created), _int64(deadline)
    rejection = np.zeros(len(table), np.int64)
    if bool(pc.any(table["ahead"]).as_py()):
        rejection[as_bools(_whole(table, "ahead"))] = 7
    rejection[deadline_us < created_us] = 6
    _mark_nulls(rejection, deadline, 5)
    _mark_nulls(rejection, created, 4)
    if pa.types.is_list(keys.type):
        keys, key_hash, offsets, owner = _flatten(keys, hashes)
        if keys.null_count:
            rejection[owner[_nulls(keys)]] = 3
        rejection[np.diff(offsets) == 0] = 2
    else:
        offsets, key_hash = np.arange(len(table) + 1), _int64(hashes)
        _mark_nulls(rejection, keys, 3)
    _mark_nulls(rejection, ids, 1)
    id_hash = _int64(_whole(table, "id_hash"))
    return OperationArrivals(ids, id_hash, keys, key_hash, offsets, created_us, deadline_us, rejection, payload)


def payload_role(payload: pa.StructArray, spec: EngineSpec, name: str) -> pa.Array:
    """The payload column that plays the role, times as int64 microseconds."""
    column = payload.flatten()[dict(spec.roles)[name]]
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _payload(table: pa.Table) -> pa.StructArray:
    columns = table.drop_columns([name for name in OPERATION_COLUMNS if name in table.column_names])
    return _as_array(columns.to_struct_array())


def read_events(table: pa.Table, criterion: Criterion) -> EventArrivals:
    """Read and check a table of events."""
    keys, times = _whole(table, "key"), _whole(table, "time_us")
    rejection = np.zeros(len(table), np.int64)
    value: Floats | None = None
    if bool(pc.any(table["ahead"]).as_py()):
        rejection[as_bools(_whole(table, "ahead"))] = 4
    if criterion.reads_values:
        column = _whole(table, "value").cast(pa.float64())
        value = column.to_numpy(zero_copy_only=False)
        if criterion.code == SUM_AT_LEAST:
            # Null adds nothing, and stays in the log as NaN; what was NaN or negative to begin with is refused.
            rejection[~(value >= 0) & ~_nulls(column)] = 3
    _mark_nulls(rejection, times, 2)
    _mark_nulls(rejection, keys, 1)
    return EventArrivals(keys, _int64(_whole(table, "key_hash")), _int64(times), value, rejection)


def _whole(table: pa.Table, name: str) -> pa.Array:
    return _as_array(table[name].combine_chunks())


def _as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _int64(column: pa.Array) -> Int64s:
    if column.null_count:
        column = pc.fill_null(column, 0)
    return column.to_numpy()


def _nulls(column: pa.Array) -> Bools:
    return as_bools(pc.is_null(column))


def _mark_nulls(rejection: Int64s, column: pa.Array, code: int) -> None:
    if column.null_count:
        rejection[_nulls(column)] = code


def _flatten(keys: pa.ListArray, hashes: pa.ListArray) -> tuple[pa.Array, Int64s, Int64s, Int64s]:
    """(distinct keys of each operation flat, their hashes, offsets, operation of each); null lists are empty."""
    offsets = keys.offsets.to_numpy().astype(np.int64)
    counts = np.where(_nulls(keys), 0, np.diff(offsets)) if keys.null_count else np.diff(offsets)
    owner = np.repeat(np.arange(len(keys)), counts)
    flat, key_hash = keys.flatten(), _int64(hashes.flatten())
    codes = flat.dictionary_encode().indices.fill_null(-1).to_numpy()
    order = np.lexsort((codes, owner))
    again = order[1:][(owner[order][1:] == owner[order][:-1]) & (codes[order][1:] == codes[order][:-1])]
    if len(again):
        kept = np.setdiff1d(np.arange(len(flat)), again, assume_unique=True)
        flat, key_hash, owner = flat.take(pa.array(kept)), key_hash[kept], owner[kept]
        counts = np.bincount(owner, minlength=len(keys))
    return flat, key_hash, np.concatenate(([0], np.cumsum(counts))).astype(np.int64), owner
