"""What lies around the sink, on Iceberg tables: claims, renames, metrics, a REST catalog."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from benchmarks.harness import WORK
from benchmarks.jars import resolved, retrieved, spark_home
from spark_purgatory import RecordAccumulator
from spark_purgatory.errors import ConfigError
from tests.support import iceberg_lake as world
from tests.support.cluster import HOST, free_port
from tests.support.iceberg_lake import SQLITE, append, cut_at, expire, name, numbers, rewrite
from tests.support.server import server
from tests.support.sink_streams import Stream, every

ROOT = Path(__file__).resolve().parents[2]


ICEBERG, JETTY = "1.11.0", "12.1.5"
NEEDED = (
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    SQLITE,
)
OF_TESTS = (("iceberg-open-api", "test-fixtures"), ("iceberg-core", "tests"))


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """The address of a catalog whose tables are in a folder, within the block."""
    ivy = WORK / "iceberg-rest"
    ours = "org.apache.iceberg"
    jars = [str(retrieved(ours, name, ICEBERG, kind, "jar", ivy / name)) for name, kind in OF_TESTS]
    jars += [resolved(NEEDED, ivy / "needed"), *map(str, (spark_home() / "jars").glob("hadoop-client-*.jar"))]
    port = free_port()
    settings = {
        "CATALOG_WAREHOUSE": str(folder),
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalog.db'}",
        "CATALOG_JDBC_USER": "user",
        "CATALOG_JDBC_PASSWORD": "password",
        "CATALOG_REST_PORT": str(port),
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = ["java", "-Xmx256m", "-cp", os.pathsep.join(jars), "org.apache.iceberg.rest.RESTCatalogServer"]
    address = f"http://{HOST}:{port}"
    with server(command, f"{address}/v1/config", folder / "server.log", {**os.environ, **settings}):
        yield address


@pytest.mark.parametrize("catalog", ["files", "db"])
def test_a_namespace_that_does_not_exist_is_no_surprise(spark: SparkSession, tmp_path: Path, catalog: str) -> None:
    space = f"{catalog}.new_{uuid4().hex[:8]}"
    stream = Stream(spark, tmp_path, RecordAccumulator(table=f"{space}.t", format="iceberg"))
    with pytest.raises(ConfigError, match=f"CREATE SCHEMA {space}"):
        stream.add(1).run(stream.rows())
    spark.sql(f"CREATE NAMESPACE {space}")
    assert numbers(stream.run(stream.rows()).table()) == every(1)


@pytest.mark.parametrize("stream", ["files", "db"], indirect=True)
def test_a_checkpoint_is_of_one_table_and_a_table_of_two_queries_is_warned(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.add(1).run(stream.rows())
    first = stream.checkpoint
    stream.checkpoint = stream.folder / "second"
    with caplog.at_level(logging.WARNING):
        stream.run(stream.rows())
    assert "was filled by spark_purgatory/" in caplog.text
    stream.checkpoint, stream.sink = first, RecordAccumulator(table=f"{name(stream)}_other", format="iceberg")
    with pytest.raises(ConfigError, match="belongs to table"):
        stream.run(stream.rows())


def test_a_query_goes_on_with_a_table_that_was_renamed(stream: Stream) -> None:
    stream.add(1).run(stream.rows())
    new = f"{name(stream)}_new"
    stream.spark.sql(f"ALTER TABLE {name(stream)} RENAME TO {new.partition('.')[2]}")
    stream.sink = RecordAccumulator(table=new, format="iceberg", partition_by=["part"])
    assert numbers(stream.add(1).run(stream.rows()).table()) == every(2)


def test_metrics_count_what_a_drain_brings_beside_others(stream: Stream) -> None:
    stream.add(2)
    query = stream.sink.write_stream(stream.rows(), checkpoint=str(stream.checkpoint))
    query.processAllAvailable()
    query.flush()
    append(stream.spark, name(stream), world.OF_OTHERS)
    stream.add(1)
    query.processAllAvailable()
    query.flush()
    found = query.metrics()
    query.stop()
    assert found["drained_rows_total"] == 30 and found["drained_files_total"] == 4
    assert found["drained_bytes_total"] > 0 and found["staged_bytes"] == 0


def test_a_rest_catalog_has_each_row_once_after_runs_that_end_anywhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rest_catalog(tmp_path / "catalog") as address:
        for setting, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": address}.items():
            spark.conf.set(f"spark.sql.catalog.rest{setting}", value)
        spark.sql("CREATE NAMESPACE rest.t")
        stream = Stream(spark, tmp_path / "rows", RecordAccumulator(table="rest.t.rows", format="iceberg"))
        stream.add(1).run(stream.rows())
        for point in ("after intend", "before pick", "after commit"):
            append(spark, name(stream), world.OF_OTHERS)
            cut_at(stream, point, monkeypatch)
            append(spark, name(stream), world.OF_OTHERS)
        rewrite(spark, name(stream))
        assert numbers(stream.run(stream.rows()).table()) == every(4)
        expire(spark, name(stream))
        assert numbers(stream.add(1).run(stream.rows()).table()) == every(5)
