"""What a session's settings may not change: the rows that come out, and whether a checkpoint is read.

One dense scenario, in four micro-batches of files: rules by row, control events, ORPHANs, DUPLICATEs and REJECTEDs,
operations that wait across restarts, with nested and non-nullable columns. Each test runs it under other settings and
compares every row, times as microseconds, with a run that was never interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Purgatory, check_checkpoint, criteria, gauges, pending
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.errors import ConfigError, StateMismatchError
from spark_purgatory.spark.host.requirements import (
    CHANGELOG,
    PROVIDER,
    ROCKSDB,
    STATE_STORE_SETTINGS,
    check_log_host,
)
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION, settings
from tests.support.engine_driver import microseconds, multiset
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.now_and_then import each_commit
from tests.support.stream_rows import completions_with, operations_with
from tests.support.streams import TIMESTAMP, Landing

ZONE, ANSI, LARGE = "spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.execution.arrow.useLargeVarTypes"
CASE = "spark.sql.caseSensitive"
NOON = datetime(2024, 10, 27, 0, 15, tzinfo=UTC)
"""In Berlin's repeated hour."""
PAYLOAD = (
    "id",
    "key",
    "created",
    "deadline",
    "row",
    "coalesce(need, 0D) as amount",
    "cast(need as decimal(10, 2)) as price",
    "cast(row as string) as text",
    "struct(created as at, array(key, id) as names, map(key, deadline) as times) as nested",
    "array(struct(created as at, row as row)) as list",
    "cast(created as timestamp_ntz) - cast(created as timestamp_ntz) as span",
    "cast(substring(row, 2) as int) as number",
    "coalesce(region, '') as place",
    "rule",
    "need",
    "levels",
    "region",
)
"""A column that is never null for each that may be; what a cast may give depends on ANSI mode."""


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def waits(name: str, created: float, deadline: float, rule: str = "any_key", **more: Any) -> dict[str, Any]:
    row = {"id": name, "keys": [f"k-{name}"], "created": at(created), "deadline": at(deadline), "row": "r7"}
    return {**row, "rule": rule, "need": 2.0, "region": "north", **more}


def tells(name: str, minutes: float, kind: str | None = None, **more: Any) -> dict[str, Any]:
    return {"key": f"k-{name}", "time": at(minutes), "value": 1.0, "kind": kind, "region": "north", **more}


def batches() -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Four micro-batches: what waits in one is decided in a later one."""
    names = [f"o{i}" for i in range(12)]
    # Many, each on its own key: some shards report ORPHANs alone, and a task has shards of both kinds.
    nobody = [tells(f"none-{i}", 24, "fail") for i in range(12)]
    first = [waits(name, i, 60 + 5 * i, ("any_key", "count", "sum_at_least")[i % 3]) for i, name in enumerate(names)]
    return [
        (first, [tells("o1", 2, event_id="e1"), tells("nobody", 3, "cancel"), tells("o3", 4, "extend", value=3600.0)]),
        (
            [waits("o0", 20, 90), waits("wrong", 20, 10), waits("p1", 20, 130, "level", levels=[("k-p1", 5.0)])],
            [tells("o0", 21), tells("o1", 22, event_id="e1"), tells("o2", 23), *nobody],
        ),
        (
            [waits("late", 1, 2), waits("p2", 50, 70, row=None, need=None)],
            [tells("o2", 50), tells("o4", 51, "cancel"), tells("o5", 52, "force"), tells("p1", 53, value=6.0)],
        ),
        ([waits("clock", 600, 601)], [tells("clock-other", 600), tells("late-other", 598, "cancel")]),
    ]


def purgatory(**changes: Any) -> Purgatory:
    given: dict[str, Any] = {
        "operations": operations_with(),
        "completions": completions_with(value="value", kind="kind", event_id="event_id"),
        "criterion": criteria.by_row(need="need", levels="levels"),
        "emit": "final",
        "shards": 6,
        "orphans": "control",
    }
    return Purgatory(**{**given, **changes})


def run(spark: SparkSession, landing: Landing, columns: tuple[str, ...] = PAYLOAD, **changes: Any) -> None:
    """Run the stream over what landed and is unread."""
    operations, events = landing.frames(spark)
    query = (
        purgatory(**changes)
        .resolve(operations.selectExpr(*columns), events)
        .writeStream.format("parquet")
        .option("path", str(landing.outcomes))
        .option("checkpointLocation", str(landing.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def rows_of(frame: DataFrame) -> Counter[str]:
    """Rows as a multiset of texts that say the same under every setting."""
    names = sorted(frame.columns)
    shown = [F.col(name).cast("bigint") if name == "span" else F.col(name) for name in names]
    with settings(frame.sparkSession, {ZONE: "UTC", ANSI: "true"}):
        return Counter(row[0] for row in frame.select(F.to_json(F.struct(*shown))).collect())


def outcomes(spark: SparkSession, landing: Landing) -> Counter[str]:
    """All rows written, read under the names of the first query: a later one may have written others of their case."""
    operations, events = landing.frames(spark, streaming=False)
    schema = purgatory().resolve(operations.selectExpr(*PAYLOAD), events).schema
    return rows_of(spark.read.schema(schema).parquet(str(landing.outcomes)))


@pytest.fixture(scope="module")
def straight(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """All rows of a run that was never interrupted, in UTC."""
    landing = Landing(tmp_path_factory.mktemp("straight"), wide=True)
    for batch in batches():
        landing.add(*batch)
    run(spark, landing)
    rows = outcomes(spark, landing)
    statuses = Counter(row.status for row in spark.read.parquet(str(landing.outcomes)).collect())
    assert statuses == {
        "COMPLETED": 4,
        "EXPIRED": 10,
        "CANCELLED": 1,
        "DUPLICATE": 1,
        "REJECTED": 1,
        "ORPHAN": 14,
    }
    return rows


COMPLETIONS = completions_with()
REFUSED = "timeZone: .* written with 'Europe/Berlin', but the session has 'UTC', .*: set it back to 'Europe/Berlin'"
FEW, FEW_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
NTZ = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
SESSIONS: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "UTC by another name": ({ZONE: "UTC"}, {ZONE: "Etc/UTC"}),
    "half hours, then summer time, large types and no ANSI": (
        {ZONE: "Asia/Kolkata", ANSI: "true", LARGE: "false"},
        {ZONE: "Europe/Berlin", ANSI: "false", LARGE: "true", FEW: "2"},
    ),
    "large types and no ANSI, then summer time of half an hour and timestamps without zone by default": (
        {ZONE: "+05:30", ANSI: "false", LARGE: "true", FEW: "0", FEW_BYTES: "64"},
        {ZONE: "Australia/Lord_Howe", ANSI: "true", LARGE: "false", CASE: "true", **NTZ},
    ),
}


@pytest.mark.parametrize("name", each_commit(SESSIONS, lambda name: name.startswith("large types")))
def test_a_stream_restarted_under_other_settings_gives_the_rows_of_an_uninterrupted_run(
    spark: SparkSession, tmp_path: Path, straight: Counter[str], name: str
) -> None:
    landing = Landing(tmp_path, wide=True)
    # Types by name in a DDL text depend on a setting too: the files' schema is the test's own, and stays.
    landing.ddls = tuple(ddl.replace("timestamp", "timestamp_ltz") for ddl in landing.ddls)  # type: ignore[assignment]
    halves = batches()[:2], batches()[2:]
    for half, wanted in zip(halves, SESSIONS[name], strict=True):
        for batch in half:
            landing.add(*batch)
        with settings(spark, wanted):
            run(spark, landing)
    assert outcomes(spark, landing) == straight


@pytest.mark.long
def test_times_without_a_zone_are_refused_in_another_zone_and_go_on_when_it_is_set_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path)
    landing.schemas = tuple(  # type: ignore[assignment]
        pa.schema([(each.name, local if each.type == TIMESTAMP else each.type) for each in schema])
        for schema, local in zip(landing.schemas, (pa.timestamp("us"), pa.date32()), strict=True)
    )
    landing.ddls = (landing.ddls[0].replace("timestamp", "timestamp_ntz"), landing.ddls[1].replace("timestamp", "date"))
    by_key, day = purgatory(completions=COMPLETIONS, criterion=criteria.any_key(), orphans="none"), date(2024, 10, 28)
    landing.add([waits("o", 0, 3000)], [])
    with settings(spark, {ZONE: "Europe/Berlin"}):
        assert landing.run(spark, by_key) == []
    landing.add(
        [waits("clock", 10_000, 10_001)], [{"key": "k-o", "time": day}, {"key": "x", "time": date(2024, 11, 9)}]
    )
    with settings(spark, {ZONE: "Etc/UTC"}), pytest.raises(StateMismatchError, match=REFUSED):
        check_checkpoint(spark, by_key.resolve(*landing.frames(spark)), checkpoint=str(landing.checkpoint))
    with settings(spark, {ZONE: "Europe/Berlin"}):
        [outcome] = landing.run(spark, by_key)
    assert (outcome["id"], outcome["status"]) == ("o", "COMPLETED")
    assert microseconds(outcome["resolved_at"]) == microseconds(datetime(2024, 10, 27, 23, tzinfo=UTC))


def test_two_columns_of_one_name_are_an_error_that_names_them(spark: SparkSession, tmp_path: Path) -> None:
    operations, events = Landing(tmp_path, wide=True).add([], []).frames(spark, streaming=False)
    for columns, named in (
        (("*", "need as NEED"), "'need', 'NEED'"),
        (("*", "struct(row as x, id as x) as s"), "'s.x', 's.x'"),
    ):
        with pytest.raises(ConfigError, match=f"operations have columns of one name, {named}: rename or drop"):
            purgatory().resolve(operations.selectExpr(*columns), events)
    with settings(spark, {CASE: "true"}):
        outcomes = purgatory().resolve(operations.selectExpr("*", "need as NEED"), events)
        assert {"need", "NEED"} <= set(outcomes.columns)


BLOB_HOST = "applyInPandasWithState"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
NULLABLE = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"


SETTINGS: dict[str, Mapping[str, str]] = {
    "as Databricks advises": {NO_DATA: "false", ANSI: "true", NULLABLE: "true"},
    "as Spark 3 had it": {ANSI: "false", NULLABLE: "false"},
    "RocksDB of format 2 by default": {PROVIDER: ROCKSDB, FORMAT_VERSION: "2"},
}


@pytest.mark.long
@pytest.mark.parametrize("host", [BLOB_HOST, LOG_HOST])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_law_holds_with_it_across_a_restart(spark: SparkSession, tmp_path: Path, name: str, host: str) -> None:
    seed = list(SETTINGS).index(name)
    landing = law_stream(seed).landed_in_batches(tmp_path, seed, batches=4)
    late = [path for path in tmp_path.glob("*/*.parquet") if int(path.stem) >= 2]
    hidden = [path.rename(path.with_name(f".{path.name}")) for path in late]
    with settings(spark, {**(STATE_STORE_SETTINGS if host == LOG_HOST else {}), **SETTINGS[name]}):
        assert_is_expected(spark, landing, host, seed)
        for path, shown in zip(hidden, late, strict=True):
            path.rename(shown)
        assert_is_expected(spark, landing, host, seed)


def assert_is_expected(spark: SparkSession, landing: Landing, host: str, seed: int) -> None:
    """What was written is what the oracle decides by the watermark of the last micro-batch; the rest is pending."""
    stream = law_stream(seed)
    written = landing.run(spark, stream.purgatory(host))
    arrived = landing.frames(spark, streaming=False)[0].count()
    expected = stream.expected(landing.last_watermark_us)
    assert multiset(written, *COLUMNS) == +expected
    waits = gauges(spark, checkpoint=str(landing.checkpoint))["pending"]
    assert waits == pending(spark, checkpoint=str(landing.checkpoint)).count()
    assert waits == arrived - len(written)


def test_rocksdb_without_its_changelog_is_a_warning(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    before = spark.conf.get(CHANGELOG, None)
    spark.conf.unset(CHANGELOG)
    try:
        with settings(spark, {PROVIDER: ROCKSDB}):
            check_log_host(spark)
    finally:
        if before is not None:
            spark.conf.set(CHANGELOG, before)
    assert f"{CHANGELOG} is not true" in caplog.text
