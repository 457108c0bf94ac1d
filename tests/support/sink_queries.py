"""Queries with a RecordAccumulator that tests start, wait for and look into."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator
from tests.support.sink_streams import Stream

TRIGGER_S = 1
HOUR = {"linger": "1 hour", "delivery_timeout": "1 hour"}
AGED = "'delta.logRetentionDuration' = 'interval 1 day', 'delta.deletedFileRetentionDuration' = 'interval 1 day'"
OF_OTHERS = Counter((-1, -2))


def accumulator(stream: Stream, **options: Any) -> RecordAccumulator:
    stream.sink = RecordAccumulator(path=str(stream.folder / "table"), partition_by=["part"], **options)
    return stream.sink


def start(stream: Stream, sink: RecordAccumulator, rows: DataFrame | None = None, trigger_s: int = TRIGGER_S) -> Any:
    trigger = {"processingTime": f"{trigger_s} seconds"}
    return sink.write_stream(
        stream.rows() if rows is None else rows, checkpoint=str(stream.checkpoint), trigger=trigger
    )


def wait_until(condition: Callable[[], bool], query: Any, seconds: float = 600) -> float:
    start_s = time.monotonic()
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() - start_s < seconds, "not reached"
        time.sleep(0.05)
    return time.monotonic() - start_s


def parquet_files(folder: Path) -> list[Path]:
    """The Parquet files below a folder that a query may be writing to.

    A folder that goes while it is walked, as Spark's `_temporary` does, has no files; `Path.rglob` raises there.
    """
    return sorted(Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".parquet"))


def staged_files(stream: Stream) -> list[Path]:
    """The staged files of micro-batches that were written whole; what stands in `_temporary` is none of them."""
    found = parquet_files(stream.checkpoint / "staging" / "rows")
    return [file for file in found if "_temporary" not in file.parts]


def staged_for(stream: Stream, sink: RecordAccumulator, rows: DataFrame | None = None) -> None:
    """Rows that wait, of a query that was stopped."""
    before = len(staged_files(stream))
    query = start(stream, sink, rows)
    wait_until(lambda: len(staged_files(stream)) > before, query)
    query.stop()


def warehouse(spark: SparkSession) -> Path:
    return Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))


def forget(spark: SparkSession, table: str, folder: Path) -> None:
    """What the end of a Spark application does to a name in an in-memory catalog: the files stay."""
    aside = shutil.move(warehouse(spark) / table, folder / "aside")
    spark.sql(f"DROP TABLE {table}")
    shutil.move(aside, warehouse(spark) / table)


def forget_history(stream: Stream) -> None:
    """Have Delta clean the log up: all that is older than its retention, and before a checkpoint that is not."""
    table = stream.folder / "table"
    stream.spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({AGED}, 'delta.checkpointInterval' = '1')")
    days_ago = time.time() - 5 * 86_400
    for file in (table / "_delta_log").iterdir():
        os.utime(file, (days_ago, days_ago))
    versions = []
    for n in OF_OTHERS:
        stream.spark.sql(f"INSERT INTO delta.`{table}` (n, part) VALUES ({n}, 0)")
        versions = [row["version"] for row in stream.spark.sql(f"DESCRIBE HISTORY '{table}'").collect()]
    assert 1 not in versions, f"Delta has cleaned nothing up: {versions}"
