"""What waits in a checkpoint, as tables that people can read, count, filter and edit (docs/export_format.md)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_purgatory.config.declared import refuses_wrong_calls
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.move.files import Files, reaching
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint, lie_in_each_other
from spark_purgatory.spark.move.survey import survey
from spark_purgatory.spark.move.tables import write_tables
from spark_purgatory.spark.storage.storage_access import absolute


@refuses_wrong_calls
def export_state(spark: SparkSession, *, checkpoint: str, folder: str) -> Mapping[str, int]:
    """Write what waits in a checkpoint as Parquet tables: ``operations``, ``events``, ``ids`` and ``counts``.

    The checkpoint is only read, as its last micro-batch left it. `move_checkpoint` makes a checkpoint of the tables
    again (``tables=``), so you can take operations out of what waits.

    Args:
        spark: A session with a JVM, not one of Spark Connect.
        checkpoint: The query's ``checkpointLocation``.
        folder: Where the tables are written; nothing is there yet.

    Returns:
        How many rows each of ``operations``, ``events`` and ``ids`` has, and the ``batch_id`` of the micro-batch.

    Raises:
        ConfigError: There is no such checkpoint, nothing is committed there, or the folder is not empty.
        StateCorruptError: A state is damaged.

    Example::

        export_state(spark, checkpoint="/lake/_checkpoints/orders", folder="/lake/export")
        spark.read.parquet("/lake/export/operations").groupBy("operation.customer").count().show()
    """
    files = Files(spark)
    checkpoint, folder = (absolute(spark, path.rstrip("/")) for path in (checkpoint, folder))
    if lie_in_each_other(folder, checkpoint):
        raise ConfigError(f"folder={folder!r} and checkpoint={checkpoint!r} lie in each other: give another folder")
    with reaching("folder", folder):
        if files.names(folder):
            raise ConfigError(f"folder={folder!r} is not empty: give one that is not there yet")
    with reaching("checkpoint", checkpoint):
        old = OldCheckpoint.read(files, checkpoint, "checkpoint")
    found = survey(spark, checkpoint)
    manifest = write_tables(found, old.query_id, folder)
    return {**manifest.rows, "batch_id": manifest.batch_id}
