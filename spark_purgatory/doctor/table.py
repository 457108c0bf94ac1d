"""What a Delta table must be for rows to reach it exactly once, looked at as the sink does when it starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config import SinkOptions
from spark_purgatory.doctor.finding import Finding, note
from spark_purgatory.doctor.session import clock_finding, first_cause
from spark_purgatory.errors import PurgatoryError
from spark_purgatory.spark.sink.drain.delta_sink import DeltaSink
from spark_purgatory.spark.sink.table.delta_session import KNOWN_FEATURES
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.storage_access import described, sql_text
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

TELLING = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.enableExpiredLogCleanup")
"""Properties that cut a table's history. They do not end exactly-once: Delta keeps its record of transactions."""
CLOCK_SLACK_MS = 15 * 60_000
"""How far the clocks of the storage and of the driver may differ."""
REPLACED = "write to a new table with a new checkpoint, which reads the sources again"


def table_findings(spark: SparkSession, place: Mapping[str, str], checkpoint: str | None) -> Iterator[Finding]:
    """Everything about a table; with a checkpoint also whether it still holds what that has delivered."""
    try:
        target = DeltaTarget(SinkOptions(path=place.get("path"), table=place.get("table")))
        facts = target.facts(spark)
    except PurgatoryError as error:
        name = type(error).__name__
        yield Finding("table", f"{name}: exactly-once would end" if "Forgets" in name else name, str(error))
        return
    except SPARK_FAULTS as error:
        yield Finding("table", first_cause(error), "give the session what its storage or catalog needs")
        return
    if facts is None:
        yield note("table", f"{target}: there is none yet, the first drain makes it")
    else:
        partitions = f", partitioned by {', '.join(facts.partition_by)}" if facts.partition_by else ""
        yield Finding("table", f"{target}: Delta, id {facts.id}{partitions}")
        unknown = sorted(set(facts.features) - KNOWN_FEATURES)
        features = ", ".join(facts.features) or "none"
        remedy = f"write a row with this session's Delta, or DROP FEATURE {', '.join(unknown)}" if unknown else ""
        yield Finding("table features", features, remedy)
        yield from property_findings(spark, target)
        yield from clock_findings(spark, facts.location)
    if checkpoint is not None:
        yield delivery_finding(spark, target, checkpoint)


def property_findings(spark: SparkSession, target: DeltaTarget) -> Iterator[Finding]:
    """That transactions are kept, and the properties that only cut the history."""
    yield Finding("table keeps transactions", "delta.setTransactionRetentionDuration is not set")
    row = described(spark, target.table or sql_text(str(target.path)))
    properties = (row["properties"] if row is not None else None) or {}
    for name in TELLING:
        if name in properties:
            yield note("table property", f"{name} = {properties[name]}: cuts the history, not the transactions")


def clock_findings(spark: SparkSession, location: str) -> Iterator[Finding]:
    """The clock of the table's storage: the newest commit's time as a file, beside what its writer wrote into it."""
    reader = spark.read.option("pathGlobFilter", "*.json").schema("commitInfo struct<timestamp: bigint>")
    log = reader.json(f"{literal(location.rstrip('/'))}/_delta_log")
    columns = (F.unix_millis("_metadata.file_modification_time").alias("written_ms"), "commitInfo.timestamp")
    newest = log.where("commitInfo.timestamp IS NOT NULL").select(*columns).orderBy(F.desc("written_ms")).first()
    if newest is None:
        return
    ahead_ms = newest["written_ms"] - time.time() * 1000
    yield clock_finding("last commit", max(0, ahead_ms), "the past")
    skew_ms = abs(newest["written_ms"] - newest["timestamp"])
    # Delta takes its time before the commit, and a commit may be long in coming.
    if skew_ms > CLOCK_SLACK_MS:
        yield clock_finding("clock of the table's storage", skew_ms, "that of the last writer")


def delivery_finding(spark: SparkSession, target: DeltaTarget, checkpoint: str) -> Finding:
    """What the sink would say at its start: was the table replaced, restored or written under the query's id?"""
    what = "table and checkpoint"
    try:
        sink = DeltaSink(target, checkpoint)
        sink.recover(spark)  # reads, and changes nothing
    except PurgatoryError as error:
        return Finding(what, type(error).__name__, str(error))
    except SPARK_FAULTS as error:
        remedy = without_reach(error) or f"bring the checkpoint's folder `staging` back, or {REPLACED}"
        return Finding(what, first_cause(error), remedy)
    ledger = sink.stager.ledger
    drains = ledger.intent.number + 1 if ledger.intent else 0
    return Finding(
        what, f"fit: {drains:,} drains, the last {'complete' if ledger.is_done or not drains else 'not yet'}"
    )
