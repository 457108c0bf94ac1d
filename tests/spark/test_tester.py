"""`PurgatoryTester` beside Spark: the same rows, the same configuration, the same outcomes and refusals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.errors import ConfigError
from spark_purgatory.testing import PurgatoryTester
from tests.support.now_and_then import now_and_then

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
@pytest.mark.parametrize("keys", ["array", *now_and_then("one", "partition")])
def test_keys_of_every_type_have_the_texts_that_spark_gives_them(spark: SparkSession, kind: str, keys: str) -> None:
    ddl, values = KEYS[kind]
    purgatory = Purgatory(
        operations=Operations(
            id="id", keys="keys" if keys == "array" else "id", created="created", timeout="wait", watermark="0 seconds"
        ),
        completions=Completions(
            key="key", time="time", operation_id="named", event_id="event", kind="kind", watermark="0 seconds"
        ),
        criterion=criteria.quorum(1) if keys == "one" else criteria.all_keys(),
        emit="final",
        scope="region" if keys == "partition" else None,
        shards=3,
    )
    regions = ["north", None]
    operations = [
        {"id": v, "keys": [v, values[0], v, None][: 3 + (i == 3)], "created": NOON, "wait": (i + 1) * MINUTE,
         "region": regions[i % 2]}
        for i, v in enumerate(values)
    ]  # fmt: skip
    operations += [{"id": None, "keys": None, "created": NOON, "wait": MINUTE}, {"id": values[1], "created": NOON}]
    completions = [
        {
            "key": v,
            "time": NOON + (2 - i) * MINUTE,
            "region": regions[i % 2],
            "named": v if i == 1 else None,
            "event": v,
        }
        for i, v in enumerate(values[:3])
    ]
    completions += [{"key": values[-1], "time": NOON + MINUTE, "kind": "fail"}, {"key": None, "time": NOON}]
    wait = "interval day to second"
    compare(
        spark,
        purgatory,
        (struct(id=ddl, keys=f"array<{ddl}>", created="timestamp", wait=wait, region="string"), operations),
        (struct(key=ddl, time="timestamp", region="string", named=ddl, event=ddl, kind="string"), completions),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("value", ["double", "float", "int", "bigint", "decimal(10,2)"])
@pytest.mark.parametrize("need", ["decimal(12,4)", *now_and_then("double", "int")])
def test_numbers_of_every_type_are_compared_as_spark_compares_them(spark: SparkSession, value: str, need: str) -> None:
    def number(ddl: str, text: str) -> Any:
        exact = Decimal(text)
        if ddl.startswith("decimal"):
            return exact
        return float(exact) if ddl in ("double", "float") else int(exact)

    purgatory = Purgatory(
        operations=Operations(
            id="id",
            keys=["left", "right"],
            created="created",
            timeout="wait_ms",
            timeout_unit="milliseconds",
            watermark="0 seconds",
        ),
        completions=Completions(key="key", time="time", value="value", watermark="0 seconds"),
        criterion=criteria.by_row("rule", "need"),
        prefix="o_",
    )
    operations = [
        {"id": f"{rule}-{text}-{i}", "left": "a", "right": "b", "created": NOON, "wait_ms": 60_000 * (i + 1),
         "rule": rule, "need": None if text is None else number(need, text)}
        for rule in ("sum_at_least", "level", "count", "quorum", "most")
        for text in ("0.3", "2.5", "0", "-1", None)
        for i in range(3)
    ]  # fmt: skip
    completions = [
        {"key": key, "time": NOON + minute * MINUTE, "value": None if text is None else number(value, text)}
        for key, minute, text in (("a", 1, "0.1"), ("b", 2, "0.2"), ("a", 3, "2.5"), ("b", 3, None), ("a", 4, "-1"))
    ]
    table = compare(
        spark,
        purgatory,
        (
            struct(id="string", left="string", right="string", created="timestamp", wait_ms="int", rule="string",
                   need=need),
            operations,
        ),
        (struct(key="string", time="timestamp", value=value), completions),
    )  # fmt: skip
    assert set(table["o_status"].to_pylist()) == {"COMPLETED", "EXPIRED", "REJECTED"}


def test_what_the_product_refuses_the_tester_refuses_in_the_same_words(spark: SparkSession) -> None:
    base: dict[str, Any] = {
        "operations": Operations(id="id", keys="key", created="created", timeout="1 hour", watermark="0 seconds"),
        "completions": Completions(key="key", time="time", watermark="0 seconds"),
        "criterion": criteria.any_key(),
    }
    operations = struct(id="string", key="string", created="timestamp", keys="array<string>", at="double", many="int")
    completions = struct(key="string", time="timestamp", number="bigint", text="string")
    cases: list[dict[str, Any]] = [
        {"operations": Operations(id="at", keys="key", created="created", timeout="1 hour", watermark="0 seconds")},
        {
            "operations": Operations(
                id="id", keys=["key", "many"], created="created", timeout="1 hour", watermark="0 seconds"
            )
        },
        {"operations": Operations(id="id", keys="nothing", created="created", timeout="1 hour", watermark="0 seconds")},
        {
            "operations": Operations(
                id="id", keys="key", created="created", timeout="at", timeout_unit="days", watermark="0 seconds"
            )
        },
        {"operations": Operations(id="id", keys="key", created="created", timeout="many", watermark="0 seconds")},
        {
            "operations": Operations(id="id", keys="keys", created="created", timeout="1 hour", watermark="0 seconds"),
            "orphans": "control",
        },
        {"completions": Completions(key="number", time="time", watermark="0 seconds")},
        {"completions": Completions(key="key", time="time", value="text", kind="text", watermark="0 seconds")},
        {"completions": Completions(key="key", time="time", kind="number", watermark="0 seconds")},
        {"completions": Completions(key="key", time="time", operation_id="number", watermark="0 seconds")},
        {"criterion": criteria.quorum(2)},
        {"criterion": criteria.by_row("many", "many")},
        {
            "scope": "key",
            "operations": Operations(id="many", keys="at", created="created", timeout="1 hour", watermark="0 seconds"),
        },
    ]
    for case in cases:
        purgatory = Purgatory(**base | case)
        said = []
        for make in (
            lambda made: made.resolve(spark.createDataFrame([], operations), spark.createDataFrame([], completions)),
            lambda made: PurgatoryTester(made, operations, completions),
        ):
            with pytest.raises(ConfigError) as refusal:
                make(purgatory)
            said.append(str(refusal.value))
        assert said[0] == said[1]
