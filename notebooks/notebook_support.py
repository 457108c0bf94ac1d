"""What the notebooks share: where they run, how rows land as files, what a query counted, which files a table has."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def local_session() -> SparkSession:
    """Start a Spark session with Delta on this machine. Databricks has one."""
    from spark_purgatory.job.session import reading_session

    log = Path(tempfile.mkdtemp(prefix="spark_purgatory_"), "spark.log")
    print(f"Spark's own output: {log}")
    return reading_session({"spark.sql.shuffle.partitions": "2"}, log, delta=True)


def work_folder(dbutils: Any = None) -> str:
    """A new folder for everything that a notebook writes.

    On Databricks it is in the folder that the widget `folder` names. All machines of the
    cluster must see that folder.
    """
    parent = None
    if dbutils is not None:
        dbutils.widgets.text("folder", "/Volumes/main/default/scratch")
        parent = dbutils.widgets.get("folder")
    return tempfile.mkdtemp(prefix="spark_purgatory_", dir=parent)


def land(rows: pd.DataFrame, folder: str, number: int) -> None:
    """Write rows as a Parquet file that lands after the files with lower numbers."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"{number:03}.parquet")
    rows.to_parquet(path, index=False, coerce_timestamps="us")
    # A stream reads files in the order of their times. A storage that sets these times
    # itself keeps the order too.
    with contextlib.suppress(OSError):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def landed(spark: SparkSession, folder: str, schema: str) -> DataFrame:
    """The files of a folder as a stream: one file in each micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)


def counters(query: Any) -> pd.DataFrame:
    """Counters of each micro-batch (`spark_purgatory.schema.COUNTERS`) and its watermark."""
    rows = []
    for progress in query.recentProgress:
        if "addBatch" in progress["durationMs"]:
            counted = progress["observedMetrics"]["spark_purgatory"].asDict()
            # Spark calls it 1970 until the first micro-batch has ended.
            watermark = (
                pd.Timestamp(progress["eventTime"]["watermark"])
                if progress["batchId"]
                else pd.NaT
            )
            rows.append({"micro_batch": progress["batchId"], "watermark": watermark, **counted})
    return pd.DataFrame(rows).set_index("micro_batch")


def data_files(spark: SparkSession, path: str, by: str) -> pd.DataFrame:
    """The files of a Delta table with rows and bytes, ordered by a partition column."""
    rows = spark.read.format("delta").load(path)
    files = rows.groupBy(
        by,
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_size").alias("bytes"),
    )
    return files.count().withColumnRenamed("count", "rows").orderBy(by, "file").toPandas()
