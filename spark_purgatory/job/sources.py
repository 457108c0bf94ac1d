"""The two inputs as streaming DataFrames, and the stream of outcomes over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory import Purgatory
from spark_purgatory.job.config_file import JobConfigError, Problem
from spark_purgatory.job.job_config import DeltaSource, FolderSource, Input, JobConfig, KafkaSource


def outcomes_of(spark: SparkSession, config: JobConfig) -> DataFrame:
    """The stream of outcomes that the file describes; `JobConfigError` names the field that Spark refuses."""
    operations = read_input(spark, config.operations, "operations")
    completions = read_input(spark, config.completions, "completions")
    return purgatory_of(config).resolve(operations, completions, heartbeats=config.heartbeats)


def purgatory_of(config: JobConfig) -> Purgatory:
    """The library's own configuration, field by field."""
    return Purgatory(**vars(config.options()))


def read_input(spark: SparkSession, given: Input, name: str) -> DataFrame:
    """One input's rows: read, then ``where`` on the source's columns, then ``select``."""
    with blamed_on(f"{name}.source"):
        rows = _read(spark, given.source)
    if given.where is not None:
        with blamed_on(f"{name}.where"):
            rows = rows.where(given.where)
    with blamed_on(f"{name}.select"):
        return rows.selectExpr(*given.select)


def _read(spark: SparkSession, source: FolderSource | DeltaSource | KafkaSource) -> DataFrame:
    reader = spark.readStream.format(source.format).options(**source.options)
    match source:
        case FolderSource():
            return reader.schema(source.schema_ddl).load(source.path)
        case DeltaSource():
            return reader.table(source.table) if source.table else reader.load(source.path)
        case KafkaSource():
            return parse_records(reader.option("subscribe", source.topic).load(), source.schema_ddl)


def parse_records(records: DataFrame, schema_ddl: str) -> DataFrame:
    """The fields of JSON in Kafka's ``value``, and ``kafka_timestamp``.

    A record that is not JSON becomes a row of nulls, which the purgatory rejects with a reason: nothing is
    lost without a trace.
    """
    record = F.from_json(F.col("value").cast("string"), schema_ddl).alias("record")
    return records.select(record, F.col("timestamp").alias("kafka_timestamp")).select("record.*", "kafka_timestamp")


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Turn what Spark says of an expression, a schema or a path into an error on the field it came from."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        sentence = str(error).strip().split("\n", 1)[0]
        raise JobConfigError("the job file", [Problem(field, "", sentence)]) from error
