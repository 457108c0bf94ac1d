"""`PurgatoryTester`: the oracle's outcomes for random worlds, and clear refusals of what only Spark can do."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.criteria import ByRow, Criterion
from spark_purgatory.errors import ConfigError, LimitError, StateMismatchError
from spark_purgatory.testing import PurgatoryTester
from tests.support.engine_driver import EPOCH, multiset
from tests.support.law_worlds import COLUMNS, draw, split_orphans
from tests.support.now_and_then import each_commit
from tests.support.oracle import KINDS, decide
from tests.support.worlds import STEP_US, splits

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMESTAMP = pa.timestamp("us", "UTC")
VALUES = {
    "double": pa.float64(),
    "tenths": pa.float64(),
    "bigint": pa.int64(),
    "decimal": pa.decimal128(18, 2),
}


def orders_and_payments(**others: Any) -> Purgatory:
    given: dict[str, Any] = {
        "operations": Operations(id="order_id", keys="order_id", created="ordered_at", timeout="30 minutes"),
        "completions": Completions(key="order_id", time="paid_at"),
        "criterion": criteria.any_key(),
    }
    return Purgatory(**given | others)


def order(order_id: Any, minute: int = 0, **others: Any) -> dict[str, Any]:
    return {"order_id": order_id, "ordered_at": NOON + minute * MINUTE, **others}


def payment(order_id: Any, minute: int, **others: Any) -> dict[str, Any]:
    return {"order_id": order_id, "paid_at": NOON + minute * MINUTE, **others}


def schemas(numbers: str) -> tuple[pa.Schema, pa.Schema]:
    value = VALUES[numbers]
    operations = [("id", pa.string()), ("key", pa.string()), ("keys", pa.list_(pa.string())), ("row", pa.string())]
    operations += [("created", TIMESTAMP), ("deadline", TIMESTAMP), ("rule", pa.string()), ("need", value)]
    events = [(name, pa.string()) for name in ("key", "kind", "event_id", "operation_id")]
    return pa.schema(operations), pa.schema([*events, ("time", TIMESTAMP), ("value", value)])


def as_rows(rows: list[dict[str, Any]], side: str) -> list[dict[str, Any]]:
    """Rows of a world as a test of a user's would give them."""
    given = []
    for row in rows:
        timed = {name: None if row.get(name) is None else EPOCH + timedelta(microseconds=row[name]) for name in
                 (("created", "deadline") if side == "operations" else ("time",))}  # fmt: skip
        extra: dict[str, Any] = {}
        if side == "operations":
            level, keys = row.get("level"), row["keys"]
            extra = {"key": keys[0] if keys else None}
            if row["rule"] == "level" and level is not None:
                extra["need"] = level
        kept = {name: value for name, value in row.items() if name != "level"}
        given.append({**kept, **timed, **extra})
    return given


@pytest.mark.parametrize("seed", each_commit(range(120), lambda seed: seed < 50))
def test_random_worlds_step_by_step_have_the_outcomes_of_the_oracle(seed: int) -> None:
    rule = [*RULES, "mixed"][seed % (len(RULES) + 1)]
    several = seed // 7 % 2 == 1
    numbers = list(VALUES)[seed // 14 % 4]
    kinds = KINDS if seed % 3 else ("complete",)
    # A datetime has no time after the year 9999.
    rng, world, criterion = draw(seed, rule, several, kinds=kinds, numbers=numbers, extremes=False)
    if rule in ("quorum", "count"):
        # A number that the one key cannot reach is refused.
        criterion["need"] = 1 if rule == "quorum" and not several else max(int(criterion["need"]), 1)
    for row in world.operations if criterion else []:
        row.update(need=None, rule=None)  # the query's criterion is theirs
    for row in world.operations:
        if isinstance(row.get("level"), dict):
            row["level"] = max(filter(None, row["level"].values()), default=None)  # the tester refuses maps
    lookback_us = rng.choice((0, 2 * STEP_US))
    purgatory = Purgatory(
        operations=Operations(id="id", keys="keys" if several else "key", created="created", deadline="deadline"),
        completions=Completions(
            key="key", time="time", value="value", kind="kind", event_id="event_id", operation_id="operation_id"
        ),
        criterion=Criterion(rule, criterion["need"]) if criterion else ByRow("rule", "need"),
        emit="final",
        lookback=timedelta(microseconds=lookback_us),
        orphans="control",
        shards=1,
    )
    tester = PurgatoryTester(purgatory, *schemas(numbers))
    for batch in splits(rng, *world, rng.choice((1, 3, 9)), lookback_us=lookback_us):
        watermark = EPOCH + timedelta(milliseconds=batch.watermark_ms) if batch.watermark_ms else None
        given = tester.step(as_rows(batch.operations, "operations"), as_rows(batch.events, "completions"), watermark)
        if seed % 2:
            assert Counter(map(repr, tester.replay(seed))) == Counter(map(repr, given))
            tester.restart()
    outcomes, unheard = split_orphans(tester.outcomes)
    for row in world.operations if criterion else []:
        row.update(criterion)
    expected, expected_orphans = split_orphans(
        decide(
            *world,
            lookback_us=lookback_us,
            orphans="control",
            doubles=numbers in ("double", "tenths"),
            whole_operations=several,
        )
    )
    assert multiset(outcomes, *COLUMNS) == multiset(expected, *COLUMNS)
    assert unheard == expected_orphans
    assert tester.pending == []
    assert tester.counters["received"] == len(world.operations)
    assert tester.counters["events_received"] == len(world.events)


def test_the_watermark_moves_only_when_it_is_moved_and_never_back() -> None:
    tester = PurgatoryTester(orders_and_payments())
    tester.step([order(7), order(8, 500)])
    assert tester.watermark is None and tester.advance(NOON + timedelta(minutes=29, seconds=59)) == []
    assert [row["status"] for row in tester.advance(timedelta(seconds=1))] == ["EXPIRED"]
    assert tester.watermark == NOON + 30 * MINUTE
    (late,) = tester.step([order(9)])
    assert (late["status"], late["late"]) == ("EXPIRED", True)
    with pytest.raises(ConfigError, match=r"12:30:00.*, and a watermark never goes back: give a later one"):
        tester.advance(NOON)
    with pytest.raises(ConfigError, match="datetime with a time zone"):
        tester.advance(NOON.replace(tzinfo=None))
    with pytest.raises(ConfigError, match="not after 1970, where a watermark begins"):
        PurgatoryTester(orders_and_payments()).advance(datetime(1970, 1, 1, tzinfo=UTC))
    with pytest.raises(ConfigError, match="there is no watermark yet"):
        PurgatoryTester(orders_and_payments()).advance(MINUTE)
    assert [row["status"] for row in tester.finish()] == ["EXPIRED"]
    assert tester.watermark is None
    with pytest.raises(ConfigError, match=r"is after finish\(\), .*: make another PurgatoryTester"):
        tester.advance(NOON)


def test_a_final_outcome_is_held_and_seen_among_what_waits() -> None:
    tester = PurgatoryTester(orders_and_payments(emit="final"))
    assert tester.step([order(7, city="Roma")], [payment(7, 5)]) == []
    (held,) = tester.pending
    assert (held["city"], held["held_until"], held["progress"]) == ("Roma", NOON + 5 * MINUTE, "1 of 1")
    assert (held["watch_keys"], held["remaining_ms"]) == (["7"], None)
    assert [row["status"] for row in tester.advance(NOON + 5 * MINUTE)] == ["COMPLETED"]


def test_a_step_that_raises_changes_nothing() -> None:
    tester = PurgatoryTester(orders_and_payments(max_pending_per_shard=2))
    tester.step([order(1)], watermark=NOON - MINUTE)
    before = (tester.outcomes, tester.pending, tester.counters, tester.watermark)
    with pytest.raises(LimitError, match="max_pending_per_shard is 2, but 3 operations would wait"):
        tester.step([order(2), order(3)], watermark=NOON)
    with pytest.raises(ConfigError, match=r"operations\[1\]\['order_id'\] is a str, which does not fit int64 of"):
        tester.step([order(2), order("three")], watermark=NOON)
    assert (tester.outcomes, tester.pending, tester.counters, tester.watermark) == before
    with pytest.raises(ConfigError, match="never be equal"):
        tester.step(completions=[payment("1", 1)])
    assert len(tester.step(completions=[payment(1, 1)])) == 1


def test_columns_come_from_a_schema_or_the_first_rows() -> None:
    spark = T.StructType([T.StructField("order_id", T.IntegerType()), T.StructField("ordered_at", T.TimestampType())])
    tester = PurgatoryTester(orders_and_payments(), spark)
    assert tester.outcomes_table.schema.field("order_id").type == pa.int32()
    tester.step([order(7)], [payment(7, 1)])
    assert [(row["order_id"], row["ordered_at"], row["wait_ms"]) for row in tester.outcomes] == [(7, NOON, 60_000)]
    with pytest.raises(ConfigError, match="'city' is not one of order_id, ordered_at"):
        tester.step([order(8, city="Roma")])
    (outcome,) = tester.step([{"order_id": 8}])
    assert (outcome["status"], outcome["reason"]) == ("REJECTED", "the created time is null")


class Expression:
    """What a ``pyspark.sql.Column`` is to the configuration."""

    def alias(self, *alias: str, **kwargs: Any) -> Any: ...

    def cast(self, dataType: Any) -> Any: ...


@pytest.mark.parametrize(
    ("purgatory", "row", "message"),
    [
        (
            orders_and_payments(operations=Operations(id=Expression(), keys="k", created="t", timeout="1 hour")),
            order(7),
            "operations.id is a Column, an expression that only Spark evaluates: select it",
        ),
        (
            orders_and_payments(),
            order(b"7"),
            "operations.id is binary, which the tester does not read: test",
        ),
        (
            orders_and_payments(criterion=criteria.by_row("rule", "need", "levels")),
            order(7, rule="level", need=2, levels=3),
            "criterion.levels is bigint, which the tester does not read: test it with Spark",
        ),
        (
            orders_and_payments(),
            {"order_id": 7, "order_at": NOON},
            "'ordered_at' is not a column, did you mean 'order_at'. There are order_id, order_at",
        ),
        (
            orders_and_payments(
                criterion=criteria.by_row("sum_at_least", "need"),
                completions=Completions(key="order_id", time="paid_at", value="amount"),
            ),
            order(7, need=3),
            r'one rule in all rows add a column, withColumn\("rule", F.lit\("sum_at_least"\)\), and name that',
        ),
        (orders_and_payments(), {"order_id": 7, "ordered_at": date(2026, 11, 1)}, "operations.created is date"),
        (
            orders_and_payments(),
            {"order_id": 7, "ordered_at": NOON.replace(tzinfo=None)},
            "operations.created is timestamp_ntz, which Spark places by the session's time zone",
        ),
        (orders_and_payments(), {"order_id": 7, "ordered_at": "noon"}, "operations.created is string, not a timestamp"),
        (orders_and_payments(), order(7, status="new"), "operations already have a column status"),
        (
            orders_and_payments(criterion=criteria.by_row("rule", "need")),
            order(7, rule="count", need="2"),
            "criterion.need is string, not a number",
        ),
        (orders_and_payments(), order(7, odd=np.uint64(1)), "Spark does not have a column's type: cast it"),
        (
            orders_and_payments(),
            [order(7), order(8) | {"ordered_at": NOON.replace(tzinfo=None)}],
            "with a time zone and without one",
        ),
        (orders_and_payments(orphans="control"), None, "make the PurgatoryTester with operations_schema="),
        (orders_and_payments(), 7, "must be rows as dicts by column name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(purgatory: Purgatory, row: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PurgatoryTester(purgatory).step(row if isinstance(row, list) else [] if row is None else [row])


def test_progress_is_written_in_up_to_12_digits() -> None:
    config = Completions(key="order_id", time="paid_at", value="amount")
    tester = PurgatoryTester(orders_and_payments(completions=config, criterion=criteria.sum_at_least(0.5)))
    amounts = {0: [0.1, 0.2], 1: [-0.0], 2: [], 3: [0.1, 0.2], 4: [1e-7 / 3], 5: [0.25]}
    payments = [payment(n, 1, amount=each) for n, given in amounts.items() for each in given]
    tester.step([order(n) for n in amounts], payments)
    waits = tester.pending_table().select(["order_id", "progress"]).to_pylist()
    assert {row["order_id"]: row["progress"] for row in waits} == {
        0: "0.3 of 0.5",
        1: "0 of 0.5",
        2: "0 of 0.5",
        3: "0.3 of 0.5",
        4: "3.33333333333e-08 of 0.5",
        5: "0.25 of 0.5",
    }


def test_importing_the_kit_imports_no_spark() -> None:
    code = (
        "import sys, spark_purgatory.testing as t; assert 'pyspark' not in sys.modules; "
        "assert all(getattr(t, name) for name in t.__all__); assert 'pyspark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_deadline_after_the_year_9999_is_a_number_and_a_step_that_gives_one_gives_its_outcomes() -> None:
    tester = PurgatoryTester(
        orders_and_payments(
            operations=Operations(id="order_id", keys="order_id", created="ordered_at", timeout="365000 days")
        )
    )
    created = datetime(9500, 1, 1, tzinfo=UTC)
    tester.step(operations=[{"order_id": 1, "ordered_at": created}, order(2)])
    due_us = ((created - EPOCH) + timedelta(days=365_000)) // timedelta(microseconds=1)
    assert {row["order_id"]: row["deadline_at"] for row in tester.pending} == {1: due_us, 2: NOON + timedelta(365_000)}
    outcomes = tester.finish()
    assert {row["order_id"]: row["resolved_at"] for row in outcomes} == {1: due_us, 2: NOON + timedelta(365_000)}
    assert tester.outcomes == outcomes and tester.pending == []


def started() -> PurgatoryTester:
    """Order 7 waits, order 8 is paid."""
    tester = PurgatoryTester(orders_and_payments())
    tester.step([order(7), order(8)], [payment(8, 1)])
    return tester


def test_a_replayed_step_has_its_outcomes_once_and_the_next_one_continues_from_it() -> None:
    tester = started()
    for seed in range(3):
        assert [row["order_id"] for row in tester.replay(seed)] == [8]
    assert [row["order_id"] for row in tester.outcomes] == [8]
    assert tester.counters["received"] == 2
    assert [row["status"] for row in tester.step([], [payment(7, 2)])] == ["COMPLETED"]
    assert [row["order_id"] for row in tester.replay()] == [7]
    assert tester.pending == []


def test_a_restart_takes_what_waits_over_and_refuses_what_a_query_would_refuse() -> None:
    tester = started()
    with pytest.raises(StateMismatchError, match="criterion"):
        tester.restart(orders_and_payments(criterion=criteria.count(2)))
    assert [row["order_id"] for row in tester.pending] == [7], "a refused restart changes nothing"
    tester.restart(orders_and_payments(max_pending_per_shard=1))
    with pytest.raises(LimitError):
        tester.step([order(9)])
    assert [row["status"] for row in tester.step([], [payment(7, 2)])] == ["COMPLETED"]


def test_what_cannot_be_replayed_or_restarted_is_refused() -> None:
    tester = PurgatoryTester(orders_and_payments())
    with pytest.raises(ConfigError, match="call step"):
        tester.replay()
    with pytest.raises(ConfigError, match="make the PurgatoryTester with operations_schema=, completions_schema="):
        tester.restart()
    tester = started()
    tester.restart()
    with pytest.raises(ConfigError, match="call step"):
        tester.replay()
