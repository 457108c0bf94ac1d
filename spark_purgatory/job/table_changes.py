"""Rows that others have removed from the table, by its history: a DELETE is not a loss of the job."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from spark_purgatory.spark.sink.table.target import Target

REBUILD = "spark_purgatory_rebuild"
"""The key of a rebuild's counts, (rows before, rows after), in the version's ``userMetadata``."""
WRITTEN = ("WRITE", "STREAMING UPDATE")
# By operation: metrics of rows that it removed, and of rows that it added.
METRICS: Mapping[str, tuple[str, str | None]] = {
    "DELETE": ("numDeletedRows", None),
    "MERGE": ("numTargetRowsDeleted", "numTargetRowsInserted"),
}
MAY_REMOVE = ("TRUNCATE", "RESTORE", "CLONE", "REPLACE TABLE", "CREATE OR REPLACE TABLE", "DROP PARTITION")


def removed_rows(spark: SparkSession, target: Target) -> int | None:
    """Return how many rows others have removed less those that they added; None if the history does not show it."""
    if target.format != "Delta":
        return None
    history = spark.sql(f"DESCRIBE HISTORY {target.sql_place}")
    names = ("version", "operation", "operationParameters", "operationMetrics", "userMetadata")
    return removed_by([row.asDict() for row in history.select(*names).collect()])


def removed_by(versions: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the rows removed in versions of DESCRIBE HISTORY less those added, without the drains'; None: unknown."""
    found = list(versions)
    if min((each["version"] for each in found), default=0) > 0:
        return None
    removed = 0
    for each in found:
        operation, metrics = str(each["operation"]), each["operationMetrics"] or {}
        noted = _noted(each["userMetadata"])
        if REBUILD in noted:
            before, after = noted[REBUILD]
            removed += before - after
        elif operation in METRICS:
            gone, new = METRICS[operation]
            if gone not in metrics:
                return None
            removed += int(metrics[gone]) - int(metrics.get(new, 0))
        elif operation in WRITTEN and "drain" not in noted:
            if (each["operationParameters"] or {}).get("mode") != "Append" or "numOutputRows" not in metrics:
                return None
            removed -= int(metrics["numOutputRows"])
        elif any(operation.startswith(name) for name in MAY_REMOVE):
            return None
    return removed


def _noted(text: str | None) -> dict[str, Any]:
    try:
        noted = json.loads(text or "{}")
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}
