"""The states of all shards as a micro-batch left them: the one place that knows how a host keeps them.

Spark's reader of state stores gives the blobs as a DataFrame, so that executors decode them. It works while the query
runs, for past micro-batches as far as the checkpoint keeps them, over both of Spark's state stores, and through Spark
Connect.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.commits import committed_batches
from spark_purgatory.spark.storage.paths import literal

OPERATOR = "applyInPandasWithState"
"""What Spark calls the operator that holds our state; it runs one of them in a query."""


ENCODED = re.compile(r"""[\s"#%<>?[\\\]^`{|}]""")
"""Characters of a path that a URI encodes. Spark's reader of state stores encodes the path twice, and finds nothing."""


class StatePathError(ConfigError):
    """Spark's reader of state stores cannot read a checkpoint at such a path."""


@dataclass(frozen=True)
class ShardStates:
    """One row for each shard, column ``blob``; and when that was."""

    blobs: DataFrame
    batch_id: int
    watermark_ms: int
    """The watermark with which the micro-batch decided; 0: there was none yet."""


def shard_states(spark: SparkSession, checkpoint: str, batch_id: int | None = None) -> ShardStates | None:
    """The states after a micro-batch, by default the latest that is committed; None before the first.

    Raises ConfigError where there is no checkpoint, where its query has no purgatory, where it does not keep the
    micro-batch, and where Spark cannot read state at such a path.
    """
    # The reader needs the driver's coordinator of state stores, which is made when streams are first asked for: in a
    # session that has not streamed yet it fails with RpcEndpointNotFoundException.
    _ = spark.streams.active
    committed = committed_batches(spark, checkpoint)
    if not committed:
        return None
    chosen = committed[-1] if batch_id is None else batch_id
    if chosen not in committed:
        raise ConfigError(
            f"batch_id={batch_id!r}: checkpoint {checkpoint!r} keeps the micro-batches {committed[0]} to "
            f"{committed[-1]}; how many it keeps is spark.sql.streaming.minBatchesToRetain"
        )
    reader = spark.read.format("statestore").option("operatorId", _operator_id(spark, checkpoint))
    try:
        state = reader.option("batchId", chosen).load(checkpoint)
        _ = state.schema  # Spark Connect asks the server here
    except PySparkException as error:
        if error.getCondition() != "STDS_COMMITTED_BATCH_UNAVAILABLE" or not ENCODED.search(checkpoint):
            raise
        raise StatePathError(
            f"checkpoint={checkpoint!r} is there, but Spark's reader of state stores finds nothing at a path with "
            f"{', '.join(map(repr, dict.fromkeys(ENCODED.findall(checkpoint))))}: read a copy of the folder at a path "
            "without them. The query itself can go on"
        ) from error
    blobs = state.select(F.col("value.groupState.blob").alias("blob"))
    return ShardStates(blobs, chosen, _watermark_ms(spark, checkpoint, chosen))


def is_checkpoint(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a streaming query has begun there."""
    try:
        spark.read.text(f"{literal(checkpoint)}/metadata").count()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


def _watermark_ms(spark: SparkSession, checkpoint: str, batch_id: int) -> int:
    text = spark.read.text(f"{literal(checkpoint)}/offsets/{batch_id}", wholetext=True).collect()[0]["value"]
    return int(json.loads(text.splitlines()[1])["batchWatermarkMs"])


def _operator_id(spark: SparkSession, checkpoint: str) -> int:
    """The number of our operator: others, such as dropDuplicatesWithinWatermark, may keep state in the same query."""
    rows = spark.read.format("state-metadata").load(checkpoint).select("operatorId", "operatorName").collect()
    numbers = [row["operatorId"] for row in rows if row["operatorName"] == OPERATOR]
    if not numbers:
        names = ", ".join(row["operatorName"] for row in rows) or "nothing"
        raise ConfigError(
            f"checkpoint={checkpoint!r} holds the state of {names} and of no purgatory: name the checkpointLocation of "
            "the query that writes the purgatory's outcomes"
        )
    return int(numbers[0])
