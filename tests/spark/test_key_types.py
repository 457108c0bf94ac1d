"""Keys, ids and partitions of every type: compared by value, whatever the session is set to, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.operator.field_types import key_text
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.stream_rows import completions_with, operations_with, purgatory

ZONE = {"spark.sql.session.timeZone": "Europe/Berlin"}
SUMMER, WINTER = "timestamp'2026-10-25 00:30:00Z'", "timestamp'2026-10-25 01:30:00Z'"
"""Both are 02:30 in Berlin."""
PURGATORY = purgatory(
    operations=operations_with(timeout="1 hour"), completions=completions_with(time="created"), shards=2
)


def rows_of(spark: SparkSession, *rows: str) -> DataFrame:
    """Rows of ``id, key`` in SQL, all created at one instant."""
    return spark.sql(
        f"select *, timestamp'2026-01-01 00:00:00Z' as created from values {', '.join(rows)} as t(id, key)"
    )


def decided(outcomes: DataFrame) -> list[tuple[Any, ...]]:
    """(id as text, status, missing keys) of every outcome, sorted."""
    columns = (F.col("id").cast("string"), "status", "missing_keys")
    return sorted(tuple(row) for row in outcomes.select(*columns).collect())


def test_two_instants_of_a_repeated_hour_are_two_ids(spark: SparkSession) -> None:
    events = rows_of(spark, f"({WINTER}, 'k')").withColumn("kind", F.lit("cancel"))
    with settings(spark, ZONE):
        operations = rows_of(spark, f"({SUMMER}, 'k')", f"({WINTER}, 'k')", f"({WINTER}, 'k')")
        made = replace(PURGATORY, completions=replace(PURGATORY.completions, operation_id="id", kind="kind"))
        assert [status for _, status, _ in decided(made.resolve(operations, events))] == [
            "CANCELLED",
            "DUPLICATE",
            "EXPIRED",
        ]


def test_no_scope_is_another_one_than_every_text(spark: SparkSession) -> None:
    rows = rows_of(spark, "('none', 'k')", "('null', 'k')", "('empty', 'k')")
    rows = rows.withColumn("place", F.expr("case id when 'none' then null when 'null' then 'null' else '' end"))
    for name in ("none", "null", "empty"):
        outcomes = replace(PURGATORY, scope="place").resolve(rows, rows.where(f"id = '{name}'"))
        assert [id for id, status, _ in decided(outcomes) if status == "COMPLETED"] == [name]


def test_levels_at_instants_of_a_repeated_hour_are_two_levels(spark: SparkSession) -> None:
    made = replace(
        PURGATORY,
        completions=replace(PURGATORY.completions, value="value"),
        criterion=criteria.by_row(levels="levels"),
    )
    with settings(spark, ZONE):
        operations = rows_of(spark, f"('s', {SUMMER})", f"('w', {WINTER})").selectExpr(
            "*", "'level' as rule", f"map({SUMMER}, 1.0D, {WINTER}, 2.0D) as levels"
        )
        events = rows_of(spark, f"('x', {SUMMER})", f"('y', {WINTER})").withColumn("value", F.lit(1.0))
        assert decided(made.resolve(operations, events)) == [
            ("s", "COMPLETED", []),
            ("w", "EXPIRED", ["2026-10-25 01:30:00Z"]),
        ]


TEXTS = {
    "timestamp": {
        "timestamp_micros(0L)": "1970-01-01 00:00:00Z",
        "timestamp_micros(-1L)": "1969-12-31 23:59:59.999999Z",
        "timestamp_micros(1792888200500000L)": "2026-10-25 00:30:00.5Z",
        "timestamp_micros(1792888200500001L)": "2026-10-25 00:30:00.500001Z",
        "timestamp_micros(253402300800000000L)": "+10000-01-01 00:00:00Z",
        "timestamp_micros(-62135596800000001L)": "0000-12-31 23:59:59.999999Z",
        "timestamp_micros(-62198755200000000L)": "-0001-01-01 00:00:00Z",
        "timestamp_micros(9223372036854775807L)": "+294247-01-10 04:00:54.775807Z",
        "timestamp_micros(-9223372036854775807L - 1L)": "-290308-12-21 19:59:05.224192Z",
    },
    "timestamp_ntz": {
        "timestamp_ntz'2026-10-25 02:30:00.5'": "2026-10-25 02:30:00.5",
        "timestamp_ntz'1582-10-10 00:00:00'": "1582-10-10 00:00:00",
        "timestamp_ntz'+294247-01-10 04:00:54.775807'": "+294247-01-10 04:00:54.775807",
    },
    "date": {
        "date'1582-10-10'": "1582-10-10",
        "date'2026-10-25'": "2026-10-25",
        "date'0001-01-01'": "0001-01-01",
        "date_from_unix_date(-719529)": "-0001-12-31",
        "date_from_unix_date(2932897)": "+10000-01-01",
        "date_from_unix_date(106751990)": "+294247-01-09",
        "date_from_unix_date(106751991)": "+294247-01-10",
        "date_from_unix_date(-106751991)": "-290308-12-22",
        "date_from_unix_date(2147483647)": "+5881580-07-11",
        "date_from_unix_date(-2147483647 - 1)": "-5877641-06-23",
    },
    "decimal(38,18)": {
        "1.5BD": "1.500000000000000000",
        "0.000000000000000001BD": "0.000000000000000001",
        "-0.0000001BD": "-0.000000100000000000",
        "0BD": "0.000000000000000000",
    },
    "bigint": {"-9223372036854775807L - 1L": "-9223372036854775808"},
    "boolean": {"true": "true", "false": "false"},
}
SETTINGS = [
    {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi, "spark.sql.legacy.timeParserPolicy": policy}
    for zone, ansi, policy in product(("UTC", "Asia/Kolkata"), ("true", "false"), ("CORRECTED", "LEGACY"))
]


def test_a_value_has_one_text_whatever_the_session_is_set_to(spark: SparkSession) -> None:
    values = [(f"cast({value} as {kind})", text) for kind in TEXTS for value, text in TEXTS[kind].items()]
    for each in SETTINGS:
        with settings(spark, each):
            frame = spark.sql(f"select {', '.join(f'{value} as v{at}' for at, (value, _) in enumerate(values))}")
            texts = [key_text(F.col(field.name), field.dataType).alias(field.name) for field in frame.schema]
            assert [*frame.select(*texts).first()] == [text for _, text in values], each  # type: ignore[misc]


INCOMPARABLE: list[tuple[dict[str, tuple[str, str]], str]] = [
    ({"key": ("int", "double")}, r"completions\.key is double, which cannot be a key: .* 0\.0 equals -0\.0"),
    (
        {"key": ("int", "string")},
        r"keys is int and completions\.key is string: .*; cast operations\.keys to string",
    ),
    ({"key": ("date", "timestamp")}, r"cast operations\.keys to timestamp"),
    ({"key": ("timestamp", "timestamp_ntz")}, r"cast completions\.key to timestamp"),
    ({"key": ("decimal(10,2)", "decimal(10,1)")}, r"cast completions\.key to decimal\(10,2\)"),
    ({"key": ("int", "date")}, r"give operations\.keys and completions\.key columns of one type"),
    ({"key": ("array<double>", "string")}, r"operations\.keys \(its elements\) is double"),
    ({"key": ("array<timestamp>", "string")}, r"keys is timestamp .* cast completions\.key to timestamp"),
    (
        {"key": ("struct<a:int>", "string"), "levels": ("map<string,double>", "")},
        r"operations\.keys is struct<a:int>, which cannot be a key: .* a field",
    ),
    (
        {"id": ("int", "string")},
        r"operations\.id is int and completions\.operation_id is string: .* cast operations",
    ),
    ({"id": ("string", "double")}, r"completions\.operation_id is double, which cannot be a key"),
    ({"part": ("int", "double")}, r"scope \(completions\) is double, which cannot be a key"),
    ({"part": ("double", "double")}, r"scope \(operations\) is double, which cannot be a key"),
    (
        {"part": ("date", "timestamp")},
        r"scope \(operations\) is date and scope \(comp.* is timestamp",
    ),
    ({"part": ("decimal(10,2)", "decimal(10,3)")}, r"cast scope \(operations\) to decimal\(10,3\)"),
    ({"part": ("array<int>", "array<int>")}, r"scope \(operations\) is array<int>, which cannot be a key"),
    (
        {"levels": ("map<int,double>", "")},
        r"keys is string and criterion\.levels \(its keys\) is int: .*; cast crit",
    ),
    ({"levels": ("map<double,double>", "")}, r"criterion\.levels \(its keys\) is double, which cannot be a key"),
    ({"levels": ("double", "")}, r"criterion\.levels='levels' is double, not a map from key to level"),
    ({"rule": ("int", "")}, r"criterion\.rule is int, not a string: it must hold one of any_key"),
    ({"kind": ("", "int")}, r"completions\.kind is int, not a string: it must hold one of complete, fail"),
    *[
        (
            {name: (f"{before}string collate UTF8_LCASE{after}",) * 2},
            rf"{field} is string collate UTF8_LCASE: {why}",
        )
        for name, before, after, field, why in [
            ("key", "", "", r"operations\.keys", ".*UTF8_BINARY"),
            ("key", "array<", ">", r"operations\.keys \(its elements\)", ".*UTF8_BINARY"),
            ("id", "", "", r"operations\.id", ".*UTF8_BINARY"),
            ("part", "", "", r"scope \(operations\)", ".*UTF8_BINARY"),
            ("levels", "map<", ",double>", r"criterion\.levels \(its keys\)", ".*UTF8_BINARY"),
            ("event_id", "", "", r"completions\.event_id", ".*UTF8_BINARY"),
            ("rule", "", "", r"criterion\.rule", ".* lower"),
            ("kind", "", "", r"completions\.kind", ".* lower"),
        ]
    ],
]


def test_types_that_cannot_be_compared_are_refused_with_both_fields_and_the_cast(spark: SparkSession) -> None:
    for types, said in INCOMPARABLE:
        with pytest.raises(ConfigError, match=said):
            resolved(spark, types)


@pytest.mark.long
def test_types_whose_equal_values_have_one_text_are_compared(spark: SparkSession) -> None:
    for types in (
        {"key": ("tinyint", "bigint"), "id": ("bigint", "smallint"), "part": ("int", "bigint")},
        {"key": ("decimal(10,2)", "decimal(20,2)"), "id": ("date", "date"), "part": ("boolean", "boolean")},
        {"key": ("array<bigint>", "int"), "levels": ("map<int,double>", "")},
        {"key": ("timestamp_ntz", "timestamp_ntz"), "id": ("binary", "binary"), "part": ("timestamp", "timestamp")},
    ):
        assert resolved(spark, types).count() == 1, types


def resolved(spark: SparkSession, types: dict[str, tuple[str, str]]) -> DataFrame:
    """Everything that has a type, string but for those given on (operations, completions)."""
    key = types.get("key", ("string",))[0].removeprefix("array<").removesuffix(">")
    chosen = {"id": ("string",) * 2, "key": ("string",) * 2, "part": ("string",) * 2, "rule": ("string", "")}
    chosen |= {"levels": (f"map<{key},double>", ""), "kind": ("", "string"), "event_id": ("", "string"), **types}
    sides = []
    for side in (0, 1):
        columns = [f"cast(null as {kinds[side]}) as {name}" for name, kinds in chosen.items() if kinds[side]]
        sides.append(spark.range(1).selectExpr(*columns, "timestamp'2026-01-01' as created", "1D as value"))
    return purgatory(
        operations=operations_with(timeout="1 hour"),
        completions=completions_with(
            time="created", value="value", kind="kind", operation_id="id", event_id="event_id"
        ),
        criterion=criteria.by_row(levels="levels"),
        scope="part",
    ).resolve(*sides)


CREATED = "timestamp_ntz'2024-05-01 12:00:00'"
"""No instant, so that the exchange has it as a column of the engine's, too."""
LATER = "timestamp'2999-01-01 00:00:00'"


def fates_of(
    spark: SparkSession, operations: str, events: str, waits: dict[str, Any], completes: dict[str, Any], **more: Any
) -> list[tuple[str, int, list[str] | None]]:
    purgatory = Purgatory(
        operations=Operations(**{"id": "order", "keys": "wanted", "created": "begun", "timeout": "1 hour", **waits}),
        completions=Completions(**{"key": "wanted", "time": "came", **completes}),
        **{"criterion": criteria.all_keys(), "shards": 2, **more},
    )
    outcomes = purgatory.resolve(spark.sql(f"select {operations}"), spark.sql(f"select {events}"))
    return [(row.status, row.matched, row.missing_keys) for row in outcomes.collect()]


@pytest.mark.long
def test_a_scope_may_have_every_name(spark: SparkSession) -> None:
    for scope, keys in (("tenant", ["one", "two"]), ("id", "wanted"), ("id_hash", "wanted"), ("keys", ["one", "two"])):
        operations = f"'o' as order, 't' as {scope}, array('a') as wanted, 'a' as one, 'a' as two, {CREATED} as begun"
        events = f"'a' as wanted, 't' as {scope}, {CREATED} as came"
        assert fates_of(spark, operations, events, {"keys": keys}, {}, scope=scope) == [("COMPLETED", 1, [])], scope


@pytest.mark.long
@pytest.mark.parametrize("by_key", [False, True])
def test_a_need_and_levels_may_have_every_name(spark: SparkSession, by_key: bool) -> None:
    for need, kind in (
        ("need", "double"),
        ("id", "decimal(9,2)"),
        ("key_hashes", "double"),
        ("levels", "decimal(9,2)"),
    ):
        level, number = f"map('a', cast(5 as {kind}))", f"cast(5 as {kind})"
        columns = {"other": number, need: level} if by_key else {need: number, "other": f"if(false, {level}, null)"}
        named = {"need": "other", "levels": need} if by_key else {"need": need, "levels": "other"}
        operations = f"'o' as order, array('a', 'a') as wanted, 'level' as what, {CREATED} as begun, "
        operations += ", ".join(f"{value} as {name}" for name, value in columns.items())
        for value, status in ((5, "COMPLETED"), (4, "EXPIRED")):
            events = f"'a' as wanted, {CREATED} as came, cast({value} as {kind}) as v"
            criterion = criteria.by_row(rule="what", **named)
            [(told, _, _)] = fates_of(spark, operations, events, {}, {"value": "v"}, criterion=criterion)
            assert told == status, (need, kind)


@pytest.mark.long
def test_a_time_may_have_every_name(spark: SparkSession) -> None:
    """Beside times far ahead, under the names of other columns in the exchange."""
    for name in ("created_us", "id", "p0", "guarded"):
        ahead = ", ".join(f"{LATER} as {each}" for each in ("p0", "p1", "p2", "p3") if each != name)
        operations = f"{CREATED} as {name}, {ahead}, 'o' as order, array('a') as wanted"
        events = f"{ahead}, 'a' as wanted, {CREATED} as time_us"
        found = fates_of(spark, operations, events, {"created": name}, {"time": "time_us"})
        assert found == [("COMPLETED", 1, [])], name
