"""Rows of CSV and JSON files and of Kafka topics that do not fit the schema, in a table of their own.

A second query reads the same sources and writes the table, exactly once. The job's own query reads such a row with
null in the fields that cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, TableLostError, without_login
from spark_purgatory.job.job_config import DeadLetters, JobConfig
from spark_purgatory.job.kafka_values import avro_reason, records_of, schemas_of, text_of
from spark_purgatory.job.source_config import NEVER_TOO_OLD, FolderSource, KafkaSource
from spark_purgatory.job.sources import blamed_on
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.sink.record_accumulator import trigger_of
from spark_purgatory.spark.sink.table.delta_target import check_known
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.history import FIRST_LOOK, LOOKED_AT
from spark_purgatory.spark.sink.table.table_place import app_id_of, place_of_name, resolved
from spark_purgatory.spark.sink.table.target import Target
from spark_purgatory.spark.storage.checkpoint_files import check_files, files_in, logs_of, next_batch
from spark_purgatory.spark.storage.storage_access import back_ticked

RAW = "spark_purgatory_raw"  # The column for the text of a row that Spark cannot read; no source has it
OUR_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW}
# The input; the file, or topic, partition and offset; why; the text, or bytes that are not text; when
COLUMNS = ("input", "source", "reason", "raw", "raw_bytes", "read_at")


def start(spark: SparkSession, config: JobConfig) -> StreamingQuery | None:
    """Start the query that writes the table; None if the file has no ``dead_letters``."""
    if config.dead_letters is None:
        return None
    place = with_format(spark, config.dead_letters.made())
    _check_table(spark, place, config)
    writer = _malformed_rows(spark, config).writeStream.format(str(place.format))
    writer = writer.queryName(f"{config.name}_dead_letters").trigger(**trigger_of(**config.trigger.model_dump()))
    writer = writer.outputMode("append").option("checkpointLocation", config.dead_letters_checkpoint)
    return writer.toTable(place.table) if place.table else writer.start(place.path)


def _check_table(spark: SparkSession, place: SinkOptions, config: JobConfig) -> None:
    """Raise TableLostError or ConfigError if letters would be missing, or written once more."""
    checkpoint, target = config.dead_letters_checkpoint, opened(place)
    begun: Collection[int] = ()
    if is_checkpoint(spark, checkpoint):
        check_files(spark, checkpoint, "dead_letters.checkpoint")
        begun = logs_of(files_in(spark, checkpoint, "offsets")).get("offsets", ())
    if target.exists(spark):
        if begun and target.format == "Delta":
            _check_letters(spark, target, checkpoint, max(begun))
        if not begun and not target.read(spark).isEmpty():
            raise ConfigError(
                f"dead_letters.checkpoint={checkpoint!r} has no micro-batch yet, but table {target} has letters, "
                "which would be written once more, or be missing. Nothing was started. Name the checkpoint that wrote "
                "them as dead_letters.checkpoint (after a move it is still the old one), or another table"
            )
        return
    if place.table and place.format == "delta":
        table = str(resolved(spark, place).table)
        if (folder := place_of_name(spark, table)) is not None:
            check_known(spark, table, folder, field="dead_letters")
    if batches := next_batch(spark, checkpoint):
        name = without_login(str(place.path or place.table))
        raise ConfigError(
            f"dead_letters.checkpoint={checkpoint!r}: its query has read {batches:,} micro-batches, but its table "
            f"{name} does not exist, so their letters would be missing. Nothing was started. Bring the table back, or "
            "name another folder as dead_letters.checkpoint, one that does not exist: a new query then reads the "
            "sources from their beginning"
        )


def _check_letters(spark: SparkSession, target: Target, checkpoint: str, begun: int) -> None:
    """Raise TableLostError unless the table has the letters of the micro-batches up to ``begun``, and no later ones."""
    query_id = app_id_of(spark, checkpoint).rpartition("/")[2]
    for first in (FIRST_LOOK, LOOKED_AT):
        history = target.history(spark, first=first)
        ours = [entry for entry in history.entries if query_id in (entry.parameters.get("queryId") or "")]
        if ours or history.is_whole_from(0):
            break
    undone = history.undone(ours[0].version) if ours else None
    if undone is not None:
        why = f"was {undone.what}, before its letters of version {ours[0].version}"
        remedy = f"{history.words.restore} {ours[0].version}"
    elif not ours and history.is_whole_from(0) and next_batch(spark, checkpoint):
        why, remedy = "has no letters of its query: it was made again", "Bring the earlier table back from a copy"
    elif ours and int(str(ours[0].parameters.get("epochId")).strip('"')) > begun:
        why = f"has letters of a later micro-batch than its last one, {begun}: the checkpoint is an old copy"
        remedy = "Bring the newest checkpoint back"
    else:
        return
    raise TableLostError(
        f"dead_letters.checkpoint={checkpoint!r}: its table {target} {why}, so letters would be missing. Nothing was "
        f"started. {remedy} and start again. Or name another folder as dead_letters.checkpoint, one that does not "
        "exist, and another table: a new query then reads the sources from their beginning"
    )


def count_line(spark: SparkSession, wanted: DeadLetters) -> str:
    target = opened(with_format(spark, wanted.made()))
    letters = target.read(spark).count() if target.exists(spark) else 0
    return f"Dead letters: {letters:,} in {target}"


def _malformed_rows(spark: SparkSession, config: JobConfig) -> DataFrame:
    found = []
    for name in ("operations", "completions"):
        source = getattr(config, name).source
        with blamed_on(f"{name}.source"):
            if isinstance(source, KafkaSource):
                found.append(malformed_records(records_of(spark, source), source, name))
            elif isinstance(source, FolderSource) and source.format != "parquet":
                found.append(malformed_lines(spark, source, name))
    return reduce(DataFrame.unionByName, found)


def malformed_lines(spark: SparkSession, source: FolderSource, name: str) -> DataFrame:
    fixed = {option.lower() for option in OUR_OPTIONS}
    given = {option: value for option, value in source.options.items() if option.lower() not in fixed}
    reader = spark.readStream.format(source.format).options(**{**NEVER_TOO_OLD, **given, **OUR_OPTIONS})
    rows = reader.schema(f"{source.schema_ddl}, {RAW} string").load(source.path)
    fields = {field: F.col(back_ticked(field)) for field in rows.columns if field != RAW}
    if source.format == "json":
        reason = _json_reason(F.col(RAW), fields)
    else:
        # The line's fields as texts, to see which it has
        as_texts = F.from_csv(F.col(RAW), ", ".join(f"{back_ticked(field)} string" for field in fields), given)
        reason = _reason({field: as_texts[field] for field in fields}, fields, "not as many fields as the schema has")
    return _as_letters(rows.where(F.col(RAW).isNotNull()), name, F.col("_metadata.file_path"), reason, F.col(RAW))


def malformed_records(records: DataFrame, source: KafkaSource, name: str) -> DataFrame:
    value = F.col("value")
    place = F.concat_ws("/", F.col("topic"), F.col("partition"), F.col("offset"))
    if source.avro is not None:
        reason = avro_reason(value, schemas_of(source, name), source.avro)
        rows = records.select("topic", "partition", "offset", "value", reason.alias("reason"))
        no_text = F.lit(None).cast("string")
        return _letters(rows.where("reason is not null"), name, place, F.col("reason"), raw=no_text, raw_bytes=value)
    text = text_of(value)
    record = F.from_json(text, f"{source.schema_ddl}, {RAW} string", OUR_OPTIONS)
    rows = records.select("topic", "partition", "offset", "value", text.alias(RAW), record.alias("record"))
    names = rows.select("record.*").columns
    fields = {field: F.col("record")[field] for field in names if field != RAW}
    no_text_reason = F.when(value.isNull(), "the record has no value").otherwise("not UTF-8")
    reason = F.when(F.col(RAW).isNull(), no_text_reason).otherwise(_json_reason(F.col(RAW), fields))
    malformed = F.col("record").isNull() | F.col("record")[RAW].isNotNull() | F.col(RAW).isNull()
    return _as_letters(rows.where(malformed), name, place, reason, value)


def _as_letters(rows: DataFrame, name: str, place: Column, reason: Column, raw: Column) -> DataFrame:
    """The rows with ``raw`` as text where it is UTF-8, else as bytes, which other readers of the table can decode."""
    text = text_of(raw)
    return _letters(rows, name, place, reason, raw=text, raw_bytes=F.when(text.isNull(), raw.cast("binary")))


def _letters(rows: DataFrame, name: str, place: Column, reason: Column, raw: Column, raw_bytes: Column) -> DataFrame:
    columns = (F.lit(name), place, reason, raw, raw_bytes, F.current_timestamp())
    return rows.select(*(column.alias(alias) for alias, column in zip(COLUMNS, columns, strict=True)))


def _json_reason(raw: Column, fields: dict[str, Column]) -> Column:
    as_texts = F.from_json(raw, "map<string,string>")
    texts = {field: as_texts[F.lit(field)] for field in fields}
    reason = _reason(texts, fields, "a part of a field does not fit its type")
    return F.when(as_texts.isNull(), "not a JSON object").otherwise(reason)


def _reason(texts: dict[str, Column], fields: dict[str, Column], otherwise: str) -> Column:
    """Name the fields that have a text and no value. It reads all: Spark parses no column that nobody reads."""
    unread = (F.when(texts[field].isNotNull() & fields[field].isNull(), F.lit(field)) for field in fields)
    bad = F.array_compact(F.array(*unread))
    named = F.concat(F.lit("not of the field's type: "), F.array_join(bad, ", "))
    return F.when(F.size(bad) > 0, named).otherwise(otherwise)
