"""The kit that users test with, on a pair of DataFrames of our own."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.testing import (
    assert_exactly_once,
    assert_outcomes_equal,
    comparable,
)


def test_a_pipeline_without_statuses_is_checked_by_all_of_its_rows(spark: SparkSession) -> None:
    orders = spark.range(40).withColumnRenamed("id", "order_id")
    assert_exactly_once(orders, orders.select("order_id"), id="order_id")
    with pytest.raises(AssertionError, match="'unexpected': 1"):
        assert_exactly_once(orders.where("order_id > 0"), orders.select("order_id"), id="order_id")


def test_every_loss_and_every_second_outcome_is_named(spark: SparkSession) -> None:
    start = F.lit("2024-05-01 12:00:00").cast("timestamp")
    orders = spark.range(40).select(
        F.col("id").alias("order_id"),
        (start + F.make_dt_interval(mins=F.col("id").cast("int"))).alias("ordered_at"),
        F.array(F.lit("item-"), F.col("id").cast("string")).alias("items"),
    )
    payments = spark.range(80).select(
        (F.col("id") % 50).alias("order_id"),
        (start + F.make_dt_interval(mins=(F.col("id") % 55).cast("int") + 3)).alias("paid_at"),
        (F.col("id") / 4).alias("amount"),
    )
    purgatory = Purgatory(
        operations=Operations(
            id="order_id", keys="order_id", created="ordered_at", timeout="8 minutes", watermark="5 minutes"
        ),
        completions=Completions(key="order_id", time="paid_at", value="amount", watermark="2 minutes"),
        criterion=criteria.sum_at_least(2),
        emit="final",
        shards=2,
    )
    decided = purgatory.resolve(orders, payments).cache()
    assert_exactly_once(orders, decided, id="order_id")
    assert_exactly_once(orders, decided.where("order_id <> 7"), id="order_id", may_be_pending=True)
    renamed = decided.withColumnRenamed("status", "o_status")
    assert_exactly_once(orders, renamed, id="order_id", status="o_status")
    assert_df_equality(comparable(decided), comparable(decided.orderBy(F.rand())), ignore_row_order=True)
    with pytest.raises(AssertionError, match=r"\{'lost': 1\} of 40 ids; \(order_id, expected, found\): \(7, 1, 0\)"):
        assert_exactly_once(orders, decided.where("order_id <> 7"), id="order_id")
    with pytest.raises(AssertionError, match="'duplicated': 40"):
        assert_exactly_once(orders, decided.union(decided), id="order_id", may_be_pending=True)
    with pytest.raises(AssertionError, match="1 rows only on the left, 0 only on the right"):
        assert_outcomes_equal(decided, decided.where("order_id <> 7"))
