"""Whole streams that are run, stopped and moved between two runs."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import (
    STATE_STORE_SETTINGS,
    Purgatory,
    RecordAccumulator,
    move_checkpoint,
    pending,
)
from spark_purgatory.spark.storage.checkpoint_files import MOVED
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, LawStream, law_stream, with_file_columns
from tests.support.streams import Landing, Rows, arrow_rows
from tests.support.worlds import Batch, splits

SIDES = ("operations", "events")


class DeltaLanding(Landing):
    """Two Delta tables; a micro-batch is one commit of one file a side."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder)
        self._spark = spark

    def land(self, side: str, rows: Rows, schema: pa.Schema) -> None:
        frame = self._spark.createDataFrame(arrow_rows(rows, schema))
        frame.coalesce(1).write.format("delta").mode("append").save(str(self.folder / side))

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        reader = spark.readStream if streaming else spark.read
        one, other = (reader.format("delta").load(str(self.folder / side)) for side in SIDES)
        return one, other


class KafkaLanding(Landing):
    """Two topics of several partitions; values are JSON whose times are microseconds."""

    def __init__(self, folder: Path, address: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        super().__init__(folder)
        self._address = address
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        admin = AdminClient({"bootstrap.servers": address})
        for made in admin.create_topics([NewTopic(self._topic(side), 3, 1) for side in SIDES]).values():
            made.result()

    def _topic(self, side: str) -> str:
        return f"{self.folder.name}-{side}"

    def land(self, side: str, rows: Rows, schema: pa.Schema) -> None:
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        table = arrow_rows(rows, schema)
        for name in times:
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
        for row in table.to_pylist():
            self._producer.produce(self._topic(side), json.dumps(row))
        assert self._producer.flush(60) == 0

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        one, other = (self._frame(spark, side, ddl, streaming) for side, ddl in zip(SIDES, self.ddls, strict=True))
        return one, other

    def _frame(self, spark: SparkSession, side: str, ddl: str, streaming: bool) -> DataFrame:
        reader = (spark.readStream if streaming else spark.read).format("kafka")
        records = reader.options(
            **{"kafka.bootstrap.servers": self._address, "subscribe": self._topic(side), "startingOffsets": "earliest"}
        ).load()
        parsed = F.from_json(F.col("value").cast("string"), ddl.replace("timestamp", "bigint"))
        columns = [name.split()[:2] for name in ddl.split(", ")]
        return records.select(parsed.alias("row")).select(
            *(
                F.timestamp_micros(f"row.{name}").alias(name) if kind == "timestamp" else F.col(f"row.{name}")
                for name, kind in columns
            )
        )


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
    shards: int | None = 3
    moves: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = COLUMNS
    source: str = "files"
    """Or "delta", or the address of a Kafka broker."""

    def __post_init__(self) -> None:
        if self.source == "files":
            self.landing = Landing(self.folder)
        elif self.source == "delta":
            self.landing = DeltaLanding(self.folder, self.spark)
        else:
            self.landing = KafkaLanding(self.folder, self.source)

    def outcomes(self) -> DataFrame:
        return self.purgatory().resolve(*self.landing.frames(self.spark))

    def add(self, batch: Batch) -> None:
        self.landing.add(*([with_file_columns(row) for row in side] for side in (batch.operations, batch.events)))

    def expected(self) -> Counter[Any]:
        """What the oracle says of the micro-batches that were planned."""
        self.landing.checkpoint = self.checkpoint
        return self.drawn.expected(self.landing.last_watermark_us)

    def purgatory(self) -> Purgatory:
        return replace(self.drawn.purgatory(self.host), **{"host": self.host, "shards": self.shards, **self.options})

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

    def move(self, host: str, shards: int | None, partitions: int | None = None) -> None:
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
        rows = self.accumulator.read(self.spark) if self.sink == "accumulator" else self.read()
        return Counter(rows.select(*self.columns).toJSON().collect()) if self.options else self.rows(rows)

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


def compare_lanes(
    spark: SparkSession,
    folder: Path,
    seed: int,
    sink: str,
    options: Mapping[str, Any],
    stops: Sequence[tuple[str, int | None]],
    source: str = "files",
) -> None:
    """Run a stream twice, moved at ``stops`` (host, shards) and not; the tables are the same."""
    drawn = law_stream(seed, worlds=20)
    columns = (*COLUMNS, "late", "reason", *(("event", "events") if "evidence" in options else ()))
    lanes = [
        Lane(
            spark,
            folder / name,
            drawn,
            sink,
            folder / name / "checkpoint",
            options=options,
            columns=columns,
            source=source,
        )
        for name in ("stays", "moves")
    ]
    left = iter(stops)
    for number, batch in enumerate(batches_of(drawn, seed, 2 * len(stops) + 2)):
        for lane in lanes:
            with_host(spark, lane.host)
            lane.add(batch)
            lane.run()
        if number % 2 and (stop := next(left, None)):
            lanes[1].move(*stop, partitions=1 + number % 3)
    with_host(spark, BLOB)
    table = lanes[0].table()
    assert table.total() > 0
    assert lanes[1].table() == table
