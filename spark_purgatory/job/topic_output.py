"""Outcomes into a Kafka topic: at least once, as Spark's producer writes them.

A record's key is the operation's id as text, its value the outcome's row in JSON. A micro-batch that fails is written
again, with the same keys and values.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.rows_text import MICROSECONDS
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.checkpoint.start_check import settings_to_start
from spark_purgatory.spark.operator.field_types import key_text
from spark_purgatory.spark.operator.inputs import field_of
from spark_purgatory.spark.sink.record_accumulator import trigger_of
from spark_purgatory.spark.storage.checkpoint_files import check_files
from spark_purgatory.spark.storage.query_start import started

AS_JSON = {"ignoreNullFields": "false"} | MICROSECONDS  # Every record has all fields, and times as exact as Spark's


def start(spark: SparkSession, outcomes: DataFrame, config: JobConfig) -> tuple[StreamingQuery, int]:
    """Start the query; return it, and how many operations wait."""
    assert config.output.topic is not None, "bug: the output is no topic"
    if is_checkpoint(spark, config.checkpoint):
        check_files(spark, config.checkpoint)
    decide = settings_to_start(outcomes, config.checkpoint)
    records = records_of(outcomes, str(config.operations.made().id))
    writer = records.writeStream.format("kafka").options(**config.output.options).option("topic", config.output.topic)
    writer = writer.queryName(config.name).trigger(**trigger_of(**config.trigger.model_dump())).outputMode("append")
    return started(writer, spark, config.checkpoint, decide=decide), decide.waiting


def records_of(outcomes: DataFrame, id_column: str) -> DataFrame:
    key = key_text(*field_of(outcomes, id_column, "operations.id"))
    value = F.to_json(F.struct("*"), AS_JSON)
    return outcomes.select(key.alias("key"), value.alias("value"))
