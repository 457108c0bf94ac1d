"""What a Delta table's own log says, read as files with DataFrames: right also after clean-up, and without the JVM.

Delta keeps the last ``txnVersion`` of each ``txnAppId`` in the atomic commit that brought the rows. History is cut by
log clean-up; this record is not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.spark.entries import SMALL_QUERY, literal, settings
from spark_purgatory.spark.ledger import NO_BATCH
from spark_purgatory.spark.paths import delta_log

TXN_SCHEMA = "txn struct<appId: string, version: bigint>"
COMMIT_SCHEMA = (
    "commitInfo struct<userMetadata: string>, "
    "add struct<path: string, size: bigint, partitionValues: map<string, string>, stats: string>"
)
CLOCK_SLACK_MS = 15 * 60_000
"""How far the clocks of the storage and of the driver may differ when recent commits are looked for."""
_VERSION = re.compile(r"^(\d{20})\.json$")


@dataclass(frozen=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    bytes: int
    rows: int
    partition_values: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Commit:
    """A commit of ours as the table's log has it."""

    version: int
    """Of the table."""
    intent_uuid: str | None
    """Whose commit it is, by its userMetadata; None if that is gone or not ours."""
    files: tuple[AddedFile, ...]


def last_txn_version(spark: SparkSession, location: str, app_id: str, anchor: str | None = None) -> int:
    """The last ``txnVersion`` of an app id in a Delta table's log, `NO_BATCH` if it has none.

    ``anchor``: a file that is there (`paths`).
    """
    log = delta_log(literal(location), anchor and literal(anchor))
    reader = spark.read.schema(TXN_SCHEMA)
    commits = reader.option("pathGlobFilter", "*.json").json(log)
    checkpoints = reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(*log)
    versions = commits.unionAll(checkpoints).where(F.col("txn.appId") == app_id)
    row = versions.agg(F.max("txn.version").alias("last")).first()
    return NO_BATCH if row is None or row["last"] is None else int(row["last"])


def find_commit(
    spark: SparkSession,
    location: str,
    app_id: str,
    number: int,
    since_ms: int | None = None,
    anchor: str | None = None,
) -> Commit | None:
    """The commit with ``txnVersion`` ``number``; None if there is none in the log's commits.

    ``since_ms`` spares the reading of older ones. ``anchor``: a file that is there (`paths`).
    """
    log = delta_log(literal(location), anchor and literal(anchor))
    reader = spark.read.option("pathGlobFilter", "*.json")
    if since_ms is not None:
        since = datetime.fromtimestamp(max(since_ms - CLOCK_SLACK_MS, 0) / 1000, UTC)
        reader = reader.option("modifiedAfter", since.strftime("%Y-%m-%dT%H:%M:%S")).option("timeZone", "UTC")
    with settings(spark, SMALL_QUERY):
        txns = reader.schema(TXN_SCHEMA).json(log).where(F.col("txn.appId") == app_id)
        names = txns.where(F.col("txn.version") == number).select("_metadata.file_name").distinct().collect()
        versions = sorted(int(match[1]) for row in names if (match := _VERSION.match(row[0])))
        if not versions:
            return None
        return _read_commit(spark.read.schema(COMMIT_SCHEMA).json(f"{log[-1]}/{versions[-1]:020d}.json"), versions[-1])


def _read_commit(actions: DataFrame, version: int) -> Commit:
    uuid: str | None = None
    files = []
    for info, add in actions.where("commitInfo is not null or add is not null").collect():
        if info is not None:
            uuid = _intent_uuid(info["userMetadata"])
        if add is not None:
            rows = int(json.loads(add["stats"] or "{}").get("numRecords", 0))
            values = tuple(sorted((add["partitionValues"] or {}).items()))
            files.append(AddedFile(add["path"], add["size"], rows, values))
    return Commit(version, uuid, tuple(files))


def _intent_uuid(user_metadata: str | None) -> str | None:
    try:
        said = json.loads(user_metadata or "{}")
        return said.get("intent") if isinstance(said, dict) else None
    except ValueError:
        return None
