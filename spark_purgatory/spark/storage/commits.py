"""Which micro-batches a query has committed, as its checkpoint lists them."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.paths import in_checkpoint, literal


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
