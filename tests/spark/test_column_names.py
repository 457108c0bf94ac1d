"""Columns of the inputs may have every name, also those by which the engine calls its own."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, criteria
from tests.support.now_and_then import now_and_then

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


@pytest.mark.parametrize("scope", ["tenant", "id", "id_hash", "keys"])
@pytest.mark.parametrize("keys", ["wanted", *now_and_then(["one", "two"])])
def test_a_scope_may_have_every_name(spark: SparkSession, scope: str, keys: str | list[str]) -> None:
    operations = f"'o' as order, 't' as {scope}, array('a') as wanted, 'a' as one, 'a' as two, {CREATED} as begun"
    events = f"'a' as wanted, 't' as {scope}, {CREATED} as came"
    assert decided(spark, operations, events, {"keys": keys}, {}, scope=scope) == [("COMPLETED", 1, [])]


@pytest.mark.parametrize("kind", ["decimal(9,2)", *now_and_then("double")])
@pytest.mark.parametrize(
    "need", ["need", "id", *now_and_then("id_hash", "keys", "key_hashes", "created_us", "deadline_us"), "levels"]
)
@pytest.mark.parametrize("by_key", [False, *now_and_then(True)])
def test_a_need_and_levels_may_have_every_name(spark: SparkSession, kind: str, need: str, by_key: bool) -> None:
    levels = f"map('a', cast(5 as {kind}))" if by_key else f"cast(null as map<string, {kind}>)"
    named = {"need": "other", "levels": need} if by_key else {"need": need, "levels": "other"}
    columns = {"other": f"cast(5 as {kind})", need: levels} if by_key else {need: f"cast(5 as {kind})", "other": levels}
    operations = f"'o' as order, array('a', 'a') as wanted, 'level' as what, {CREATED} as begun, "
    operations += ", ".join(f"{value} as {name}" for name, value in columns.items())
    for value, status in ((5, "COMPLETED"), (4, "EXPIRED")):
        events = f"'a' as wanted, {CREATED} as came, cast({value} as {kind}) as v"
        criterion = criteria.by_row(rule="what", **named)
        [(told, _, _)] = decided(spark, operations, events, {}, {"value": "v"}, criterion=criterion)
        assert told == status


@pytest.mark.parametrize(
    "name", ["created_us", "id", "p0", "guarded", *now_and_then("deadline_us", "key_hashes", "p1", "p2")]
)
def test_a_time_may_have_every_name(spark: SparkSession, name: str) -> None:
    """Beside times far ahead, under the names of other columns in the exchange."""
    others = [each for each in ("p0", "p1", "p2", "p3") if each != name]
    ahead = ", ".join(f"{LATER} as {each}" for each in others)
    operations = f"{CREATED} as {name}, {ahead}, 'o' as order, array('a') as wanted"
    events = f"{ahead}, 'a' as wanted, {CREATED} as {name}"
    for time in (name, "time_us"):
        found = decided(
            spark, operations, events.replace(f" as {name}", f" as {time}"), {"created": name}, {"time": time}
        )
        assert found == [("COMPLETED", 1, [])]
