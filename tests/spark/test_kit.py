"""The kit that users test with, on a pair of DataFrames of our own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.errors import ConfigError
from spark_purgatory.testing import (
    assert_exactly_once,
    assert_outcomes_equal,
    assert_stream_equals_batch,
    comparable,
)

pytestmark = pytest.mark.spark


ORDERS = Operations(id="order_id", keys="order_id", created="ordered_at", timeout="8 minutes", watermark="5 minutes")


def frames(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    start = F.lit("2024-05-01 12:00:00").cast("timestamp")
    orders = spark.range(40).select(
        F.col("id").alias("order_id"), (start + F.make_dt_interval(mins=F.col("id").cast("int"))).alias("ordered_at")
    )
    payments = (spark.range(80).where("id % 3 > 0")).select(
        (F.col("id") % 50).alias("order_id"),
        (start + F.make_dt_interval(mins=(F.col("id") % 55).cast("int") + 3)).alias("paid_at"),
        F.when(F.col("id") % 9 == 0, "cancel").alias("kind"),
    )
    return orders, payments


def test_early_outcomes_have_the_same_statuses_and_where_they_need_not_that_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    orders, payments = frames(spark)
    purgatory = Purgatory(
        operations=ORDERS,
        completions=Completions(key="order_id", time="paid_at", watermark="9 minutes"),
        criterion=criteria.count(1),
        prefix="o_",
    )
    outcomes = assert_stream_equals_batch(purgatory, orders, payments, tmp_path / "early", seed=5, batches=3).cache()
    assert_exactly_once(orders, outcomes, id="order_id", may_be_pending=True, status="o_status")
    assert {row["o_status"] for row in outcomes.collect()} == {"COMPLETED", "EXPIRED"}
    with pytest.raises(ConfigError, match=r"emit='early', and completions\.kind"):
        with_kinds = replace(purgatory, completions=replace(purgatory.completions, kind="kind"))
        assert_stream_equals_batch(with_kinds, orders, payments, tmp_path / "kinds")
    with pytest.raises(ConfigError, match=r"emit='early', and 40 values of operations\.id have several rows each"):
        assert_stream_equals_batch(purgatory, orders.union(orders), payments, tmp_path / "again")


def test_a_pipeline_without_statuses_is_checked_by_all_of_its_rows(spark: SparkSession) -> None:
    orders, _ = frames(spark)
    assert_exactly_once(orders, orders.select("order_id"), id="order_id")
    with pytest.raises(AssertionError, match="'unexpected': 1"):
        assert_exactly_once(orders.where("order_id > 0"), orders.select("order_id"), id="order_id")


def test_a_pair_of_frames_comes_out_alike_however_it_arrives_and_every_loss_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
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
    outcomes = assert_stream_equals_batch(purgatory, orders, payments, tmp_path, seed=3, batches=3).cache()
    decided = purgatory.resolve(orders, payments).cache()
    assert_exactly_once(orders, decided, id="order_id")
    assert_exactly_once(orders, outcomes, id="order_id", may_be_pending=True)
    assert_df_equality(comparable(decided), comparable(decided.orderBy(F.rand())), ignore_row_order=True)
    with pytest.raises(AssertionError, match=r"\{'lost': 1\} of 40 ids; \(order_id, expected, found\): \(7, 1, 0\)"):
        assert_exactly_once(orders, decided.where("order_id <> 7"), id="order_id")
    with pytest.raises(AssertionError, match="'duplicated': 40"):
        assert_exactly_once(orders, decided.union(decided), id="order_id", may_be_pending=True)
    with pytest.raises(AssertionError, match="1 rows only on the left, 0 only on the right"):
        assert_outcomes_equal(decided, decided.where("order_id <> 7"))
