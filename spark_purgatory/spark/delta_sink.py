"""A streaming DataFrame into a Delta table, every row exactly once: one Delta transaction a micro-batch.

Terms. A *query* is a checkpoint: Spark gives it an id when it is made and keeps the id over restarts. A
*batch* is a micro-batch of the query; Spark numbers them 0, 1, 2, ... and, after a crash, runs the last one
again with the same rows and the same number. Delta keeps the last ``txnVersion`` of each ``txnAppId`` in
the table's own log, written in the same atomic commit as the rows.

Protocol, for batch N of query Q:

1. At the first batch of a run, read ``last`` = the last txnVersion that the table holds for Q (none: -1).
2. N <= last: the table has the rows. Evaluate the batch into ``noop``, for Spark's state must be committed,
   and return.
3. N == last + 1: append with txnAppId Q and txnVersion N; then last = N.
4. N > last + 1: the table has lost what Q wrote. Stop, before anything else is written.

Invariant: when Spark starts batch N + 1 the table holds the rows of batches 0 to N of Q once each.

| the run ended | the table holds | what the next run does |
| --- | --- | --- |
| A. before the commit of 3 | 0 .. N-1 | batch N again: written |
| B. after it, before Spark noted batch N as done | 0 .. N | batch N again: step 2 |
| C. after that | 0 .. N | batch N+1: written |
| D. and the table was dropped, or has forgotten Q | nothing of Q | batch N+1: step 4 |
| E. and the checkpoint was deleted | all of Q | a new id: all rows of the source again, none skipped |

Why step 2 asks the log rather than leave it to Delta: Delta skips such a write *silently*, and then the
batch's DataFrame is not evaluated, no state is committed, and Spark fails with
STATE_STORE_COMMIT_VALIDATION_FAILED on every restart. For the same reason each branch evaluates the
DataFrame, and exactly once: each evaluation runs the stateful operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory.errors import ConfigError, StorageError

LEAN_SETTINGS: Mapping[str, str] = {
    # Reading the table's log is one task for each partition of the snapshot, at every commit. 50 are for
    # tables of millions of files; with 2 an append to a small table costs a quarter (about 1 s, not 4 s).
    "spark.databricks.delta.snapshotPartitions": "2",
    # Minima and maxima of the first 32 columns are computed at every append; the first few serve nearly all.
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "4",
}
"""Session settings that make small appends cheap; defaults, for a session of one's own."""

NO_BATCH = -1
"""The batch before batch 0: nothing was written yet."""
TXN_SCHEMA = "txn struct<appId: string, version: bigint>"
GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


class DeltaSink:
    """Writes the micro-batches of a query to a Delta table, each of them exactly once.

    Args:
        path: Folder of the table; or
        table: its name in the catalog. Exactly one of the two. The first batch makes it if need be.
        partition_by: Columns that partition the table.
    """

    def __init__(self, *, path: str | None = None, table: str | None = None, partition_by: Sequence[str] = ()) -> None:
        if bool(path) == bool(table):
            raise ConfigError(f"DeltaSink takes exactly one of path and table, got path={path!r}, table={table!r}")
        self.path = path
        self.table = table
        self.partition_by = tuple(partition_by)

    def __str__(self) -> str:
        return self.table or str(self.path)

    def write_stream(
        self,
        df: DataFrame,
        *,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
    ) -> StreamingQuery:
        """Start the query.

        Args:
            df: A streaming DataFrame.
            checkpoint: Folder of the query's checkpoint; to be kept as long as the table is.
            trigger: One argument of ``DataStreamWriter.trigger``: ``{"processingTime": "10 seconds"}``.
            query_name: Name shown by Spark.
            output_mode: Spark's, where ``df`` asks for another one.
        """
        if not df.isStreaming:
            raise ConfigError("write_stream takes a streaming DataFrame; write a batch one with df.write")
        writer = df.writeStream.foreachBatch(_Appender(self, checkpoint)).outputMode(output_mode)
        writer = writer.option("checkpointLocation", checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        if query_name:
            writer = writer.queryName(query_name)
        return writer.start()

    def exists(self, spark: SparkSession) -> bool:
        """Whether the table is there."""
        if self.table:
            return spark.catalog.tableExists(self.table)
        return bool(DeltaTable.isDeltaTable(spark, str(self.path)))

    def read(self, spark: SparkSession) -> DataFrame:
        """The table as it stands."""
        return spark.read.table(self.table) if self.table else spark.read.format("delta").load(str(self.path))

    def last_batch(self, spark: SparkSession, app_id: str) -> int:
        """Number of the last batch that the table holds of a query, `NO_BATCH` if none."""
        return last_txn_version(spark, self._location(spark), app_id) if self.exists(spark) else NO_BATCH

    def append(self, batch: DataFrame, app_id: str, batch_id: int) -> None:
        """Write a batch in one transaction of the table, marked with the query and its number."""
        rows = batch.repartition(*self.partition_by) if self.partition_by else batch
        writer = (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", batch_id)
            .option("userMetadata", json.dumps({"app": app_id, "batch": batch_id}))
        )
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        if self.table:
            writer.saveAsTable(self.table)
        else:
            writer.save(str(self.path))

    def _location(self, spark: SparkSession) -> str:
        if self.path:
            return self.path
        detail = DeltaTable.forName(spark, str(self.table)).detail().select("location").first()
        return str(detail["location"]) if detail else ""


class _Appender:
    """What Spark calls with each batch: steps 1 to 4 above.

    Holds strings and one number, so that Spark Connect can carry it to the process that runs it there.
    """

    def __init__(self, sink: DeltaSink, checkpoint: str) -> None:
        self.sink = sink
        self.checkpoint = checkpoint
        self.app_id: str | None = None
        self.last_batch = NO_BATCH

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        if self.app_id is None:
            self.app_id = app_id_of(spark, self.checkpoint)
            self.last_batch = self.sink.last_batch(spark, self.app_id)
        if batch_id <= self.last_batch:
            batch.write.format("noop").mode("overwrite").save()
            return
        if batch_id > self.last_batch + 1:
            raise StorageError(
                f"checkpoint {self.checkpoint} is at batch {batch_id}, but table {self.sink} holds its "
                f"batches only up to {self.last_batch} (-1: none): it was dropped, replaced or restored, or "
                "forgot the query (delta.setTransactionRetentionDuration). Nothing was written. Bring the "
                "table back, or delete the checkpoint, which reads the sources again from their beginning"
            )
        self.sink.append(batch, self.app_id, batch_id)
        self.last_batch = batch_id


def app_id_of(spark: SparkSession, checkpoint: str) -> str:
    """The ``txnAppId`` of a checkpoint's query: Spark's id of it, made at its first start and kept.

    The table is no part of it, because Delta keeps the id in the table's own log; were its path a part, the
    same table named in another way (``/lake/t``, ``file:/lake/t``) would take a batch twice.
    """
    rows = spark.read.text(f"{_literal(checkpoint)}/metadata").collect()
    try:
        return f"spark_purgatory/{json.loads(rows[0]['value'])['id']}"
    except (IndexError, KeyError, ValueError) as error:
        raise StorageError(f"checkpoint {checkpoint} is damaged: its file 'metadata' names no query id") from error


def last_txn_version(spark: SparkSession, location: str, app_id: str) -> int:
    """The last ``txnVersion`` of an app id in a Delta table's log, `NO_BATCH` if it has none.

    Reads the log's commits and checkpoints as files: right also after it was cleaned up, and without the JVM.
    """
    log = f"{_literal(location)}/_delta_log"
    reader = spark.read.schema(TXN_SCHEMA)
    commits = reader.option("pathGlobFilter", "*.json").json(log)
    checkpoints = reader.option("pathGlobFilter", "*.checkpoint*.parquet").parquet(log)
    versions = commits.unionAll(checkpoints).where(F.col("txn.appId") == app_id)
    row = versions.agg(F.max("txn.version").alias("last")).first()
    return NO_BATCH if row is None or row["last"] is None else int(row["last"])


def _literal(path: str) -> str:
    """A path in which no character is a wildcard to Spark's readers."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)
