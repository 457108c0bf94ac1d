"""Stream = batch = reference oracle, on real Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import Completions, Operations
from spark_purgatory.config.options import LOG_HOST, watermark_ms
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.host.requirements import PROVIDER, ROCKSDB, STATE_STORE_SETTINGS
from spark_purgatory.spark.operator.inputs import field_column
from spark_purgatory.spark.operator.purgatory import Purgatory
from spark_purgatory.spark.storage.query_start import started
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.now_and_then import each_commit
from tests.support.worlds import splits, watermark_us_after

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


def stream_outcomes(
    purgatory: Purgatory,
    operations: DataFrame,
    completions: DataFrame,
    folder: Path | str,
    seed: int = 0,
    batches: int = 4,
    restarts: int = 1,
) -> tuple[DataFrame, int]:
    """Stream both DataFrames in random micro-batches; return the outcomes and the last watermark in microseconds.

    Every row is on time. A restart is left out if rows of both inputs do not follow it.
    """
    rng, folder = random.Random(seed), Path(folder)
    sides = {"created": operations, "time": completions}
    configs: dict[str, Operations | Completions] = {"created": purgatory.operations, "time": purgatory.completions}
    tables = {field: frame.toArrow() for field, frame in sides.items()}
    delays_us = {field: watermark_ms(config) * 1000 for field, config in configs.items()}
    created, times = (
        [{field: us, "row": i} for i, us in enumerate(_times_us(frame, configs[field], field))]
        for field, frame in sides.items()
    )
    delays = {"operations_delay_us": delays_us["created"], "events_delay_us": delays_us["time"]}
    plan = splits(rng, created, times, batches, **delays, lookback_us=purgatory.us_of("lookback"))[:-3]
    # After a restart, Spark's watermark does not move until both inputs have rows again.
    rests = [(number, plan[number:]) for number in range(1, len(plan))]
    heard = [n for n, rest in rests if any(batch.operations for batch in rest) and any(batch.events for batch in rest)]
    stops = {*rng.sample(heard, min(restarts, len(heard))), len(plan)}
    watermark_us, latest_us = 0, dict[str, int]()
    for number, batch in enumerate(plan, start=1):
        for field, chosen in (("created", batch.operations), ("time", batch.events)):
            _land(folder / field, number, tables[field].take(pa.array([row["row"] for row in chosen], pa.int64())))
        arrived = [("created", row) for row in batch.operations] + [("time", row) for row in batch.events]
        watermark_us = watermark_us_after(arrived, latest_us, delays_us, watermark_us)
        if number in stops:
            _run(purgatory, sides, folder)
            latest_us.clear()
    return operations.sparkSession.read.parquet(str(folder / "outcomes")), watermark_us


def _times_us(frame: DataFrame, config: Operations | Completions, field: str) -> list[int | None]:
    time = field_column(frame, getattr(config, field), f"{type(config).__name__.lower()}.{field}")
    return frame.select(F.unix_micros(time.cast(T.TimestampType())).alias("us")).toArrow()["us"].to_pylist()


def _land(folder: Path, number: int, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:05}.parquet"
    pq.write_table(table, path)
    # Spark reads files in the order of their modification times.
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _run(purgatory: Purgatory, sides: dict[str, DataFrame], folder: Path) -> None:
    reader = sides["time"].sparkSession.readStream.option("maxFilesPerTrigger", 1)
    operations, completions = (reader.schema(f.schema).parquet(str(folder / field)) for field, f in sides.items())
    outcomes, checkpoint = purgatory.resolve(operations, completions), str(folder / "checkpoint")
    writer = outcomes.writeStream.format("parquet").option("path", str(folder / "outcomes"))
    decide, _ = settings_to_start(outcomes, checkpoint)
    started(writer.trigger(availableNow=True), outcomes.sparkSession, checkpoint, decide=decide).awaitTermination()
