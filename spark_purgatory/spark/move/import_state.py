"""The state of a query, made of an export's tables: one micro-batch of its own operator, whose input they are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupStateTimeout

from spark_purgatory.config.purgatory_options import LOG_HOSTS
from spark_purgatory.core.engine.event_time_purgatory import EventTimePurgatory
from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.export.put_together import Dealt, put_together
from spark_purgatory.core.spec.engine_spec import EngineSpec
from spark_purgatory.core.state.engine_snapshot import payload_of, save
from spark_purgatory.core.state.event_columns import carried_of
from spark_purgatory.core.state.payload_evolution import StoredPayload
from spark_purgatory.core.state.step_log import table_of
from spark_purgatory.spark.host.blob_host import STATE_DDL
from spark_purgatory.spark.host.calls import RESULT_DDL, counts_of, result_of
from spark_purgatory.spark.host.exchange import EXCHANGE_DDL, packer
from spark_purgatory.spark.host.worker import prepare_worker
from spark_purgatory.spark.move.tables import COUNTS, Manifest, with_hashes
from spark_purgatory.spark.operator.inputs import WATERMARK_METADATA
from spark_purgatory.spark.operator.stream_plan import Query
from spark_purgatory.spark.placement import shard_label
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import settings

SIDES = {"operations": 0, "events": 1, "ids": 2, COUNTS: 3}
ONE_BATCH: Mapping[str, str] = {
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
    # One file holds a partition's state: the moved checkpoint gives it the number of its own micro-batch.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
"""Settings of the micro-batch that imports."""


@dataclass(frozen=True)
class Importing:
    """What every shard needs to know; it travels to the workers."""

    spec: EngineSpec
    shards: int | None
    watermark_ms: int
    history: Mapping[str, Any]

    def engine(self, key: Any, rows: Iterable[tuple[int, bytes]]) -> EventTimePurgatory:
        """The engine of a shard, of rows of the exchange, (side, blob)."""
        sides: dict[int, list[bytes]] = {side: [] for side in SIDES.values()}
        for side, blob in rows:
            sides[int(side)].append(bytes(blob))
        tables = {name: table_of(sides[side]) for name, side in SIDES.items()}
        operations, events = tables["operations"], tables["events"]
        if operations is not None:
            operations = self._evolved(operations, "operation", payload_of)
        if events is not None and self.spec.event_columns is not None:
            events = self._evolved(events, "columns", carried_of)
        first = 0 if self.shards is None else shard_label(0)
        history = self.history if int(key[0]) == first else None
        return put_together(self.spec, Dealt(operations, events, tables["ids"]), self.watermark_ms, history)

    def _evolved(
        self, table: pa.Table, name: str, match: Callable[[EngineSpec, list[pa.RecordBatch], list[str]], StoredPayload]
    ) -> pa.Table:
        """The table with the query's columns in place of those of the export."""
        table = table.combine_chunks()
        if name in table.column_names:
            held = pa.concat_arrays(table[name].chunks)
        else:
            held = pa.Array.from_buffers(pa.struct([]), len(table), [None])
        names = [field.name for field in held.type]
        [columns] = match(self.spec, [pa.RecordBatch.from_struct_array(held)], names).evolved()
        table = table.drop_columns([name]) if name in table.column_names else table
        return table.append_column(name, columns.to_struct_array())


def import_tables(
    spark: SparkSession, folder: str, checkpoint: str, query: Query, manifest: Manifest, options: Any, partitions: int
) -> None:
    """Make the state of a query, at the first version of a checkpoint of its own, of an export's tables."""
    importing = Importing(query.spec, query.shards, manifest.watermark_ms, manifest.history)
    wanted = {**ONE_BATCH, "spark.sql.shuffle.partitions": str(partitions)}
    with settings(spark, wanted):
        packed = [_packed(spark, folder, name, query) for name in SIDES]
        rows = packed[0]
        for each in packed[1:]:
            rows = rows.unionByName(each)
        marker = F.lit(None).cast(T.TimestampType()).alias("marker", metadata={WATERMARK_METADATA: 0})
        groups = rows.select("shard", "side", "blob", marker).groupBy("shard")
        if query.host in LOG_HOSTS:
            from spark_purgatory.spark.move.import_log_host import log_host_imports

            results = log_host_imports(groups, query.host, importing, options)
        else:
            results = groups.applyInPandasWithState(
                _blob_function(importing), RESULT_DDL, STATE_DDL, "append", GroupStateTimeout.EventTimeTimeout
            )
        writer = results.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


def _packed(spark: SparkSession, folder: str, name: str, query: Query) -> DataFrame:
    path = f"{folder}/{name}"
    schema = spark.read.parquet(literal(path)).schema
    rows = spark.readStream.schema(schema).parquet(literal(path))
    if name == COUNTS:
        # The first shard is made even if nothing waits in it: it remembers what was counted.
        hashed = rows.select(F.lit(0).cast("bigint").alias("route"), F.lit(0).cast("timestamp").alias("guarded"))
    else:
        hashed = with_hashes(name, rows, query.route, query.spec.key_prefix, query.spec.id_prefix)
    ddl = EXCHANGE_DDL.format(shard_type="bigint" if query.shards is None else "int")
    to_all = name == "events" and query.route == "id"
    return hashed.mapInArrow(packer(SIDES[name], query.shards, to_all), ddl)


def _blob_function(importing: Importing) -> Callable[[Any, Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    def on_group(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        prepare_worker()
        engine = importing.engine(key, (row for f in frames for row in zip(f["side"], f["blob"], strict=True)))
        blob = save(engine, importing.shards or 0)
        state.update((blob,))
        due_ms = engine.next_due_ms()
        if due_ms is not None:
            state.setTimeoutTimestamp(max(due_ms - 1, 1))
        yield pd.DataFrame({name: [value] for name, value in nothing(len(blob)).items()})

    return on_group


def nothing(state_bytes: int) -> dict[str, Any]:
    """A call's row that has no outcome and counted nothing."""
    return result_of(None, counts_of(Tally()), state_bytes)


def new_token() -> str:
    """A token that no engine in memory has."""
    return secrets.token_hex(16)
