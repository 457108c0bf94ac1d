"""Stream = batch = reference oracle, on real Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB, STATE_STORE_SETTINGS
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.now_and_then import each_commit
from tests.support.stream_kit import stream_outcomes

SEEDS = each_commit(range(20), lambda seed: seed == 4)
"""Each host and state store has one at each commit."""
HDFS = {PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
HOSTS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("applyInPandasWithState", HDFS),
    ("applyInPandasWithState", {PROVIDER: ROCKSDB}),
    (LOG_HOST, STATE_STORE_SETTINGS),
)


@pytest.fixture
def host(spark: SparkSession, seed: int) -> Iterator[str]:
    """One of the hosts and state stores, for the streams of one seed."""
    name, needed = HOSTS[seed // 2 % len(HOSTS)]
    with settings(spark, needed):
        yield name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_in_any_order_and_split_stopped_and_restarted_gives_what_batch_and_oracle_give(
    spark: SparkSession, tmp_path: Path, seed: int, host: str
) -> None:
    stream = law_stream(seed)
    frames = stream.landed(tmp_path).frames(spark, streaming=False)
    purgatory = stream.purgatory(host)
    streamed, watermark_us = stream_outcomes(purgatory, *frames, tmp_path / "stream", seed, stream.batches)
    for outcomes, known_us in ((streamed, watermark_us), (purgatory.resolve(*frames), None)):
        assert multiset((row.asDict() for row in outcomes.collect()), *COLUMNS) == stream.expected(known_us)
