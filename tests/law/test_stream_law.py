"""Stream = batch = reference oracle, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import Completions, Operations, Purgatory
from spark_purgatory.core.spec.codes import RULES
from spark_purgatory.core.spec.criteria import Criterion
from spark_purgatory.spark.host.requirements import LOG_HOST_SETTINGS, PROVIDER, ROCKSDB
from spark_purgatory.spark.sink.spark_access import settings
from spark_purgatory.testing.kit import stream_outcomes
from spark_purgatory.testing.oracle import decide
from spark_purgatory.testing.worlds import STEP_US
from tests.support.engine_driver import multiset
from tests.support.law_worlds import draw
from tests.support.streams import Host, Landing

pytestmark = pytest.mark.spark

COLUMNS = ("row", "id", "status", "resolved_at", "wait_ms", "matched", "missing_keys")
CLOSING = {"id": "closing", "keys": ["closing"], "row": "closing"}
"""Created beyond all deadlines: its time lets everything else be decided."""
SEEDS = range(20)
HDFS = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
HOSTS: tuple[tuple[Host, Mapping[str, str]], ...] = (
    ("applyInPandasWithState", HDFS),
    ("applyInPandasWithState", {PROVIDER: ROCKSDB}),
    ("transformWithState", LOG_HOST_SETTINGS),
)


@pytest.fixture
def host(spark: SparkSession, seed: int) -> Iterator[Host]:
    """One of the hosts and state stores, for the streams of one seed."""
    name, needed = HOSTS[seed // 2 % len(HOSTS)]
    with settings(spark, needed):
        yield name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_in_any_order_and_split_stopped_and_restarted_gives_what_batch_and_oracle_give(
    spark: SparkSession, tmp_path: Path, seed: int, host: Host
) -> None:
    rule = RULES[seed % len(RULES)]
    several = seed % 2 == 1
    rng, world, criterion = draw(seed * 7919 + 12, rule, several)
    if rule in ("quorum", "count"):
        # A number that holds before any event, or that the one key cannot reach, is refused; rows may bring it.
        criterion["need"] = 1 if rule == "quorum" and not several else max(criterion["need"], 1)
        for row in world.operations:
            row["need"] = criterion["need"]
    for event in world.events:
        event.update(event_id=None, operation_id=None)  # the files have no such columns
    delays_us = {"created": rng.choice((0, 3 * STEP_US)), "time": rng.choice((0, 3 * STEP_US))}
    rows = [("created", row) for row in world.operations] + [("time", row) for row in world.events]
    end_us = max(row["deadline"] if field == "created" else row["time"] for field, row in rows) + 3 * STEP_US
    world.operations.append({**CLOSING, "created": end_us, "deadline": end_us, **criterion})
    world.events.append({"key": "closing-other", "time": end_us})
    purgatory = Purgatory(
        operations=Operations(
            id="id",
            keys="keys" if several else "key",
            created="created",
            deadline="deadline",
            watermark_ms=delays_us["created"] // 1000,
        ),
        completions=Completions(key="key", time="time", value="value", watermark_ms=delays_us["time"] // 1000),
        criterion=Criterion(rule, criterion["need"]),
        emit="final",
        shards=rng.choice((1, 3, 5)),
        host=host,
    )
    landing = Landing(tmp_path).add(*([_times(row) for row in side] for side in world))
    frames = landing.frames(spark, streaming=False)
    batches = rng.choice((2, 4))
    streamed, watermark_us = stream_outcomes(purgatory, *frames, tmp_path / "stream", seed, batches)
    for outcomes, known_us in ((streamed, watermark_us), (purgatory.resolve(*frames), None)):
        expected = decide(*world, criterion=criterion, watermark_us=known_us)
        assert multiset((row.asDict() for row in outcomes.collect()), *COLUMNS) == multiset(expected, *COLUMNS)


def _times(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the columns that the files have."""
    kept = ("id", "keys", "created", "deadline", "row", "key", "time", "value")
    return {name: row[name] for name in kept if name in row}
