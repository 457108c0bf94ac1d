"""Limits that a query reaches: what is said, and nothing is lost once they are raised or the table is mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_purgatory.errors import PurgatoryError
from tests.support.closed_tables import closed
from tests.support.lanes import BLOB, LOG
from tests.support.load import HOT, NOBODY, WAITING, Load

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize("host", [BLOB, LOG])
def test_a_shard_that_is_full_stops_the_query_by_name_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, host: str
) -> None:
    load = Load(spark, tmp_path, host, shards=1)
    for number in range(3):
        load.land(np.arange(number * 1000, (number + 1) * 1000), [HOT] * 1000, [NOBODY], "COMPLETED")
    for _ in range(2):
        with pytest.raises(
            PySparkException, match=r"LimitError: max_pending_per_shard is 2,500, but 3,000 operations would wait"
        ):
            load.run(max_pending_per_shard=2500)
    load.land(np.array([WAITING]), ["last"], [HOT])
    load.run(max_pending_per_shard=3001)
    assert load.wrong() == ""


@pytest.mark.parametrize("host", [BLOB, LOG])
def test_a_table_that_takes_nothing_fills_buffer_memory_which_is_named_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, host: str
) -> None:
    load = Load(spark, tmp_path, host)
    small = {"batch_size": "24 KiB", "buffer_memory": "48 KiB", "linger": "1 hour", "delivery_timeout": "1 hour"}
    impatient = {**small, "max_block": "3 seconds", "retry_backoff": "200 milliseconds"}

    def land(files: int) -> None:
        for _ in range(files):
            ids = np.arange(load.files * 1000, (load.files + 1) * 1000)
            load.land(ids, [f"key {one}" for one in ids], [f"key {one}" for one in ids], "COMPLETED")

    land(1)
    load.run(small)
    land(6)
    with closed(spark, tmp_path / "table"):
        for _ in range(2):
            with pytest.raises((PySparkException, PurgatoryError), match="BufferExhaustedError") as raised:
                load.run(impatient)
    print(f"{host}: {raised.value}"[:900])
    load.run(impatient)
    assert load.wrong() == ""
