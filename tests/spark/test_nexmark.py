"""Nexmark's query 9: the events are drawn as the published generator does, and the tables of its contenders agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.nexmark import COLUMNS, CONTENDERS, sides, winners
from benchmarks.nexmark_events import FIRST_ID, IS_AUCTION, IS_BID, prepared
from tests.support.now_and_then import now_and_then

pytestmark = pytest.mark.bench

EVENTS, BATCHES = 5_000, 3


def test_events_have_the_published_proportions_and_times(tmp_path: Path) -> None:
    files = sorted(prepared(100_000, 2, 7, tmp_path).folder.iterdir())
    assert len(files) == 3
    rows = [row for file in files[:2] for row in pq.read_table(file).to_pylist()]
    auctions = [row for row in rows if row["kind"] == IS_AUCTION]
    bids = [row for row in rows if row["kind"] == IS_BID]
    assert (len(auctions), len(bids)) == (6_000, 92_000)
    assert [row["auction"] for row in auctions] == [*range(FIRST_ID, FIRST_ID + 6_000)]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    open_ms = [(row["expires"] - row["time"]).total_seconds() * 1000 for row in auctions]
    assert min(open_ms) >= 1 and max(open_ms) < 336 and 155 < np.mean(open_ms) < 180
    hot = np.mean([(row["auction"] - FIRST_ID) % 100 == 0 for row in bids])
    assert 0.49 < hot < 0.53
    assert 85 < np.mean([32 + len(row["bid_extra"]) for row in bids]) < 115
    again = pq.read_table(sorted(prepared(100_000, 2, 7, tmp_path / "again").folder.iterdir())[0])
    assert again.equals(pq.read_table(files[0]))


@pytest.mark.spark
@pytest.mark.parametrize("name", now_and_then("blob", "join"))
def test_a_stream_gives_the_table_of_the_query_in_plain_sql(spark: SparkSession, tmp_path: Path, name: str) -> None:
    events = prepared(EVENTS, BATCHES, 7, tmp_path)
    table = CONTENDERS[name].build(*sides(spark, events.folder, streaming=True)).select(*COLUMNS)
    query = table.writeStream.format("memory").queryName(f"nexmark_{name}").trigger(availableNow=True).start()
    query.awaitTermination()
    expected = winners(spark, events.folder).select(*COLUMNS).collect()
    assert len(expected) > 200
    assert sorted(spark.table(f"nexmark_{name}").collect()) == sorted(expected)
