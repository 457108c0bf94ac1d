"""Records of Kafka as rows: the fields of their JSON or Avro, and Kafka's own columns; Avro schemas of a source."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from spark_purgatory.job.config_file import JobConfigError, wrong
from spark_purgatory.job.source_config import KAFKA_COLUMNS, AvroValues, KafkaSource, Registry
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
    record = json.loads(schema)
    record["fields"].append({"name": MARK, "type": "boolean", "default": True})
    return json.dumps(record)


def _decoded(payload: Column, writer: str, reader: str) -> Column:
    return from_avro(payload, writer, {"mode": "PERMISSIVE", "avroSchema": reader})


TIMEOUT_S = 30
MOST_BYTES = 16 << 20  # The longest answer of a registry that is read
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class AvroSchemas:
    """The schemas that a topic's values are read as and were written with, each in JSON."""

    reader: str
    writers: Mapping[int, str]  # By id of the registry; empty without a registry


def schemas_of(source: KafkaSource, name: str) -> AvroSchemas:
    """Read the schemas of a source; `JobConfigError` names the field that does not lead to them."""
    avro = source.avro
    assert avro is not None, "bug: the source has no Avro"
    given = None if avro.schema_file is None else _of_file(avro.schema_file, f"{name}.source.avro.schema_file")
    if avro.registry is None:
        assert given is not None, "bug: Avro without a schema was accepted"
        return AvroSchemas(given, {})
    subject = avro.registry.subject or f"{(source.topic or [''])[0]}-value"
    field = f"{name}.source.avro.registry"
    try:
        versions = _versions(avro.registry, subject, field)
        writers = {int(version["id"]): str(version["schema"]) for version in versions}
        return AvroSchemas(given or str(versions[-1]["schema"]), writers)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, JobConfigError):
            raise
        fault = f"the answer does not look like a schema registry's ({type(error).__name__})"
        raise wrong(field, f"subject {subject!r}", fault) from error


def _of_file(file: str, field: str) -> str:
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise wrong(field, repr(file), f"must be a file with an Avro schema in JSON: {error}") from error
    return _record(schema, field, repr(file))


def _record(schema: Any, field: str, given: str) -> str:
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise wrong(field, given, "must be the schema of a record")
    return json.dumps(schema)


def _versions(registry: Registry, subject: str, field: str) -> list[dict[str, Any]]:
    at = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
    found = []
    for number in _asked(registry, at, field):
        version, given = _asked(registry, f"{at}/{number}", field), f"subject {subject!r}, version {number}"
        if version.get("schemaType", "AVRO") != "AVRO" or version.get("references"):
            raise wrong(field, given, "must be Avro without references to other subjects; give schema_file instead")
        _record(json.loads(version["schema"]), field, given)
        found.append(version)
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: another server may not see user_info."""

    def redirect_request(self, *answer: Any) -> None:
        return None


def _asked(registry: Registry, path: str, field: str) -> Any:
    request = urllib.request.Request(registry.url.rstrip("/") + path, headers={"Accept": ACCEPT})
    if registry.user_info is not None:
        given = base64.b64encode(registry.user_info.get_secret_value().encode()).decode()
        request.add_header("Authorization", f"Basic {given}")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        elsewhere = f"the registry redirects (HTTP {error.code}): give the address to which it does as url"
        faults = {401: "the registry refuses user_info", 404: "the registry has no such subject"}
        faults |= dict.fromkeys((301, 302, 303, 307, 308), elsewhere)
        raise wrong(field, path, faults.get(error.code, f"the registry answers with HTTP {error.code}")) from error
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        fault = str(error) if isinstance(error, OSError) else type(error).__name__
        raise wrong(field, path, f"the registry cannot be reached: {fault}") from error
