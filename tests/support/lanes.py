"""Whole streams that are run, stopped and moved between two runs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Purgatory,
    RecordAccumulator,
    move_checkpoint,
    pending,
)
from spark_purgatory.spark.storage.checkpoint_files import MOVED
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, LawStream, with_file_columns
from tests.support.streams import Landing
from tests.support.worlds import Batch, splits

BLOB, LOG = "applyInPandasWithState", "transformWithState"
WAITS = ("row", "created_at", "deadline_at", "held_until", "matched", "missing_keys", "progress")


@dataclass
class Lane:
    """A stream that is run, stopped, and moved."""

    spark: SparkSession
    folder: Path
    drawn: LawStream
    sink: str
    checkpoint: Path
    host: str = BLOB
    shards: int = 3
    moves: int = 0

    def __post_init__(self) -> None:
        self.landing = Landing(self.folder)

    def outcomes(self) -> DataFrame:
        return self.purgatory().resolve(*self.landing.frames(self.spark))

    def add(self, batch: Batch) -> None:
        self.landing.add(*([with_file_columns(row) for row in side] for side in (batch.operations, batch.events)))

    def expected(self) -> Counter[Any]:
        """What the oracle says of the micro-batches that were planned."""
        self.landing.checkpoint = self.checkpoint
        return self.drawn.expected(self.landing.last_watermark_us)

    def purgatory(self) -> Purgatory:
        return replace(self.drawn.purgatory(self.host), shards=self.shards)

    def run(self) -> None:
        outcomes, trigger = self.outcomes(), {"availableNow": True}
        if self.sink == "accumulator":
            query: Any = self.accumulator.write_stream(outcomes, checkpoint=str(self.checkpoint), trigger=trigger)
        else:
            writer = outcomes.writeStream.format(self.sink).option("checkpointLocation", str(self.checkpoint))
            query = writer.option("path", str(self.folder / "table")).trigger(**trigger).start()
        query.awaitTermination()

    @property
    def accumulator(self) -> RecordAccumulator:
        return RecordAccumulator(path=str(self.folder / "table"), linger="1 hour", delivery_timeout="1 hour")

    def move(self, host: str, shards: int, partitions: int | None = None) -> None:
        """Move to a new checkpoint, and see that the old one is as it was and that the same waits."""
        before, old = self.waiting(), self.checkpoint
        files = contents(old)
        self.moves += 1
        self.host, self.shards, self.checkpoint = host, shards, self.folder / f"moved-{self.moves}"
        if host == LOG:  # Its checkpoint keeps these settings' store on the other host as well.
            with_host(self.spark, host)
        moved = move_checkpoint(
            self.spark, self.outcomes(), source=str(old), target=str(self.checkpoint), partitions=partitions
        )
        print(moved)
        assert contents(old) == files, "of the old checkpoint nothing changes but the mark"
        assert self.waiting() == before
        assert moved.operations == sum(before.values())

    def waiting(self) -> Any:
        return multiset(
            [row.asDict() for row in pending(self.spark, checkpoint=str(self.checkpoint)).collect()], *WAITS
        )

    def staged(self) -> Any:
        return self.rows(self.accumulator.read(self.spark, staged=True, checkpoint=str(self.checkpoint)))

    def table(self) -> Any:
        return self.rows(self.accumulator.read(self.spark) if self.sink == "accumulator" else self.read())

    @staticmethod
    def rows(rows: DataFrame) -> Any:
        return multiset((row.asDict() for row in rows.collect()), *COLUMNS)

    def read(self) -> DataFrame:
        return self.spark.read.format(self.sink).load(str(self.folder / "table"))


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for the mark that a move leaves in the old checkpoint."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (MOVED, f".{MOVED}.crc")
    }


def with_host(spark: SparkSession, host: str) -> None:
    """The settings that a host needs, or none of them."""
    for name, value in STATE_STORE_SETTINGS.items():
        if host == BLOB:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def batches_of(drawn: LawStream, seed: int, count: int) -> list[Batch]:
    """The stream's rows in so many micro-batches, every one on time."""
    created_us, time_us = drawn.delays_us["created"], drawn.delays_us["time"]
    return splits(random.Random(seed), *drawn.world, count, operations_delay_us=created_us, events_delay_us=time_us)
