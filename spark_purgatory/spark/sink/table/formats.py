"""The formats of tables."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION, IcebergTarget
from spark_purgatory.spark.sink.table.table_place import resolved
from spark_purgatory.spark.sink.table.target import Target


def opened(options: SinkOptions) -> Target:
    return IcebergTarget(options) if options.format == "iceberg" else DeltaTarget(options)


def with_format(spark: SparkSession, options: SinkOptions) -> SinkOptions:
    """Return the options with a format. The default is that of an existing table, or Delta."""
    has_iceberg = EXTENSION in (spark.conf.get("spark.sql.extensions", None) or "")
    if options.format is None and options.table and has_iceberg and opened(options).is_known(spark):
        rows = spark.sql(f"DESCRIBE EXTENDED {options.table}").collect()
        if any(row[0] == "Provider" and row[1] == "iceberg" for row in rows):
            options = replace(options, format="iceberg")
    return resolved(spark, options) if options.format == "iceberg" else replace(options, format="delta")
