"""What our rules say that Delta takes, and what Delta itself says: the same, type by type and name by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.spark.sink.table.column_rules import (
    FORBIDDEN_CHARACTERS,
    Taking,
    changed,
    fitted_columns,
    unfit,
    with_types,
)
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS
from tests.support.column_types import TAKEN, listed

NOT_TAKEN = """interval '1' day; interval '1' month; make_interval(1, 2); time'12:00:00'; array(time'12:00:00');
    array(interval '1' day); map(interval '1' day, 1); named_struct('i', interval '1' month); array(); map();
    array(null); map(1, null); named_struct('a', null); named_struct(); array(named_struct('a', null, 'b', 1));
    'a' collate UTF8_LCASE; array('a' collate UTF8_LCASE); map('a' collate UTF8_LCASE, 1);
    named_struct('a', 'a' collate UNICODE); st_geomfromwkb(X'0101000000000000000000F03F0000000000000040');
    st_geogfromwkb(X'0101000000000000000000F03F0000000000000040'); named_struct('a', 1, 'A', 2);
    array(named_struct('a', 1, 'A', 2)); named_struct('a b', 1); array(named_struct('a b', 1));
    map(1, named_struct('a=b', 1))"""
NO_FOLDERS = """array(1); map(1, 1); named_struct('a', 1); parse_json('1'); null"""
TABLE = """s string, v varchar(3), ti tinyint, sm smallint, i int, l bigint, f float, d double, de decimal(10, 2),
    ts timestamp, ntz timestamp_ntz, da date, bo boolean, bi binary, st struct<a: int, b: string>, ar array<int>,
    m map<string, int>, an array<struct<a: int>>"""
WIDENED = """'a' s; 'a' v; 1Y sm; 1S i; 1Y ti; named_struct('b', 'x', 'A', 1S) st; array(1Y) ar; map('a', 1S) m;
    null l; array(named_struct('a', 1Y)) an; named_struct('a', null, 'b', 'x') st; named_struct('a', 1) st"""
CAST = """1 l; 1 d; 1F d; cast(1 as decimal(4, 2)) de; date'2026-01-01' ntz; 1Y de; map('a', 1Y) m"""
"""What Delta refuses by path, but for the last, and the sink casts: no value changes."""
CHANGED = """1 s; date'2026-01-01' s; 1L i; '1' i; 1D i; true i; cast(1 as decimal(5, 2)) i; 1L sm; 1D l; 1D f; 1 de;
    cast(1 as decimal(20, 4)) de; date'2026-01-01' ts;
    timestamp_ntz'2026-01-01 00:00:00' ts; timestamp'2026-01-01 00:00:00' ntz; timestamp'2026-01-01 00:00:00' da; 1 bo;
    'a' bi; named_struct('a', 1L) st; named_struct('a', 1, 'c', 1) st; array('1') ar; array(1L) ar; map(1, 1) m;
    map('a', 1L) m; array(named_struct('z', 1)) an; 1 st; 1 ar"""
CHANGED_BY_NAME = """date'2026-01-01' i; named_struct('a', 1, 'c', 1) st; array(named_struct('a', 1, 'z', 1)) an"""


def refusal(rows: DataFrame, place: Path | str, partition_by: Sequence[str] = ()) -> str:
    """What Delta says to rows; "" if it takes them."""
    writer = rows.write.format("delta").mode("append").partitionBy(*partition_by)
    try:
        _ = writer.saveAsTable(place) if isinstance(place, str) else writer.save(str(place))
    except SPARK_FAULTS as error:
        return type(error).__name__ + (error.getCondition() or "" if isinstance(error, PySparkException) else "")
    return ""


def test_types_and_names_that_a_new_table_takes(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a.b", "a`b", "", "a'b", 'a"b', "_change_type", "a/b:c%", "ü", "a\rb"]
    rows = spark.range(1).selectExpr("id", *(f"{value} AS c{i}" for i, value in enumerate(listed(TAKEN))))
    rows = rows.select("*", *(rows.id.alias(name) for name in names))
    assert list(unfit(rows.schema)) == []
    assert refusal(rows.limit(0), tmp_path / "table") == ""


@pytest.mark.long
def test_types_and_names_that_no_new_table_takes(spark: SparkSession, tmp_path: Path) -> None:
    for number, value in enumerate(listed(NOT_TAKEN)):
        rows = spark.range(1).selectExpr("id", f"{value} AS c")
        assert list(unfit(rows.schema)), value
        assert refusal(rows, tmp_path / f"type-{number}"), value
    for number, character in enumerate(FORBIDDEN_CHARACTERS):
        rows = spark.range(1).toDF(f"a{character}b")
        assert len(list(unfit(rows.schema))) == 1, repr(character)
        assert list(unfit(rows.schema, is_mapped=True)) == []
        assert refusal(rows, tmp_path / f"name-{number}"), repr(character)
    void = spark.range(1).selectExpr("null AS c")
    assert list(unfit(void.schema)) and refusal(void, tmp_path / "void")
    twice = T.StructType().add("a", T.IntegerType()).add("A", T.IntegerType())
    assert list(unfit(twice)) == ["columns 'a' and 'A' are the same name to Delta, which ignores case: rename one"]


@pytest.mark.long
def test_columns_that_partition_no_table(spark: SparkSession, tmp_path: Path) -> None:
    for number, value in enumerate(listed(NO_FOLDERS)):
        rows = spark.range(1).selectExpr("id", f"{value} AS c")
        assert len(list(unfit(rows.schema, ["c"]))) == 1, value
        assert refusal(rows, tmp_path / f"type-{number}", ["c"]), value
    for number, name in enumerate(("", "a\0b")):
        rows = (
            spark.range(1).selectExpr("id", f"1 AS `{name}`")
            if name
            else spark.range(1).selectExpr("id", "1").toDF("id", "")
        )
        assert len(list(unfit(rows.schema, [name]))) == 1, name
        assert refusal(rows, tmp_path / f"name-{number}", [name]), name
    assert list(unfit(spark.range(1).schema, ["id"])) and refusal(spark.range(1), tmp_path / "all", ["id"])


@pytest.mark.long
def test_types_that_a_table_takes_into_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS rules")
    spark.sql(f"CREATE TABLE rules ({TABLE}) USING delta LOCATION '{tmp_path / 'table'}'")
    there = spark.table("rules").schema

    def rules(rows: DataFrame) -> list[str]:
        field = rows.schema.fields[-1]
        return list(changed(field.dataType, there[field.name].dataType, field.name, Taking()))

    def rows_of(value: str) -> DataFrame:
        return (
            spark.range(1).selectExpr("'a' AS s", value)
            if not value.endswith(" s")
            else spark.range(1).selectExpr(value)
        )

    for value in listed(CHANGED):
        assert rules(rows_of(value)), value
        assert refusal(rows_of(value), tmp_path / "table"), value
    for value in listed(CHANGED_BY_NAME):
        assert rules(rows_of(value)), value
        assert refusal(rows_of(value), "rules"), value
    for value in listed(WIDENED):
        assert rules(rows_of(value)) == [], value
    for value in listed(CAST):
        rows = rows_of(value)
        assert rules(rows) == [], value
        assert refusal(with_types(rows, fitted_columns(rows.schema, there)), tmp_path / "table") == "", value
    one_of_each = {value.rsplit(" ", 1)[1]: value for value in listed(WIDENED)}
    rows = spark.range(1).selectExpr(*one_of_each.values())
    assert refusal(rows, tmp_path / "table") == ""
    assert refusal(rows, "rules") == ""
    spark.sql("DROP TABLE rules")


EXACT = """tinyint smallint; tinyint bigint; tinyint float; tinyint double; tinyint decimal(3,0); tinyint decimal(10,4);
    smallint int; smallint float; smallint decimal(5,0); int bigint; int double; int decimal(10,0); int decimal(38,9);
    bigint decimal(20,0); float double; decimal(5,2) decimal(6,3); decimal(5,2) decimal(38,2); decimal(2,0) tinyint;
    decimal(9,0) int; decimal(18,0) bigint"""
INEXACT = """smallint tinyint; int smallint; bigint int; bigint tinyint; int float; bigint double; bigint float;
    bigint decimal(19,0); tinyint decimal(3,1); int decimal(9,0); double float; double bigint; float int;
    double decimal(38,9); decimal(5,2) decimal(5,1); decimal(5,2) decimal(5,3); decimal(3,0) tinyint;
    decimal(19,0) bigint; decimal(5,2) bigint; decimal(5,2) double; decimal(5,0) float"""
ENDS = """-128 127 99 12.34 32767 -32768 9999 2147483647 -2147483648 16777217 9223372036854775807 -9223372036854775808
    999999999999999999 9999999999999999999 999.99 0.1 -0.5 1e38"""


def numbers(spark: SparkSession, pairs: Sequence[str]) -> DataFrame:
    """A table ``numbers`` with a column for each pair's second type; returns rows of the ends of each first type."""
    staged, there = zip(*(pair.split(" ") for pair in pairs), strict=True)
    spark.sql(
        f"CREATE OR REPLACE TABLE numbers ({', '.join(f'c{i} {kind}' for i, kind in enumerate(there))}) USING delta"
    )
    rows = (
        "SELECT " + ", ".join(f"try_cast({value} AS {kind}) AS c{i}" for i, kind in enumerate(staged))
        for value in ENDS.split()
    )
    return spark.sql(" UNION ALL ".join(rows))


def values_of(rows: DataFrame) -> list[set[object]]:
    """Of each column the values."""
    return [set(column) for column in zip(*rows.collect(), strict=True)]


@pytest.mark.long
def test_numbers_go_into_a_table_by_name_where_no_setting_of_the_session_can_change_them(spark: SparkSession) -> None:
    """Every policy, ANSI or not: the values that a type has go through unchanged."""
    pairs = listed(EXACT)
    for pair in pairs:
        staged, there = (T.DataType.fromDDL(kind) for kind in pair.split(" "))
        assert list(changed(staged, there, "c", Taking())) == [], pair
    for policy, ansi in product(("ANSI", "LEGACY", "STRICT"), ("true", "false")):
        rows = numbers(spark, pairs)
        expected = values_of(rows)
        merge = {"spark.databricks.delta.schema.autoMerge.enabled": ansi}
        with settings(spark, {"spark.sql.storeAssignmentPolicy": policy, "spark.sql.ansi.enabled": ansi, **merge}):
            assert refusal(rows, "numbers") == "", (policy, ansi)
            found = values_of(spark.table("numbers"))
        assert [pair for pair, *both in zip(pairs, found, expected, strict=True) if both[0] != both[1]] == []
    spark.sql("DROP TABLE numbers")


@pytest.mark.long
def test_numbers_that_some_setting_of_the_session_changes_or_refuses_go_into_no_table(spark: SparkSession) -> None:
    """The strictest policy refuses the types or a value, or changes one: the rules keep nothing out without need."""
    pairs = listed(INEXACT)
    rows = numbers(spark, pairs)
    expected = values_of(rows)
    with settings(spark, {"spark.sql.storeAssignmentPolicy": "STRICT", "spark.sql.ansi.enabled": "true"}):
        for i, pair in enumerate(pairs):
            staged, there = (T.DataType.fromDDL(kind) for kind in pair.split(" "))
            assert list(changed(staged, there, "c", Taking())), pair
            said = refusal(rows.select(f"c{i}"), "numbers")
            assert said or values_of(spark.table("numbers").select(f"c{i}"))[0] - {None} != expected[i] - {None}, pair
    spark.sql("DROP TABLE numbers")


@pytest.mark.long
def test_types_of_a_table_that_lets_them_be_widened(spark: SparkSession) -> None:
    """With autoMerge a column becomes wider; without the table's leave a value would become another one."""
    policy = {"spark.sql.storeAssignmentPolicy": "LEGACY", "spark.databricks.delta.schema.autoMerge.enabled": "true"}
    for widens in (True, False):
        more = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')" if widens else ""
        spark.sql(f"CREATE OR REPLACE TABLE wider (c tinyint) USING delta {more}")
        with settings(spark, policy):
            assert refusal(spark.sql("SELECT 59800 AS c"), "wider") == ""
        assert [row["c"] for row in spark.table("wider").collect()] == ([59800] if widens else [-104])
        taking = Taking(adds=True, widens=widens)
        assert (list(changed(T.IntegerType(), T.ByteType(), "c", taking)) == []) == widens
    spark.sql("DROP TABLE wider")
