"""The warnings of a running query, from reports as Spark makes them; state partitions, and columns that are kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from spark_purgatory.config import Operations
from spark_purgatory.schema import COUNTERS
from spark_purgatory.spark.operator.inputs import payload_sources
from spark_purgatory.spark.operator.query_watch import _QueryWatch
from spark_purgatory.spark.placement import state_partitions, too_many

MAY = "2024-05-01T13:40:00.000Z"
IN_1970 = "1970-01-20T19:50:00.000Z"


class Run:
    """A run of a query with one purgatory, "orders"."""

    def __init__(self, ticks: bool = False, shards: int = 16, watch: _QueryWatch | None = None) -> None:
        self.watch, self.batches, self.run = watch or _QueryWatch(), 0, f"run with {shards} shards"
        query: Any = SimpleNamespace(ticks=ticks, shards=shards)
        self.watch._queries[self.run] = {"orders": query}

    def report(
        self, watermark: str = MAY, rejections: dict[str, int] | None = None, partitions: int = 0, **counted: int
    ) -> None:
        row = Row(**{**dict.fromkeys(COUNTERS, 0), "rejections": rejections, **counted})
        self.watch.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(
            observedMetrics={"orders": row}, durationMs={"addBatch": 1}, eventTime={"watermark": watermark},
            runId=self.run, id="id", name="q", batchId=self.batches,
            stateOperators=[SimpleNamespace(numShufflePartitions=partitions)],
        )))  # fmt: skip
        self.batches += 1


@pytest.mark.parametrize(
    ("ticks", "reports", "said"),
    [
        (
            True,
            [{"received": 1, "events_received": 1, "operations_late": 1, "events_late": 1}],
            "orders: 2 of 2 rows of micro-batch 0 .* first read the backlog with resolve(..., heartbeats=False)",
        ),
        (
            False,
            [{"events_received": 10, "events_rejected": 9}, {"events_received": 1, "events_rejected": 1}],
            "orders, up to micro-batch 0: 9 of 10 events were rejected and complete nothing",
        ),
        (
            False,
            [{"received": 6, "events_received": 9, "expired": 5}, {"received": 6, "events_received": 9, "expired": 7}],
            "up to micro-batch 1: 12 operations expired and none completed, although 18 events came. Compare keys=",
        ),
        (
            False,
            [{"received": 6, "rejected": 6}, {"received": 6, "rejected": 6}],
            "up to micro-batch 1: 12 of 12 operations were REJECTED; the column reason has the cause",
        ),
        (
            False,
            [{"received": 1, "watermark": IN_1970}] * 3,
            "3 micro-batches brought rows, but there is no watermark after January 1970",
        ),
    ],
)  # fmt: skip
def test_what_may_be_lost_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, ticks: bool, reports: list[dict[str, Any]], said: str
) -> None:
    run = Run(ticks)
    for report in (*reports, *reports):
        run.report(**report)
    (warned,) = (record.getMessage() for record in caplog.records)
    at = -1
    for part in said.split(" .* "):
        assert (at := warned.find(part, at + 1)) >= 0, warned


@pytest.mark.parametrize(
    "report",
    [
        {"received": 100, "operations_late": 9},
        {"events_received": 20, "events_rejected": 17, "received": 20, "completed": 3, "expired": 17},
        {"received": 20, "rejected": 9},
        {"events_received": 9, "received": 20, "expired": 20},
    ],
)
def test_a_healthy_query_is_quiet(caplog: pytest.LogCaptureFixture, report: dict[str, int]) -> None:
    Run().report(**report)
    assert not caplog.records


def test_a_query_is_judged_by_its_own_shards_whatever_other_purgatories_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    large = Run(shards=16)
    large.watch.cores = 16
    small = Run(shards=4, watch=large.watch)
    large.report(partitions=16)
    assert not caplog.records
    small.report(partitions=16)
    assert "16 state partitions for 4 shards" in caplog.text


@pytest.mark.parametrize(
    ("shards", "cores", "expected"),
    [(8, 2, 2), (8, 8, 8), (8, 64, 8), (1, 2, 1), (1600, 16, 16), (8, None, 8)],
)
def test_there_is_one_for_each_shard_or_for_each_core_if_these_are_fewer(
    shards: int, cores: int | None, expected: int
) -> None:
    assert state_partitions(shards, cores) == expected


@pytest.mark.parametrize(
    ("partitions", "shards", "cores", "is_too_many"),
    [
        (200, 8, 2, True),
        (17, 8, 2, True),
        (16, 8, 2, False),  # every second one has a shard
        (8, 8, 2, False),
        (200, 150, 2, False),
    ],
)
def test_more_than_twice_the_shards_are_too_many(
    partitions: int, shards: int, cores: int | None, is_too_many: bool
) -> None:
    assert bool(too_many(partitions, shards, cores)) == is_too_many


def test_each_kept_field_names_its_columns_so_that_another_column_is_refused_at_a_restart() -> None:
    operations = Operations(id="i", keys=["k", "l"], created="c", deadline="d")
    assert dict(payload_sources(operations, "s")) == {
        "operations.id": ("i",),
        "operations.keys": ("k", "l"),
        "operations.created": ("c",),
        "operations.deadline": ("d",),
        "scope": ("s",),
    }
