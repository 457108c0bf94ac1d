"""Streams for tests: micro-batches written as files, read one file a side a trigger, run to their end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Purgatory

Host = Literal["applyInPandasWithState", "transformWithState"]
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

WIDE_OPERATIONS = [("rule", pa.string()), ("need", pa.float64()), ("levels", pa.map_(pa.string(), pa.float64()))]
WIDE_EVENTS = [("kind", pa.string()), ("operation_id", pa.string()), ("event_id", pa.string())]
REGION = [("region", pa.string())]
WIDE_OPERATIONS_DDL = "rule string, need double, levels map<string, double>, region string"
WIDE_EVENTS_DDL = "kind string, operation_id string, event_id string, region string"

Rows = Sequence[Mapping[str, Any]]


class Landing:
    """Two folders of files, one file a side and micro-batch, an outcome folder and a checkpoint."""

    def __init__(self, folder: Path, name: str = "outcomes", wide: bool = False) -> None:
        """``wide``: with the columns of rules by row, control events and partitions."""
        self.folder = folder
        self.schemas = (OPERATIONS, EVENTS)
        self.ddls = (OPERATIONS_DDL, EVENTS_DDL)
        if wide:
            self.schemas = (
                pa.schema([*OPERATIONS, *WIDE_OPERATIONS, *REGION]),
                pa.schema([*EVENTS, *WIDE_EVENTS, *REGION]),
            )
            self.ddls = (f"{OPERATIONS_DDL}, {WIDE_OPERATIONS_DDL}", f"{EVENTS_DDL}, {WIDE_EVENTS_DDL}")
        self.checkpoint = folder / f"checkpoint-{name}"
        self.outcomes = folder / name
        self._files = 0

    @property
    def is_landed(self) -> bool:
        """Whether rows have landed in this folder, perhaps by another process."""
        return (self.folder / "operations").exists()

    @property
    def last_batch(self) -> int:
        """The last micro-batch that was planned; -1 before the first."""
        names = [path.name for path in self.checkpoint.glob("offsets/*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    @property
    def last_watermark_us(self) -> int:
        """With which the last micro-batch that was planned decided."""
        text = (self.checkpoint / "offsets" / str(self.last_batch)).read_text()
        return int(json.loads(text.splitlines()[1])["batchWatermarkMs"]) * 1000

    def add(self, operations: Rows, events: Rows) -> Landing:
        """Land one micro-batch; a side without rows gets an empty file, so that the sides stay in step."""
        for side, rows, schema in zip(("operations", "events"), (operations, events), self.schemas, strict=True):
            self.land(side, rows, schema)
        self._files += 1
        return self

    def land(self, side: str, rows: Rows, schema: pa.Schema) -> None:
        """A side's rows of a micro-batch: a file."""
        (self.folder / side).mkdir(parents=True, exist_ok=True)
        path = self.folder / side / f"{self._files:05}.parquet"
        pq.write_table(arrow_rows(rows, schema), path)
        # Spark reads files in the order of their modification times, in whole milliseconds.
        os.utime(path, (1_700_000_000 + self._files, 1_700_000_000 + self._files))

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        reader = spark.readStream.option("maxFilesPerTrigger", 1) if streaming else spark.read
        return (
            reader.schema(self.ddls[0]).parquet(str(self.folder / "operations")),
            reader.schema(self.ddls[1]).parquet(str(self.folder / "events")),
        )

    def run(self, spark: SparkSession, purgatory: Purgatory, heartbeats: bool = True) -> list[dict[str, Any]]:
        """Run the stream over everything that landed, from the checkpoint on; returns all outcomes ever written."""
        outcomes = purgatory.resolve(*self.frames(spark), heartbeats=heartbeats)
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
        return [row.asDict() for row in spark.read.parquet(str(self.outcomes)).collect()]


def arrow_rows(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Rows with the columns that a side has."""
    return pa.Table.from_pylist([_row(row) for row in rows], schema)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = row.get("keys")
    key = row["key"] if "key" in row else (keys[0] if keys else None)
    return {**row, "key": key}
