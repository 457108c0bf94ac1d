"""Sources of test streams beside files: Delta tables and topics of Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.support.streams import Landing, Rows, arrow_rows

SIDES = ("operations", "events")


class DeltaLanding(Landing):
    """Two Delta tables; a micro-batch is one commit of one file a side."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        super().__init__(folder)
        self._spark = spark

    def land(self, side: str, rows: Rows, schema: pa.Schema) -> None:
        """A commit."""
        frame = self._spark.createDataFrame(arrow_rows(rows, schema))
        frame.coalesce(1).write.format("delta").mode("append").save(str(self.folder / side))

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        """Both sides."""
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
        """A record a row."""
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        table = arrow_rows(rows, schema)
        for name in times:
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
        for row in table.to_pylist():
            self._producer.produce(self._topic(side), json.dumps(row))
        assert self._producer.flush(60) == 0

    def frames(self, spark: SparkSession, streaming: bool = True) -> tuple[DataFrame, DataFrame]:
        """Both sides, from the topics' beginnings."""
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
