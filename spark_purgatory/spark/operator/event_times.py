"""Arithmetic of times in the projection, in int64 microseconds, without errors at their ends.

Spark's sums of times raise an error or give null beyond int64, and its casts of far dates raise one even as
``try_cast``. But a row with such a time must get its outcome too. Only times without a zone may depend on the session's
zone: a day of a timeout is 24 hours, although Spark adds calendar days of that zone to a timestamp.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.core.arrays.times import MAX_TIME_US
from spark_purgatory.errors import ConfigError

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
