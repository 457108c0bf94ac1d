"""What is said where an argument cannot work: field, value, what was not understood, what is allowed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from itertools import product
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.config.units import parse_duration, parse_size
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import completions_with, operations_with, purgatory

ZONE = "spark.sql.session.timeZone"
UNITS = r"A duration is one or more numbers, each with a unit: .* such as \"30 minutes\""


def made(**changes: Any) -> Purgatory:
    given = {"operations": operations_with(timeout="1 hour"), "completions": completions_with(time="created")}
    return purgatory(**{**given, "shards": 1, **changes})


def waiting(timeout: Any = "1 hour", keys: Any = "key") -> Operations:
    return operations_with(keys=keys, timeout=timeout)


def rows_at(spark: SparkSession, hour: int = 0) -> DataFrame:
    return spark.sql(
        f"select 'a' as id, 'a' as key, array('a', 'b') as keys, timestamp'2026-10-27 {hour:02}:00:00Z' as created"
    )


WRONG_DURATIONS = [
    ("30 minuts", "'minuts' is not a unit of time"),
    ("1 month", "'month' has no fixed length; say it in days"),
    ("2 Years", "'Years' has no fixed length; say it in days"),
    ("-1 minute", "it is negative; a duration is 0 or longer"),
    ("\u2212 5 s", "it is negative"),
    ("30", "30 has no unit"),
    ("5 minutes 3", "3 has no unit"),
    ("1 hour, 30 minutes", "',' was not understood"),
    ("1,5 hours", "'1,' was not understood"),
    (".5 hours", r"'\.' was not understood"),
]


def test_a_text_that_is_no_duration_is_refused_with_what_was_not_understood() -> None:
    for text, said in [*WRONG_DURATIONS, ("soon", "'soon' was not understood"), ("", "is empty")]:
        with pytest.raises(ConfigError, match=rf"^operations\.watermark='{text}' is not a duration: .*{said}"):
            operations_with(keys="id", created="at", timeout="1 hour", watermark=text)
    with pytest.raises(ConfigError, match=UNITS):
        made(lookback="3 fortnights")


def test_durations_beyond_all_numbers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^completions\.watermark='9{400} days' is longer than 1000 years"):
        completions_with(time="at", watermark="9" * 400 + " days")
    for value, said in ((-1, "it has no unit"), (1.5, "it has no unit"), (True, "it is neither text nor a timedelta")):
        with pytest.raises(ConfigError, match=rf"^operations\.timeout={value} must be a duration, .*: {said}"):
            waiting(value)
        with pytest.raises(ConfigError, match=rf"^linger={value} is not a duration: {said}"):
            parse_duration(value, "linger")
    with pytest.raises(ConfigError, match=r"^operations\.timeout=\[1\] must be a duration, or name a column"):
        waiting([1])
    with pytest.raises(ConfigError, match=r"^batch_size='9+ TB' is not a size: it is more than 1 EiB, the largest"):
        parse_size("9" * 40 + " TB", "batch_size")
    assert parse_duration("0.1 s", "linger") == 100_000


def test_a_timeout_that_is_neither_duration_nor_column_is_told_what_it_lacks(spark: SparkSession) -> None:
    rows = rows_at(spark)
    for text, said in WRONG_DURATIONS:
        with pytest.raises(ConfigError, match=rf"^operations\.timeout='{text}' is not a duration: .*{said}.*as a C"):
            waiting(text)
        named = rows.withColumn(text, F.expr("interval '1' hour"))
        made(operations=waiting(F.col(f"`{text}`"))).resolve(named, rows)
    with pytest.raises(
        ConfigError, match=r"^operations\.timeout='wait' is not a column: there are id, .*nor is it a dur"
    ):
        made(operations=waiting("wait")).resolve(rows, rows)


def test_a_number_of_keys_or_events_that_is_not_whole_or_below_one_is_refused() -> None:
    for rule, need in product(("quorum", "count"), (0, -1, 0.0, 0.5, 1.5, Decimal("2.5"))):
        with pytest.raises(ConfigError, match=rf"criterion {rule} needs a (whole )?number of at least [01], got "):
            Criterion(rule, need)


def test_a_quorum_of_more_keys_than_there_are_columns_is_refused_and_of_an_array_expires(spark: SparkSession) -> None:
    rows = rows_at(spark)
    for keys, most in (("key", 1), (["key", "key"], 1), (["key", "id", "key"], 2)):
        too_many = made(operations=waiting(keys=keys), criterion=criteria.quorum(most + 1))
        with pytest.raises(
            ConfigError, match=rf"quorum\({most + 1}\) can never be met: operations\.keys has {most} key"
        ):
            too_many.resolve(rows, rows)
        made(operations=waiting(keys=keys), criterion=criteria.quorum(most)).resolve(rows, rows)
    three = made(operations=waiting(keys=["keys"]), criterion=criteria.quorum(3)).resolve(rows, rows).collect()
    assert [(row.status, row.missing_keys) for row in three] == [("EXPIRED", ["b"])]


def test_what_names_no_value_of_a_row_is_refused_with_its_field(spark: SparkSession) -> None:
    rows = rows_at(spark).selectExpr("*", "'a' as twice", "'b' as TWICE", "struct(1 as zip) as place")
    for named, said in (
        ("twice", "'twice' is the name of several columns .*AMBIGUOUS_REFERENCE.*: rename or drop all but one"),
        ("place.street", r"'place\.street' is not a value of a row .*FIELD_NOT_FOUND.*: give a column, a field"),
        (F.max("key"), r".*max\(key\).* is not a value of a row .*MISSING_GROUP_BY"),
        (F.explode("keys"), r".*explode\(keys\).* is not a value of a row .*UNSUPPORTED_GENERATOR"),
        (F.col("nowhere"), ".*nowhere.* is not a value of a row .*UNRESOLVED_COLUMN"),
    ):
        with pytest.raises(ConfigError, match=rf"^completions\.key={said}"):
            made(completions=Completions(key=named, time="created")).resolve(rows_at(spark), rows)
    wrong = [
        (Operations(id="nope", keys="key", created="created", timeout="1 s"), "operations.id='nope' is not a column: "),
        (waiting(timeout="id"), "operations.timeout is string: write .30 minutes., or name a column of day-time"),
    ]
    for operations, said in wrong:
        with pytest.raises(ConfigError, match=said):
            made(operations=operations).resolve(rows_at(spark), rows_at(spark))


def test_an_argument_of_a_wrong_type_is_refused_by_name() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"shards": "8"}, "shards='8' must be an int between 1 and"),
        ({"shards": True}, "shards=True must be an int between 1 and"),
        ({"shards": 40_000}, "shards=40000 must be between 1 and 32768"),
        ({"max_pending_per_shard": "many"}, "max_pending_per_shard='many' must be an int between 1 and"),
        ({"tick": "0 s"}, "tick='0 s' must be at least 1 millisecond"),
        ({"name": ""}, "name='' must be a name for the counters"),
        ({"prefix": None}, "prefix=None must be a string"),
    ]
    for changes, said in wrong:
        with pytest.raises(ConfigError, match=said):
            made(**changes)


@pytest.fixture(params=["America/New_York", *now_and_then("Asia/Tokyo")])
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of the Python process, another than the session's."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("zone", "ahead"), [("Asia/Kolkata", 5.5), *now_and_then(("UTC", 0), ("Europe/Berlin", 1))])
def test_as_of_is_the_sessions_wall_clock_in_every_form_unless_it_has_a_zone(
    spark: SparkSession, process_zone: str, zone: str, ahead: float
) -> None:
    midnight = datetime(2026, 10, 27, tzinfo=UTC) - timedelta(hours=ahead)
    # One operation whose deadline is that midnight, to the microsecond.
    rows = spark.sql(
        f"select 'a' as id, 'a' as key, timestamp_seconds({int(midnight.timestamp())}) as until, "
        f"timestamp_seconds({int(midnight.timestamp()) - 60}) as created"
    )
    decide = made(operations=operations_with(deadline="until"))
    events = rows.where("false")
    just_before = timedelta(milliseconds=1)
    there = [
        "2026-10-27",
        "2026-10-27 00:00:00",
        date(2026, 10, 27),
        datetime(2026, 10, 27),
        F.expr("date'2026-10-27'"),
    ]
    there += [midnight, midnight.astimezone(timezone(timedelta(hours=-7)))]
    before = ["2026-10-26 23:59:59.999", datetime(2026, 10, 27) - just_before, midnight - just_before]
    with settings(spark, {ZONE: zone}):
        outcomes = [decide.resolve(rows, events, as_of=at).select(F.lit(n)) for n, at in enumerate([*before, *there])]
        found = sorted(row[0] for row in reduce(DataFrame.union, outcomes).collect())
    assert found == [*range(len(before), len(before) + len(there))]


def test_an_as_of_that_is_no_time_or_at_which_no_watermark_can_stand_is_refused(spark: SparkSession) -> None:
    """It gave no outcomes, as if everything were pending."""
    rows = rows_at(spark)
    for value in ("1970-01-01 00:00:00", datetime(1970, 1, 1, 0, 0, 0, 999, UTC)):
        with pytest.raises(ConfigError, match=r"^as_of=.* is not after 1970-01-01 00:00:00 UTC, .*give a later time"):
            made().resolve(rows, rows, as_of=value)
    with settings(spark, {"spark.sql.ansi.enabled": "false"}):
        for value in ("tomorrow evening", "2026-13-01", "", 5, F.col("created"), F.array(F.lit("2026-10-27"))):
            with pytest.raises(ConfigError, match=rf"^as_of={re.escape(repr(value))} is not a time: "):
                made().resolve(rows, rows, as_of=value)


def test_a_stream_needs_a_watermark_and_a_batch_does_not(spark: SparkSession) -> None:
    rows = rows_at(spark)
    bare = {"id": "id", "keys": "key", "created": "created", "timeout": "1 hour"}
    decide = made(operations=Operations(**bare), completions=Completions(key="key", time="created"))
    assert [row.status for row in decide.resolve(rows, rows).collect()] == ["COMPLETED"]
    stream = spark.readStream.format("rate").load().selectExpr("'a' as id", "'a' as key", "timestamp as created")
    with pytest.raises(ConfigError, match=r"operations\.watermark is not set: .* example \"10 minutes\""):
        decide.resolve(stream, stream)
    said = made(operations=Operations(**bare, watermark="1 s"), completions=Completions(key="key", time="created"))
    with pytest.raises(ConfigError, match=r"completions\.watermark is not set"):
        said.resolve(stream, stream)


def test_wrong_arguments_of_resolve_are_refused_by_name(spark: SparkSession) -> None:
    rows = rows_at(spark)
    with pytest.raises(ConfigError, match="operations is a str, not a DataFrame: read it first"):
        made().resolve("/a", "/b")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="completions is a str, not a DataFrame: read it first"):
        made().resolve(rows, "/b")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"resolve\(\) has no as_off=, did you mean 'as_of'\?"):
        made().resolve(rows, rows, as_off="2026-01-01")  # type: ignore[call-arg]
