"""How much waits now, read from a checkpoint's latest state.

The counters of a micro-batch give what it changed. They cannot give the total, because a micro-batch calls only the
shards that it touches. The state of all of them is in the checkpoint. Spark's reader of state stores hands it
to workers, which read the header of each shard's state, its checksum, and the metadata at its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.core.engine.outcomes import Tally
from spark_purgatory.core.state.blob import read_metadata
from spark_purgatory.spark.checkpoint.shard_states import shard_states

GAUGES = ("pending", "state_bytes", "shards")


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
        ConfigError: There is no checkpoint, or it is that of a query without a purgatory.

    Example::

        waiting = gauges(spark, "/lake/_checkpoints/outcomes")["pending"]
    """
    states = shard_states(spark, checkpoint)
    if states is None:
        return dict.fromkeys(GAUGES, 0)
    row = _sums(states.blobs).collect()[0]
    return {name: int(row[name] or 0) for name in GAUGES}


def _sums(blobs: DataFrame) -> DataFrame:
    ddl = ", ".join(f"{name} bigint" for name in GAUGES)
    counted = blobs.mapInArrow(_counts, ddl)
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
