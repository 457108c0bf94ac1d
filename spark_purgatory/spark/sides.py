"""The two input sides as DataFrames of engine columns: names resolved, types checked, hashes made in the JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Completions, Operations, duration_us, is_duration, parse_duration
from spark_purgatory.errors import ConfigError

WATERMARK_METADATA = "spark.watermarkDelayMs"
KEY_TYPES = (T.StringType, T.BinaryType, T.IntegralType, T.BooleanType, T.DateType, T.DecimalType, T.TimestampType)


@dataclass(frozen=True)
class Side:
    """One input ready for packing: columns of the engine, then the route's hash; the guarded time is watermarked."""

    frame: DataFrame
    key_type: T.DataType
    several_keys: bool = False
    keyed_by_id: bool = False
    roles: tuple[tuple[str, int], ...] = ()


def field_column(frame: DataFrame, value: Any, field: str) -> Column:
    """The Column that a config value names in ``frame``; raises ConfigError listing what there is."""
    if not isinstance(value, str):
        return value
    name = value.replace("`", "``")
    if value in frame.columns:
        return F.col(f"`{name}`")
    if value.split(".")[0] in frame.columns:
        return F.col(value)
    raise ConfigError(f"{field}={value!r} is not a column: there are {', '.join(frame.columns)}")


def column_type(frame: DataFrame, column: Column) -> T.DataType:
    """Type of an expression over ``frame``."""
    return frame.select(column.alias("c")).schema[0].dataType


def check_no_watermark(frame: DataFrame, side: str) -> None:
    """Raise ConfigError if the frame already carries a watermark."""
    for column in frame.schema.fields:
        if WATERMARK_METADATA in (column.metadata or {}):
            raise ConfigError(
                f"{side}: column {column.name!r} already has a watermark: remove withWatermark there, "
                f"{side}.watermark= sets it"
            )


def timestamp_column(frame: DataFrame, value: Any, field: str) -> Column:
    """A timestamp column; other types are an error, except timestamp_ntz and date, which the session's zone places."""
    column = field_column(frame, value, field)
    kind = column_type(frame, column)
    if not isinstance(kind, (T.TimestampType, T.TimestampNTZType, T.DateType)):
        raise ConfigError(
            f"{field} is {kind.simpleString()}, not a timestamp: cast it, for example F.to_timestamp(...)"
        )
    return column.cast("timestamp")


def key_column(column: Column, kind: T.DataType, field: str) -> Column:
    """A key or id as string (binary stays binary); types without one text form are an error."""
    if not isinstance(kind, KEY_TYPES):
        raise ConfigError(
            f"{field} is {kind.simpleString()}: keys are strings, whole numbers, dates or binary; cast it"
        )
    return column if isinstance(kind, T.BinaryType) else column.cast("string")


def operations_side(frame: DataFrame, config: Operations, max_future_us: int, by_id: bool | None = None) -> Side:
    """Operations: id, keys, times, payload; routed by key, or by id where an operation has several keys."""
    check_no_watermark(frame, "operations")
    created = timestamp_column(frame, config.created, "operations.created")
    id_raw = field_column(frame, config.id, "operations.id")
    id_column = key_column(id_raw, column_type(frame, id_raw), "operations.id")
    keys, hashes, key_type, several = _keys(frame, config)
    route = F.xxhash64(id_column) if several else hashes
    roles = payload_roles(frame, config)
    marked, ahead = _with_ahead(frame, created, max_future_us)
    engine = {
        "id": id_column,
        "id_hash": F.xxhash64(id_column),
        "keys": keys,
        "key_hashes": hashes,
        "created_us": F.unix_micros(created),
        "deadline_us": _deadline_us(frame, config, created),
        "ahead": F.col(ahead),
    }
    columns = [column.alias(name) for name, column in engine.items() if name not in roles]
    columns += [field_column(frame, name, "operations").alias(f"p{i}") for i, name in enumerate(frame.columns)]
    packed = _watermarked(marked, [*columns, route.alias("route")], created, ahead, config)
    same = isinstance(config.id, str) and isinstance(config.keys, str) and config.id == config.keys
    return Side(packed, key_type, several, several or same, tuple(roles.items()))


def payload_roles(frame: DataFrame, config: Operations) -> dict[str, int]:
    """Engine columns that are columns of the payload as they stand: role -> position; these are sent and kept once."""
    named = {"id": config.id, "keys": config.keys, "created_us": config.created, "deadline_us": config.deadline}
    kinds = {"id": T.StringType(), "keys": T.StringType(), "created_us": T.TimestampType()}
    roles = {}
    for role, name in named.items():
        if isinstance(name, str) and name in frame.columns:
            position = frame.columns.index(name)
            if frame.schema[position].dataType == kinds.get(role, T.TimestampType()):
                roles[role] = position
    return roles


def events_side(frame: DataFrame, config: Completions, max_future_us: int, reads_values: bool) -> Side:
    """Completion events: key, time, value where the criterion reads it."""
    check_no_watermark(frame, "completions")
    time = timestamp_column(frame, config.time, "completions.time")
    key_raw = field_column(frame, config.key, "completions.key")
    key_type = column_type(frame, key_raw)
    key = key_column(key_raw, key_type, "completions.key")
    engine = [key.alias("key"), F.xxhash64(key).alias("key_hash"), F.unix_micros(time).alias("time_us")]
    if reads_values:
        if config.value is None:
            raise ConfigError(
                "completions.value is missing: the criterion adds up or compares values; name their column"
            )
        value = field_column(frame, config.value, "completions.value")
        kind = column_type(frame, value)
        if not isinstance(kind, T.NumericType):
            raise ConfigError(f"completions.value is {kind.simpleString()}, not a number: cast it")
        engine.append(value.cast("double").alias("value"))
    marked, ahead = _with_ahead(frame, time, max_future_us)
    engine += [F.col(ahead).alias("ahead"), F.xxhash64(key).alias("route")]
    return Side(_watermarked(marked, engine, time, ahead, config), key_type)


def check_key_types(operations: Side, events: Side) -> None:
    """Keys are compared as text, so their types must agree."""
    left, right = operations.key_type, events.key_type
    whole = isinstance(left, T.IntegralType) and isinstance(right, T.IntegralType)
    text = isinstance(left, T.StringType) and isinstance(right, T.StringType)
    if left != right and not whole and not text:
        raise ConfigError(
            f"operations.keys is {left.simpleString()} and completions.key is {right.simpleString()}: "
            "they would never be equal; cast one to the other's type"
        )


def _keys(frame: DataFrame, config: Operations) -> tuple[Column, Column, T.DataType, bool]:
    """(keys, hashes, type of a key, whether an operation may have several)."""
    if isinstance(config.keys, (list, tuple)) and len(config.keys) > 1:
        columns = [field_column(frame, key, f"operations.keys[{i}]") for i, key in enumerate(config.keys)]
        kinds = [column_type(frame, column) for column in columns]
        if any(kind != kinds[0] for kind in kinds):
            kinds_text = ", ".join(kind.simpleString() for kind in kinds)
            raise ConfigError(f"operations.keys has columns of types {kinds_text}: cast them to one type")
        keys = F.array(*(key_column(column, kinds[0], "operations.keys") for column in columns))
        return keys, F.transform(keys, _hash), kinds[0], True
    single = config.keys[0] if isinstance(config.keys, (list, tuple)) else config.keys
    column = field_column(frame, single, "operations.keys")
    kind = column_type(frame, column)
    if isinstance(kind, T.ArrayType):
        if not isinstance(kind.elementType, KEY_TYPES):
            raise ConfigError(
                f"operations.keys is {kind.simpleString()}: its elements must be strings, whole numbers or binary"
            )
        binary = isinstance(kind.elementType, T.BinaryType)
        keys = column if binary else column.cast("array<string>")
        return keys, F.transform(keys, _hash), kind.elementType, True
    key = key_column(column, kind, "operations.keys")
    return key, F.xxhash64(key), kind, False


def _hash(key: Column) -> Column:
    return F.xxhash64(key)


def _deadline_us(frame: DataFrame, config: Operations, created: Column) -> Column:
    if config.deadline is not None:
        return F.unix_micros(timestamp_column(frame, config.deadline, "operations.deadline"))
    created_us = F.unix_micros(created)
    if isinstance(config.timeout_ms, int):
        wait = timedelta(milliseconds=config.timeout_ms)
        return created_us + F.lit(parse_duration(wait, "operations.timeout_ms"))
    if config.timeout_ms is not None:
        column = field_column(frame, config.timeout_ms, "operations.timeout_ms")
        kind = column_type(frame, column)
        if not isinstance(kind, T.IntegralType):
            raise ConfigError(f"operations.timeout_ms is {kind.simpleString()}, not a whole number of milliseconds")
        return F.try_add(created_us, F.try_multiply(column.cast("bigint"), F.lit(1000).cast("bigint")))
    if isinstance(config.timeout, timedelta) or (isinstance(config.timeout, str) and is_duration(config.timeout)):
        return created_us + F.lit(parse_duration(config.timeout, "operations.timeout"))
    column = field_column(frame, config.timeout, "operations.timeout")
    kind = column_type(frame, column)
    if not isinstance(kind, T.DayTimeIntervalType):
        raise ConfigError(
            f"operations.timeout is {kind.simpleString()}, not a day-time interval: "
            'write "30 minutes", or name a column of milliseconds in timeout_ms='
        )
    return F.unix_micros(F.try_add(created, column))


def _with_ahead(frame: DataFrame, time: Column, max_future_us: int) -> tuple[DataFrame, str]:
    """The frame with a column that says whether ``time`` is too far ahead of processing time, and its name.

    Spark writes the time of the micro-batch as a number into the code it generates, so that every micro-batch would
    compile its scan anew, twice, and run it cold. A function of an array's elements is not generated but called: the
    code stays the same and is found again. It has a projection of its own, which that takes out of the generated code.
    """
    now_us = F.unix_micros(F.current_timestamp()) + F.lit(max_future_us)
    ahead = F.exists(F.array(now_us), lambda limit_us: F.unix_micros(time) > limit_us)
    name = "ahead"
    while name in frame.columns:
        name += "_"
    return frame.withColumn(name, F.coalesce(ahead, F.lit(False))), name


def _watermarked(
    frame: DataFrame, columns: list[Column], time: Column, ahead: str, config: Operations | Completions
) -> DataFrame:
    """Columns over a guarded watermark: a time too far ahead must not move it, so there it is null."""
    guarded = F.when(F.col(ahead), F.lit(None)).otherwise(time)
    selected = frame.select(*columns, guarded.alias("guarded"))
    if frame.isStreaming:
        selected = selected.withWatermark("guarded", f"{duration_us(config, 'watermark') // 1000} milliseconds")
    return selected.drop("guarded")
