"""Columns of a Delta table that Delta fills itself: generated, identity, default. No column's description says so.

Delta plans a MERGE that would insert nothing but the stream's columns, and runs nothing: its plan has a value for each
column of the table, and ``null`` for those that nobody fills. It works by name and by path, whoever keeps the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import back_ticked

SPECIAL_FEATURES = frozenset({"allowColumnDefaults", "generatedColumns", "identityColumns"})
"""Features of a table that may have such columns; other tables need not be asked."""
WHOLE_PLAN = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": "1000000000"}
_CLOSED = re.compile(r"\[DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED\].*? column (.+?) is not supported")


class SpecialColumns(NamedTuple):
    """Names in lower case."""

    filled: frozenset[str] = frozenset()
    """Columns that the stream lacks, and Delta fills."""
    closed: frozenset[str] = frozenset()
    """Columns that the stream has, and that take no values from rows: ``GENERATED ALWAYS AS IDENTITY``."""


def special_columns(spark: SparkSession, place: str, there: Sequence[str], given: Iterable[str]) -> SpecialColumns:
    """The special columns of a table with the columns ``there``, for a stream with the columns ``given``.

    ``place``: the table as SQL has it in a MERGE. What Delta does not say is left to the first drain: it counts as
    filled.
    """
    ours = {name.lower() for name in given}
    closed: set[str] = set()
    while True:
        taken = [name for name in there if name.lower() in ours - closed]
        plan = _plan(spark, place, taken) if taken else ""
        refused = _CLOSED.search(plan)
        if refused is None or refused[1].lower() not in ours - closed:
            break
        closed.add(refused[1].lower())
    lacking = {name.lower(): re.escape(back_ticked(name)) for name in there if name.lower() not in ours}
    filled = {name for name, quoted in lacking.items() if not re.search(quoted + r" = null[,\]]", plan)}
    return SpecialColumns(frozenset(filled), frozenset(closed))


def _plan(spark: SparkSession, place: str, columns: Sequence[str]) -> str:
    names = [back_ticked(name) for name in columns]
    values = ", ".join(f"new.{name}" for name in names)
    with settings(spark, WHOLE_PLAN):
        explained = spark.sql(
            f"EXPLAIN EXTENDED MERGE INTO {place} AS old USING (SELECT * FROM {place} WHERE false) AS new ON false "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
        ).first()
    return "" if explained is None else str(explained[0])
