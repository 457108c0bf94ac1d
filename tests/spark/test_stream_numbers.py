"""Decimals, bigints and doubles as values and needs, on real Spark: batch and stream, by criterion and by row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory import Purgatory, criteria
from spark_purgatory.core.arrays.numbers import scale_of, units_up
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.field_types import need_columns, number_type
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import completions_with, operations_with

D = Decimal
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
Rows = list[tuple[Any, ...]]
OPERATION = "id string, key string, created timestamp, deadline timestamp"


@pytest.fixture(params=["true", *now_and_then("false")], ids=["ansi", "not ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield spark
    spark.conf.set("spark.sql.ansi.enabled", str(before))


def operations(spark: SparkSession, ids: list[str], columns: str = "", rows: Rows | None = None) -> DataFrame:
    """Operations from noon to half past, each with a key of its own, and their columns besides."""
    given = rows or [()] * len(ids)
    data = [(i, i, NOON, NOON + timedelta(minutes=30), *more) for i, more in zip(ids, given, strict=True)]
    return spark.createDataFrame(data, f"{OPERATION}{', ' if columns else ''}{columns}")


def events(spark: SparkSession, kind: str, values: dict[str, list[Any]]) -> DataFrame:
    """Events of values on keys, a minute after each other."""
    data = [
        (key, NOON + timedelta(minutes=1 + i), value) for key, some in values.items() for i, value in enumerate(some)
    ]
    return spark.createDataFrame(data, f"key string, time timestamp, value {kind}")


def purgatory(criterion: Criterion | ByRow, **others: Any) -> Purgatory:
    return Purgatory(
        operations=operations_with(),
        completions=completions_with(value="value", **others),
        criterion=criterion,
        shards=2,
    )


def statuses(outcomes: DataFrame) -> dict[str, str]:
    return {row["id"]: row["status"] for row in outcomes.collect() if row["id"] != "closing"}


BIG = 2**53
LARGEST, NEXT = D("99999999999999999999.999999999999999999"), D("99999999999999999999.999999999999999998")
BY_CRITERION: list[tuple[str, Criterion, dict[str, list[Any]], dict[str, str]]] = [
    (
        "decimal(10,2)",
        criteria.sum_at_least(D("0.80")),
        {"just": [D("0.70"), D("0.10")], "short": [D("0.70"), D("0.09")], "none": [None]},
        {"just": "COMPLETED", "short": "EXPIRED", "none": "EXPIRED"},
    ),
    ("decimal(10,2)", criteria.sum_at_least(0.8), {"just": [D("0.70"), D("0.10")]}, {"just": "COMPLETED"}),
    ("decimal(10,2)", criteria.level(0.7), {"a": [D("0.70")], "b": [D("0.69")]}, {"a": "COMPLETED", "b": "EXPIRED"}),
    ("bigint", criteria.level(BIG + 1), {"a": [BIG], "b": [BIG + 1]}, {"a": "EXPIRED", "b": "COMPLETED"}),
    ("bigint", criteria.sum_at_least(BIG + 1), {"a": [BIG], "b": [BIG, 1]}, {"a": "EXPIRED", "b": "COMPLETED"}),
    (
        "int",
        criteria.sum_at_least(D("2.00000000000000000001")),
        {"a": [2], "b": [3]},
        {"a": "EXPIRED", "b": "COMPLETED"},
    ),
    (
        "decimal(38,18)",
        criteria.sum_at_least(LARGEST),
        {"a": [NEXT, D("1e-18")], "b": [NEXT, None]},
        {"a": "COMPLETED", "b": "EXPIRED"},
    ),
    ("double", criteria.sum_at_least(0.8), {"a": [0.7, 0.1]}, {"a": "EXPIRED"}),
    ("float", criteria.level(0.1000000014), {"a": [0.1]}, {"a": "COMPLETED"}),
]


def test_a_criterion_compares_values_in_their_own_type(session: SparkSession) -> None:
    decided = []
    for case, (kind, criterion, values, _) in enumerate(BY_CRITERION):
        outcomes = purgatory(criterion).resolve(operations(session, sorted(values)), events(session, kind, values))
        decided.append(outcomes.select(F.lit(case).alias("case"), "id", "status"))
    rows = reduce(DataFrame.union, decided).collect()
    for case, (kind, criterion, _, expected) in enumerate(BY_CRITERION):
        assert {row.id: row.status for row in rows if row.case == case} == expected, (kind, criterion)


@pytest.mark.long
@pytest.mark.parametrize("number", ["bigint", "decimal(10,2)", "decimal(38,18)", "decimal(38,37)"])
def test_a_double_need_is_rounded_up_from_what_it_is_written_as(session: SparkSession, number: str) -> None:
    rng = random.Random(5)
    scale = scale_of(number)
    assert scale is not None
    needs = [
        0.0,
        -0.0,
        0.8,
        0.1 + 0.2,
        1e-300,
        -1e-300,
        5e-324,
        1e22,
        -0.3,
        123456.789,
        1.0,
        2.0**53,
        0.07,
        9.99,
        0.005,
    ]
    needs += [rng.choice([1, -1]) * rng.random() * 10.0 ** rng.randint(-25, 25) for _ in range(400)]
    needs += [round(rng.random() * 100, rng.randint(0, 6)) for _ in range(200)]
    frame = session.createDataFrame([(need,) for need in needs], "need double")
    columns = need_columns({"criterion.need": (F.col("need"), T.DoubleType())}, F.col("need"), False, number)
    up, raw, text = columns["need_up"].alias("up"), columns["need"].alias("raw"), F.col("need").cast("string")
    for row in frame.select("need", up, raw, text.alias("text")).collect():
        # Java before 19 writes some doubles with a digit more than they need.
        units = {units_up(each, scale) for each in (row["need"], D(row["text"]))}
        assert len(units) == 1 or len(repr(row["need"]).strip("-0.").split("e")[0]) > 15, row["need"]
        got = None if row["up"] is None else int(row["up"].scaleb(scale, Context(prec=100)))
        assert got in (units if max(map(abs, units)) < 10**38 else {None}), row["need"]
        assert row["raw"] == row["need"]


def test_number_types_are_decided_by_values_and_what_would_not_be_exact_is_refused_by_name() -> None:
    def of(kind: T.DataType, criterion: Any = None, **needs: T.DataType) -> str:
        given = {f"criterion.{name}": each for name, each in needs.items()}
        return number_type(criterion or criteria.by_row(need="need"), kind, given)

    cents, wide = T.DecimalType(10, 2), T.DecimalType(38, 38)
    assert of(T.DoubleType(), need=cents) == of(T.FloatType(), need=cents) == "double"
    assert of(cents, need=T.DoubleType()) == "decimal(10,2)" and of(T.LongType()) == "bigint"
    assert of(T.IntegerType(), need=T.DoubleType()) == "double" and of(T.IntegerType(), need=T.LongType()) == "bigint"
    assert of(T.IntegerType(), criteria.sum_at_least(3)) == "double"
    assert of(T.IntegerType(), criteria.sum_at_least(2**63)) == "bigint"
    assert of(T.ShortType(), criteria.level(BIG + 1)) == "bigint"
    assert of(cents, criteria.count(3)) == "double", "no value is read"
    with pytest.raises(
        ConfigError, match=r"criterion.need is double, and completions.value decimal\(38,38\): .* Cast crit"
    ):
        of(wide, need=T.DoubleType())
    with pytest.raises(ConfigError, match=r"criterion.levels is string, not a number, .*: cast criterion.lev"):
        of(T.LongType(), levels=T.MapType(T.StringType(), T.StringType()))
