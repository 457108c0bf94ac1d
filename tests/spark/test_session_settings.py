"""Settings that sessions have, or that a vendor advises: the law holds with each, on both hosts, across a restart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory import gauges, pending
from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.spark.host.requirements import (
    CHANGELOG,
    PROVIDER,
    ROCKSDB,
    STATE_STORE_SETTINGS,
    check_log_host,
)
from spark_purgatory.spark.storage.spark_access import settings
from tests.support.engine_driver import multiset
from tests.support.law_streams import COLUMNS, law_stream
from tests.support.streams import Landing

BLOB_HOST = "applyInPandasWithState"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
NULLABLE = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"
SETTINGS: dict[str, Mapping[str, str]] = {
    "no micro-batch without rows": {NO_DATA: "false"},
    "ANSI off": {"spark.sql.ansi.enabled": "false"},
    "ANSI on": {"spark.sql.ansi.enabled": "true"},
    "RocksDB by default": {PROVIDER: ROCKSDB},
    "state checkpoint format 2": {PROVIDER: ROCKSDB, FORMAT: "2"},
    "output may be null": {NULLABLE: "true"},
    "output is as declared": {NULLABLE: "false"},
}


EACH_COMMIT = (("no micro-batch without rows", LOG_HOST),)
"""That of Databricks' advice; the others are looked at now and then."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "host"),
    [
        pytest.param(name, host, marks=[] if (name, host) in EACH_COMMIT else pytest.mark.long)
        for name in SETTINGS
        for host in (BLOB_HOST, LOG_HOST)
    ],
)
def test_the_law_holds_with_it_across_a_restart(spark: SparkSession, tmp_path: Path, name: str, host: str) -> None:
    seed = list(SETTINGS).index(name)
    landing = law_stream(seed).landed_in_batches(tmp_path, seed, batches=4)
    late = [path for path in tmp_path.glob("*/*.parquet") if int(path.stem) >= 2]
    hidden = [path.rename(path.with_name(f".{path.name}")) for path in late]
    with settings(spark, {**(STATE_STORE_SETTINGS if host == LOG_HOST else {}), **SETTINGS[name]}):
        assert_is_expected(spark, landing, host, seed)
        for path, shown in zip(hidden, late, strict=True):
            path.rename(shown)
        assert_is_expected(spark, landing, host, seed)


def assert_is_expected(spark: SparkSession, landing: Landing, host: str, seed: int) -> None:
    """What was written is what the oracle decides by the watermark of the last micro-batch; the rest is pending."""
    stream = law_stream(seed)
    written = landing.run(spark, stream.purgatory(host))
    arrived = landing.frames(spark, streaming=False)[0].count()
    expected = stream.expected(landing.last_watermark_us)
    assert multiset(written, *COLUMNS) == +expected
    waits = gauges(spark, checkpoint=str(landing.checkpoint))["pending"]
    assert waits == pending(spark, checkpoint=str(landing.checkpoint)).count()
    assert waits == arrived - len(written)


def test_rocksdb_without_its_changelog_is_a_warning(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    before = spark.conf.get(CHANGELOG, None)
    spark.conf.unset(CHANGELOG)
    try:
        with settings(spark, {PROVIDER: ROCKSDB}):
            check_log_host(spark)
    finally:
        if before is not None:
            spark.conf.set(CHANGELOG, before)
    assert f"{CHANGELOG} is not true" in caplog.text
