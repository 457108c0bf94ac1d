"""Operations and events with keys that a test chooses, a micro-batch a file, and what becomes of them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
)
from spark_purgatory.spark.storage import spark_access
from tests.support.delta_files import delta_rows
from tests.support.lanes import BLOB, LOG

BEGIN_US = 1_700_000_000_000_000
SECOND_US = 1_000_000
HOT, NOBODY = "hot", "nobody"
WAITING = -1
"""Numbers below zero are of operations that wait for ever."""


@dataclass
class Load:
    """Operations with a number and a key, an hour of event time to wait, and events."""

    spark: SparkSession
    folder: Path
    host: Any = BLOB
    shards: int = 2
    files: int = 0
    due: Counter[tuple[int, str]] = field(default_factory=Counter)

    def land(self, ids: np.ndarray, keys: list[str] | np.ndarray, events: list[str], status: str = "") -> None:
        """A micro-batch, a second after the one before it; what becomes of its operations."""
        at_us = BEGIN_US + self.files * SECOND_US
        parts = {"operations": {"id": pa.array(ids, pa.int64()), "key": pa.array(keys)}, "events": {"key": events}}
        for name, columns in parts.items():
            times = pa.array([at_us] * len(columns["key"]), pa.timestamp("us", "UTC"))
            (self.folder / name).mkdir(exist_ok=True)
            path = self.folder / name / f"{self.files:03d}.parquet"
            pq.write_table(pa.table({**columns, "at": times}), path)
            os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1
        self.due.update((int(number), status) for number in ids if number >= 0)

    def run(self, sink: dict[str, Any] | None = None, **options: Any) -> None:
        """To the end of the files."""
        read = self.spark.readStream.option("maxFilesPerTrigger", 1)
        operations = read.schema("id bigint, key string, at timestamp").parquet(str(self.folder / "operations"))
        events = read.schema("key string, at timestamp").parquet(str(self.folder / "events"))
        purgatory = Purgatory(
            operations=Operations(id="id", keys="key", created="at", timeout="1 hour", watermark="0 seconds"),
            completions=Completions(key="key", time="at", watermark="0 seconds"),
            criterion=criteria.any_key(),
            shards=self.shards,
            host=self.host,
            **options,
        )
        with spark_access.settings(self.spark, STATE_STORE_SETTINGS if self.host == LOG else {}):
            accumulator = RecordAccumulator(path=str(self.folder / "table"), **(sink or {}))
            query = accumulator.write_stream(
                purgatory.resolve(operations, events),
                checkpoint=str(self.folder / "checkpoint"),
                trigger={"availableNow": True},
            )
            query.awaitTermination()

    def wrong(self) -> str:
        """What the table lacks, and has too much."""
        rows = delta_rows(self.folder / "table", ["id", "status"])
        rows = rows.filter(pc.greater_equal(rows["id"], 0))
        found = Counter(zip(rows["id"].to_pylist(), rows["status"].to_pylist(), strict=True))
        lost, more = (self.due - found).total(), (found - self.due).total()
        return f"{lost} lost, {more} doubled or unexpected" if lost or more else ""
