"""A stream of very many columns: Spark's own time for a plan must not grow faster than their number."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria
from tests.support.now_and_then import now_and_then

pytestmark = pytest.mark.spark

NOON = datetime(2026, 6, 1, 12)


def with_columns(rows: DataFrame, count: int) -> DataFrame:
    """Text, number and array, in turn."""
    kinds = [
        lambda i: F.concat("id", F.lit(f"-{i}")).alias(f"text_{i}"),
        lambda i: (F.lit(i) + 0.5).alias(f"number_{i}"),
        lambda i: F.array("id", F.lit(str(i))).alias(f"array_{i}"),
    ]
    return rows.select("*", *(kinds[i % 3](i) for i in range(count)))


@pytest.mark.parametrize("count", [500, *now_and_then(2_000)])
def test_operations_of_very_many_columns_are_staged_and_drained(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    rows = [(name, NOON.replace(minute=minute)) for name, minute in (("a", 0), ("b", 1), ("last", 59))]
    made = with_columns(spark.createDataFrame(rows, "id string, at timestamp"), count)
    made.coalesce(1).write.parquet(str(tmp_path / "operations"))
    spark.createDataFrame(rows[::2], "key string, at timestamp").coalesce(1).write.parquet(str(tmp_path / "events"))
    orders, events = (
        spark.readStream.schema(schema).parquet(str(tmp_path / name))
        for name, schema in (("operations", made.schema), ("events", "key string, at timestamp"))
    )
    purgatory = Purgatory(
        operations=Operations(
            id="id", keys="id", created="at", timeout="5 minutes", watermark="1 minute", idle_after="9999 days"
        ),
        completions=Completions(key="key", time="at", watermark="1 minute", idle_after="9999 days"),
        criterion=criteria.any_key(),
    )
    sink = RecordAccumulator(path=str(tmp_path / "table"))
    query = sink.write_stream(
        purgatory.resolve(orders, events), checkpoint=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    table = sink.read(spark).orderBy("id")
    assert [(row["id"], row["status"]) for row in table.select("id", "status").collect()] == [
        ("a", "COMPLETED"),
        ("b", "EXPIRED"),
        ("last", "COMPLETED"),
    ]
    assert table.select(made.columns).collect() == made.orderBy("id").collect()
