"""How much waits now, read from a checkpoint's latest state.

The counters of a micro-batch give what it changed. They cannot give the total, because a micro-batch calls only the
shards that it touches. The state of all of them is in the checkpoint. Spark's reader of state stores hands it
to workers, which read the header of each shard's state, its checksum, and the metadata at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.errors import ConfigError

OPERATOR = "applyInPandasWithState"
"""What Spark calls the operator that holds our state; it runs one of them in a query."""
GAUGES = ("pending", "state_bytes", "shards")
NOTHING_COMMITTED = "STDS_COMMITTED_BATCH_UNAVAILABLE"


def gauges(spark: SparkSession, checkpoint: str) -> dict[str, int]:
    """What the latest committed micro-batch of a query left in its checkpoint, while it runs or after.

    It is a Spark job that reads the whole state: call it every few minutes, not in every micro-batch;
    ``observedMetrics`` gives what a micro-batch changed (`spark_purgatory.schema.COUNTERS`). It works through Spark
    Connect.

    Args:
        spark: The session; it need not be the one that runs the query.
        checkpoint: The query's ``checkpointLocation``.

    Returns:
        ``pending``: operations that wait. ``state_bytes``: bytes of all shards' states, as the state store keeps them.
        ``shards``: how many have a state. All are 0 before the first micro-batch is committed.

    Raises:
        ConfigError: The checkpoint is that of a query without a purgatory.

    Example::

        waiting = gauges(spark, "/lake/_checkpoints/outcomes")["pending"]
    """
    # The reader needs the driver's coordinator of state stores, which is made when streams are first asked for: in a
    # session that has not streamed yet it fails with RpcEndpointNotFoundException.
    _ = spark.streams.active
    number = _operator_id(spark, checkpoint)
    try:
        state = spark.read.format("statestore").option("operatorId", number).load(checkpoint)
        row = _sums(state).collect()[0]
    except PySparkException as error:
        if error.getCondition() == NOTHING_COMMITTED:
            return dict.fromkeys(GAUGES, 0)
        raise
    return {name: int(row[name] or 0) for name in GAUGES}


def _operator_id(spark: SparkSession, checkpoint: str) -> int:
    """The number of our operator: others, such as dropDuplicatesWithinWatermark, may keep state in the same query."""
    rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").collect()
    numbers = [row["operatorId"] for row in rows if row["operatorName"] == OPERATOR]
    if rows and not numbers:
        names = ", ".join(row["operatorName"] for row in rows)
        raise ConfigError(
            f"checkpoint={checkpoint!r} holds the state of {names} and of no purgatory: name the checkpointLocation of "
            "the query that writes the purgatory's outcomes"
        )
    return numbers[0] if numbers else 0


def _sums(state: DataFrame) -> DataFrame:
    ddl = ", ".join(f"{name} bigint" for name in GAUGES)
    counted = state.select(F.col("value.groupState.blob").alias("blob")).mapInArrow(_counts, ddl)
    return counted.agg(*(F.sum(name).alias(name) for name in GAUGES))


def _counts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow``: a row for every shard's state."""
    for batch in batches:
        counts: dict[str, list[int]] = {name: [] for name in GAUGES}
        for value in batch.column(0):
            blob = value.as_py()
            tally = Tally(**cast("dict[str, Any]", read_metadata(blob)["tally"]))
            for name, count in zip(GAUGES, (tally.received - tally.decided(), len(blob), 1), strict=True):
                counts[name].append(count)
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in counts.values()], names=GAUGES)
