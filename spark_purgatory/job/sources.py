"""The two inputs as streaming DataFrames, and the stream of outcomes over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory import Purgatory
from spark_purgatory.errors import sentence_of
from spark_purgatory.job.config_file import wrong
from spark_purgatory.job.job_config import InputSection, JobConfig
from spark_purgatory.job.kafka_values import fields_of, records_of, rows_of
from spark_purgatory.job.source_config import NEVER_TOO_OLD, DeltaSource, FolderSource, KafkaSource

_DIGITS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
MICROSECONDS = {"timestampFormat": f"{_DIGITS}XXX", "timestampNTZFormat": _DIGITS}  # Options of ``to_json``


def outcomes_of(spark: SparkSession, config: JobConfig) -> DataFrame:
    """The stream of outcomes that the file describes; `JobConfigError` names the field that Spark refuses."""
    operations = read_input(spark, config.operations, "operations")
    completions = read_input(spark, config.completions, "completions")
    return purgatory_of(config).resolve(
        operations,
        completions,
        heartbeats=config.heartbeats,
        checkpoint=config.checkpoint,
        complete_until=config.complete_until.model_dump(exclude_none=True),
    )


def purgatory_of(config: JobConfig) -> Purgatory:
    return Purgatory(**vars(config.options()))


def read_input(spark: SparkSession, given: InputSection, name: str, is_batch: bool = False) -> DataFrame:
    """One input's rows: read as a stream, or all at once, then ``where`` on the source's columns, then ``select``."""
    with blamed_on(f"{name}.source"):
        rows = _read(spark, given, name, is_batch)
    # Kafka's own columns of a record are read by name only, as ``_metadata`` of a file is.
    whole = fields_of(rows) if isinstance(given.source, KafkaSource) else ["*"]
    if given.where is not None:
        with blamed_on(f"{name}.where"):
            rows = rows.where(given.where)
    chosen = [part for expression in given.select for part in (whole if expression.strip() == "*" else [expression])]
    with blamed_on(f"{name}.select"):
        return rows.selectExpr(*chosen)


def _read(spark: SparkSession, given: InputSection, name: str, is_batch: bool) -> DataFrame:
    source = given.source
    if isinstance(source, KafkaSource):
        return rows_of(records_of(spark, source, given.names("kafka_headers")), source, name)
    reader: Any = spark.read if is_batch else spark.readStream
    reader = reader.format(source.format)
    if isinstance(source, FolderSource):
        return reader.options(**{**NEVER_TOO_OLD, **source.options}).schema(source.schema_ddl).load(source.path)
    reader = reader.options(**source.options)
    if is_batch:  # Rows that are appended from now on are not read.
        reader = reader.option("versionAsOf", newest_version(spark, source))
    return reader.table(source.table) if source.table else reader.load(source.path)


def newest_version(spark: SparkSession, source: DeltaSource) -> int:
    [last] = spark.sql(f"DESCRIBE HISTORY {source.sql_place} LIMIT 1").collect()
    return int(last["version"])


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """Turn Spark's error about an expression, a schema or a path into an error on its field."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise wrong(field, "", sentence_of(error)) from error
