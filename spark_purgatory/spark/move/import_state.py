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
from spark_purgatory.spark.host.requirements import PROVIDER, check_log_host
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint
from spark_purgatory.spark.move.tables import COUNTS, ROW, SIDES, Importing, read_manifest, with_hashes
from spark_purgatory.spark.operator.stream_plan import Query
from spark_purgatory.spark.placement import PARTITIONS
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, settings, settings_at_start, told

ONE_BATCH: Mapping[str, str] = {  # Settings of the micro-batch that imports
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # One file has a partition's state, and the moved checkpoint gives it the number of its own micro-batch.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


def import_tables(
    spark: SparkSession, folder: str, old: OldCheckpoint, *, query: Query, partitions: int, at: str
) -> int:
    """Make a query's state of an export's tables, in a checkpoint ``at`` a path, and return the waiting operations.

    `RecordAccumulator.write_stream` can start a query on any state store, and another start only on the session's.
    """
    is_free = old.has_staging or query.host == LOG_HOST
    as_session = {PROVIDER: str(spark.conf.get(PROVIDER)), FORMAT_VERSION: told(spark, FORMAT_VERSION) or "1"}
    store = store_settings(spark, {} if is_free else as_session)
    manifest = read_manifest(spark, folder)
    importing = Importing(query.spec, query.shards, manifest.watermark_ms, manifest.history)
    groups = by_shard(reduce(DataFrame.unionByName, [_packed(spark, folder, name, query) for name in SIDES]))
    if query.host == LOG_HOST:
        check_log_host(spark)
        from spark_purgatory.spark.move.import_log_host import log_host_imports

        results = log_host_imports(groups, importing)
    else:
        results = blob_hosted(groups, _blob_function(importing))
    writer = results.writeStream.format("noop").option("checkpointLocation", at).trigger(availableNow=True)
    with settings_at_start(spark, store), settings(spark, {**ONE_BATCH, PARTITIONS: str(partitions)}):
        started = writer.start()
    started.awaitTermination()
    return int(gauges(spark, checkpoint=at)["pending"])


def _packed(spark: SparkSession, folder: str, name: str, query: Query) -> DataFrame:
    path = f"{folder}/{name}"
    schema = spark.read.parquet(literal(path)).schema
    rows = spark.readStream.schema(schema).parquet(literal(path)).drop(ROW)
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
