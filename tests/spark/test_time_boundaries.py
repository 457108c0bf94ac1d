"""Times at the ends of what can be told: every row gets its outcome, in batch and stream, ANSI mode on and off.

What must come out is added up here in Python's integers, which have no end.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Operations, Purgatory
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import microseconds
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import completions_with, purgatory

LAST, FIRST = 2**63 - 1, -(2**63)
DAY_US = 86_400_000_000
TIMES_US = (
    FIRST,
    FIRST + 1,
    FIRST + 999,
    FIRST + DAY_US,
    microseconds(datetime(1, 1, 1, tzinfo=UTC)) - 1,
    microseconds(datetime(1, 1, 1, tzinfo=UTC)),
    microseconds(datetime(1582, 10, 15, tzinfo=UTC)) - 1,
    -1,
    0,
    1_700_000_000_000_999,
    microseconds(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    LAST - DAY_US,
    LAST - 1,
    LAST,
    None,
)
WAITS_US = (0, 1, 999, DAY_US, LAST, LAST - 807, FIRST, -1, -DAY_US, None)
"""What columns of intervals and of milliseconds, rounded down, bring."""
NOW_US = microseconds(datetime(2026, 3, 1, tzinfo=UTC))
ANSI = "spark.sql.ansi.enabled"
ZONE = "spark.sql.session.timeZone"


def expected(created_us: int | None, wait_us: int | None, paid: bool, now_us: int) -> tuple[Any, ...]:
    """(status, a word of the reason, resolved_at, wait_ms) of an operation; paid at the time of its creation."""
    if created_us is None:
        return "REJECTED", "the created time is null", None, None
    if wait_us is None:
        return "REJECTED", "the deadline or timeout is null", None, None
    deadline_us = created_us + wait_us
    if created_us == FIRST and wait_us >= 0:
        return "REJECTED", "stand for no time", None, None
    if not FIRST <= deadline_us < LAST:
        return "REJECTED", "the deadline is too large", None, None
    if deadline_us < created_us:
        return "REJECTED", "the deadline is before the created time", None, None
    if created_us > now_us + 2 * DAY_US:
        return "REJECTED", "too far ahead of processing time", None, None
    if paid:
        return "COMPLETED", None, created_us, 0
    return "EXPIRED", None, deadline_us, wait_us // 1000


def micros(value: int | None) -> str:
    return f"{value}L" if value != FIRST else f"{FIRST + 1}L - 1L"


def frames(spark: SparkSession, cases: list[tuple[int | None, int | None]]) -> tuple[DataFrame, DataFrame]:
    """Two operations a case, one of which has an event when it is created."""
    values = ", ".join(
        f"({i}, cast({'null' if created is None else micros(created)} as bigint), "
        f"cast({'null' if wait is None else micros(wait)} as bigint))"
        for i, (created, wait) in enumerate(cases)
    )
    rows = spark.sql(
        "select concat(word, n) as id, timestamp_micros(created_us) as created, wait_us, "
        "make_dt_interval(cast(wait_us div 86400000000 as int), 0, 0, "
        "cast(wait_us % 86400000000 as decimal(18,0)) / 1000000) as wait, wait_us div 1000 as wait_ms "
        f"from values {values} as t(n, created_us, wait_us), values ('paid '), ('unpaid ') as w(word)"
    )
    return rows, rows.where("id like 'paid%'").selectExpr("id as key", "created as time")


def told(outcomes: DataFrame) -> dict[str, tuple[Any, ...]]:
    """(status, reason, resolved_at, wait_ms) by id; Python's datetimes end before these times do."""
    columns = ["id", "status", "reason", "unix_micros(resolved_at) as at_us", "wait_ms"]
    rows = [tuple(row) for row in outcomes.selectExpr(*columns).collect()]
    assert len({row[0] for row in rows}) == len(rows), "an operation has more than one outcome"
    return {row[0]: row[1:] for row in rows}


def check(cases: list[tuple[int | None, int | None]], found: dict[str, tuple[Any, ...]]) -> None:
    now_us = microseconds(datetime.now(UTC))
    assert len(found) == 2 * len(cases)
    for i, (created_us, wait_us) in enumerate(cases):
        for word in ("paid", "unpaid"):
            status, reason, at_us, wait_ms = expected(created_us, wait_us, word == "paid", now_us)
            got = found[f"{word} {i}"]
            assert (got[0], got[2], got[3]) == (status, at_us, wait_ms), (created_us, wait_us, got)
            assert (reason or "") in (got[1] or ""), (created_us, wait_us, got)
            assert (reason is None) == (got[1] is None)


def made(**end: Any) -> Purgatory:
    return purgatory(
        operations=Operations(id="id", keys="id", created="created", watermark="0 seconds", **end),
        completions=completions_with(),
        emit="final",
        shards=2,
    )


@pytest.mark.parametrize(
    ("ansi", "zone"), [("true", "America/New_York"), *now_and_then(("true", "UTC"), ("false", "UTC"))]
)
def test_every_row_with_a_time_at_the_ends_of_int64_gets_its_outcome(spark: SparkSession, ansi: str, zone: str) -> None:
    with settings(spark, {ANSI: ansi, ZONE: zone}):
        cases = [(created, wait) for created in TIMES_US for wait in WAITS_US]
        rows, events = frames(spark, cases)
        rows = rows.withColumnRenamed("wait_ms", "ms")
        check(cases, told(made(timeout="wait").resolve(rows, events)))
        days = [(created, DAY_US) for created in TIMES_US]
        rows, events = frames(spark, days)
        check(days, told(made(timeout="1 day").resolve(rows.drop("wait_ms"), events)))


@pytest.mark.parametrize("ansi", ["true", *now_and_then("false")])
def test_a_stream_decides_times_at_the_ends_of_int64_as_a_batch_does(
    spark: SparkSession, tmp_path: Path, ansi: str
) -> None:
    cases = [(created, wait) for created in TIMES_US for wait in (0, DAY_US, LAST, -1)]
    closing = f"timestamp_micros({NOW_US}L)"
    with settings(spark, {ANSI: ansi}):
        for side, frame in zip(("operations", "events"), frames(spark, cases), strict=True):
            frame.drop("wait", "wait_us").coalesce(1).write.parquet(str(tmp_path / side))
        spark.sql(f"select 'closing' as id, {closing} as created, 0L as wait_ms").coalesce(1).write.mode(
            "append"
        ).parquet(str(tmp_path / "operations"))
        spark.sql(f"select 'closing' as key, {closing} as time").coalesce(1).write.mode("append").parquet(
            str(tmp_path / "events")
        )
        ddls = {"operations": "id string, created timestamp, wait_ms bigint", "events": "key string, time timestamp"}
        read = [spark.read.schema(ddl).parquet(str(tmp_path / side)) for side, ddl in ddls.items()]
        streams = [spark.readStream.schema(ddl).parquet(str(tmp_path / side)) for side, ddl in ddls.items()]
        decide = replace(made(timeout=F.col("wait_ms"), timeout_unit="milliseconds"), prefix="o_")
        out = str(tmp_path / "out")
        decide.resolve(*streams).writeStream.format("parquet").option("path", out).option(
            "checkpointLocation", out + "-checkpoint"
        ).trigger(availableNow=True).start().awaitTermination()
        batch = decide.resolve(*read, as_of=datetime.fromtimestamp(NOW_US / 1e6, UTC))
        columns = ["id", *(f"o_{name} as {name}" for name in ("status", "reason", "resolved_at", "wait_ms"))]
        streamed = told(spark.read.parquet(out).selectExpr(*columns))
        assert streamed == told(batch.selectExpr(*columns))
        assert len(streamed) > len(cases)


@pytest.mark.parametrize("zone", [*now_and_then("UTC", "Asia/Kolkata"), "America/New_York"])
def test_dates_and_times_without_a_zone_beyond_int64_count_as_its_ends(spark: SparkSession, zone: str) -> None:
    ends = {
        "date": ("date_from_unix_date(2147483647)", "date_from_unix_date(-2147483648)"),
        "timestamp_ntz": (
            "timestamp_ntz'+294247-01-10 04:00:54.775807'",
            "timestamp_ntz'-290308-12-21 19:59:05.224192'",
        ),
    }
    with settings(spark, {ZONE: zone}):
        for last, first in ends.values():
            rows = spark.sql(f"select * from values ('l', {last}), ('f', {first}), ('n', null) as t(id, created)")
            events = rows.selectExpr("id as key", "created as time").where("id = 'f'")
            found = told(made(timeout="1 day").resolve(rows, events))
            assert found["f"][0] == "COMPLETED"
            assert "too far ahead" in found["l"][1]
            assert "created time is null" in found["n"][1]
            ended = made(deadline="until").resolve(
                rows.where("id = 'l'").selectExpr("id", "timestamp'2026-01-01' as created", "created as until"), events
            )
            assert told(ended)["l"][0] == "EXPIRED"


def test_a_day_of_an_interval_is_24_hours_in_every_zone(spark: SparkSession) -> None:
    rows = spark.sql(
        "select 'o' as id, timestamp'2026-10-24 12:00:00Z' as created, interval '1 00:00:00.5' day to second as wait, "
        "interval '1' day as days, interval '24' hour as hours"
    )
    events = spark.sql("select 'x' as key, timestamp'2026-10-24 12:00:00Z' as time")
    with settings(spark, {ZONE: "Europe/Berlin"}):
        waits = {w: told(made(timeout=w).resolve(rows, events))["o"][3] for w in ("wait", "days", "hours")}
        assert waits == {"wait": 86_400_500, "days": 86_400_000, "hours": 86_400_000}
