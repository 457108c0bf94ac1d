"""Every Spark type as an operation's column: it comes out as it went in, or its column is refused by name at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.stream_rows import completions_with, operations_with, purgatory
from tests.support.streams import Landing

SWITCHES = {"spark.sql.timeType.enabled": "true", "spark.sql.geospatial.enabled": "true"}
"""Without them Spark refuses the types themselves."""
POINT = "X'0101000000000000000000F03F0000000000000040'"
TYPES = {
    "void": "null",
    "voids": "array(null)",
    "no_voids": "array()",
    "byte": "-128Y",
    "short": "32767S",
    "int": "-2147483648",
    "long": "9223372036854775807",
    "float": "float('-infinity')",
    "double": "double('nan')",
    "decimal": "cast('-0.99999999999999999999999999999999999999' as decimal(38,38))",
    "whole": "cast('99999999999999999999999999999999999999' as decimal(38,0))",
    "boolean": "true",
    "text": "'zażółć 😀'",
    "char": "cast('ab' as char(5))",
    "varchar": "cast('ab' as varchar(5))",
    "collated": "'Ab' collate UTF8_LCASE",
    "binary": "X'00ff80'",
    "date": "date'0001-01-01'",
    "julian": "date'1582-10-04'",
    "timestamp": "timestamp'1582-10-04 00:00:00'",
    "far": "timestamp'9999-12-31 23:59:59.999999'",
    "ntz": "timestamp_ntz'0001-01-01 00:00:00.000001'",
    "time": "time'12:34:56.123456'",
    "seconds": "cast(time'12:34:56' as time(0))",
    "span": "interval '-3 04:05:06.789' day to second",
    "days": "interval '3' day",
    "variant": """parse_json('{"a": [1, null, "x"]}')""",
    "geometry": f"st_geomfromwkb({POINT})",
    "geography": f"st_geogfromwkb({POINT})",
    "empty": "named_struct()",
    "by_struct": "map(named_struct('a', 1, 'b', 'x'), 'y')",
    "maps": "map('a', map(1, array(timestamp'2024-05-01 12:00:00', null)))",
    "alike": "named_struct('x', 1, 'X', 2)",
}
"""Each of a type of its own, with a value at an end of its range."""
REFUSED = {
    "interval '3-4' year to month": ("", "is interval year to month, .*: cast it to string, or send its months"),
    "interval '4' month": ("", "is interval month, .*: cast it to string, or send its months"),
    "make_interval(1, 2, 3, 4, 5, 6, 7.5)": ("", "is interval, .*: cast it to string"),
    "map()": ("", "is map<void,void>, whose keys have no type: cast it, for example to map<string,string>"),
    "array(interval '3' year)": (".element", "is interval year, .*: cast it to string, or send its months"),
    "named_struct('x', make_interval(1))": (".x", "is interval, .*: cast it to string"),
    "map('x', array(interval '3' year))": (".value.element", "is interval year, .*: cast it to string"),
    "array(map())": (".element", "is map<void,void>, whose keys have no type"),
}


def columns() -> Iterator[str]:
    """Each type by itself, where it may be null, and in an array, a map and a struct."""
    for name, value in TYPES.items():
        yield f"{value} as {name}"
        yield f"if(id = 'null', null, {value}) as {name}_or_null"
        yield f"array({value}, null) as {name}_array"
        yield f"map('k', {value}, 'null', null) as {name}_map"
        yield f"named_struct('x', {value}, 'id', id) as {name}_struct"


PURGATORY = purgatory(completions=completions_with(), shards=2)


def at(minute: int) -> datetime:
    return datetime(2024, 5, 1, 12, minute, tzinfo=UTC)


def told(frame: DataFrame, names: list[str]) -> list[str]:
    """Rows as text."""
    return sorted(str(row) for row in frame.select(*names).collect())


def test_every_type_comes_out_as_it_went_in_by_batch_by_stream_and_from_a_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    waits = [{"id": name, "keys": [name], "created": at(0), "deadline": at(9)} for name in ("a", "null", "paid")]
    landing = Landing(tmp_path).add(waits, [{"key": "paid", "time": at(1)}])
    came: list[str] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        came.extend(told(batch, names))

    def stream() -> None:
        operations, events = landing.frames(spark)
        outcomes = PURGATORY.resolve(operations.selectExpr(*shown), events)
        options = {"checkpointLocation": str(landing.checkpoint)}
        outcomes.writeStream.foreachBatch(keep).options(**options).trigger(availableNow=True).start().awaitTermination()

    with settings(spark, SWITCHES):
        shown = ["id", "key", "created", "deadline", *columns()]
        operations, events = landing.frames(spark, streaming=False)
        given = operations.selectExpr(*shown)
        names = given.columns
        outcomes = PURGATORY.resolve(given, events)
        kinds = {name: outcomes.schema[name].dataType.simpleString() for name in names}
        assert kinds == {field.name: field.dataType.simpleString() for field in given.schema}
        expected = told(given, names)
        assert told(outcomes, names) == expected
        stream()
        assert len(came) == 1, "the others wait in the checkpoint"
        landing.add(
            [{**waits[0], "id": "clock", "created": at(20), "deadline": at(59)}], [{"key": "z", "time": at(20)}]
        )
        stream()
    assert sorted(came) == expected


def test_a_type_that_cannot_travel_is_refused_with_its_column_and_a_cast(spark: SparkSession, tmp_path: Path) -> None:
    operations, events = Landing(tmp_path).add([], []).frames(spark)
    for value, (place, said) in REFUSED.items():
        with pytest.raises(ConfigError, match=f"^operations: column 'odd{place}' {said}"):
            PURGATORY.resolve(operations.withColumn("odd", F.expr(value)), events)


def test_padded_and_bounded_texts_are_refused_where_the_session_keeps_their_types(spark: SparkSession) -> None:
    with settings(spark, {"spark.sql.preserveCharVarcharTypeInfo": "true"}):
        for kind in ("char(5)", "varchar(5)"):
            rows = spark.sql(f"select 'a' as id, 'a' as key, array(cast('ab' as {kind})) as odd")
            rows = rows.withColumns({name: F.current_timestamp() for name in ("created", "deadline", "time")})
            assert "char" in rows.schema["odd"].dataType.simpleString(), "the session keeps them"
            said = rf"^operations: column 'odd.element' is {re.escape(kind)}, .*: cast it to string"
            with pytest.raises(ConfigError, match=said):
                PURGATORY.resolve(rows.drop("time"), rows.select("key", "time"))


def test_a_user_defined_type_comes_out_as_it_went_in(spark: SparkSession) -> None:
    schema = T.StructType([T.StructField("id", T.StringType()), T.StructField("vector", VectorUDT())])
    vectors = spark.createDataFrame([("a", Vectors.dense([1.0, 2.0])), ("b", None)], schema)
    times = {name: F.current_timestamp() for name in ("created", "deadline")}
    operations = vectors.withColumns({"key": F.col("id"), "vectors": F.array("vector"), **times})
    names = ["id", "vector", "vectors"]
    events = operations.select("key", F.col("created").alias("time"))
    assert told(PURGATORY.resolve(operations, events), names) == told(operations, names)


NOON = datetime(2026, 6, 1, 12)


def with_columns(rows: DataFrame, count: int) -> DataFrame:
    """Text, number and array, in turn."""
    kinds = [
        lambda i: F.concat("id", F.lit(f"-{i}")).alias(f"text_{i}"),
        lambda i: (F.lit(i) + 0.5).alias(f"number_{i}"),
        lambda i: F.array("id", F.lit(str(i))).alias(f"array_{i}"),
    ]
    return rows.select("*", *(kinds[i % 3](i) for i in range(count)))


@pytest.mark.long
@pytest.mark.parametrize("count", [500, 2_000])
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
    quiet = {"watermark": "1 minute", "idle_after": "9999 days"}
    asked = purgatory(
        operations=operations_with(keys="id", created="at", timeout="5 minutes", **quiet),
        completions=completions_with(time="at", **quiet),
    )
    sink = RecordAccumulator(path=str(tmp_path / "table"))
    query = sink.write_stream(
        asked.resolve(orders, events), checkpoint=str(tmp_path / "checkpoint"), trigger={"availableNow": True}
    )
    query.awaitTermination()
    table = sink.read(spark).orderBy("id")
    assert [(row["id"], row["status"]) for row in table.select("id", "status").collect()] == [
        ("a", "COMPLETED"),
        ("b", "EXPIRED"),
        ("last", "COMPLETED"),
    ]
    assert table.select(made.columns).collect() == made.orderBy("id").collect()
