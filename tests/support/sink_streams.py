"""A folder of files, one a micro-batch, written to a table through the sink."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import RecordAccumulator

ROWS_A_FILE = 10


class Stream:
    """A folder of files, one a micro-batch, and a query that writes them to a table.

    ``evaluations`` counts, batch by batch, how often the batch's rows were computed.
    """

    def __init__(self, spark: SparkSession, folder: Path, sink: RecordAccumulator | None = None) -> None:
        self.spark = spark
        self.folder = folder
        self.sink = sink or RecordAccumulator(path=str(folder / "table"))
        self.checkpoint = folder / "checkpoint"
        self.marks = folder / "marks"
        self.files = 0
        for path in (folder / "in", self.marks):
            path.mkdir(parents=True)

    def add(self, files: int) -> Stream:
        for _ in range(files):
            rows = [{"n": self.files * ROWS_A_FILE + i, "part": i % 2} for i in range(ROWS_A_FILE)]
            path = self.folder / "in" / f"{self.files:03d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), path)
            os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            self.files += 1
        return self

    def rows(self) -> DataFrame:
        reader = self.spark.readStream.schema("n bigint, part bigint").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "in"))

    def counted(self) -> DataFrame:
        """The rows, by way of state and of Python."""
        rows = self.rows().dropDuplicates(["n"])
        return rows.repartition(1).mapInArrow(_marker(str(self.marks)), rows.schema)

    def run(self, rows: DataFrame | None = None) -> Stream:
        rows = self.counted() if rows is None else rows
        query = self.sink.write_stream(rows, checkpoint=str(self.checkpoint), trigger={"availableNow": True})
        query.awaitTermination()
        return self

    def forget_last_commit(self) -> Stream:
        """What a crash leaves that came after Delta's commit and before Spark's."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return self

    def table(self) -> DataFrame:
        return self.sink.read(self.spark)

    def numbers(self) -> Counter[int]:
        return Counter(row["n"] for row in self.table().collect())

    def evaluations(self) -> int:
        return len(list(self.marks.iterdir()))


def _marker(folder: str):  # type: ignore[no-untyped-def]
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from uuid import uuid4

        Path(folder, str(uuid4())).touch()
        yield from batches

    return mark


def every(files: int) -> Counter[int]:
    return Counter(range(files * ROWS_A_FILE))
