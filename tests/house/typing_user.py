"""A user's file, which `make lint` reads: mypy --strict accepts it, and refuses each wrong use at its end.

A wrong use that were accepted would have an ignore that is not used, which is an error too.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import (
    AccumulatorQuery,
    Completions,
    Operations,
    Purgatory,
    RecordAccumulator,
    criteria,
    errors,
    gauges,
)
from spark_purgatory.testing import PurgatoryTester


def outcomes_of(orders: DataFrame, payments: DataFrame) -> DataFrame:
    operations = Operations(
        id="order_id",
        keys=["order_id", F.col("cart_id")],
        created=F.col("at"),
        timeout=timedelta(minutes=30),
        watermark="0 seconds",
    )
    completions = Completions(
        key=F.lower("key"), time="paid_at", value="amount", event_id="delivery", watermark=timedelta(milliseconds=5)
    )
    purgatory = Purgatory(
        operations=operations, completions=completions, criterion=criteria.sum_at_least(Decimal("1.50")), emit="final"
    )
    return purgatory.resolve(orders, payments)


def write(spark: SparkSession, outcomes: DataFrame) -> int:
    accumulator = RecordAccumulator(path="/lake/outcomes", batch_size="128 MiB", linger=timedelta(minutes=5))
    query: AccumulatorQuery = accumulator.write_stream(
        outcomes, checkpoint="/lake/checkpoint", trigger={"availableNow": True}
    )
    try:
        query.awaitTermination()
        whole: StreamingQuery = query.query
        batch_id = 0 if query.lastProgress is None else query.lastProgress.batchId
        print(query.id, query.runId, query.name, query.status["message"], batch_id, whole.isActive, query.exception())
    except errors.StorageError as error:
        print(error)
    return gauges(spark, checkpoint="/lake/checkpoint")["pending"]


def rule() -> criteria.Criterion | criteria.ByRow:
    return criteria.by_row(rule="rule", need="need")


def tested(purgatory: Purgatory) -> list[dict[str, object]]:
    return PurgatoryTester(purgatory).step(operations=[{"order_id": 1}])


def refused(right: Operations, completions: Completions, query: AccumulatorQuery) -> None:
    Operations(id="a", keys="b", created="c", timeouts="1 s")  # type: ignore[call-arg]
    Operations(keys="b", created="c", timeout="1 s")  # type: ignore[call-arg]
    Operations(id=3, keys="b", created="c", timeout="1 s")  # type: ignore[arg-type]
    Completions(key="k", time=4)  # type: ignore[arg-type]
    RecordAccumulator(path="p", batch_size=5.5)  # type: ignore[arg-type]
    RecordAccumulator(path="p", linger=True)  # type: ignore[arg-type]
    criteria.quorum("2")  # type: ignore[arg-type]
    RecordAccumulator(path="p").write_stream(1, checkpoint="c")  # type: ignore[arg-type]
    query.recent  # type: ignore[attr-defined]  # noqa: B018
    query.stop(True, 2)  # type: ignore[call-arg]
    Purgatory(operations=1, completions=2, criterion=3)  # type: ignore[arg-type]
    Purgatory(operations=right, completions=completions, criterion=criteria.any_key(), emit="last")  # type: ignore[arg-type]
