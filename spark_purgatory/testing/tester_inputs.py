"""Both inputs as the engine takes them, made from Arrow tables: what `spark_purgatory.spark.operator.inputs` makes
with Spark's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Decimal, localcontext
from hashlib import md5
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_purgatory.config import Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike
from spark_purgatory.config.units import us_per
from spark_purgatory.core.arrays.numbers import DOUBLE, scale_of
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US
from spark_purgatory.core.arrays.value_column import as_bytes, hash_keys
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.state.payload_schema import conform, sent
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.evidence import carried_columns
from spark_purgatory.spark.operator.field_types import InputTypes, reads_value
from spark_purgatory.spark.operator.payload import columns_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_DIGITS = 38


def operations_table(table: pa.Table, schema: T.StructType, options: PurgatoryOptions, facts: InputTypes) -> pa.Table:
    """Operations as the exchange delivers them."""
    config = options.operations
    scope = _scope(table, options)
    raw = _raw_keys(table, config, facts.several_keys)
    keys = _scoped(_texts(_flat(raw)), scope if scope is None else scope.take(_owners(raw)))
    hashes = _hashes(keys)
    ids = _scoped(_texts(_column(table, config.id)), scope)
    created_us = _times_us(_column(table, config.created))
    columns: dict[str, pa.Array] = {
        "id": ids,
        "id_hash": _hashes(ids),
        "keys": _nested_like(raw, keys),
        "key_hashes": _nested_like(raw, hashes),
        "created_us": created_us,
        "deadline_us": _deadline_us(table, config, created_us),
    }
    if isinstance(options.criterion, ByRow):
        columns |= _rules(table, options.criterion, raw, facts.number)
    roles = dict(facts.roles)
    columns = {name: column for name, column in columns.items() if name not in roles}
    columns["ahead"] = pa.repeat(False, len(table))
    for i, field in enumerate(sent(columns_of(schema, case_sensitive=False))):
        columns[field.name] = conform(table.column(i).combine_chunks(), field.type)
    return pa.table(columns)


def events_table(table: pa.Table, options: PurgatoryOptions, number: str, carried: pa.Schema | None = None) -> pa.Table:
    """Events as the exchange delivers them."""
    config, scope = options.completions, _scope(table, options)
    keys = _scoped(_texts(_column(table, config.key)), scope)
    columns = {"key": keys, "key_hash": _hashes(keys), "time_us": _times_us(_column(table, config.time))}
    if reads_value(options):
        exact = number != DOUBLE or not options.criterion.reads_values
        columns["value"] = _values(_column(table, config.value), exact)
    if config.kind is not None:
        columns["kind"] = _column(table, config.kind).cast(pa.string())
    if config.operation_id is not None:
        columns["operation_id"] = _scoped(_texts(_column(table, config.operation_id)), scope)
        columns["operation_hash"] = _hashes(columns["operation_id"])
    if config.event_id is not None:
        columns["event_id"] = _texts(_column(table, config.event_id))
    given = carried_columns(options, table.column_names).values()
    for name, field in zip(given, [] if carried is None else sent(carried), strict=True):
        columns[field.name] = conform(_column(table, name), field.type)
    columns["ahead"] = pa.repeat(False, len(table))
    return pa.table(columns)


def _column(table: pa.Table, value: ColumnLike | None) -> pa.Array:
    """The column that a config value names, or a field of a struct."""
    assert isinstance(value, str), "bug: a Column was not refused"
    if value in table.column_names:
        return table[value].combine_chunks()
    first, *rest = value.split(".")
    return pc.struct_field(table[first].combine_chunks(), rest)


def _raw_keys(table: pa.Table, config: Operations, several: bool) -> pa.Array:
    """Keys as they are: a value or a list for each operation."""
    names = list(config.keys) if isinstance(config.keys, (list, tuple)) else [cast("ColumnLike", config.keys)]
    columns = [_column(table, name) for name in names]
    if not several or len(columns) == 1:
        return columns[0]
    order = np.arange(len(table) * len(columns)).reshape(len(columns), -1).T.ravel()
    offsets = np.arange(len(table) + 1, dtype=np.int32) * len(columns)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.concat_arrays(columns).take(pa.array(order)))


def _is_list(column: pa.Array) -> bool:
    return pa.types.is_list(column.type)


def _flat(column: pa.Array) -> pa.Array:
    return column.flatten() if _is_list(column) else column


def _counts(column: pa.Array) -> Int64s:
    return pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _owners(column: pa.Array) -> pa.Array:
    """The row of each flat value."""
    n = len(column)
    return pa.array(np.repeat(np.arange(n), _counts(column)) if _is_list(column) else np.arange(n))


def _nested_like(column: pa.Array, flat: pa.Array) -> pa.Array:
    """Flat values in lists as those of ``column``, where it has lists."""
    if not _is_list(column):
        return flat
    offsets = np.concatenate(([0], np.cumsum(_counts(column)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pc.is_null(column))


def _hashes(keys: pa.Array) -> pa.Array:
    return pa.array(hash_keys(keys.fill_null(b"" if pa.types.is_binary(keys.type) else "")))


def _each(column: pa.Array, text: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else text(value) for value in column.to_pylist()], kind)


def _texts(column: pa.Array) -> pa.Array:
    """Each key's one text, binary as it is: docs/keys_and_times.md."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    if pa.types.is_decimal(kind):
        return _each(column, lambda value: f"{value:f}", pa.string())
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return _each(_in_years(column), lambda value: _time_text(value) + zone, pa.string())
    if pa.types.is_date(kind):
        return _each(_in_years(column), date.isoformat, pa.string())
    return column.cast(pa.string())


def _in_years(column: pa.Array) -> pa.Array:
    """The column, which must hold years 1 to 9999, as far as Python's dates go."""
    units = column.view(pa.int64() if pa.types.is_timestamp(column.type) else pa.int32())
    a_day = 86_400_000_000 if pa.types.is_timestamp(column.type) else 1
    first, last = (date(1, 1, 1) - EPOCH.date()).days * a_day, ((date(9999, 12, 31) - EPOCH.date()).days + 1) * a_day
    if pc.any(pc.or_(pc.less(units, first), pc.greater_equal(units, last))).as_py():
        raise ConfigError("a key or id is a time outside the years 1 to 9999: test it with Spark")
    return column


def _time_text(moment: datetime) -> str:
    moment = moment.replace(tzinfo=None)
    text = moment.isoformat(sep=" ", timespec="microseconds")
    return text.rstrip("0").rstrip(".")


def _scope(table: pa.Table, options: PurgatoryOptions) -> pa.Array | None:
    """What scopes each row's keys by its partition, 32 hexadecimal digits; None without partitions."""
    if options.scope is None:
        return None
    values = _texts(_column(table, options.scope)).to_pylist()
    return pa.array([md5(b"null" if value is None else b"=" + as_bytes(value)).hexdigest() for value in values])


def _scoped(keys: pa.Array, scope: pa.Array | None) -> pa.Array:
    if scope is None:
        return keys
    if not pa.types.is_binary(keys.type):
        return pc.binary_join_element_wise(scope, keys, "")
    pairs = zip(scope.to_pylist(), keys.to_pylist(), strict=True)
    return pa.array([None if key is None else bytes.fromhex(by) + key for by, key in pairs], pa.binary())


def _times_us(column: pa.Array) -> pa.Array:
    return column.view(pa.int64())


def _deadline_us(table: pa.Table, config: Operations, created_us: pa.Array) -> pa.Array:
    if config.deadline is not None:
        return _times_us(_column(table, config.deadline))
    return pa.array(
        [
            None if created is None or wait is None else _within_int64(created + wait)
            for created, wait in zip(created_us.to_pylist(), _waits_us(table, config), strict=True)
        ],
        pa.int64(),
    )


def _within_int64(deadline_us: int) -> int:
    return deadline_us if MIN_TIME_US <= deadline_us <= MAX_TIME_US else MAX_TIME_US


def _waits_us(table: pa.Table, config: Operations) -> Iterable[int | None]:
    if config.timeout_column is None:
        return [config.us_of("timeout")] * len(table)
    # An interval is a number of microseconds.
    waits = cast("list[int | None]", _column(table, config.timeout_column).cast(pa.int64()).to_pylist())
    factor = 1 if config.timeout_unit is None else us_per(config.timeout_unit)
    return [None if wait is None else wait * factor for wait in waits]


# --- numbers --------------------------------------------------------------------------------------


def _values(column: pa.Array, exact: bool) -> pa.Array:
    if exact and pa.types.is_decimal(column.type):
        return column
    if exact and pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.float64(), safe=False)


def _rules(table: pa.Table, criterion: ByRow, raw: pa.Array, number: str) -> dict[str, pa.Array]:
    """Each operation's rule, need, and level at each of its keys."""
    nothing = [None] * len(table)
    needs = nothing if criterion.need is None else _column(table, criterion.need).to_pylist()
    maps = nothing if criterion.levels is None else _column(table, criterion.levels).to_pylist()
    flat = zip(_owners(raw).to_pylist(), _flat(raw).to_pylist(), strict=True)
    levels = [needs[row] if maps[row] is None else dict(reversed(maps[row])).get(key) for row, key in flat]
    columns = {
        "rule": _column(table, criterion.rule).cast(pa.string()),
        "need": _doubles(needs),
        "levels": _nested_like(raw, _doubles(levels)),
    }
    scale = scale_of(number)
    if scale is not None:
        columns["need_up"] = _rounded_up(needs, scale)
        columns["levels_up"] = _nested_like(raw, _rounded_up(levels, scale))
    return columns


def _doubles(needs: Sequence[Any]) -> pa.Array:
    return pa.array([None if need is None else float(need) for need in needs], pa.float64())


def _rounded_up(needs: Sequence[Any], scale: int) -> pa.Array:
    """Needs with ``scale`` digits behind the point, rounded up; null where they do not fit 38 digits."""
    ups: list[Decimal | None] = []
    for need in needs:
        number = None if need is None else Decimal(repr(need)) if isinstance(need, float) else Decimal(need)
        if number is None or not number.is_finite():
            ups.append(None)
            continue
        with localcontext(prec=500, Emin=-999_999, Emax=999_999):
            up = number.quantize(Decimal(1).scaleb(-scale), ROUND_CEILING)
            ups.append(up if abs(up.scaleb(scale)) < 10**MOST_DIGITS else None)
    return pa.array(ups, pa.decimal128(MOST_DIGITS, scale))
