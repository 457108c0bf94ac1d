"""The two inputs as DataFrames of engine columns: names resolved, types checked, hashes made in the JVM.

Rows are copied once between the scan and the exchange, in one projection: what an input needs for each row, its
watermark included, is one ``select``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import (
    ColumnLike,
    Completions,
    Operations,
    not_a_column,
    us_per,
    watermark_ms,
)
from spark_purgatory.core.arrays.numbers import DOUBLE
from spark_purgatory.core.spec.codes import KINDS, RULES
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.heartbeat import heartbeats
from spark_purgatory.spark.operator.event_times import deadline_after, interval_us, placed
from spark_purgatory.spark.operator.field_types import (
    check_timeout,
    check_value,
    check_value_is_named,
    key_type_of,
    level_key_type,
)
from spark_purgatory.spark.operator.key_types import (
    LEVEL_KEYS,
    FieldTypes,
    array_text,
    check_compared,
    check_words,
    key_text,
)
from spark_purgatory.spark.operator.value_types import Typed, need_columns, number_type, value_column

WATERMARK_METADATA = "spark.watermarkDelayMs"
UNREADABLE = {"AMBIGUOUS_REFERENCE": ("is the name of several columns", "rename or drop all but one of them")}
UNTAKEN = "__spark_purgatory_"
"""Before names that no column of an input has."""
NO_VALUE = (
    "names no value of a row",
    "give a column, a field of a struct as 'column.field', or an expression of the input's columns",
)
"""What is wrong and the remedy, by the condition of Spark's error, and for all other conditions."""


@dataclass(frozen=True)
class InputTypes:
    """What the engine must know of an input's columns before the first row."""

    key_type: T.DataType
    several_keys: bool = False
    keyed_by_id: bool = False
    roles: tuple[tuple[str, int], ...] = ()
    types: FieldTypes = field(default_factory=dict)
    """Types of what is compared with the other input, by the name of the field."""
    number: str = DOUBLE


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

    def words(self, known: Sequence[str]) -> Column:
        """A column of known words."""
        check_words(self.kind, self.label, ", ".join(known))
        return self.column.cast("string")

    def time(self) -> Column:
        """A timestamp; other types are an error, except timestamp_ntz and date, which the session's zone places."""
        if not isinstance(self.kind, (T.TimestampType, T.TimestampNTZType, T.DateType)):
            raise ConfigError(
                f"{self.label} is {self.kind.simpleString()}, not a timestamp: make it one, with to_timestamp(...) "
                "of a text, timestamp_millis(...) or timestamp_seconds(...) of a number"
            )
        return placed(self.column, self.kind)


@dataclass(frozen=True)
class Reading:
    """What both inputs are read with, besides their own configuration."""

    criterion: Criterion | ByRow
    max_future_us: int
    scope: ColumnLike | None = None
    heartbeats: bool = True
    number: str = DOUBLE

    def scope_hash(self, frame: DataFrame, given: str, types: dict[str, T.DataType]) -> Column | None:
        """The column that scopes keys and ids by their partition, 32 hexadecimal digits; None without partitions.

        Its type is added to ``types``.
        """
        if self.scope is None:
            return None
        field = replace(Field.of(frame, self.scope, "scope"), label=f"scope ({given})")
        types[field.label] = field.kind
        value = field.text().cast("string")
        return F.md5(F.coalesce(F.concat(F.lit("="), value), F.lit("null")).cast("binary"))


def number_of(operations: DataFrame, completions: DataFrame, config: Completions, criterion: Criterion | ByRow) -> str:
    """The type in which values and what they must reach are compared."""
    if config.value is None:
        return DOUBLE
    value = Field.of(completions, config.value, "completions.value")
    return number_type(criterion, value.kind, _needs(operations, criterion))


def scoped(key: Column, kind: T.DataType, scope: Column | None) -> Column:
    """A key or id within its partition; `key_prefix` says how many characters come before it."""
    if scope is None:
        return key
    return F.concat(F.unhex(scope) if isinstance(kind, T.BinaryType) else scope, key)


def key_prefix(kind: T.DataType) -> int:
    """Length of what `scoped` puts before a key, in characters, or bytes where the key is binary."""
    return 16 if isinstance(kind, T.BinaryType) else 32


def operations_input(frame: DataFrame, config: Operations, reading: Reading) -> Input:
    """Operations: id, keys, times, payload; routed by partition, by key, or by id where there are several keys."""
    created = Field.of(frame, config.created, "operations.created").time()
    own_id = Field.of(frame, config.id, "operations.id")
    types: dict[str, T.DataType] = {}
    scope = reading.scope_hash(frame, "operations", types)
    id_column = own_id.text(scope)
    raw, keys, key_type, several = _keys(frame, config)
    types |= {own_id.label: own_id.kind, "operations.keys": key_type}
    if scope is not None:
        keys = F.transform(keys, lambda key: scoped(key, key_type, scope)) if several else scoped(keys, key_type, scope)
    hashes = F.transform(keys, _hash) if several else F.xxhash64(keys)
    route = F.xxhash64(scope) if scope is not None else F.xxhash64(id_column) if several else None
    roles = payload_roles(frame.schema, config)
    if scope is not None:
        roles = {role: at for role, at in roles.items() if role not in ("id", "keys")}
    engine = {
        "id": id_column,
        "id_hash": F.xxhash64(id_column),
        "keys": keys,
        "key_hashes": hashes,
        "created_us": F.unix_micros(created),
        "deadline_us": _deadline_us(frame, config, created),
        **_rules(frame, reading, raw, several, types),
    }
    columns = {name: column for name, column in engine.items() if name not in roles}
    columns |= {f"p{i}": field_column(frame, name, "operations") for i, name in enumerate(frame.columns)}
    packed = _watermarked(frame, columns | _routed(route), created, config, reading)
    same = isinstance(config.id, str) and isinstance(config.keys, str) and config.id == config.keys
    return Input(
        key_type=key_type,
        several_keys=several,
        keyed_by_id=several or same,
        roles=tuple(roles.items()),
        types=types,
        number=reading.number,
        frame=packed,
    )


def payload_roles(schema: T.StructType, config: Operations) -> dict[str, int]:
    """Engine columns that are payload columns unchanged, role -> position; they are sent and stored once."""
    named = {"id": config.id, "keys": config.keys, "created_us": config.created, "deadline_us": config.deadline}
    kinds = {"id": T.StringType(), "keys": T.StringType(), "created_us": T.TimestampType()}
    roles = {}
    for role, name in named.items():
        if isinstance(name, str) and name in schema.names:
            position = schema.names.index(name)
            if schema[position].dataType == kinds.get(role, T.TimestampType()):
                roles[role] = position
    return roles


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
    frame: DataFrame, config: Completions, reading: Reading, carried: Mapping[str, ColumnLike] | None = None
) -> Input:
    """Completion events: key, time, what the criterion or control events read besides, what outcomes carry."""
    time = Field.of(frame, config.time, "completions.time").time()
    own_key = Field.of(frame, config.key, "completions.key")
    types = {own_key.label: own_key.kind}
    scope = reading.scope_hash(frame, "completions", types)
    key = own_key.text(scope)
    engine = {"key": key, "key_hash": F.xxhash64(key), "time_us": F.unix_micros(time)}
    check_value_is_named(config.value, reading.criterion)
    if config.value is not None and (reading.criterion.reads_values or config.kind is not None):
        value = Field.of(frame, config.value, "completions.value")
        check_value(value.kind)
        engine["value"] = value_column(value.column, value.kind, reading.number, reading.criterion.reads_values)
    if config.kind is not None:
        engine["kind"] = Field.of(frame, config.kind, "completions.kind").words(KINDS)
    if config.operation_id is not None:
        named = Field.of(frame, config.operation_id, "completions.operation_id")
        types[named.label] = named.kind
        operation_id = named.text(scope)
        engine |= {"operation_id": operation_id, "operation_hash": F.xxhash64(operation_id)}
    if config.event_id is not None:
        event_id = Field.of(frame, config.event_id, "completions.event_id")
        types[event_id.label] = event_id.kind
        engine["event_id"] = event_id.text()
    columns = [field_column(frame, name, "completions.columns") for name in (carried or {}).values()]
    engine |= {f"p{i}": column for i, column in enumerate(columns)}
    engine |= _routed(None if scope is None else F.xxhash64(scope))
    return Input(own_key.kind, types=types, frame=_watermarked(frame, engine, time, config, reading))


def _routed(route: Column | None) -> dict[str, Column]:
    return {} if route is None else {"route": route}


def _rules(
    frame: DataFrame, reading: Reading, raw: list[Column], several: bool, types: dict[str, T.DataType]
) -> dict[str, Column]:
    """Each operation's rule, need and level at each of its keys, where rows bring their own.

    The type of the levels' keys is added to ``types``.
    """
    criterion = reading.criterion
    if isinstance(criterion, Criterion):
        return {}
    if criterion.levels is not None:
        levels = Field.of(frame, criterion.levels, "criterion.levels")
        types[LEVEL_KEYS] = level_key_type(levels.kind, criterion.levels)
        check_compared(types, {})
    rule = Field.of(frame, criterion.rule, "criterion.rule").words(RULES)
    keys = raw if len(raw) > 1 else raw[0]
    return {"rule": rule, **need_columns(_needs(frame, criterion), keys, several, reading.number)}


def _needs(frame: DataFrame, criterion: Criterion | ByRow) -> dict[str, Typed]:
    """The columns of needs that rows bring and their types, by field."""
    named = {} if isinstance(criterion, Criterion) else {"need": criterion.need, "levels": criterion.levels}
    fields = [Field.of(frame, name, f"criterion.{role}") for role, name in named.items() if name is not None]
    return {field.label: (field.column, field.kind) for field in fields}


def _keys(frame: DataFrame, config: Operations) -> tuple[list[Column], Column, T.DataType, bool]:
    """(columns as they are, keys as text or binary, type of a key, whether an operation may have several)."""
    named = config.keys if isinstance(config.keys, (list, tuple)) else [config.keys]
    labels = ["operations.keys"] if len(named) == 1 else [f"operations.keys[{i}]" for i in range(len(named))]
    fields = [Field.of(frame, name, label) for name, label in zip(named, labels, strict=True)]
    columns = [field.column for field in fields]
    kind, several = key_type_of([field.kind for field in fields])
    if several and len(columns) == 1:
        return columns, array_text(columns[0], kind, "operations.keys (its elements)"), kind, True
    texts = [key_text(column, kind, "operations.keys") for column in columns]
    return columns, F.array(*texts) if several else texts[0], kind, several


def _hash(key: Column) -> Column:
    return F.xxhash64(key)


def _deadline_us(frame: DataFrame, config: Operations, created: Column) -> Column:
    if config.deadline is not None:
        return F.unix_micros(Field.of(frame, config.deadline, "operations.deadline").time())
    created_us = F.unix_micros(created)
    if config.timeout_column is None:
        return deadline_after(created_us, F.lit(config.us_of("timeout")).cast("bigint"))
    timeout = _timeout(frame, config.timeout_column)
    check_timeout(timeout.kind, config.timeout_unit)
    if config.timeout_unit is not None:
        return deadline_after(created_us, timeout.column.cast("bigint"), us_per_unit=us_per(config.timeout_unit))
    return deadline_after(created_us, interval_us(timeout.column))


def _timeout(frame: DataFrame, timeout: ColumnLike) -> Field:
    """The column that ``timeout`` names; where there is none, the error says why it is no duration either."""
    try:
        return Field.of(frame, timeout, "operations.timeout")
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
    reading: Reading,
) -> DataFrame:
    """Columns over a guarded watermark."""
    named = {**columns, "guarded": _guarded(time, reading.max_future_us)}
    # In a lambda Spark takes a name for what has it further left in the select, and only then for the input's column.
    # So no alias may be a name that an input has; Catalyst makes one projection of both steps.
    selected = frame.select(*(column.alias(UNTAKEN + name) for name, column in named.items())).toDF(*named)
    if frame.isStreaming and config.outcomes_of is None:
        if config.idle_after is not None:
            beats = _heartbeats(frame, selected, config.us_of("idle_after"), reading.heartbeats)
            selected = selected.unionByName(beats)
        selected = selected.withWatermark("guarded", f"{watermark_ms(config)} milliseconds")
    return selected


def _heartbeats(frame: DataFrame, given: DataFrame, idle_us: int, speaking: bool) -> DataFrame:
    """One row a micro-batch that says how late it is, ``idle_us`` ago; muted, the same row without a time.

    It has no hash, by which the exchange knows it: a filter here would be pushed below the watermark by Catalyst.
    """
    beat = F.expr(f"current_timestamp() - interval {idle_us} microseconds") if speaking else F.lit(None)
    return heartbeats(frame.sparkSession, given.schema, guarded=beat)
