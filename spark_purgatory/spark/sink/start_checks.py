"""The checks of `write_stream` before each start of a query.

A query reads its sources, changes its state and stages rows before its first drain, when an error may be too late to
mend. So everything that can be checked earlier is. A missing table is not created, but its empty folder may be.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import (
    START_OVER,
    ConfigError,
    SchemaMismatchError,
    StorageError,
    TableLostError,
    sentence_of,
)
from spark_purgatory.spark.checkpoint.shard_states import is_checkpoint
from spark_purgatory.spark.sink.staging.ledger import Ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder, read_ledger
from spark_purgatory.spark.sink.table import table_place
from spark_purgatory.spark.sink.table.column_rules import StagedColumns
from spark_purgatory.spark.sink.table.delta_target import check_known
from spark_purgatory.spark.sink.table.formats import opened, with_format
from spark_purgatory.spark.sink.table.history import LOOKED_AT, NO_VERSION, TableFacts
from spark_purgatory.spark.sink.table.table_place import app_id_of, claim
from spark_purgatory.spark.sink.table.target import SpecialColumns, Target
from spark_purgatory.spark.storage.checkpoint_files import check_files, check_not_moved
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, settings
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)


def checked(
    spark: SparkSession, schema: T.StructType, options: SinkOptions, checkpoint: str
) -> tuple[SinkOptions, int]:
    """Return the options to start with and the table's version whose column names the stream has, or raise an error.

    ``partition_by`` of these options has the stream's names, also if only the table names its partition columns. It
    lacks partition columns that the table computes and the stream does not have.
    """
    with settings(spark, SMALL_QUERY):
        given = replace(options, partition_by=())
        given = replace(given, format=with_format(spark, given).format)
        now, names_version, ledger = table_place.resolved(spark, given), NO_VERSION, Ledger()
        target, facts, folder = _looked_at(spark, now, checkpoint)
        names, table_id = [str(each.path or each.table) for each in (now, given)], facts.id if facts else ""
        ours = {"path" if given.path else "table": names[0], "given": names[1], "id": table_id}
        claimed, has_begun = claim(spark, checkpoint, ours, lambda: _has_filled(spark, opened(now), checkpoint))
        bound = replace(now, path=claimed.get("path"), table=claimed.get("table"))
        if bound != now:
            target, facts, folder = _looked_at(spark, bound, checkpoint)
        if has_begun:
            check_not_moved(spark, checkpoint)
            is_checkpoint(spark, checkpoint)  # It refuses an unfinished move, whose metadata name no query.
            check_files(spark, checkpoint)
            ledger = read_ledger(spark, StagingFolder.of(spark, checkpoint))
        waiting = StagedColumns.of(ledger.schema) if ledger.schema is not None and ledger.may_wait else None
        if facts is None:
            partition_by = tuple(_in_stream(name, schema) for name in options.names_of("partition_by"))
            _check_new_columns(spark, target, schema, partition_by, facts)
            _check_new(spark, target, folder, ledger, app_id_of(spark, checkpoint) if has_begun else None)
            if waiting is not None and waiting.version != NO_VERSION and ledger.intent is None and target.table:
                raise TableLostError(
                    f"table {target} is gone, and was there when rows were staged for it. Nothing was started, and the "
                    "rows wait. If it was renamed, start with its new name. Otherwise bring the earlier table back "
                    f"from a copy and start again, or {START_OVER}"
                )
        else:
            there, names_version, special = target.check_start(spark, facts, schema, waiting)
            partition_by = _of_table(options, schema, target, facts, special)
            target.check_columns(spark, facts, there, schema)
            types = {field.name.lower(): field.dataType for field in there.fields}
            has_new = any(field.dataType != types.get(field.name.lower()) for field in schema.fields)
            if has_new or len({*map(str.lower, schema.names)}) < len(schema.names):
                _check_new_columns(spark, target, schema, (), facts)
            _check_special(target, schema, there, special)
            if not (has_begun or options.shares_table):
                _warn_of_others(spark, target, checkpoint)
        if bound.table and not has_begun and table_place.forgets_names(spark, bound.table):
            LOG.warning(
                f"table {bound.table}: {table_place.FORGETS_NAMES}. A later run does not find the table by its name. "
                "Give path in place of table, or a persistent catalog (spark.sql.catalogImplementation=hive)"
            )
        return replace(bound, partition_by=partition_by), names_version


def _check_new(spark: SparkSession, target: Target, folder: str | None, ledger: Ledger, app_id: str | None) -> None:
    drains = ledger.next_drain - (not ledger.is_done)  # Complete ones.
    if target.table and folder is not None:
        check_known(spark, target.table, folder, drains, app_id)
    if not drains:  # Otherwise the first look at the table says that it is lost.
        target.check_new(spark, folder, was_begun=ledger.intent is not None)


def _has_filled(spark: SparkSession, target: Target, checkpoint: str) -> bool:
    return target.exists(spark) and app_id_of(spark, checkpoint) in target.history(spark, first=LOOKED_AT).queries()


def _warn_of_others(spark: SparkSession, target: Target, checkpoint: str) -> None:
    """Warn of other queries: a new one reads its sources from their beginning, and may bring their rows again."""
    others = [
        f"{app_id} (last in version {drains[0].version} at {drains[0].at})"
        for app_id, drains in target.history(spark, first=LOOKED_AT).queries().items()
    ]
    if others:
        LOG.warning(
            f"table {target} was filled by {' and by '.join(others)}. Checkpoint {checkpoint} is new: its "
            "query reads the sources from their beginning and may write rows that the table already has. To go on, "
            "start with the other query's checkpoint. If several queries fill the table, each from other sources, give "
            "shares_table=True"
        )


def _looked_at(
    spark: SparkSession, options: SinkOptions, checkpoint: str
) -> tuple[Target, TableFacts | None, str | None]:
    """Return the table, its facts, and its folder if that is known. The checkpoint must be outside."""
    target = opened(options)
    facts = _facts(spark, target)
    folder = facts.location if facts else options.path or table_place.place_of_name(spark, str(options.table))
    if facts is None and options.format == "iceberg":
        folder = None  # Its catalog chooses it.
    if folder is not None:
        table_place.check_outside(spark, checkpoint, folder, must_be_empty=facts is None and options.table is not None)
    return target, facts, folder


def _facts(spark: SparkSession, target: Target) -> TableFacts | None:
    target.check_session(spark)
    try:
        return target.facts(spark)
    except SPARK_FAULTS as error:
        raise StorageError(
            f"table {target} cannot be read: {sentence_of(error)}. Nothing was started. Give the session what its "
            "storage or catalog needs (jars, credentials, settings spark.sql.catalog.*), or another place"
        ) from error


# --- partition columns -----------------------------------------------------------------------------------------------


def _in_stream(name: str, schema: T.StructType) -> str:
    """Return the stream's name of a column. Case is ignored, as the table does."""
    for known in schema.names:
        if known.lower() == name.lower():
            return known
    raise ConfigError(f"partition_by={name!r} is not a column of the stream; it has {', '.join(schema.names)}")


def _of_table(
    options: SinkOptions, schema: T.StructType, target: Target, facts: TableFacts, special: SpecialColumns
) -> tuple[str, ...]:
    theirs = [name.lower() for name in facts.partition_by]
    ours = options.names_of("partition_by")
    for name in ours:
        if name.lower() not in special.filled:
            _in_stream(name, schema)
    if ours and [name.lower() for name in ours] != theirs:
        raise target.partitioned_otherwise(ours, facts)
    lower = {name.lower() for name in schema.names}
    lacking = [name for name in facts.partition_by if name.lower() not in lower]
    if strange := [name for name in lacking if name.lower() not in special.filled]:
        raise SchemaMismatchError(
            f"table {target} is partitioned by {', '.join(strange)}, which the stream lacks; it "
            f"has {', '.join(schema.names)}. Nothing was started. Add the column to the stream"
        )
    return tuple(_in_stream(name, schema) for name in facts.partition_by if name not in lacking)


# --- columns ---------------------------------------------------------------------------------------------------------


def _check_new_columns(
    spark: SparkSession, target: Target, schema: T.StructType, partition_by: Sequence[str], facts: TableFacts | None
) -> None:
    reasons = list(target.unfit(spark, schema, partition_by, facts))
    if len({name.lower() for name in partition_by}) < len(partition_by):
        reasons.append(f"partition_by={list(partition_by)!r} names a column twice: name it once")
    if reasons:
        raise ConfigError(f"table {target} cannot hold the stream, so nothing was started: {'; '.join(reasons)}")


def _check_special(target: Target, schema: T.StructType, there: T.StructType, special: SpecialColumns) -> None:
    given = {name.lower() for name in schema.names}
    if closed := sorted(special.closed & given):
        raise SchemaMismatchError(
            f"columns {', '.join(closed)} of table {target} are GENERATED ALWAYS AS IDENTITY and take no values from "
            "rows, but the stream has them. Nothing was started. Drop them from the stream"
        )
    must = [field.name for field in there.fields if not field.nullable and field.name.lower() not in given]
    if lacking := [name for name in must if name.lower() not in special.filled]:
        raise SchemaMismatchError(
            f"columns {', '.join(lacking)} of table {target} are NOT NULL, and the stream lacks them. Nothing was "
            "started. Add them to the stream, or ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL"
        )
