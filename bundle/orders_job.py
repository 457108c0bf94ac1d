"""Orders that wait for their payments, as a job: ``orders_job.py LANDING LAKE``.

It reads what has landed since its last run, writes the outcomes below ``LAKE/order_outcomes`` in well-sized files, and
ends. What waits is in the checkpoint: the next run goes on from there.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria, gauges

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


def main(landing: str, lake: str) -> None:
    """One run."""
    spark = SparkSession.builder.getOrCreate()

    def landed(name: str, schema: str) -> DataFrame:
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{landing}/{name}")

    outcomes = PURGATORY.resolve(landed("orders", ORDERS), landed("payments", PAYMENTS))
    accumulator = RecordAccumulator(path=f"{lake}/order_outcomes", batch_size="128 MiB")
    checkpoint = f"{lake}/_checkpoints/order_outcomes"
    query = accumulator.write_stream(outcomes, checkpoint=checkpoint, trigger={"availableNow": True})
    query.awaitTermination()
    print(f"orders: {gauges(spark, checkpoint=checkpoint)['pending']:,} wait")


if __name__ == "__main__":
    main(*sys.argv[1:])
