"""A stream with a row in every micro-batch, so that a query runs micro-batches while its sources are silent."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T


def heartbeats(spark: SparkSession, schema: T.StructType, **values: Column) -> DataFrame:
    """Return a stream with one row in each micro-batch: null, except for ``values`` by column name."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1)
    columns = (values.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in schema.fields)
    return source.load().select(*columns)
