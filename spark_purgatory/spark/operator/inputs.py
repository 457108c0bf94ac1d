"""The two inputs as DataFrames of engine columns: names resolved, types checked, hashes made in the JVM.

One ``select`` makes all columns of an input, with its watermark, so that rows are copied once before the exchange.

**Times** are int64 microseconds, without errors at their ends. Spark's sums of times raise an error or give null beyond
int64, and its casts of far dates raise one even as ``try_cast``. But a row with such a time must get its outcome too.
Only times without a zone may depend on the session's zone: a day of a timeout is 24 hours, although Spark adds calendar
days of that zone to a timestamp.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Completions, Operations, PurgatoryOptions
from spark_purgatory.config.declared import ColumnLike, not_a_column
from spark_purgatory.config.options import watermark_ms
from spark_purgatory.config.units import us_per
from spark_purgatory.core.arrays.times import MAX_TIME_US, US_PER_MS
from spark_purgatory.core.spec.criteria import ByRow
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.errors import ConfigError, sentence_of
from spark_purgatory.spark.heartbeat import heartbeats, newest_lines, newest_times
from spark_purgatory.spark.operator.carried import carried_columns
from spark_purgatory.spark.operator.field_types import (
    key_text,
    keys_of,
    need_columns,
    needs_of,
    reads_value,
    value_column,
)

PLACED: dict[type[T.DataType], tuple[str, str]] = {  # Bounds of local times, which are more than a day inside int64
    T.DateType: ("date'-290307-01-01'", "date'+294246-12-31'"),
    T.TimestampNTZType: ("timestamp_ntz'-290307-01-01 00:00:00'", "timestamp_ntz'+294246-12-31 00:00:00'"),
}
US_PER_SECOND = 1_000_000


def placed(column: Column, kind: T.DataType) -> Column:
    """Return a time as a timestamp; one without a zone is in the session's zone, within `PLACED`."""
    bounds = PLACED.get(type(kind))
    if bounds is not None:
        first, last = map(F.expr, bounds)
        column = F.when(column < first, first).when(column > last, last).otherwise(column)
    return column.cast(T.TimestampType())


def interval_us(column: Column) -> Column:
    """Return a day-time interval in microseconds. A day is 24 hours."""
    seconds = column.cast("interval second").cast(T.DecimalType(20, 6))
    return (seconds * F.lit(US_PER_SECOND).cast(T.DecimalType(7, 0))).cast("bigint")


def deadline_after(created_us: Column, wait: Column, us_per_unit: int = 1) -> Column:
    """Return ``created_us + wait * us_per_unit``; MAX_TIME_US beyond int64, null if either is null."""
    wait_us = wait if us_per_unit == 1 else F.try_multiply(wait, F.lit(us_per_unit).cast("bigint"))
    deadline_us = F.coalesce(F.try_add(created_us, wait_us), F.lit(MAX_TIME_US))
    return F.when(created_us.isNotNull() & wait.isNotNull(), deadline_us)


def instant_ms(spark: SparkSession, value: Any, field: str) -> int:
    """Return the instant that a user gives, in milliseconds, rounded down: a datetime, a date, a text or a Column.

    A datetime with a time zone is an instant. Other values are wall-clock time in the session's time zone, so that
    "2026-10-27", date(2026, 10, 27) and datetime(2026, 10, 27) are one instant. The time zone of the Python process,
    which PySpark's ``lit`` uses for a datetime without one, does not matter.

    Raises ConfigError for a value that is not a time, and for a time before 1970, where Spark's watermark begins.
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        instant = F.timestamp_micros(F.lit((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)))
    elif isinstance(value, (date, str)):
        instant = F.lit(str(value)).try_cast(T.TimestampType())
    elif isinstance(value, Column):
        instant = value.try_cast(T.TimestampType())
    else:
        instant = F.lit(None).cast(T.TimestampType())
    try:
        ms = spark.range(1).select(F.unix_millis(instant).alias("ms")).collect()[0]["ms"]
    except AnalysisException:
        ms = None  # A Column of an input's rows, or not of a time.
    if ms is None:
        raise ConfigError(
            f'{field}={value!r} is not a time: write "2026-10-27" or "2026-10-27 18:30:00", or a datetime'
        )
    if ms <= 0:
        raise ConfigError(
            f"{field}={value!r} is not after 1970-01-01 00:00:00 UTC, where a watermark begins, so nothing would be "
            "decided: give a later time"
        )
    return int(ms)


def operation_columns(fields: Any, spec: EngineSpec, several: bool) -> dict[str, Any]:
    """Return id, keys, times and rules of the operations, except payload columns. ``several``: keys are arrays.

    ``fields`` are `Fields` or the tester's `TableColumns`, which make the same columns in Spark and in Arrow.
    """
    config, criterion, scope = fields.options.operations, fields.options.criterion, fields.scope()
    own_id, keys = fields.text(config.id, "operations.id", scope), fields.keys(several, scope)
    created_us = fields.time_us(config.created, "operations.created")
    columns = {
        "id": own_id,
        "id_hash": fields.hashes(own_id),
        "keys": keys,
        "key_hashes": fields.hashes(keys, several),
        "created_us": created_us,
        "deadline_us": fields.deadline_us(created_us),
    }
    if isinstance(criterion, ByRow):
        columns |= {"rule": fields.words(criterion.rule, "criterion.rule"), **fields.needs(spec, several)}
    return {name: column for name, column in columns.items() if name not in dict(spec.roles)}


def event_columns(fields: Any, number: str) -> dict[str, Any]:
    """Return key and time of the events, and the columns that the criterion or control events read."""
    config, scope = fields.options.completions, fields.scope()
    key = fields.text(config.key, "completions.key", scope)
    columns = {"key": key, "key_hash": fields.hashes(key), "time_us": fields.time_us(config.time, "completions.time")}
    if reads_value(fields.options):
        columns["value"] = fields.number(config.value, "completions.value", number)
    if config.kind is not None:
        columns["kind"] = fields.words(config.kind, "completions.kind")
    if config.operation_id is not None:
        operation_id = fields.text(config.operation_id, "completions.operation_id", scope)
        columns |= {"operation_id": operation_id, "operation_hash": fields.hashes(operation_id)}
    if config.event_id is not None:
        columns["event_id"] = fields.text(config.event_id, "completions.event_id")
    return columns


UNTAKEN = "__spark_purgatory_"  # A prefix of names that no column of an input has.
AMBIGUOUS = ("is the name of several columns", "rename or drop all but one of them")
NO_VALUE = (
    "is not a value of a row",
    "give a column, a field of a struct as 'column.field', or an expression of the input's columns",
)


def field_column(frame: DataFrame, value: Any, field: str) -> Column:
    """Return the Column that a config value names in ``frame``. Raises ConfigError listing the columns."""
    if not isinstance(value, str):
        return value
    name = value.replace("`", "``")
    if value in frame.columns:
        return F.col(f"`{name}`")
    if value.split(".")[0] in frame.columns:
        return F.col(value)
    raise not_a_column(field, value, frame.columns)


def input_name(purgatory: str, side: str) -> str:
    """Return the name of an input among all those of a query, under which its newest time is kept."""
    return f"{side} of {purgatory}"


class Field(NamedTuple):
    """A column of an input, and its type."""

    column: Column
    kind: T.DataType


def field_of(frame: DataFrame, value: Any, label: str) -> Field:
    """Return the field that a config value names. Raises ConfigError, with the label, listing the columns."""
    column = field_column(frame, value, label)
    try:
        # Next to the columns and in a struct Spark refuses an aggregate or a generator, which is not a value of a row.
        kinds = frame.select("*", F.struct(column.alias("c")).alias("value")).schema[-1].dataType
    except AnalysisException as error:
        wrong, remedy = AMBIGUOUS if error.getCondition() == "AMBIGUOUS_REFERENCE" else NO_VALUE
        raise ConfigError(f"{label}={value!r} {wrong} (Spark: {sentence_of(error)}): {remedy}") from error
    return Field(column, cast("T.StructType", kinds)[0].dataType)


class Fields:
    """The fields of one input. Spark is asked for each of them once."""

    def __init__(self, frame: DataFrame, options: PurgatoryOptions) -> None:
        self.frame, self.options = frame, options
        self._known: dict[tuple[str, Any], Field] = {}

    def of(self, value: Any, label: str) -> Field:
        known = label, value if isinstance(value, str) else id(value)
        if known not in self._known:
            self._known[known] = field_of(self.frame, value, label)
        return self._known[known]

    def type_of(self, value: Any, label: str) -> T.DataType:
        return self.of(value, label).kind

    def time(self, value: Any, label: str) -> Column:
        return placed(*self.of(value, label))

    def text(self, value: Any, label: str, scope: Column | None = None) -> Column:
        column, kind = self.of(value, label)
        return scoped(key_text(column, kind), kind, scope)

    def words(self, value: Any, label: str) -> Column:
        return self.of(value, label).column.cast("string")

    def time_us(self, value: Any, label: str) -> Column:
        return F.unix_micros(self.time(value, label))

    def keys(self, several: bool, scope: Column | None) -> Column:
        fields = [self.of(name, label) for name, label in keys_of(self.options.operations)]
        column, kind = fields[0]
        in_array = isinstance(kind, T.ArrayType)
        kind = kind.elementType if isinstance(kind, T.ArrayType) else kind

        def text(key: Column) -> Column:
            return scoped(key_text(key, kind), kind, scope)

        if in_array:
            is_text = scope is None and isinstance(kind, (T.StringType, T.BinaryType))
            return column if is_text else F.transform(column, text)
        return F.array(*(text(field.column) for field in fields)) if several else text(column)

    def hashes(self, keys: Column, several: bool = False) -> Column:
        return F.transform(keys, lambda key: F.xxhash64(key)) if several else F.xxhash64(keys)

    def deadline_us(self, created_us: Column) -> Column:
        config = self.options.operations
        if config.deadline is not None:
            return self.time_us(config.deadline, "operations.deadline")
        if config.timeout_column is None:
            return deadline_after(created_us, F.lit(config.us_of("timeout")).cast("bigint"))
        timeout = self.of(config.timeout_column, "operations.timeout").column
        if config.timeout_unit is None:
            return deadline_after(created_us, interval_us(timeout))
        return deadline_after(created_us, timeout.cast("bigint"), us_per_unit=us_per(config.timeout_unit))

    def needs(self, spec: EngineSpec, several: bool) -> dict[str, Column]:
        needs = {label: self.of(name, label) for label, name in needs_of(self.options.criterion).items()}
        keys = [self.of(name, label).column for name, label in keys_of(self.options.operations)]
        return need_columns(needs, keys if len(keys) > 1 else keys[0], several, spec.number)

    def number(self, value: Any, label: str, number: str) -> Column:
        return value_column(*self.of(value, label), number, self.options.criterion.reads_values)

    def scope(self) -> Column | None:
        if self.options.scope is None:
            return None
        value = self.text(self.options.scope, "scope").cast("string")
        return F.md5(F.coalesce(F.concat(F.lit("="), value), F.lit("null")).cast("binary"))


def scoped(key: Column, kind: T.DataType, scope: Column | None) -> Column:
    """Return a key or id with the prefix of its scope, whose length is `key_prefix`."""
    if scope is None:
        return key
    return F.concat(F.unhex(scope) if isinstance(kind, T.BinaryType) else scope, key)


def key_prefix(kind: T.DataType) -> int:
    """Return the length of a scope's prefix, in characters, or in bytes if the key is binary."""
    return 16 if isinstance(kind, T.BinaryType) else 32


class Markers(NamedTuple):
    """The rows without a payload that a query adds to its inputs, to move their watermarks."""

    heartbeats: bool = True  # Those of ``idle_after`` have a time
    newest: DataFrame | None = None  # `newest_lines`: each start adds a row with the newest time of earlier runs
    complete_until_ms: Mapping[str, int] = MappingProxyType({})  # By input: its part of the watermark is at least this


NO_MARKERS = Markers()


def markers_of(
    options: PurgatoryOptions,
    operations: DataFrame,
    heartbeats: bool,
    checkpoint: str | None,
    complete_until: Mapping[str, Any],
) -> Markers:
    if checkpoint is not None and not operations.isStreaming:
        raise ConfigError("checkpoint is for streams, but the inputs are batch DataFrames: leave checkpoint out")
    if complete_until and checkpoint is None:
        raise ConfigError("complete_until needs checkpoint=: give the checkpoint that the query will have")
    sides: dict[str, Operations | Completions] = {"operations": options.operations, "completions": options.completions}
    until_ms: dict[str, int] = {}
    for side, until in complete_until.items():
        if side not in sides or sides[side].outcomes_of is not None:
            free = [name for name, each in sides.items() if each.outcomes_of is None]
            raise ConfigError(f"complete_until[{side!r}] is no input with a watermark: give {' or '.join(free)}")
        until_ms[side] = instant_ms(operations.sparkSession, until, f"complete_until[{side!r}]")
        if until_ms[side] > time.time() * 1000 + options.ms_of("max_future"):
            raise ConfigError(
                f"complete_until[{side!r}]={until!r} is more than max_future ahead, where rows are rejected: give "
                "an earlier time"
            )
    newest = None if checkpoint is None else newest_lines(operations.sparkSession, checkpoint)
    return Markers(heartbeats, newest, until_ms)


def operations_input(fields: Fields, spec: EngineSpec, several: bool, markers: Markers = NO_MARKERS) -> DataFrame:
    """Return the operations: id, keys, times, payload. They are routed by scope, key, or with several keys by id."""
    frame, config, scope = fields.frame, fields.options.operations, fields.scope()
    columns = operation_columns(fields, spec, several)
    if scope is not None or several:
        columns["route"] = columns["id_hash"] if scope is None else F.xxhash64(scope)
    columns |= {f"p{i}": field_column(frame, name, "operations") for i, name in enumerate(frame.columns)}
    return _watermarked(fields, columns, fields.time(config.created, "operations.created"), config, markers)


def payload_sources(config: Operations, scope: ColumnLike | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns that an operation's kept fields name. Fields that are expressions have none."""
    named = {f"operations.{name}": getattr(config, name) for name in ("id", "keys", "created", "deadline")}
    listed = {field: each if isinstance(each, (list, tuple)) else (each,) for field, each in named.items()}
    listed["scope"] = (scope,)
    return tuple((field, tuple(each)) for field, each in listed.items() if all(isinstance(one, str) for one in each))


def events_input(fields: Fields, number: str, markers: Markers = NO_MARKERS) -> DataFrame:
    frame, config, scope = fields.frame, fields.options.completions, fields.scope()
    columns = event_columns(fields, number)
    for i, name in enumerate(carried_columns(fields.options, frame.columns).values()):
        columns[f"p{i}"] = field_column(frame, name, "completions.columns")
    if scope is not None:
        columns["route"] = F.xxhash64(scope)
    return _watermarked(fields, columns, fields.time(config.time, "completions.time"), config, markers)


def _guarded(time: Column, max_future_us: int) -> Column:
    """Return ``time``, or null if it is too far ahead of processing time, so that it does not move the watermark.

    Spark writes the time of the micro-batch as a number into its generated code, so every micro-batch would compile its
    scan again, and run it cold. It calls a function of two arrays' elements instead of generating its code. Such a call
    is slow, but nearly all rows are decided before it by the limit at the beginning of this day.
    """
    now_us = F.unix_micros(F.current_timestamp()) + F.lit(max_future_us)
    today_us = F.unix_micros(F.current_date().cast(T.TimestampType())) + F.lit(max_future_us)
    time_us = F.unix_micros(time)
    ahead = F.zip_with(F.array(time_us), F.array(now_us), lambda told_us, limit_us: told_us > limit_us)
    return F.when(time_us <= today_us, time).when(F.get(ahead, F.lit(0)), F.lit(None)).otherwise(time)


def _watermarked(
    fields: Fields, columns: dict[str, Column], time: Column, config: Operations | Completions, markers: Markers
) -> DataFrame:
    """Return columns over a guarded watermark. The column ``route`` or the hash of its one key routes a row."""
    frame, named = fields.frame, {**columns, "guarded": _guarded(time, fields.options.us_of("max_future"))}
    # In a lambda Spark looks for a name further left in the select before it looks in the input. So no alias may be a
    # name that an input has. Catalyst makes one projection of both steps.
    selected = frame.select(*(column.alias(UNTAKEN + name) for name, column in named.items())).toDF(*named)
    if frame.isStreaming and config.outcomes_of is None:
        spark, schema, delay_ms = frame.sparkSession, selected.schema, watermark_ms(config)
        # Marker rows have no hash, so that the exchange can drop them. Catalyst would push a filter here below the
        # watermark.
        if config.idle_after is not None:
            # One row in each micro-batch has the current time less idle_after, or no time if it is muted.
            late = F.expr(f"current_timestamp() - interval {config.us_of('idle_after')} microseconds")
            beats = heartbeats(spark, schema, guarded=late if markers.heartbeats else F.lit(None))
            selected = selected.unionByName(beats)
        if markers.newest is not None:
            side = type(config).__name__.lower()
            until_ms = markers.complete_until_ms.get(side)
            least_us = None if until_ms is None else (until_ms + delay_ms) * US_PER_MS
            name = input_name(fields.options.name, side)
            newest = newest_times(markers.newest, schema, "guarded", name=name, least_us=least_us)
            selected = selected.unionByName(newest)
        selected = selected.withWatermark("guarded", f"{delay_ms} milliseconds")
    return selected
