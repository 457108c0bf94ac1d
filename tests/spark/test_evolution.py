"""A query that is stopped and started again with other columns, or with other settings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Purgatory, RecordAccumulator, check_checkpoint, criteria, pending
from spark_purgatory.core.spec.engine_spec import MOVES, EngineSpec
from spark_purgatory.core.state.step_log import ShardState
from spark_purgatory.errors import StateCorruptError, StateMismatchError
from spark_purgatory.spark.checkpoint import start_check
from spark_purgatory.spark.storage.spark_access import settings
from tests.support import stream_rows
from tests.support.payload_states import saved, spec_of
from tests.support.stream_rows import NOON, at, completions_with, operation, operations_with
from tests.support.streams import Landing

MERGE = {"spark.databricks.delta.schema.autoMerge.enabled": "true"}
BEFORE = (
    "id",
    "key",
    "created",
    "deadline",
    "cast(row as tinyint) as small",
    "cast(row as decimal(10, 2)) as price",
    "struct(id as name, cast(row as int) as n) as nested",
    "array(cast(row as float), null) as list",
    "row as text",
)
AFTER = (
    "to_date(created) as day",
    "array(cast(row as double), null) as list",
    "struct(cast(row as bigint) as n, row as extra, id as name) as nested",
    "cast(row as decimal(14, 3)) as price",
    "cast(row as int) as small",
    "deadline",
    "created",
    "key",
    "id",
)
"""A column more, wider types, a field more, another order, and no ``text``."""


def waits(name: str, created: float, deadline: float, row: str) -> dict[str, Any]:
    return operation(name, created, deadline, keys=[f"k-{name}"], row=row)


def purgatory(**changes: Any) -> Purgatory:
    completions = completions_with()
    return stream_rows.purgatory(**{"completions": completions, "shards": 4, **changes})


def outcomes_of(spark: SparkSession, landing: Landing, columns: tuple[str, ...], **changes: Any) -> DataFrame:
    operations, events = landing.frames(spark)
    return purgatory(**changes).resolve(operations.selectExpr(*columns), events)


def run(spark: SparkSession, landing: Landing, columns: tuple[str, ...], **changes: Any) -> None:
    """Over everything that landed, into the Delta table, from the checkpoint on."""
    sink = RecordAccumulator(path=str(landing.outcomes))
    stream = outcomes_of(spark, landing, columns, **changes)
    sink.write_stream(stream, checkpoint=str(landing.checkpoint), trigger={"availableNow": True}).awaitTermination()


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Iterator[Landing]:
    """Four operations wait; those that come later find them waiting."""
    landing = Landing(tmp_path)
    landing.add([waits(f"o{i}", i, 60, str(i)) for i in range(4)], [{"key": "other", "time": at(1)}])
    run(spark, landing, BEFORE)
    with settings(spark, MERGE):
        yield landing


def begun(landing: Landing) -> list[str]:
    """Micro-batches that were begun."""
    return sorted(path.name for path in (landing.checkpoint / "offsets").iterdir())


def test_what_waits_goes_on_with_other_columns(spark: SparkSession, landing: Landing) -> None:
    waiting = {row.id: row.asDict(True) for row in pending(spark, checkpoint=str(landing.checkpoint)).collect()}
    assert len(waiting) == 4 and "text" in waiting["o1"]
    landing.add([waits("new", 2, 61, "99")], [{"key": "k-o1", "time": at(5)}])
    run(spark, landing, AFTER)
    # Shards that nothing touched have the columns of before; both kinds are shown as one table.
    waiting = {row.id: row.asDict(True) for row in pending(spark, checkpoint=str(landing.checkpoint)).collect()}
    assert {name: (row["small"], row["day"]) for name, row in waiting.items()} == {
        "o0": (0, None),
        "o2": (2, None),
        "o3": (3, None),
        "new": (99, NOON.date()),
    }
    assert waiting["o3"]["nested"]["n"] == 3 and waiting["new"]["nested"]["extra"] == "99"
    # A restart with the same columns: states of both kinds again. Then the clock ends all.
    landing.add([waits("clock", 600, 601, "1")], [{"key": "other", "time": at(600)}])
    run(spark, landing, AFTER)
    rows = {row.id: row.asDict(True) for row in spark.read.format("delta").load(str(landing.outcomes)).collect()}
    assert {name: row["status"] for name, row in rows.items()} == {
        **dict.fromkeys(("o0", "o2", "o3", "new"), "EXPIRED"),
        "o1": "COMPLETED",
    }
    for i in range(4):
        row = rows[f"o{i}"]
        expected = {
            "day": None,
            "list": [float(i), None],
            "nested": {"n": i, "extra": None, "name": f"o{i}"},
            "price": Decimal(i),
            "small": i,
            "created": at(i).astimezone().replace(tzinfo=None),
        }
        assert {name: row[name] for name in expected} == expected
        assert "text" not in row
    assert (rows["new"]["day"], rows["new"]["nested"]["extra"]) == (date(2024, 5, 1), "99")


LABELLED = (*BEFORE[:-1], "row as label")
CHANGES: dict[str, Any] = {"shards": 3, "emit": "final", "lookback": "1 minute", "criterion": criteria.count(2)}
SAID = (
    "shards: the checkpoint was written with 4, but the query has 3: set shards=4",
    "criterion: the checkpoint was written with 'any_key'",
    "emit: the checkpoint was written with 'early'",
    "lookback: the checkpoint was written with '0 us'",
    "'text' is in the checkpoint",
    "Operations(removed_columns=['text'])",
)


@pytest.mark.long
def test_what_cannot_change_is_refused_before_a_micro_batch_runs(spark: SparkSession, landing: Landing) -> None:
    landing.add([waits("new", 2, 61, "99")], [{"key": "k-o1", "time": at(5)}])
    before = begun(landing)
    with pytest.raises(StateMismatchError) as refused:
        run(spark, landing, LABELLED, **CHANGES)
    assert [text for text in SAID if text not in str(refused.value)] == []
    assert str(refused.value).endswith(("; or start over: a new checkpoint and a new table", MOVES))
    with pytest.raises(StateMismatchError) as refused_again:
        stream = outcomes_of(spark, landing, LABELLED, **CHANGES)
        check_checkpoint(spark, stream, checkpoint=str(landing.checkpoint))
    assert str(refused_again.value) == str(refused.value)
    assert begun(landing) == before and not spark.streams.active
    # Who means it says so.
    given_up = operations_with(removed_columns="text")
    run(spark, landing, LABELLED, operations=given_up)
    assert len(begun(landing)) > len(before)
    [row] = spark.read.format("delta").load(str(landing.outcomes)).where("status = 'COMPLETED'").collect()
    assert (row.id, row.label) == ("o1", None)


ON_THE_HEAP = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
OTHER_SESSION = {
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.streaming.stateStore.providerClass": ON_THE_HEAP,
    "spark.sql.session.timeZone": "Asia/Kolkata",
}


@pytest.mark.long
@pytest.mark.blob_host
def test_other_settings_go_on_with_what_waits(spark: SparkSession, landing: Landing) -> None:
    changes = {
        "operations": operations_with(watermark="5 minutes"),
        "completions": completions_with(watermark="1 minute", kind=F.lit("complete")),
        "max_future": "2 days",
        "max_pending_per_shard": 10,
        "max_state_bytes_per_shard": 1 << 20,
        "prefix": "its_",
        "name": "other",
    }
    landing.add([waits("new", 2, 61, "99")], [{"key": "k-o1", "time": at(5)}])
    with settings(spark, OTHER_SESSION):
        run(spark, landing, BEFORE, **changes)
    stores = {path.name for path in (landing.checkpoint / "state" / "0").iterdir() if path.name.isdigit()}
    assert stores == {"0", "1"}, "as many partitions as the checkpoint had"
    assert any((landing.checkpoint / "state").rglob("*.changelog")), "the store that it had"
    assert not any((landing.checkpoint / "state").rglob("*.delta")), "and no other"
    landing.add([waits("clock", 600, 601, "1")], [{"key": "other", "time": at(600)}])
    run(spark, landing, BEFORE, **changes)
    rows = spark.read.format("delta").load(str(landing.outcomes)).collect()
    assert {row.id: row.its_status for row in rows} == {
        **dict.fromkeys(("o0", "o2", "o3", "new"), "EXPIRED"),
        "o1": "COMPLETED",
    }


@pytest.mark.long
def test_heartbeats_are_a_source_that_spark_does_not_add(spark: SparkSession, landing: Landing) -> None:
    landing.add([waits("new", 2, 61, "99")], [])
    idle = operations_with(idle_after="1 minute")
    with pytest.raises(StreamingQueryException, match="sources in the checkpoint offsets and now there are"):
        run(spark, landing, BEFORE, operations=idle)


def compared(spec: EngineSpec, blob: bytes) -> dict[str, Any]:
    [found] = start_check._compared(spec, 1, ShardState(blob))
    return found


def test_a_damaged_state_is_named_as_that() -> None:
    columns = pa.schema([("id", pa.string()), ("key", pa.string())])
    blob = saved(spec_of(columns), [{"id": "o", "key": "k"}])
    assert compared(spec_of(columns), blob)["differences"] == []
    found = compared(spec_of(columns), blob[:-1])
    assert found["error"] == StateCorruptError.__name__ and "truncated or damaged" in found["text"]
