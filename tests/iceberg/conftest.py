"""A session with two Iceberg catalogs, and a stream into a table of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_purgatory import RecordAccumulator
from tests.support import iceberg_lake
from tests.support.sink_streams import Stream

if not iceberg_lake.has_iceberg(pyspark.__version__):  # Iceberg has no runtime for this Spark: make test-iceberg
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = iceberg_lake.session(tmp_path_factory.mktemp("lake"))
    yield session
    session.stop()


@pytest.fixture(params=["db"])
def stream(spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path) -> Stream:
    table = f"{request.param}.t.of_{uuid4().hex[:8]}"
    return Stream(spark, tmp_path, RecordAccumulator(table=table, format="iceberg", partition_by=["part"]))
