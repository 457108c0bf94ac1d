"""The two inputs as DataFrames of engine columns: names resolved, types checked, hashes made in the JVM.

Rows are copied once between the scan and the exchange, in one projection: what an input needs for each row, its
watermark included, is one ``select``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Completions, Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, not_a_column
from spark_purgatory.config.options import watermark_ms
from spark_purgatory.config.units import us_per
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.heartbeat import heartbeats
from spark_purgatory.spark.operator.event_times import deadline_after, interval_us, placed
from spark_purgatory.spark.operator.field_types import (
    InputTypes,
    check_timeout,
    completion_types,
    keys_of,
    needs_of,
    operation_types,
    reads_value,
)
from spark_purgatory.spark.operator.key_types import (
    array_text,
    key_text,
)
from spark_purgatory.spark.operator.value_types import need_columns, value_column

UNREADABLE = {"AMBIGUOUS_REFERENCE": ("is the name of several columns", "rename or drop all but one of them")}
UNTAKEN = "__spark_purgatory_"
"""Before names that no column of an input has."""
NO_VALUE = (
    "names no value of a row",
    "give a column, a field of a struct as 'column.field', or an expression of the input's columns",
)
"""What is wrong and the remedy, by the condition of Spark's error, and for all other conditions."""


@dataclass(frozen=True)
class Input(InputTypes):
    """One input ready for packing: columns of the engine, with the guarded time, which is watermarked.

    A row goes by its column ``route``, or by the hash of its one key where there is none.
    """

    frame: DataFrame = field(kw_only=True)


def field_column(frame: DataFrame, value: Any, field: str) -> Column:
    """The Column that a config value names in ``frame``; raises ConfigError listing what there is."""
    if not isinstance(value, str):
        return value
    name = value.replace("`", "``")
    if value in frame.columns:
        return F.col(f"`{name}`")
    if value.split(".")[0] in frame.columns:
        return F.col(value)
    raise not_a_column(field, value, frame.columns)


@dataclass(frozen=True)
class Field:
    """What an argument names in an input: the column, its type, and the argument's name, which errors have."""

    column: Column
    kind: T.DataType
    label: str

    @staticmethod
    def of(frame: DataFrame, value: Any, label: str) -> Field:
        """The field that a config value names. Raises ConfigError listing what there is."""
        column = field_column(frame, value, label)
        try:
            # Beside the columns and in a struct Spark refuses what is no value of a row: an aggregate, a generator.
            kinds = frame.select("*", F.struct(column.alias("c")).alias("value")).schema[-1].dataType
        except AnalysisException as error:
            condition = error.getCondition()
            wrong, remedy = UNREADABLE.get(str(condition), NO_VALUE)
            raise ConfigError(f"{label}={value!r} {wrong} (Spark: {condition}): {remedy}") from error
        return Field(column, cast("T.StructType", kinds)[0].dataType, label)

    def text(self, scope: Column | None = None) -> Column:
        """A key or id as text, within its partition if there is one."""
        return scoped(key_text(self.column, self.kind, self.label), self.kind, scope)

    def time(self) -> Column:
        """A timestamp; other types are an error, except timestamp_ntz and date, which the session's zone places."""
        if not isinstance(self.kind, (T.TimestampType, T.TimestampNTZType, T.DateType)):
            raise ConfigError(
                f"{self.label} is {self.kind.simpleString()}, not a timestamp: make it one, with to_timestamp(...) "
                "of a text, timestamp_millis(...) or timestamp_seconds(...) of a number"
            )
        return placed(self.column, self.kind)


class Fields:
    """The fields of one input, each asked for once."""

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self._known: dict[tuple[str, Any], Field] = {}

    def of(self, value: Any, label: str) -> Field:
        """The field that a config value names; raises as `Field.of`."""
        known = label, value if isinstance(value, str) else id(value)
        if known not in self._known:
            self._known[known] = Field.of(self.frame, value, label)
        return self._known[known]

    def type_of(self, value: Any, label: str) -> T.DataType:
        """Its type (`TypeOf`)."""
        return self.of(value, label).kind

    def scope_hash(self, scope: ColumnLike | None, given: str) -> Column | None:
        """The column that scopes keys and ids by their partition, 32 hexadecimal digits; None without partitions."""
        if scope is None:
            return None
        value = replace(self.of(scope, "scope"), label=f"scope ({given})").text().cast("string")
        return F.md5(F.coalesce(F.concat(F.lit("="), value), F.lit("null")).cast("binary"))


def scoped(key: Column, kind: T.DataType, scope: Column | None) -> Column:
    """A key or id within its partition; `key_prefix` says how many characters come before it."""
    if scope is None:
        return key
    return F.concat(F.unhex(scope) if isinstance(kind, T.BinaryType) else scope, key)


def key_prefix(kind: T.DataType) -> int:
    """Length of what `scoped` puts before a key, in characters, or bytes where the key is binary."""
    return 16 if isinstance(kind, T.BinaryType) else 32


def operations_input(fields: Fields, options: PurgatoryOptions, number: str, heartbeats: bool = True) -> Input:
    """Operations: id, keys, times, payload; routed by partition, by key, or by id where there are several keys."""
    frame, config = fields.frame, options.operations
    types = operation_types(fields.type_of, frame.schema, options, number)
    several, key_type = types.several_keys, types.key_type
    created = fields.of(config.created, "operations.created").time()
    scope = fields.scope_hash(options.scope, "operations")
    own_id = fields.of(config.id, "operations.id").text(scope)
    raw, keys = _keys(fields, config, types)
    if scope is not None:
        keys = F.transform(keys, lambda key: scoped(key, key_type, scope)) if several else scoped(keys, key_type, scope)
    hashes = F.transform(keys, _hash) if several else F.xxhash64(keys)
    route = F.xxhash64(scope) if scope is not None else F.xxhash64(own_id) if several else None
    engine = {
        "id": own_id,
        "id_hash": F.xxhash64(own_id),
        "keys": keys,
        "key_hashes": hashes,
        "created_us": F.unix_micros(created),
        "deadline_us": _deadline_us(fields, config, created),
        **_rules(fields, options.criterion, raw, types),
    }
    roles = dict(types.roles)
    columns = {name: column for name, column in engine.items() if name not in roles}
    columns |= {f"p{i}": field_column(frame, name, "operations") for i, name in enumerate(frame.columns)}
    packed = _watermarked(frame, columns | _routed(route), created, config, options, heartbeats=heartbeats)
    return Input(**vars(types), frame=packed)


def payload_sources(config: Operations, scope: ColumnLike | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Columns that are named by what the checkpoint keeps of an operation; none where one is an expression."""
    keys = tuple(config.keys) if isinstance(config.keys, (list, tuple)) else (config.keys,)
    named: dict[str, tuple[Any, ...]] = {
        "operations.id": (config.id,),
        "operations.keys": keys,
        "operations.created": (config.created,),
        "operations.deadline": (config.deadline,),
        "scope": (scope,),
    }
    return tuple((field, names) for field, names in named.items() if all(isinstance(name, str) for name in names))


def events_input(
    fields: Fields,
    options: PurgatoryOptions,
    number: str,
    carried: Mapping[str, ColumnLike],
    heartbeats: bool = True,
) -> Input:
    """Completion events: key, time, what the criterion or control events read besides, what outcomes carry."""
    frame, config = fields.frame, options.completions
    types = completion_types(fields.type_of, options, number)
    time = fields.of(config.time, "completions.time").time()
    scope = fields.scope_hash(options.scope, "completions")
    key = fields.of(config.key, "completions.key").text(scope)
    engine = {"key": key, "key_hash": F.xxhash64(key), "time_us": F.unix_micros(time)}
    if reads_value(options):
        value = fields.of(config.value, "completions.value")
        engine["value"] = value_column(value.column, value.kind, number, options.criterion.reads_values)
    if config.kind is not None:
        engine["kind"] = fields.of(config.kind, "completions.kind").column.cast("string")
    if config.operation_id is not None:
        operation_id = fields.of(config.operation_id, "completions.operation_id").text(scope)
        engine |= {"operation_id": operation_id, "operation_hash": F.xxhash64(operation_id)}
    if config.event_id is not None:
        engine["event_id"] = fields.of(config.event_id, "completions.event_id").text()
    columns = [field_column(frame, name, "completions.columns") for name in carried.values()]
    engine |= {f"p{i}": column for i, column in enumerate(columns)}
    engine |= _routed(None if scope is None else F.xxhash64(scope))
    return Input(**vars(types), frame=_watermarked(frame, engine, time, config, options, heartbeats=heartbeats))


def _routed(route: Column | None) -> dict[str, Column]:
    return {} if route is None else {"route": route}


def _rules(fields: Fields, criterion: Criterion | ByRow, raw: list[Column], types: InputTypes) -> dict[str, Column]:
    """Each operation's rule, need and level at each of its keys, where rows bring their own."""
    if isinstance(criterion, Criterion):
        return {}
    needs = [fields.of(name, label) for label, name in needs_of(criterion).items()]
    columns = need_columns(
        {need.label: (need.column, need.kind) for need in needs},
        raw if len(raw) > 1 else raw[0],
        types.several_keys,
        types.number,
    )
    return {"rule": fields.of(criterion.rule, "criterion.rule").column.cast("string"), **columns}


def _keys(fields: Fields, config: Operations, types: InputTypes) -> tuple[list[Column], Column]:
    """(columns as they are, keys as text or binary)."""
    columns = [fields.of(name, label).column for name, label in keys_of(config)]
    if types.several_keys and len(columns) == 1:
        return columns, array_text(columns[0], types.key_type, "operations.keys (its elements)")
    texts = [key_text(column, types.key_type, "operations.keys") for column in columns]
    return columns, F.array(*texts) if types.several_keys else texts[0]


def _hash(key: Column) -> Column:
    return F.xxhash64(key)


def _deadline_us(fields: Fields, config: Operations, created: Column) -> Column:
    if config.deadline is not None:
        return F.unix_micros(fields.of(config.deadline, "operations.deadline").time())
    created_us = F.unix_micros(created)
    if config.timeout_column is None:
        return deadline_after(created_us, F.lit(config.us_of("timeout")).cast("bigint"))
    timeout = _timeout(fields, config.timeout_column)
    check_timeout(timeout.kind, config.timeout_unit)
    if config.timeout_unit is not None:
        return deadline_after(created_us, timeout.column.cast("bigint"), us_per_unit=us_per(config.timeout_unit))
    return deadline_after(created_us, interval_us(timeout.column))


def _timeout(fields: Fields, timeout: ColumnLike) -> Field:
    """The column that ``timeout`` names; where there is none, the error says why it is no duration either."""
    try:
        return fields.of(timeout, "operations.timeout")
    except ConfigError as error:
        raise ConfigError(f'{error}; nor is it a duration, such as "30 minutes"') from None


def _guarded(time: Column, max_future_us: int) -> Column:
    """``time``, or null where it is too far ahead of processing time: so it does not move the watermark.

    Spark writes the time of the micro-batch as a number into the code it generates, so that every micro-batch would
    compile its scan anew, twice, and run it cold. A function of two arrays' elements is not generated but called (one
    of a single array is generated from Spark 4.3 on): the code stays the same and is found again. A call for each row
    is slow; nearly all rows are done with sooner, by what is allowed at this day's beginning, a number that changes
    once a day.
    """
    now_us = F.unix_micros(F.current_timestamp()) + F.lit(max_future_us)
    today_us = F.unix_micros(F.current_date().cast(T.TimestampType())) + F.lit(max_future_us)
    time_us = F.unix_micros(time)
    ahead = F.zip_with(F.array(time_us), F.array(now_us), lambda told_us, limit_us: told_us > limit_us)
    return F.when(time_us <= today_us, time).when(F.get(ahead, F.lit(0)), F.lit(None)).otherwise(time)


def _watermarked(
    frame: DataFrame,
    columns: Mapping[str, Column],
    time: Column,
    config: Operations | Completions,
    options: PurgatoryOptions,
    heartbeats: bool,
) -> DataFrame:
    """Columns over a guarded watermark."""
    named = {**columns, "guarded": _guarded(time, options.us_of("max_future"))}
    # In a lambda Spark takes a name for what has it further left in the select, and only then for the input's column.
    # So no alias may be a name that an input has; Catalyst makes one projection of both steps.
    selected = frame.select(*(column.alias(UNTAKEN + name) for name, column in named.items())).toDF(*named)
    if frame.isStreaming and config.outcomes_of is None:
        if config.idle_after is not None:
            beats = _heartbeats(frame, selected, config.us_of("idle_after"), heartbeats)
            selected = selected.unionByName(beats)
        selected = selected.withWatermark("guarded", f"{watermark_ms(config)} milliseconds")
    return selected


def _heartbeats(frame: DataFrame, given: DataFrame, idle_us: int, speaking: bool) -> DataFrame:
    """One row a micro-batch that says how late it is, ``idle_us`` ago; muted, the same row without a time.

    It has no hash, by which the exchange knows it: a filter here would be pushed below the watermark by Catalyst.
    """
    beat = F.expr(f"current_timestamp() - interval {idle_us} microseconds") if speaking else F.lit(None)
    return heartbeats(frame.sparkSession, given.schema, guarded=beat)
