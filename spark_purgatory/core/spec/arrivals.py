"""Tables of operations and events that arrive at a shard, read without copying and checked row by row.

The exchange writes these columns, and the engine reads them:

operations   ``id``, ``id_hash``, ``keys`` and ``key_hashes`` (a value or a list), ``created_us``, ``deadline_us``,
             ``ahead`` (created too far ahead of processing time). Rows that bring their rules also have ``rule``,
             ``need`` and ``levels`` (a value or a list, like ``keys``) as doubles. If values are not doubles, they have
             ``need_up`` and ``levels_up`` too: the same rounded up to the values' digits, null if a decimal does not
             hold them. The payload comes last, as ``p0``, ``p1``, ... A payload column with one of `ROLES` is sent once
events       ``key``, ``key_hash``, ``time_us`` and ``ahead``. If the query reads them: ``value`` (in the query's number
             type, null if there is none), ``kind`` (null is complete), ``operation_id`` and ``operation_hash``,
             ``event_id``. The columns that outcomes carry come last, as ``p0``, ``p1``, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_purgatory.core.arrays import numbers
from spark_purgatory.core.arrays.numbers import Floats, Numbers
from spark_purgatory.core.arrays.sorted_runs import Bools, Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US
from spark_purgatory.core.arrays.value_column import as_bools
from spark_purgatory.core.spec.codes import KINDS, RULES, EventKind, EventRejection, OperationRejection, among
from spark_purgatory.core.spec.criteria import ADDING, COUNTED, LARGEST_SUM, LEVELLED, SMALLEST_SUM, ByRow, Criterion
from spark_purgatory.core.spec.engine_spec import ROLES, EngineSpec

OPERATION_COLUMNS = ("id", "id_hash", "keys", "key_hashes", "created_us", "deadline_us", "ahead")
EVENT_COLUMNS = ("key", "key_hash", "time_us", "ahead", "value", "kind", "operation_id", "operation_hash", "event_id")
RULE_COLUMNS = ("rule", "need", "levels", "need_up", "levels_up")


@dataclass(frozen=True)
class OperationArrivals:
    """n operations with m watch keys; operation i has ``keys[offsets[i]:offsets[i + 1]]``."""

    ids: pa.Array
    id_hash: Int64s
    keys: pa.Array  # (m,)
    key_hash: Int64s  # (m,)
    offsets: Int64s  # (n + 1,)
    created_us: Int64s
    deadline_us: Int64s
    rejection: Int64s  # (n,) codes of OperationRejection
    payload: pa.StructArray
    rule: Int64s | None = None  # (n,) codes of Rule; None: the query's criterion
    need: Floats | None = None  # (n,)
    level_need: Numbers | None = None  # (m,) in the query's number type
    sum_need: Numbers | None = None  # (n,) in the query's number type; None: the need itself

    def __len__(self) -> int:
        return len(self.id_hash)

    def take(self, rows: Int64s) -> OperationArrivals:
        if len(rows) == len(self):
            return self
        counts, chosen = np.diff(self.offsets), np.zeros(len(self), bool)
        chosen[rows] = True
        places = {"keys": np.flatnonzero(chosen.repeat(counts))}
        places["key_hash"] = places["level_need"] = places["keys"]
        taken = {name: _at(column, places.get(name, rows)) for name, column in vars(self).items()}
        return OperationArrivals(**{**taken, "offsets": np.append(0, np.cumsum(counts[rows]))})


@dataclass(frozen=True)
class EventArrivals:
    keys: pa.Array
    key_hash: Int64s
    time_us: Int64s  # (n,) MIN_TIME_US where there is none
    value: Numbers | None
    rejection: Int64s  # (n,) codes of EventRejection
    kind: Int64s | None = None  # (n,) codes of EventKind; None: all are complete
    operation_ids: pa.Array | None = None  # (n,) null: every operation on the key
    operation_hash: Int64s | None = None
    event_ids: pa.Array | None = None  # (n,)
    granted_us: Int64s | None = None  # (n,) of extensions
    no_addend: Bools | None = None  # (n,) values that no sum takes; None: rejected, or not read
    columns: pa.StructArray | None = None  # (n,) the columns that outcomes carry; None: they carry none

    def __len__(self) -> int:
        return len(self.key_hash)

    def take(self, rows: Int64s) -> EventArrivals:
        if len(rows) == len(self):
            return self
        return EventArrivals(**{name: _at(column, rows) for name, column in vars(self).items()})

    def is_control(self) -> Bools:
        """Flag events of another kind than complete, and events for one operation, (n,) bool."""
        control = np.zeros(len(self), bool) if self.kind is None else self.kind != EventKind.COMPLETE
        return control if self.operation_ids is None else control | ~_nulls(self.operation_ids)


def read_operations(table: pa.Table, spec: EngineSpec) -> OperationArrivals:
    payload = _others(table, (*OPERATION_COLUMNS, *RULE_COLUMNS))
    ids, keys, created, deadline = (
        whole(table, name) if spec.role(name) is None else payload_role(payload, spec, name) for name in ROLES
    )
    hashes = whole(table, "key_hashes")
    created_us, deadline_us = _int64(created), _int64(deadline)
    # MIN_TIME_US stands for no watermark yet, MAX_TIME_US for not resolved.
    at_no_time = (created_us == MIN_TIME_US) | (created_us == MAX_TIME_US)
    rejection = np.where(at_no_time, OperationRejection.CREATED_AT_NO_TIME, OperationRejection.NONE)
    if bool(pc.any(table["ahead"]).as_py()):
        rejection[as_bools(whole(table, "ahead"))] = OperationRejection.CREATED_AHEAD
    rejection[deadline_us < created_us] = OperationRejection.DEADLINE_BEFORE_CREATED
    if spec.deadline_is_sum:
        rejection[deadline_us == MAX_TIME_US] = OperationRejection.DEADLINE_OVERFLOWS
    _mark_nulls(rejection, deadline, OperationRejection.NULL_DEADLINE)
    _mark_nulls(rejection, created, OperationRejection.NULL_CREATED)
    if pa.types.is_list(keys.type):
        keys, key_hash, offsets, owner, kept = _flatten(keys, hashes)
        if keys.null_count:
            rejection[owner[_nulls(keys)]] = OperationRejection.NULL_KEY
        rejection[np.diff(offsets) == 0] = OperationRejection.NO_KEYS
    else:
        offsets, key_hash, kept = np.arange(len(table) + 1), _int64(hashes), slice(None)
        _mark_nulls(rejection, keys, OperationRejection.NULL_KEY)
    _mark_nulls(rejection, ids, OperationRejection.NULL_ID)
    arrivals = OperationArrivals(
        ids=ids,
        id_hash=_int64(whole(table, "id_hash")),
        keys=keys,
        key_hash=key_hash,
        offsets=offsets,
        created_us=created_us,
        deadline_us=deadline_us,
        rejection=rejection,
        payload=payload,
    )
    return _with_rules(arrivals, table, kept, spec.scale is None) if spec.by_row else arrivals


def _with_rules(arrivals: OperationArrivals, table: pa.Table, kept: Int64s | slice, doubles: bool) -> OperationArrivals:
    """Add the operations' own rules; ``kept`` are the positions of the keys that are left."""
    rule = codes_of(whole(table, "rule"), RULES)
    need, level_need = _floats(whole(table, "need")), _floats(_flat(whole(table, "levels")))[kept]
    bad = among(rule, COUNTED) & ~((need >= 1) & np.isfinite(need) & (need == np.floor(need)))
    within = (need >= SMALLEST_SUM) & (need <= LARGEST_SUM) if doubles else (need > 0) & np.isfinite(need)
    bad |= among(rule, ADDING) & (need != 0) & ~within
    owner = np.repeat(np.arange(len(rule)), np.diff(arrivals.offsets))
    bad[owner[np.isnan(level_need) & among(rule, LEVELLED)[owner]]] = True
    sound = arrivals.rejection == OperationRejection.NONE
    arrivals.rejection[sound & bad] = OperationRejection.NO_NEED
    arrivals.rejection[sound & (rule < 0)] = OperationRejection.UNKNOWN_RULE
    if doubles:
        return replace(arrivals, rule=rule, need=need, level_need=level_need)
    units = numbers.read_needs(whole(table, "need_up"), need)
    levels_up = _flat(whole(table, "levels_up"))
    if not isinstance(kept, slice):
        levels_up = levels_up.take(pa.array(kept))
    level_units = numbers.read_needs(levels_up, level_need)
    return replace(arrivals, rule=rule, need=need, level_need=level_units, sum_need=units)


def codes_of(names: pa.Array, known: tuple[str, ...]) -> Int64s:
    """Return the position of each name in ``known``, -1 for any other name; (n,) int64."""
    found = pc.index_in(names.cast(pa.string()), value_set=pa.array(known))
    return found.fill_null(-1).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _flat(column: pa.Array) -> pa.Array:
    return column.flatten() if pa.types.is_list(column.type) else column


def _floats(column: pa.Array) -> Floats:
    """Return doubles, (n,) float64, NaN for null."""
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _at(column: Any, rows: Int64s) -> Any:
    """Return the rows of a column, which may be a numpy array, an Arrow array or None."""
    if column is None:
        return None
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def payload_role(payload: pa.StructArray, spec: EngineSpec, name: str) -> pa.Array:
    """Return the payload column of a role, times as int64 microseconds."""
    column = payload.flatten()[dict(spec.roles)[name]]
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _others(table: pa.Table, known: Sequence[str]) -> pa.StructArray:
    names = [name for name in table.column_names if name not in known]
    return _as_array(table.select(names).to_struct_array())


def read_events(table: pa.Table, criterion: Criterion | ByRow, whole_operations: bool = False) -> EventArrivals:
    """Read and check a table of events; ``whole_operations`` is that of `EngineSpec`."""
    keys, times = whole(table, "key"), whole(table, "time_us")
    time_us = _int64(times.fill_null(MIN_TIME_US) if times.null_count else times)
    at_no_time = (time_us == MIN_TIME_US) | (time_us == MAX_TIME_US)
    rejection = np.where(at_no_time, EventRejection.AT_NO_TIME, EventRejection.NONE)
    value = granted_us = no_addend = None
    if bool(pc.any(table["ahead"]).as_py()):
        rejection[as_bools(whole(table, "ahead"))] = EventRejection.TIME_AHEAD
    kind = codes_of(whole(table, "kind").fill_null("complete"), KINDS) if "kind" in table.column_names else None
    if kind is not None:
        extensions = np.flatnonzero(kind == EventKind.EXTEND)
        seconds = whole(table, "value").take(pa.array(extensions)) if "value" in table.column_names else None
        if seconds is not None:
            granted_us = np.zeros(len(table), np.int64)
            granted_us[extensions] = numbers.seconds_us(seconds)
        bad_seconds = slice(None) if seconds is None else numbers.no_seconds(seconds)
        rejection[extensions[bad_seconds]] = EventRejection.BAD_EXTENSION
    if "value" in table.column_names:
        column = whole(table, "value")
        if criterion.reads_values:
            value, bad = _values(column)
            bad &= True if kind is None else kind == EventKind.COMPLETE
            if isinstance(criterion, ByRow):
                no_addend = bad
                value = np.where(bad & np.isnan(value), -np.inf, value) if numbers.is_double(value) else value
            elif criterion.code in ADDING:
                rejection[bad] = EventRejection.BAD_VALUE
    elif isinstance(criterion, ByRow):
        value = np.full(len(table), np.nan)
    if kind is not None:
        rejection[kind < 0] = EventRejection.UNKNOWN_KIND
    _mark_nulls(rejection, times, EventRejection.NULL_TIME)
    carried = _others(table, EVENT_COLUMNS)
    addressed, named = (name in table.column_names for name in ("operation_id", "event_id"))
    if keys.null_count:
        keyless = _nulls(keys)
        alone = np.zeros(len(table), bool)
        if addressed and kind is not None:
            alone = keyless & (kind > EventKind.COMPLETE) & ~_nulls(whole(table, "operation_id"))
        rejection[keyless & ~alone] = EventRejection.NULL_KEY
        if not whole_operations:
            rejection[alone] = EventRejection.OPERATION_ALONE
    return EventArrivals(
        keys=keys,
        key_hash=_int64(whole(table, "key_hash")),
        time_us=time_us,
        value=value,
        rejection=rejection,
        kind=kind,
        operation_ids=whole(table, "operation_id") if addressed else None,
        operation_hash=_int64(whole(table, "operation_hash")) if addressed else None,
        event_ids=whole(table, "event_id") if named else None,
        granted_us=granted_us,
        no_addend=no_addend,
        columns=carried if carried.type.num_fields else None,
    )


def newest_us(table: pa.Table, time_us: Int64s) -> int:
    """Return the newest of the rows' times; those that are null or too far ahead, as ``ahead`` tells, do not count."""
    return int(time_us[~as_bools(whole(table, "ahead"))].max(initial=MIN_TIME_US))


def _values(column: pa.Array) -> tuple[Numbers, Bools]:
    """Return values, and flag those that no sum takes. A null adds nothing and stays in the log."""
    value = numbers.read_numbers(column)
    return value, ~(value >= 0) & ~_nulls(column) if numbers.is_double(value) else numbers.is_negative(value)


def whole(table: pa.Table, name: str) -> pa.Array:
    return _as_array(table[name].combine_chunks())


def _as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _int64(column: pa.Array) -> Int64s:
    return (pc.fill_null(column, 0) if column.null_count else column).to_numpy()


def _nulls(column: pa.Array) -> Bools:
    return as_bools(pc.is_null(column))


def _mark_nulls(rejection: Int64s, column: pa.Array, code: int) -> None:
    if column.null_count:
        rejection[_nulls(column)] = code


def _flatten(keys: pa.ListArray, hashes: pa.ListArray) -> tuple[pa.Array, Int64s, Int64s, Int64s, Int64s | slice]:
    """Return the flat distinct keys of operations, hashes, offsets, owners, and which keys are left; null is empty."""
    offsets = keys.offsets.to_numpy().astype(np.int64)
    counts = np.where(_nulls(keys), 0, np.diff(offsets)) if keys.null_count else np.diff(offsets)
    owner = np.repeat(np.arange(len(keys)), counts)
    flat, key_hash = keys.flatten(), _int64(hashes.flatten())
    codes = flat.dictionary_encode().indices.fill_null(-1).to_numpy()
    order = np.lexsort((codes, owner))
    again = order[1:][(owner[order][1:] == owner[order][:-1]) & (codes[order][1:] == codes[order][:-1])]
    kept: Int64s | slice = slice(None)
    if len(again):
        kept = np.setdiff1d(np.arange(len(flat)), again, assume_unique=True)
        flat, key_hash, owner = flat.take(pa.array(kept)), key_hash[kept], owner[kept]
        counts = np.bincount(owner, minlength=len(keys))
    return flat, key_hash, np.concatenate(([0], np.cumsum(counts))).astype(np.int64), owner, kept
