"""Which queries have filled a table, as its history says: each drain's version carries its query's app id."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

LOOKED_AT = 1000
"""Versions: reading them takes 3 s."""
APP_ID = "$.app_id"
"""The path of the app id in the ``userMetadata`` of a drain's version."""


@dataclass(frozen=True)
class FilledBy:
    """A query that has filled a table."""

    app_id: str
    drains: int
    """Among the last `LOOKED_AT` versions."""
    last_version: int
    last_at: str
    """The time of the last drain, in the session's time zone."""

    def __str__(self) -> str:
        drains = f"{self.drains:,} drain{'s' * (self.drains != 1)}"
        return f"{self.app_id} ({drains}, the last in version {self.last_version} at {self.last_at})"


def queries_of(spark: SparkSession, place: str) -> list[FilledBy]:
    """The queries whose drains a table's history has, the latest first; those from before it was replaced left out.

    ``place``: the table as SQL has it, a name or the literal of a path.
    """
    app_id = F.get_json_object("userMetadata", APP_ID).alias("app_id")
    at = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss").alias("at")
    rows = spark.sql(f"DESCRIBE HISTORY {place} LIMIT {LOOKED_AT}").select("version", "operation", app_id, at).collect()
    made = max((row["version"] for row in rows if "REPLACE TABLE" in (row["operation"] or "")), default=-1)
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        if row["app_id"] is not None and row["version"] >= made:
            found.setdefault(row["app_id"], []).append((row["version"], row["at"]))
    filled = [FilledBy(app_id, len(drains), *max(drains)) for app_id, drains in found.items()]
    return sorted(filled, key=lambda query: -query.last_version)
