"""Makes the state of a query from an export's tables, which are the input of one micro-batch of its own operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.config.purgatory_options import LOG_HOST
from spark_purgatory.core.state.engine_snapshot import save
from spark_purgatory.spark.checkpoint.gauges import gauges
from spark_purgatory.spark.checkpoint.start_check import store_settings
from spark_purgatory.spark.host.blob_host import StreamFunction, blob_hosted, set_timeout
from spark_purgatory.spark.host.calls import frame_of, nothing, rows_in
from spark_purgatory.spark.host.exchange import by_shard, exchanged
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB, check_log_host
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint
from spark_purgatory.spark.move.tables import COUNTS, SIDES, Importing, Manifest, with_hashes
from spark_purgatory.spark.operator.stream_plan import Query
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, told

ONE_BATCH: Mapping[str, str] = {  # Settings of the micro-batch that imports
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # One file has a partition's state, and the moved checkpoint gives it the number of its own micro-batch.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


def import_tables(
    spark: SparkSession,
    folder: str,
    manifest: Manifest,
    old: OldCheckpoint,
    *,
    query: Query,
    partitions: int,
    at: str,
) -> int:
    """Make a query's state of an export's tables, in a checkpoint ``at`` a path, and return the waiting operations.

    `RecordAccumulator.write_stream` can start a query on any state. Another start has the session's format, so the
    states keep that of the old checkpoint unless the session has a newer one.
    """
    kept = {} if old.has_staging else _as_before(spark, old, query.host)
    importing = Importing(query.spec, query.shards, manifest.watermark_ms, manifest.history)
    groups = by_shard(reduce(DataFrame.unionByName, [_packed(spark, folder, name, query) for name in SIDES]))
    if query.host == LOG_HOST:
        check_log_host(spark)
        from spark_purgatory.spark.move.import_log_host import log_host_imports

        results = log_host_imports(groups, importing)
    else:
        results = blob_hosted(groups, _blob_function(importing))
    writer = results.writeStream.format("noop").trigger(availableNow=True)
    forced = {**ONE_BATCH, PARTITIONS: str(partitions)}
    started(writer, spark, at, decide=lambda: store_settings(spark, kept), forced=forced).awaitTermination()
    return int(gauges(spark, checkpoint=at)["pending"])


def _as_before(spark: SparkSession, old: OldCheckpoint, host: str) -> dict[str, str]:
    if "RocksDB" in old.provider or host == LOG_HOST:
        version = max(old.state_format, told(spark, FORMAT_VERSION) or "1")
        return {FORMAT_VERSION: version, PROVIDER: old.provider if "RocksDB" in old.provider else ROCKSDB}
    return {FORMAT_VERSION: "1", PROVIDER: old.provider}


def _packed(spark: SparkSession, folder: str, name: str, query: Query) -> DataFrame:
    path = f"{folder}/{name}"
    schema = spark.read.parquet(literal(path)).schema
    rows = spark.readStream.schema(schema).parquet(literal(path))
    if name == COUNTS:
        # The first shard is made even if nothing waits in it, because it remembers the counts.
        hashed = rows.select(F.lit(0).cast("bigint").alias("route"), F.lit(0).cast("timestamp").alias("guarded"))
    else:
        hashed = with_hashes(name, rows, query.route, query.spec.key_prefix, query.spec.id_prefix)
    to_all = name == "events" and query.route == "id"
    return exchanged(hashed, SIDES[name], query.shards, to_all)


def _blob_function(importing: Importing) -> StreamFunction:
    def on_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        prepare_worker()
        engine = importing.engine(key, rows_in(frames))
        blob = save(engine, importing.shards or 0)
        state.update((blob,))
        set_timeout(state, engine.next_due_ms())
        yield frame_of(nothing(len(blob)))

    return on_group
