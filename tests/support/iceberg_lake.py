"""A session with two Iceberg catalogs: ``files``, a hadoop catalog, and ``db``, a JDBC catalog on SQLite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.sink.drain import actions
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION, RUNTIMES, IcebergTarget, iceberg_package
from tests.support.sink_streams import Stream

SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
OF_OTHERS = -1
"""What other writers append."""


def has_iceberg(version: str) -> bool:
    """Whether Iceberg has a runtime for this release of Spark."""
    return version.rpartition(".")[0] in RUNTIMES


def session(folder: Path) -> SparkSession:
    """A session whose tables are below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        **QUICK_SETTINGS,
        "spark.jars.packages": f"{iceberg_package(pyspark.__version__)},{SQLITE}",
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.files": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.files.type": "hadoop",
        "spark.sql.catalog.files.warehouse": str(folder / "files"),
        "spark.sql.catalog.db": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.db.type": "jdbc",
        "spark.sql.catalog.db.uri": f"jdbc:sqlite:{folder / 'catalog.db'}?busy_timeout=20000",
        "spark.sql.catalog.db.jdbc.schema-version": "V1",
        "spark.sql.catalog.db.warehouse": str(folder / "db"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    builder: Any = SparkSession.builder.master("local[2]").config(map=settings)
    spark: SparkSession = builder.getOrCreate()
    for catalog in ("files", "db"):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.t")
    return spark


def append(spark: SparkSession, table: str, *numbers: int) -> None:
    spark.createDataFrame([(n, n % 2) for n in numbers], "n bigint, part bigint").writeTo(table).append()


def expire(spark: SparkSession, table: str) -> None:
    """Leave the current snapshot alone, and what branches and tags keep."""
    catalog, _, name = table.partition(".")
    older = "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"
    spark.sql(f"CALL {catalog}.system.expire_snapshots(table => '{name}', {older})")


def rewrite(spark: SparkSession, table: str) -> None:
    catalog, _, name = table.partition(".")
    spark.sql(f"REFRESH TABLE {table}")  # A drain has another session, and this one may have an older table.
    options = "options => map('rewrite-all', 'true')"
    spark.sql(f"REFRESH TABLE {table}")  # Another session has written.
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', {options})")


def numbers(table: DataFrame) -> Counter[int]:
    return Counter(row["n"] for row in table.where(f"n > {OF_OTHERS}").collect())


class PowerCutError(RuntimeError):
    """Ends a run."""


def cut_at(stream: Stream, failpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file more, and a run that ends at the failpoint; "before pick" lies between the branch and the table."""

    def hook(reached: str) -> None:
        if reached == failpoint:
            actions.hook = None
            raise PowerCutError(failpoint)

    def pick(self: IcebergTarget, spark: SparkSession, written: int) -> None:
        raise PowerCutError("before pick")

    with monkeypatch.context() as patch:
        if failpoint == "before pick":
            patch.setattr(IcebergTarget, "_pick", pick)
        else:
            actions.hook = hook
        try:
            with pytest.raises(Exception, match=failpoint):
                stream.add(1).run(stream.rows())
        finally:
            actions.hook = None


def name(stream: Stream) -> str:
    return str(stream.sink.table)
