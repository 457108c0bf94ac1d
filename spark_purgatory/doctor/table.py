"""Findings about a table, by the checks that the sink makes when it starts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config import SinkOptions
from spark_purgatory.doctor.finding import Finding, note
from spark_purgatory.doctor.session import clock_finding
from spark_purgatory.errors import START_OVER, PurgatoryError, sentence_of
from spark_purgatory.spark.sink.drain.sender import Sender
from spark_purgatory.spark.sink.table.delta_session import KNOWN_FEATURES
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.history import TableFacts
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS, without_reach

LOG_RETENTION = "delta.logRetentionDuration"
# Properties that cut a table's history. They do not end exactly-once: Delta keeps its record of transactions
TELLING = (LOG_RETENTION, "delta.deletedFileRetentionDuration", "delta.enableExpiredLogCleanup")
MIN_HISTORY_HOURS = 24  # A query that is stopped for a night finds its last drain in the history when it starts again
UNIT_HOURS = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_LENGTH = re.compile(rf"(\d+) ({'|'.join(UNIT_HOURS)})s?", re.IGNORECASE)
# Features of a table whose last commits may be in a catalog alone
CATALOG_MANAGED = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"})


def table_findings(spark: SparkSession, place: Mapping[str, str], checkpoint: str | None) -> Iterator[Finding]:
    """Yield all findings about a table; with a checkpoint also whether the table still has what that delivered."""
    try:
        target = opened(with_format(spark, SinkOptions(path=place.get("path"), table=place.get("table"))))
        facts = target.facts(spark)
    except PurgatoryError as error:
        name = type(error).__name__
        yield Finding("table", f"{name}: exactly-once would end" if "Forgets" in name else name, str(error))
        return
    except SPARK_FAULTS as error:
        remedy = "give the session what its storage or catalog needs"
        if "PATH_BASED_ACCESS_TO_CATALOG_MANAGED" in str(error):
            remedy = "give its name (--table): its catalog keeps its commits"
        yield Finding("table", sentence_of(error), remedy)
        return
    if facts is None:
        yield note("table", f"{target}: there is none yet, the first drain makes it")
    else:
        partitions = f", partitioned by {', '.join(facts.partition_by)}" if facts.partition_by else ""
        known_by = f", id {facts.id}" if facts.id else f", in {facts.location}"
        yield Finding("table", f"{target}: {target.format}{known_by}{partitions}")
        if isinstance(target, DeltaTarget):
            yield from delta_findings(spark, target, facts)
    if checkpoint is not None:
        yield delivery_finding(spark, target, checkpoint)


def delta_findings(spark: SparkSession, target: DeltaTarget, facts: TableFacts) -> Iterator[Finding]:
    """Findings about a Delta table: its features, its place, its properties and its clock."""
    unknown = sorted(set(facts.features) - KNOWN_FEATURES)
    remedy = f"write a row with this session's Delta, or DROP FEATURE {', '.join(unknown)}" if unknown else ""
    yield Finding("table features", ", ".join(facts.features) or "none", remedy)
    place_text = f"by name, in {facts.location}" if target.table else "by path"
    managed = ", ".join(sorted(CATALOG_MANAGED & set(facts.features)))
    kept = f"its catalog keeps its commits ({managed})" if managed else "its commits are in its folder"
    yield Finding("table kind", f"{place_text}; {kept}")
    if facts.is_mapped:
        yield note("table columns", "mapped: they have other names in the table's files, and may be renamed")
    yield Finding("table keeps transactions", "delta.setTransactionRetentionDuration is not set")
    for name in (name for name in TELLING if name in facts.properties):
        yield note("table property", f"{name} = {facts.properties[name]}: cuts the history, not the transactions")
    span = _LENGTH.search(facts.properties.get(LOG_RETENTION, ""))
    if span is not None and int(span[1]) * UNIT_HOURS[span[2].lower()] < MIN_HISTORY_HOURS:
        remedy = f"ALTER TABLE ... SET TBLPROPERTIES ('{LOG_RETENTION}' = 'interval 7 days')"
        yield Finding("table history", f"kept for {span[0]}: a RESTORE that is no longer in it is not noticed", remedy)
    newest = spark.sql(f"DESCRIBE HISTORY {target.place} LIMIT 1").select(F.unix_millis("timestamp")).first()
    if newest is not None:  # the clock of the last writer, or of its storage
        yield clock_finding("table's clock", max(0, newest[0] - time.time() * 1000), "this machine's")


def delivery_finding(spark: SparkSession, target: Target, checkpoint: str) -> Finding:
    """Report the check of the sink's start: was the table replaced, restored or written under the query's id?"""
    what = "table and checkpoint"
    try:
        sender = Sender(with_format(spark, SinkOptions(path=target.path, table=target.table)), checkpoint)
        sender.actions.look(spark, sender.open(spark))  # reads, and changes nothing
    except PurgatoryError as error:
        return Finding(what, type(error).__name__, str(error))
    except SPARK_FAULTS as error:
        remedy = without_reach(error) or f"bring the checkpoint's folder `staging` back, or {START_OVER}"
        return Finding(what, sentence_of(error), remedy)
    ledger = sender.ledger
    drains = ledger.intent.number + 1 if ledger.intent else 0
    last = "complete" if ledger.is_done or not drains else "not yet"
    return Finding(what, f"fit: {drains:,} drain{'s' * (drains != 1)}, the last {last}")
