"""Orders that wait for their payments, as a Spark declarative pipeline: two streams in, a table of outcomes out.

It runs as a pipeline of Databricks (`databricks.yml`) and, unchanged, with Spark's own `spark-pipelines`. The folder of
the landed files is the pipeline's setting `orders.landing`.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Completions, Operations, Purgatory, criteria

ORDERS = "order_id string, customer_id bigint, amount decimal(10,2), ordered_at timestamp, pay_by timestamp"
PAYMENTS = "payment_id string, order_id string, paid_at timestamp"

PURGATORY = Purgatory(
    operations=Operations(
        id="order_id", keys="order_id", created="ordered_at", deadline="pay_by", watermark="10 minutes"
    ),
    completions=Completions(key="order_id", time="paid_at", watermark="10 minutes"),
    criterion=criteria.any_key(),
    shards=4,
)


def landed(name: str, schema: str) -> DataFrame:
    """The files of one input, a file a micro-batch: so the watermark moves as it did when they were written."""
    spark = SparkSession.active()
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(f"{spark.conf.get('orders.landing')}/{name}")


# A query function of a pipeline may not ask for a DataFrame's schema, which `resolve` does: so it is called here.
OUTCOMES = PURGATORY.resolve(landed("orders", ORDERS), landed("payments", PAYMENTS))


@dp.table(comment="One row for each order, when its payment has come or its time is over.")
def order_outcomes() -> DataFrame:
    """The streaming table of outcomes."""
    return OUTCOMES


@dp.materialized_view(comment="How many orders there are of each status, and how long they waited.")
def order_statuses() -> DataFrame:
    """Counts over it, made anew in each run."""
    outcomes = SparkSession.active().read.table("order_outcomes")
    return outcomes.groupBy("status").agg({"*": "count", "wait_ms": "avg"})
