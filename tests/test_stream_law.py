"""Stream = batch = reference oracle, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory
from spark_purgatory.core.criteria import RULES, Criterion
from spark_purgatory.testing.oracle import decide
from spark_purgatory.testing.worlds import STEP_US, splits
from tests.engine_driver import multiset
from tests.streams import Landing
from tests.test_law import draw

pytestmark = pytest.mark.spark

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")
CLOSING_US = 10_000_000_000
SEEDS = range(20)
STORES = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")


@pytest.fixture
def store(spark: SparkSession, seed: int) -> Iterator[str]:
    """One of the state stores, for the streams of one seed."""
    setting, name = "spark.sql.streaming.stateStore.providerClass", STORES[seed // 2 % 2]
    spark.conf.set(setting, f"org.apache.spark.sql.execution.streaming.state.{name}")
    yield name
    spark.conf.unset(setting)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_in_any_order_and_split_stopped_and_restarted_gives_what_batch_and_oracle_give(
    spark: SparkSession, tmp_path: Path, seed: int, store: str
) -> None:
    rule = RULES[seed % len(RULES)]
    several = seed % 2 == 1
    rng, world, criterion = draw(seed * 7919 + 12, rule, several)
    for event in world.events:
        event.update(event_id=None, operation_id=None)  # the files have no such columns
    delays_us = [rng.choice((0, 3 * STEP_US)) for _ in range(2)]
    batches = splits(rng, *world, rng.choice((2, 4)), operations_delay_us=delays_us[0], events_delay_us=delays_us[1])
    closing = {
        "id": "closing",
        "keys": ["closing"],
        "created": CLOSING_US,
        "deadline": CLOSING_US + 1,
        "row": "closing",
    }
    purgatory = Purgatory(
        operations=Operations(
            id="id",
            keys="keys" if several else "key",
            created="created",
            deadline="deadline",
            watermark_ms=delays_us[0] // 1000,
        ),
        completions=Completions(key="key", time="time", value="value", watermark_ms=delays_us[1] // 1000),
        criterion=Criterion(rule, criterion["need"]),
        emit="final",
        shards=rng.choice((1, 3, 5)),
    )
    landing, stop_after = Landing(tmp_path), rng.randrange(len(batches[:-3]))
    for number, batch in enumerate(batches[:-3]):
        landing.add([_times(row) for row in batch.operations], [_times(row) for row in batch.events])
        if number == stop_after:
            landing.run(spark, purgatory)
    landing.add([_times(closing)], [_times({"key": "closing-other", "time": CLOSING_US})])
    streamed = [row for row in landing.run(spark, purgatory) if row["id"] != "closing"]
    frames = landing.frames(spark, streaming=False)
    batch_rows = [row.asDict() for row in purgatory.resolve(*frames).collect() if row.id != "closing"]
    expected = multiset(decide(*world, criterion=criterion), *COLUMNS)
    assert multiset(batch_rows, *COLUMNS) == expected
    assert multiset(streamed, *COLUMNS) == expected


def _times(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the columns that the files have."""
    kept = ("id", "keys", "created", "deadline", "row", "key", "time", "value")
    return {name: row[name] for name in kept if name in row}
