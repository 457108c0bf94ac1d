"""`PurgatoryTester` beside Spark: the same rows, the same configuration, the same outcomes and refusals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.errors import ConfigError
from spark_purgatory.testing import (
    PurgatoryTester,
    assert_exactly_once,
    assert_outcomes_equal,
    comparable,
)
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import completions_with, operations_with, purgatory

NOON = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)
MINUTE = timedelta(minutes=1)
KEYS: dict[str, tuple[str, list[Any]]] = {
    "string": ("string", ["a", "Łódź", "", "it's"]),
    "tinyint": ("tinyint", [-1, 0, 7, 127]),
    "bigint": ("bigint", [-(2**63), 0, 7, 2**63 - 1]),
    "decimal": ("decimal(20,10)", [Decimal("0.0000000001"), Decimal("-1.5"), Decimal("0"), Decimal("1E9")]),
    "date": ("date", [date(1, 1, 1), date(2026, 10, 25), date(9999, 12, 31), date(1582, 10, 15)]),
    "timestamp": (
        "timestamp",
        [NOON, NOON + timedelta(hours=1), NOON + timedelta(microseconds=500_000), datetime(1, 1, 1, tzinfo=UTC)],
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        [datetime(2026, 10, 25, 2, 30), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999), NAIVE],
    ),
}  # fmt: skip


def struct(**fields: str) -> T.StructType:
    return T.StructType([T.StructField(name, T.DataType.fromDDL(kind)) for name, kind in fields.items()])


def compare(
    spark: SparkSession,
    purgatory: Purgatory,
    operations: tuple[T.StructType, list[dict[str, Any]]],
    completions: tuple[T.StructType, list[dict[str, Any]]],
) -> pa.Table:
    """Both decide the same rows to the end; returns the tester's outcomes."""
    frames = [
        spark.createDataFrame([tuple(row.get(n) for n in schema.names) for row in rows], schema)
        for schema, rows in (operations, completions)
    ]
    tester = PurgatoryTester(purgatory, operations[0], completions[0])
    tester.step(operations[1], completions[1])
    tester.finish()
    expected = purgatory.resolve(*frames).toArrow()
    assert expected.schema.types == tester.outcomes_table.schema.types
    assert expected.column_names == tester.outcomes_table.column_names
    left, right = (sorted(map(repr, table.to_pylist())) for table in (tester.outcomes_table, expected))
    assert left == right
    assert len(left) == len(operations[1]) == len(tester.outcomes)
    return tester.outcomes_table


@pytest.mark.long
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_have_the_texts_that_spark_gives_them(spark: SparkSession, kind: str) -> None:
    ddl, values = KEYS[kind]
    made = purgatory(
        operations=operations_with(keys="keys", timeout="wait"),
        completions=completions_with(operation_id="named", event_id="event", kind="kind"),
        criterion=criteria.all_keys(),
        emit="final",
        scope="region",
    )
    operations = [
        {"id": v, "keys": [v, values[0], v, None][: 3 + (i == 3)], "created": NOON, "wait": (i + 1) * MINUTE,
         "region": ("north", None)[i % 2]}
        for i, v in enumerate(values)
    ]  # fmt: skip
    operations += [{"id": None, "keys": None, "created": NOON, "wait": MINUTE}, {"id": values[1], "created": NOON}]
    completions = [
        {"key": v, "time": NOON + (2 - i) * MINUTE, "region": ("north", None)[i % 2], "event": v}
        for i, v in enumerate(values[:3])
    ]
    completions[1]["named"] = values[1]
    completions += [{"key": values[-1], "time": NOON + MINUTE, "kind": "fail"}, {"key": None, "time": NOON}]
    orders = struct(id=ddl, keys=f"array<{ddl}>", created="timestamp", wait="interval day to second", region="string")
    payments = struct(key=ddl, time="timestamp", region="string", named=ddl, event=ddl, kind="string")
    compare(spark, made, (orders, operations), (payments, completions))


def number(ddl: str, text: str | None) -> Any:
    if text is None or ddl.startswith("decimal"):
        return text and Decimal(text)
    return float(text) if ddl in ("double", "float") else int(Decimal(text))


@pytest.mark.long
@pytest.mark.parametrize("value", ["double", "float", "int", "bigint", "decimal(10,2)"])
@pytest.mark.parametrize("need", ["decimal(12,4)", *now_and_then("double", "int")])
def test_numbers_of_every_type_are_compared_as_spark_compares_them(spark: SparkSession, value: str, need: str) -> None:
    made = purgatory(
        operations=operations_with(keys=["left", "right"], timeout="wait_ms", timeout_unit="milliseconds"),
        criterion=criteria.by_row("rule", "need"),
        prefix="o_",
    )
    operations = [
        {"id": f"{rule}-{text}-{i}", "left": "a", "right": "b", "created": NOON, "wait_ms": 60_000 * (i + 1),
         "rule": rule, "need": number(need, text)}
        for rule in ("sum_at_least", "level", "count", "quorum", "most")
        for text in ("0.3", "2.5", "0", "-1", None)
        for i in range(3)
    ]  # fmt: skip
    completions = [
        {"key": key, "time": NOON + minute * MINUTE, "value": number(value, text)}
        for key, minute, text in (("a", 1, "0.1"), ("b", 2, "0.2"), ("a", 3, "2.5"), ("b", 3, None), ("a", 4, "-1"))
    ]
    orders = struct(
        id="string", left="string", right="string", created="timestamp", wait_ms="int", rule="string", need=need
    )
    payments = struct(key="string", time="timestamp", value=value)
    table = compare(spark, made, (orders, operations), (payments, completions))
    assert set(table["o_status"].to_pylist()) == {"COMPLETED", "EXPIRED", "REJECTED"}


def test_what_the_product_refuses_the_tester_refuses_in_the_same_words(spark: SparkSession) -> None:
    operations = struct(id="string", key="string", created="timestamp", keys="array<string>", at="double", many="int")
    completions = struct(key="string", time="timestamp", number="bigint", text="string")
    cases: list[dict[str, Any]] = [
        {"operations": operations_with(id="at", timeout="1 hour")},
        {"operations": operations_with(keys=["key", "many"], timeout="1 hour")},
        {"operations": operations_with(keys="nothing", timeout="1 hour")},
        {"operations": operations_with(timeout="at", timeout_unit="days")},
        {"operations": operations_with(timeout="many")},
        {
            "operations": operations_with(keys="keys", timeout="1 hour"),
            "orphans": "control",
        },
        {"completions": completions_with(key="number")},
        {"completions": completions_with(value="text", kind="text")},
        {"completions": completions_with(kind="number")},
        {"completions": completions_with(operation_id="number")},
        {"criterion": criteria.quorum(2)},
        {"criterion": criteria.by_row("many", "many")},
        {
            "scope": "key",
            "operations": operations_with(id="many", keys="at", timeout="1 hour"),
        },
    ]
    for case in cases:
        asked = purgatory(
            **{"operations": operations_with(timeout="1 hour"), "completions": completions_with(), **case}
        )
        said = []
        for make in (
            lambda made: made.resolve(spark.createDataFrame([], operations), spark.createDataFrame([], completions)),
            lambda made: PurgatoryTester(made, operations, completions),
        ):
            with pytest.raises(ConfigError) as refusal:
                make(asked)
            said.append(str(refusal.value))
        assert said[0] == said[1]


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
