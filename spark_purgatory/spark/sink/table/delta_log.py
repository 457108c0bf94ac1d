"""What a Delta table's own log says, read as files with DataFrames: right also after clean-up, and without the JVM.

Delta keeps the last ``txnVersion`` of each ``txnAppId`` in the atomic commit that brought the rows. History is cut by
log clean-up; this record is not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.spark.sink.staging.ledger import NO_BATCH
from spark_purgatory.spark.storage.paths import delta_log, literal
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, settings

TXN_SCHEMA = "txn struct<appId: string, version: bigint>"
COMMIT_SCHEMA = (
    "commitInfo struct<userMetadata: string>, "
    "add struct<path: string, size: bigint, partitionValues: map<string, string>, stats: string>"
)
RESTORE_SCHEMA = "commitInfo struct<operation: string, operationParameters: map<string, string>>"
CLOCK_SLACK_MS = 15 * 60_000
"""How far the clocks of the storage and of the driver may differ when recent commits are looked for."""
_VERSION = re.compile(r"^(\d{20})\.json$")


@dataclass(frozen=True)
class AddedFile:
    """A file that a commit added."""

    path: str
    bytes: int
    rows: int | None
    """None where Delta collects no statistics."""
    partition_values: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Commit:
    """A commit of ours as the table's log has it."""

    version: int
    """Of the table."""
    intent_uuid: str | None
    """Whose commit it is, by its userMetadata; None if that is gone or not ours."""
    files: tuple[AddedFile, ...]

    @property
    def rows(self) -> int | None:
        """Of all files; None where some file's are not known."""
        known = [file.rows for file in self.files if file.rows is not None]
        return sum(known) if len(known) == len(self.files) else None


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
    log, reader = _commits_since(spark, location, since_ms, anchor)
    with settings(spark, SMALL_QUERY):
        txns = reader.schema(TXN_SCHEMA).json(log).where(F.col("txn.appId") == app_id)
        names = txns.where(F.col("txn.version") == number).select("_metadata.file_name").distinct().collect()
        versions = sorted(int(match[1]) for row in names if (match := _VERSION.match(row[0])))
        if not versions:
            return None
        return _read_commit(spark.read.schema(COMMIT_SCHEMA).json(f"{log[-1]}/{versions[-1]:020d}.json"), versions[-1])


def find_restore(
    spark: SparkSession, location: str, version: int, since_ms: int | None = None, anchor: str | None = None
) -> str | None:
    """What the table was restored to, if version ``version`` is no longer part of it; None if it is.

    A RESTORE keeps the table's id and Delta's record of transactions, so that neither shows it. A later RESTORE may
    have brought the version back: the versions that the table is made of are followed from the last RESTORE on. Where
    one names a time, the version that it led to is unknown: then the version counts as gone.
    """
    log, reader = _commits_since(spark, location, since_ms, anchor)
    with settings(spark, SMALL_QUERY):
        actions = reader.schema(RESTORE_SCHEMA).json(log).where("commitInfo.operation = 'RESTORE'")
        found = actions.select("_metadata.file_name", "commitInfo.operationParameters").collect()
    matches = [(_VERSION.match(row[0]), row[1] or {}) for row in found]
    restores = {int(match[1]): given for match, given in matches if match is not None}
    at = max(restores, default=NO_BATCH)
    while at > version:
        if at not in restores:
            at = max((one for one in restores if one < at), default=NO_BATCH)
            continue
        to_version, to_time = (_unquoted(restores[at].get(name)) for name in ("version", "timestamp"))
        if to_version is None or not to_version.isdigit():
            return f"time {to_time}"
        at = int(to_version)
        if at < version:
            return f"version {at}"
    return None


def _unquoted(value: str | None) -> str | None:
    return None if value is None else value.strip('"')


def _commits_since(
    spark: SparkSession, location: str, since_ms: int | None, anchor: str | None
) -> tuple[list[str], DataFrameReader]:
    """The log's paths, and a reader of its commits that were written since then."""
    reader = spark.read.option("pathGlobFilter", "*.json")
    if since_ms is not None:
        since = datetime.fromtimestamp(max(since_ms - CLOCK_SLACK_MS, 0) / 1000, UTC)
        reader = reader.option("modifiedAfter", since.strftime("%Y-%m-%dT%H:%M:%S")).option("timeZone", "UTC")
    return delta_log(literal(location), anchor and literal(anchor)), reader


def _read_commit(actions: DataFrame, version: int) -> Commit:
    uuid: str | None = None
    files = []
    for info, add in actions.where("commitInfo is not null or add is not null").collect():
        if info is not None:
            uuid = _intent_uuid(info["userMetadata"])
        if add is not None:
            rows = json.loads(add["stats"] or "{}").get("numRecords")
            values = tuple(sorted((add["partitionValues"] or {}).items()))
            files.append(AddedFile(add["path"], add["size"], rows, values))
    return Commit(version, uuid, tuple(files))


def _intent_uuid(user_metadata: str | None) -> str | None:
    try:
        said = json.loads(user_metadata or "{}")
        return said.get("intent") if isinstance(said, dict) else None
    except ValueError:
        return None
