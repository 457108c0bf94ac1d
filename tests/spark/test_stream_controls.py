"""Rules by row, control events, partitions and heartbeats on real Spark."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory, criteria
from spark_purgatory.core.spec.engine_spec import Orphans
from spark_purgatory.errors import ConfigError
from tests.support.engine_driver import multiset
from tests.support.law_worlds import COLUMNS, draw, split_orphans
from tests.support.now_and_then import now_and_then
from tests.support.oracle import KINDS, decide
from tests.support.stream_rows import completions_with, operations_with, purgatory
from tests.support.streams import Landing
from tests.support.worlds import World, splits

CLOSING_US = 10_000_000_000
CLOSING = {"id": "closing", "keys": ["closing"], "created": CLOSING_US, "deadline": CLOSING_US + 1, "rule": "any_key"}


def controlled(several: bool, scope: str | None, orphans: Orphans) -> Purgatory:
    return Purgatory(
        operations=Operations(
            id="id", keys="keys" if several else "key", created="created", deadline="deadline", watermark="0 seconds"
        ),
        completions=Completions(
            key="key",
            time="time",
            value="value",
            kind="kind",
            operation_id="operation_id",
            event_id="event_id",
            watermark="0 seconds",
        ),
        criterion=criteria.by_row(need="need", levels="levels"),
        emit="final",
        shards=3,
        scope=scope,
        orphans=orphans,
    )


def as_file_row(row: dict[str, Any], region: str) -> dict[str, Any]:
    """The row with the columns that the files have; a level that is one number is its need."""
    level = row.get("level")
    by_key = list(level.items()) if isinstance(level, dict) else None
    need = level if isinstance(level, float) else row.get("need")
    return {**row, "region": region, "levels": by_key, "need": need}


def land(landing: Landing, world: World, seed: int, regions: tuple[str, ...]) -> None:
    rng, _, _ = draw(seed, "mixed", True)
    for batch in splits(rng, *world, 3)[:-3]:
        sides = [[as_file_row(row, region) for row in rows for region in regions] for rows in batch[:2]]
        landing.add(*sides)
    landing.add([as_file_row(CLOSING, "last")], [as_file_row({"key": "closing-other", "time": CLOSING_US}, "last")])


@pytest.mark.parametrize(
    ("several", "scope", "orphans", "seed"),
    [*now_and_then((True, None, "none", 11), (False, "region", "all", 13)), (True, "region", "control", 12)],
)
def test_mixed_rules_and_control_events_give_what_batch_and_oracle_give(
    spark: SparkSession,
    tmp_path: Path,
    several: bool,
    scope: str | None,
    orphans: Orphans,
    seed: int,
) -> None:
    _, world, _ = draw(seed, "mixed", several, kinds=KINDS, worlds=3, extremes=False)
    world = World([row for row in world.operations if "spoiled" not in row["row"]], world.events)
    regions = ("north", "south") if scope else ("north",)
    landing = Landing(tmp_path, wide=True)
    land(landing, world, seed, regions)
    purgatory = controlled(several, scope, orphans)
    expected, unheard = split_orphans(decide(*world, doubles=True, whole_operations=True, orphans=orphans))
    of_batch = [row.asDict() for row in purgatory.resolve(*landing.frames(spark, streaming=False)).collect()]
    for outcomes in (landing.run(spark, purgatory), of_batch):
        decided, found = split_orphans(outcomes)
        for region in regions:
            mine = [outcome for outcome in decided if outcome["region"] == region]
            assert multiset(mine, *COLUMNS) == multiset(expected, *COLUMNS)
        mine = Counter({(time, reason): n for (time, reason), n in found.items() if time != CLOSING_US})
        assert mine == Counter({one: n * len(regions) for one, n in unheard.items()})
        assert sum(found.values()) - sum(mine.values()) == (orphans == "all"), "the closing event counts for nobody"


@pytest.mark.parametrize("orphans", ["control", "all"])
def test_orphans_cannot_be_told_where_every_shard_sees_every_event(
    spark: SparkSession, tmp_path: Path, orphans: Orphans
) -> None:
    landing = Landing(tmp_path, wide=True)
    landing.add([], [])
    with pytest.raises(ConfigError, match=rf"orphans={orphans!r}.* give scope= or shards=1"):
        controlled(True, None, orphans).resolve(*landing.frames(spark, streaming=False))


def test_a_rejected_event_beside_an_operation_that_ends_leaves_each_column_its_own_values(spark: SparkSession) -> None:
    # The operation's columns have the types of the outcome's.
    operations = spark.createDataFrame(
        [("a", datetime(2024, 5, 1, 12, tzinfo=UTC), 7, "o1")],
        "key string, created timestamp, quantity bigint, order_id string",
    )
    events = spark.createDataFrame([("b", None)], "key string, time timestamp")
    made = purgatory(
        operations=operations_with(id="order_id", timeout="5 seconds"),
        completions=completions_with(),
        shards=1,
        orphans="all",
    )
    rows = made.resolve(operations, events).select("order_id", "quantity", "status", "wait_ms").collect()
    assert sorted(rows, key=str) == [("o1", 7, "EXPIRED", 5000), (None, None, "ORPHAN", None)]


# --- heartbeats -----------------------------------------------------------------------------------

IDLE_AFTER = timedelta(minutes=1)
IDLE = Purgatory(
    operations=Operations(
        id="id", keys="key", created="created", deadline="deadline", idle_after=IDLE_AFTER, watermark="0 seconds"
    ),
    completions=Completions(key="key", time="time", idle_after=IDLE_AFTER, watermark="0 seconds"),
    criterion=criteria.any_key(),
    shards=2,
)
SILENCE_SECONDS = 2


def test_after_a_standstill_nobody_expires_whose_completion_lies_unread_and_then_a_silent_stream_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    began = datetime.now(UTC) - timedelta(hours=2)

    def at(minutes: float) -> datetime:
        return began + timedelta(minutes=minutes)

    def waits(name: str, created: float, deadline: float) -> dict[str, Any]:
        return {"id": name, "keys": [name], "created": at(created), "deadline": at(deadline), "row": name}

    landing = Landing(tmp_path)
    landing.add([waits("paid", 0, 60), waits("unpaid", 0, 70)], [{"key": "other", "time": at(0)}])
    landing.run(spark, IDLE, heartbeats=False)
    # Two hours of event time land while nothing runs, in the order of time, one file a micro-batch.
    landing.add([waits("later", 30, 100)], [{"key": "other", "time": at(30)}])
    landing.add([], [{"key": "paid", "time": at(55)}])
    landing.add([], [{"key": "later", "time": at(90)}])
    read = {row["id"]: row["status"] for row in landing.run(spark, IDLE, heartbeats=False)}
    assert read == {"paid": "COMPLETED", "later": "COMPLETED"}, "muted while the backlog is read"
    query = (
        IDLE.resolve(*landing.frames(spark))
        .writeStream.format("parquet")
        .option("path", str(landing.outcomes))
        .option("checkpointLocation", str(landing.checkpoint))
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    try:
        until = monotonic() + 600
        while len(landing.written(spark)) < 3 and monotonic() < until:
            assert not query.awaitTermination(1)
    finally:
        query.stop()
    silent = {row["id"]: row["status"] for row in landing.written(spark)}
    assert silent == {**read, "unpaid": "EXPIRED"}, "nothing came, and time went on"


@pytest.mark.long
def test_runs_of_available_now_let_the_time_of_a_silence_pass(spark: SparkSession, tmp_path: Path) -> None:
    """Two runs of availableNow, the second with nothing to read: time has gone on in both, to a minute ago."""
    began = datetime.now(UTC) - IDLE_AFTER
    deadlines = {f"o{second}": began + timedelta(seconds=second) for second in range(-5, 300)}
    landing, created = Landing(tmp_path), began - timedelta(minutes=1)
    operations = [
        {"id": name, "keys": [name], "created": created, "deadline": deadline, "row": name}
        for name, deadline in deadlines.items()
    ]
    landing.add(operations, [{"key": "other", "time": created}])
    expired: set[str] = set()
    for run in range(2):
        starts = datetime.now(UTC)
        rows = landing.run(spark, IDLE)
        ends = datetime.now(UTC)
        before, expired = expired, {row["id"] for row in rows}
        assert len(rows) == len(expired) and {row["status"] for row in rows} == {"EXPIRED"}
        assert expired >= {name for name, deadline in deadlines.items() if deadline <= starts - IDLE_AFTER}, run
        assert expired <= {name for name, deadline in deadlines.items() if deadline <= ends - IDLE_AFTER}, run
        sleep(SILENCE_SECONDS)
    assert expired > before, "the second run had nothing to read, and time went on"
