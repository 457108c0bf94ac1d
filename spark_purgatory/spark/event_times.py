"""Arithmetic of times in the projection: int64 microseconds, and nothing that raises at their ends.

Spark's sums of times raise, or give null, where they leave int64, and its casts of far dates to timestamps raise even
as ``try_cast``. A row with such a time must get its outcome as every other row does. And nothing here may depend on the
session's zone but what has no zone of its own: a day of a time-out is 24 hours, where Spark's sum of a timestamp and an
interval adds calendar days of the session's zone.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.core.times import NEVER

PLACED: dict[type[T.DataType], tuple[str, str]] = {
    T.DateType: ("date'-290307-01-01'", "date'+294246-12-31'"),
    T.TimestampNTZType: ("timestamp_ntz'-290307-01-01 00:00:00'", "timestamp_ntz'+294246-12-31 00:00:00'"),
}
"""What the session's zone places on the time line is held within these: each lies a day and more inside of int64."""
US_PER_SECOND = 1_000_000


def placed(column: Column, kind: T.DataType) -> Column:
    """A timestamp; dates and timestamps without a zone are placed by the session's, the farthest at the ends."""
    bounds = PLACED.get(type(kind))
    if bounds is not None:
        first, last = map(F.expr, bounds)
        column = F.when(column < first, first).when(column > last, last).otherwise(column)
    return column.cast(T.TimestampType())


def interval_us(column: Column) -> Column:
    """A day-time interval in microseconds: a day is 24 hours."""
    seconds = column.cast("interval second").cast(T.DecimalType(20, 6))
    return (seconds * F.lit(US_PER_SECOND).cast(T.DecimalType(7, 0))).cast("bigint")


def deadline_after(created_us: Column, wait: Column, us_per_unit: int = 1) -> Column:
    """``created_us + wait * us_per_unit``; NEVER where int64 does not hold it, null where either is null."""
    wait_us = wait if us_per_unit == 1 else F.try_multiply(wait, F.lit(us_per_unit).cast("bigint"))
    deadline_us = F.coalesce(F.try_add(created_us, wait_us), F.lit(NEVER))
    return F.when(created_us.isNotNull() & wait.isNotNull(), deadline_us)
