"""Records of Kafka as rows: the fields of their JSON or Avro, and Kafka's own columns."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from spark_purgatory.job.avro_schemas import AvroSchemas, schemas_of
from spark_purgatory.job.source_config import KAFKA_COLUMNS, AvroValues, KafkaSource
from spark_purgatory.spark.storage.storage_access import back_ticked

# A field with a default tells a value that has only nulls from one that cannot be read. No source has it.
MARK = "spark_purgatory_read"
HEADER_BYTES = 5  # A zero, and the id of a schema in four bytes
MAX_BYTES = 2**31 - 1


def records_of(spark: SparkSession, source: KafkaSource, with_headers: bool = False) -> DataFrame:
    reader = spark.readStream.format("kafka").options(**source.options).option(*source.subscription)
    return (reader.option("includeHeaders", True) if with_headers else reader).load()


def rows_of(records: DataFrame, source: KafkaSource, name: str) -> DataFrame:
    """The fields of each record's value, and `KAFKA_COLUMNS`.

    A record that cannot be read becomes a row of nulls, which the purgatory rejects with a reason.
    """
    if source.avro is not None:
        record = avro_record(F.col("value"), schemas_of(source, name), source.avro)
    else:
        assert source.schema_ddl is not None, "bug: a source without a schema was accepted"
        record = F.from_json(text_of(F.col("value")), source.schema_ddl)
    named = {f"kafka_{column}": F.col(column) for column in records.columns if f"kafka_{column}" in KAFKA_COLUMNS}
    columns = [column.alias(alias) for alias, column in named.items()]
    return records.select(record.alias("record"), *columns).select("record.*", *named).drop(MARK)


def fields_of(rows: DataFrame) -> list[str]:
    """Return the columns of the records' values, in back-ticks."""
    return [back_ticked(name) for name in rows.columns if name not in KAFKA_COLUMNS]


def text_of(value: Column) -> Column:
    """Bytes as text; null where they are not UTF-8, which Spark's JSON reader would change silently."""
    return F.try_validate_utf8(value.cast("string"))


def avro_record(value: Column, schemas: AvroSchemas, avro: AvroValues) -> Column:
    """The record in Avro bytes with `MARK`; null, or a record of nulls, where they cannot be read."""
    reader = with_mark(schemas.reader)
    if not avro.has_header:
        return _decoded(value, schemas.reader, reader)
    payload = F.substring(value, HEADER_BYTES + 1, MAX_BYTES)
    if not schemas.writers:
        return F.when(has_header(value), _decoded(payload, schemas.reader, reader))
    record = F.when(~has_header(value), None)
    for number, writer in schemas.writers.items():
        record = record.when(schema_id(value) == number, _decoded(payload, writer, reader))
    if avro.unknown_id == "reject":
        return record
    place = F.concat_ws("/", F.col("topic"), F.col("partition"), F.col("offset"))
    message = (
        "spark_purgatory.errors.SourceError: the value at %s has the schema %s, which the registry's subject did not "
        "have when the job started. Start the job again: it asks the registry. If no registry has it, set "
        "avro.unknown_id: reject"
    )
    return record.when(value.isNotNull(), F.raise_error(F.format_string(message, place, schema_id(value))))


def avro_reason(value: Column, schemas: AvroSchemas, avro: AvroValues) -> Column:
    record = avro_record(value, schemas, avro)
    reason = F.when(value.isNull(), "the record has no value")
    if avro.has_header:
        reason = reason.when(~has_header(value), "the value has no header of a schema registry")
    if schemas.writers and avro.unknown_id == "reject":
        unknown = ~schema_id(value).isin(*schemas.writers)
        reason = reason.when(unknown, F.concat(F.lit("the registry's subject has no schema "), schema_id(value)))
    return reason.when(record[MARK].isNull(), "not Avro of the schema")


def has_header(value: Column) -> Column:
    return (F.substring(value, 1, 1) == F.lit(b"\x00")) & (F.octet_length(value) >= HEADER_BYTES)


def schema_id(value: Column) -> Column:
    return F.conv(F.hex(F.substring(value, 2, HEADER_BYTES - 1)), 16, 10).cast("bigint")


def with_mark(schema: str) -> str:
    """A record's schema with `MARK` behind its fields."""
    record = json.loads(schema)
    record["fields"].append({"name": MARK, "type": "boolean", "default": True})
    return json.dumps(record)


def _decoded(payload: Column, writer: str, reader: str) -> Column:
    return from_avro(payload, writer, {"mode": "PERMISSIVE", "avroSchema": reader})
