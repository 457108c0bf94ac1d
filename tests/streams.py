"""Streams for tests: micro-batches written as files, read one file a side a trigger, run to their end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Purgatory

TIMESTAMP = pa.timestamp("us", "UTC")
OPERATIONS = pa.schema(
    [
        ("id", pa.string()),
        ("key", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("created", TIMESTAMP),
        ("deadline", TIMESTAMP),
        ("row", pa.string()),
    ]
)
EVENTS = pa.schema([("key", pa.string()), ("time", TIMESTAMP), ("value", pa.float64())])
OPERATIONS_DDL = "id string, key string, keys array<string>, created timestamp, deadline timestamp, row string"
EVENTS_DDL = "key string, time timestamp, value double"

Rows = Sequence[Mapping[str, Any]]


class Landing:
    """Two folders of files, one file a side and micro-batch, an outcome folder and a checkpoint."""

    def __init__(self, folder: Path, name: str = "outcomes") -> None:
        self.folder = folder
        self.checkpoint = folder / f"checkpoint-{name}"
        self.outcomes = folder / name
        self._files = 0

    def add(self, operations: Rows, events: Rows) -> Landing:
        """Land one micro-batch; a side without rows gets an empty file, so that the sides stay in step."""
        for side, rows, schema in (("operations", operations, OPERATIONS), ("events", events, EVENTS)):
            (self.folder / side).mkdir(parents=True, exist_ok=True)
            path = self.folder / side / f"{self._files:05}.parquet"
            pq.write_table(pa.Table.from_pylist([_row(row) for row in rows], schema), path)
            # Spark reads files in the order of their modification times, in whole milliseconds.
            os.utime(path, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        self._files += 1
        return self

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        """Both sides as DataFrames."""
        reader = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
        return (
            reader.schema(OPERATIONS_DDL).parquet(str(self.folder / "operations")),
            reader.schema(EVENTS_DDL).parquet(str(self.folder / "events")),
        )

    def run(self, spark: SparkSession, purgatory: Purgatory) -> list[dict[str, Any]]:
        """Run the stream over everything that landed, from the checkpoint on; returns all outcomes ever written."""
        outcomes = purgatory.resolve(*self.frames(spark))
        query = (
            outcomes.writeStream.format("parquet")
            .option("path", str(self.outcomes))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return self.written(spark)

    def written(self, spark: SparkSession) -> list[dict[str, Any]]:
        """All outcomes written so far."""
        return [row.asDict() for row in spark.read.parquet(str(self.outcomes)).collect()]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = row.get("keys")
    key = row["key"] if "key" in row else (keys[0] if keys else None)
    return {**row, "key": key}
