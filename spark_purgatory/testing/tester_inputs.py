"""Both inputs of the engine from Arrow tables, without the columns that only Spark can make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal, localcontext
from hashlib import md5
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_purgatory.config import PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, not_a_column
from spark_purgatory.config.units import us_per
from spark_purgatory.core.arrays.numbers import DOUBLE, LARGEST_SCALE, MOST_UNITS, scale_of, units_up
from spark_purgatory.core.arrays.sorted_runs import Int64s
from spark_purgatory.core.arrays.times import MAX_TIME_US, MIN_TIME_US
from spark_purgatory.core.arrays.value_column import as_bytes, hash_keys
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.payload import conform, sent
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.carried import carried_columns
from spark_purgatory.spark.operator.field_types import keys_of
from spark_purgatory.spark.operator.inputs import event_columns, operation_columns

# Fields whose types the tester restricts more than Spark: instants need no time zone of a session.
TIMES = ("operations.created", "operations.deadline", "completions.time")
_IDS = ("completions.operation_id", "completions.event_id")
KEYS_AND_IDS = ("operations.id", "operations.keys", "completions.key", *_IDS, "scope")


def kind_of(schema: T.StructType, value: ColumnLike | None, field: str) -> T.DataType:
    """Return the type of a field's column. Raises ConfigError if only Spark can make or read it."""
    if not isinstance(value, str):
        raise ConfigError(
            f"{field} is a Column, an expression that only Spark evaluates: select it as a column and name it"
        )
    kind: T.DataType = schema
    for name in [value] if value in schema.names else value.split("."):
        if not isinstance(kind, T.StructType) or name not in kind.names:
            raise not_a_column(field, value, schema.names)
        kind = kind[name].dataType
    if field in TIMES and isinstance(kind, (T.TimestampNTZType, T.DateType)):
        raise ConfigError(
            f"{field} is {kind.simpleString()}, which Spark places by the session's time zone, and there is no session "
            "here: give instants, datetime(..., tzinfo=UTC)"
        )
    if field in TIMES and not isinstance(kind, T.TimestampType):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a timestamp: give datetime(..., tzinfo=UTC)")
    part = kind.elementType if isinstance(kind, T.ArrayType) else kind
    is_other = field.startswith(KEYS_AND_IDS) and isinstance(part, (T.BinaryType, T.BooleanType))
    if is_other or field == "criterion.levels":
        raise ConfigError(f"{field} is {kind.simpleString()}, which the tester does not read: test it with Spark")
    if field == "criterion.need" and not isinstance(kind, (T.NumericType, T.NullType)):
        raise ConfigError(f"{field} is {kind.simpleString()}, not a number: give rows with numbers")
    return kind


def operations_table(table: pa.Table, options: PurgatoryOptions, spec: EngineSpec, several: bool) -> pa.Table:
    """Return operations as the exchange delivers them; an operation may have ``several`` keys."""
    made = operation_columns(TableColumns(table, options), spec, several)
    own = zip(table.columns, sent(spec.columns or ()), strict=True)
    return _delivered(table, made | {field.name: conform(each.combine_chunks(), field.type) for each, field in own})


def events_table(table: pa.Table, options: PurgatoryOptions, spec: EngineSpec) -> pa.Table:
    given = TableColumns(table, options)
    made = event_columns(given, spec.number)
    named = zip(carried_columns(options, table.column_names).values(), sent(spec.event_columns or ()), strict=True)
    return _delivered(table, made | {field.name: conform(given.of(name), field.type) for name, field in named})


def _delivered(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    return pa.table({**columns, "ahead": pa.repeat(False, len(table))})


class TableColumns:
    """The columns of `spark_purgatory.spark.operator.inputs.Fields`, from a table whose types were checked."""

    def __init__(self, table: pa.Table, options: PurgatoryOptions) -> None:
        self._table, self.options = table, options

    def of(self, value: Any) -> pa.Array:
        assert isinstance(value, str), "bug: a Column was not refused"
        if value in self._table.column_names:
            return self._table[value].combine_chunks()
        first, *rest = value.split(".")
        return pc.struct_field(self._table[first].combine_chunks(), rest)

    def text(self, value: Any, label: str, scope: pa.Array | None = None) -> pa.Array:
        return _scoped(_texts(self.of(value)), scope)

    def words(self, value: Any, label: str) -> pa.Array:
        return self.of(value).cast(pa.string())

    def time_us(self, value: Any, label: str) -> pa.Array:
        return self.of(value).view(pa.int64())

    def keys(self, several: bool, scope: pa.Array | None) -> pa.Array:
        raw = self._raw_keys(several)
        return _nested_like(raw, _scoped(_texts(_flat(raw)), scope if scope is None else scope.take(_owners(raw))))

    def _raw_keys(self, several: bool) -> pa.Array:
        """Return keys as they are: a value or a list for each operation."""
        columns = [self.of(name) for name, _ in keys_of(self.options.operations)]
        if not several or len(columns) == 1:
            return columns[0]
        n, count = len(self._table), len(columns)
        order = np.arange(n * count).reshape(count, -1).T.ravel()
        offsets = pa.array(np.arange(n + 1, dtype=np.int32) * count)
        return pa.ListArray.from_arrays(offsets, pa.concat_arrays(columns).take(pa.array(order)))

    def hashes(self, keys: pa.Array, several: bool = False) -> pa.Array:
        flat = _flat(keys)
        return _nested_like(keys, pa.array(hash_keys(flat.fill_null(""))))

    def deadline_us(self, created_us: pa.Array) -> pa.Array:
        config = self.options.operations
        if config.deadline is not None:
            return self.time_us(config.deadline, "operations.deadline")
        factor = 1 if config.timeout_unit is None else us_per(config.timeout_unit)
        if config.timeout_column is None:
            waits, factor = [config.us_of("timeout")] * len(created_us), 1
        else:
            waits = self.of(config.timeout_column).cast(pa.int64()).to_pylist()  # microseconds for intervals
        pairs = zip(created_us.to_pylist(), waits, strict=True)
        ends = [None if created is None or wait is None else created + wait * factor for created, wait in pairs]
        within = [end if end is None or MIN_TIME_US <= end <= MAX_TIME_US else MAX_TIME_US for end in ends]
        return pa.array(within, pa.int64())

    def needs(self, spec: EngineSpec, several: bool) -> dict[str, pa.Array]:
        raw, need = self._raw_keys(several), self.options.criterion.need
        needs = [None] * len(self._table) if need is None else self.of(need).to_pylist()
        columns = {"need": pa.array([None if each is None else float(each) for each in needs], pa.float64())}
        if (scale := scale_of(spec.number)) is not None:
            columns["need_up"] = _rounded_up(needs, scale)
        levels = {name.replace("need", "levels"): each.take(_owners(raw)) for name, each in columns.items()}
        return columns | {name: _nested_like(raw, each) for name, each in levels.items()}

    def number(self, value: Any, label: str, number: str) -> pa.Array:
        column, exact = self.of(value), number != DOUBLE or not self.options.criterion.reads_values
        if exact and pa.types.is_decimal(column.type):
            return column
        return column.cast(pa.int64() if exact and pa.types.is_integer(column.type) else pa.float64(), safe=False)

    def scope(self) -> pa.Array | None:
        """Return the prefix by which each row's keys are scoped; None without ``scope``."""
        if self.options.scope is None:
            return None
        values = _texts(self.of(self.options.scope)).to_pylist()
        return pa.array([md5(b"null" if value is None else b"=" + as_bytes(value)).hexdigest() for value in values])


def _is_list(column: pa.Array) -> bool:
    return pa.types.is_list(column.type)


def _flat(column: pa.Array) -> pa.Array:
    return column.flatten() if _is_list(column) else column


def _counts(column: pa.Array) -> Int64s:
    return pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _owners(column: pa.Array) -> pa.Array:
    n = len(column)
    return pa.array(np.repeat(np.arange(n), _counts(column)) if _is_list(column) else np.arange(n))


def _nested_like(column: pa.Array, flat: pa.Array) -> pa.Array:
    """Return flat values in the lists of ``column``, if it has lists."""
    if not _is_list(column):
        return flat
    offsets = np.concatenate(([0], np.cumsum(_counts(column)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=pc.is_null(column))


def _each(column: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        raise ConfigError("a key or id is a time outside the years 1 to 9999: test it with Spark") from None
    return pa.array([None if value is None else text(value) for value in values], pa.string())


def _texts(column: pa.Array) -> pa.Array:
    """Return the text of each key (docs/keys_and_times.md)."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return _each(column, lambda value: f"{value:f}")
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        plain = _each(column, lambda value: value.replace(tzinfo=None).isoformat(" ", "microseconds"))
        return pc.binary_join_element_wise(pc.utf8_rtrim(pc.utf8_rtrim(plain, "0"), "."), zone, "")
    return _each(column, date.isoformat) if pa.types.is_date(kind) else column.cast(pa.string())


def _scoped(keys: pa.Array, scope: pa.Array | None) -> pa.Array:
    return keys if scope is None else pc.binary_join_element_wise(scope, keys, "")


def _rounded_up(needs: Sequence[Any], scale: int) -> pa.Array:
    """Round needs up to ``scale`` digits behind the point; null if they do not fit 38 digits."""
    units = [None if each is None or not isfinite(each) else units_up(each, scale) for each in needs]
    with localcontext(prec=2 * LARGEST_SCALE):
        ups = [None if each is None or abs(each) >= MOST_UNITS else Decimal(each).scaleb(-scale) for each in units]
    return pa.array(ups, pa.decimal128(LARGEST_SCALE, scale))
