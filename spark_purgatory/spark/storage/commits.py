"""Which micro-batches a query has begun and committed, as its checkpoint lists them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.errors import ConfigError, StorageError
from spark_purgatory.spark.storage.checkpoint_files import Damage, texts_of, unreadable
from spark_purgatory.spark.storage.paths import in_checkpoint, literal
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

READ_FAULTS: tuple[type[Exception], ...] = (ValueError, *SPARK_FAULTS)


class NoCheckpointError(ConfigError):
    """There is no checkpoint at the place."""


def committed_batches(spark: SparkSession, checkpoint: str) -> list[int]:
    """The micro-batches that are committed and kept, ascending. Raises NoCheckpointError."""
    try:
        reader = spark.read.option("recursiveFileLookup", "true")
        files = reader.text(in_checkpoint(literal(checkpoint.rstrip("/")), "commits")).inputFiles()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise NoCheckpointError(
            f"checkpoint={checkpoint!r} is no checkpoint of a streaming query: name the checkpointLocation of the "
            "query that writes the purgatory's outcomes"
        ) from error
    names = (file.rsplit("/", 1)[1] for file in files)
    return sorted(int(name) for name in names if name.isdigit())


def next_batch(spark: SparkSession, checkpoint: str) -> int:
    """The micro-batch that Spark will run next: the first that it has not committed."""
    try:
        committed = committed_batches(spark, checkpoint)
    except NoCheckpointError:
        return 0
    return committed[-1] + 1 if committed else 0


def offsets_of(spark: SparkSession, checkpoint: str, batch_id: int) -> tuple[dict[str, Any], list[str]]:
    """Return what a micro-batch's offsets say: watermark, time and settings; and the offsets, one a source."""
    path = f"offsets/{batch_id}"
    try:
        _, facts, *offsets = texts_of(spark, checkpoint, [path])[path].splitlines()
        return json.loads(facts), offsets
    except READ_FAULTS:
        damage = next(unreadable(spark, checkpoint, [path]), Damage(path, "is empty, cut or damaged"))
        raise StorageError(f"checkpoint={checkpoint!r} is damaged: {damage}") from None


def repartitions_in(spark: SparkSession, checkpoint: str, batch_ids: Iterable[int]) -> list[int]:
    """The micro-batches that Spark's own ``repartition`` (4.2) has made, of those given up to the first that is none.

    Such a one has the offsets and the time of the one before, and no sink ever sees it. Where it left out a micro-batch
    that had failed, it is none of them.
    """
    return list(takewhile(lambda batch_id: _is_repartition(spark, checkpoint, batch_id), batch_ids))


def _is_repartition(spark: SparkSession, checkpoint: str, batch_id: int) -> bool:
    if not {batch_id - 1, batch_id} <= set(committed_batches(spark, checkpoint)):
        return False
    (before, read_before), (said, read) = (offsets_of(spark, checkpoint, each) for each in (batch_id - 1, batch_id))
    return read == read_before and said["batchTimestampMs"] == before["batchTimestampMs"]
