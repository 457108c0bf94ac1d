"""Columns of the inputs may have every name, also those by which the engine calls its own."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, criteria

pytestmark = pytest.mark.long

CREATED = "timestamp_ntz'2024-05-01 12:00:00'"
"""No instant, so that the exchange has it as a column of the engine's, too."""
LATER = "timestamp'2999-01-01 00:00:00'"


def decided(
    spark: SparkSession, operations: str, events: str, waits: dict[str, Any], completes: dict[str, Any], **more: Any
) -> list[tuple[str, int, list[str] | None]]:
    purgatory = Purgatory(
        operations=Operations(**{"id": "order", "keys": "wanted", "created": "begun", "timeout": "1 hour", **waits}),
        completions=Completions(**{"key": "wanted", "time": "came", **completes}),
        **{"criterion": criteria.all_keys(), "shards": 2, **more},
    )
    outcomes = purgatory.resolve(spark.sql(f"select {operations}"), spark.sql(f"select {events}"))
    return [(row.status, row.matched, row.missing_keys) for row in outcomes.collect()]


def test_a_scope_may_have_every_name(spark: SparkSession) -> None:
    for scope, keys in (("tenant", ["one", "two"]), ("id", "wanted"), ("id_hash", "wanted"), ("keys", ["one", "two"])):
        operations = f"'o' as order, 't' as {scope}, array('a') as wanted, 'a' as one, 'a' as two, {CREATED} as begun"
        events = f"'a' as wanted, 't' as {scope}, {CREATED} as came"
        assert decided(spark, operations, events, {"keys": keys}, {}, scope=scope) == [("COMPLETED", 1, [])], scope


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
            [(told, _, _)] = decided(spark, operations, events, {}, {"value": "v"}, criterion=criterion)
            assert told == status, (need, kind)


def test_a_time_may_have_every_name(spark: SparkSession) -> None:
    """Beside times far ahead, under the names of other columns in the exchange."""
    for name in ("created_us", "id", "p0", "guarded"):
        ahead = ", ".join(f"{LATER} as {each}" for each in ("p0", "p1", "p2", "p3") if each != name)
        operations = f"{CREATED} as {name}, {ahead}, 'o' as order, array('a') as wanted"
        events = f"{ahead}, 'a' as wanted, {CREATED} as time_us"
        found = decided(spark, operations, events, {"created": name}, {"time": "time_us"})
        assert found == [("COMPLETED", 1, [])], name
