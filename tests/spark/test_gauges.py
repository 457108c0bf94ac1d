"""Counters of a micro-batch say what it changed; gauges say how much there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory import gauges
from spark_purgatory.errors import ConfigError, StateUnreadableError
from spark_purgatory.schema import COUNTERS
from tests.support.connect_child import land, run_child
from tests.support.now_and_then import now_and_then
from tests.support.stream_rows import at, event, operation, purgatory
from tests.support.streams import Landing

STATUSES = ("completed", "expired", "failed", "cancelled", "duplicate", "rejected")


def run(spark: SparkSession, landing: Landing) -> StreamingQuery:
    """Run the stream over what landed."""
    query = purgatory().resolve(*landing.frames(spark)).writeStream.format("noop")
    started = query.option("checkpointLocation", str(landing.checkpoint)).trigger(availableNow=True).start()
    started.awaitTermination()
    return started


@pytest.mark.blob_host
def test_the_counters_of_all_micro_batches_add_up_to_what_the_gauges_tell(spark: SparkSession, tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    checkpoint = str(landing.checkpoint)
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        gauges(spark, checkpoint=checkpoint)
    # The oldest operation and the one that is due first are in two shards.
    hashes = spark.range(4, 9).select(F.xxhash64(F.concat(F.lit("o"), "id"))).collect()
    shards = [each[0] % 2**64 % 3 for each in hashes]
    other = 4 + next(i for i, shard in enumerate(shards) if shard != shards[0])
    times = {"o4": {"created": -1}, f"o{other}": {"deadline": 250}}
    waiting = [operation(name, **({"deadline": 300} | times.get(name, {}))) for name in (f"o{i}" for i in range(100))]
    landing.add(waiting, [event("x", 1)])
    landing.add([], [event("o3", 2)])
    landing.add([], [])
    landing.add([operation("late", 3, 400)], [])
    progress = [report for report in run(spark, landing).recentProgress if "addBatch" in report["durationMs"]]
    changes = [report["observedMetrics"]["spark_purgatory"].asDict() for report in progress]
    assert all(tuple(change) == (*COUNTERS, "rejections") for change in changes), changes
    assert not any(None in change.values() or change["rejections"] for change in changes), changes
    for change in changes:
        assert change["pending_change"] == change["received"] - sum(change[status] for status in STATUSES)
    assert any(change["pending_change"] == -1 for change in changes), "one is decided, and none comes"
    assert any(not any(change.values()) for change in changes), "a micro-batch that touches no shard adds nothing"
    found = gauges(spark, checkpoint=checkpoint)
    assert found["pending"] == sum(change["pending_change"] for change in changes) == 100
    assert found["shards"] == 3
    assert found["oldest_created_ms"] == int(at(-1).timestamp() * 1000)
    assert found["next_due_ms"] == int(at(250).timestamp() * 1000)
    assert 100 / 3 <= found["largest_shard_pending"] < 100
    assert 100 <= found["watched"] <= 101
    assert (found["batch_id"], found["watermark_ms"]) == (progress[-1]["batchId"], int(at(2).timestamp() * 1000))
    blobs = spark.read.format("statestore").load(checkpoint).select(F.length("value.groupState.blob").alias("n"))
    assert found["state_bytes"] == sum(row["n"] for row in blobs.collect())
    assert sum(change["state_bytes_written"] for change in changes) > found["state_bytes"]


@pytest.mark.long
def test_gauges_find_the_purgatory_beside_other_state_and_refuse_a_checkpoint_without_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path).add([operation("a"), operation("b")], [event("x", 1)])
    operations, events = landing.frames(spark)

    def run_to_the_end(rows: DataFrame, name: str) -> str:
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        query.trigger(availableNow=True).start().awaitTermination()
        return str(tmp_path / name)

    both = run_to_the_end(purgatory().resolve(operations.dropDuplicates(["id"]), events), "both")
    assert gauges(spark, checkpoint=both)["pending"] == 2
    alone = run_to_the_end(operations.dropDuplicates(["id"]), "alone")
    with pytest.raises(
        ConfigError, match=r"has the state of dedupe, but not of a purgatory: name the checkpointLocation"
    ):
        gauges(spark, checkpoint=alone)
    stateless = run_to_the_end(operations, "stateless")
    with pytest.raises(
        StateUnreadableError, match=r"committed micro-batches but no state, because .* name the checkpoint"
    ):
        gauges(spark, checkpoint=stateless)


@pytest.mark.spark
@pytest.mark.parametrize("role", now_and_then("gauges", "gauges of the log host"))
def test_gauges_are_read_through_spark_connect(tmp_path: Path, role: str) -> None:
    land(tmp_path, "operations", 0, "id", range(10))
    land(tmp_path, "completions", 0, "key", range(4))
    run_child(role, tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert "is not a checkpoint" in seen["before"]
    assert (seen["after"]["pending"], seen["after"]["shards"]) == (6, 1)
    assert seen["pending"] == {str(n): "0 of 1" for n in range(4, 10)}
