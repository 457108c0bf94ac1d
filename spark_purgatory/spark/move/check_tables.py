"""Checks of an export's tables, which may be edited, before a checkpoint is made of them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_purgatory.core.export.checked import TABLES, Fault, TableRules, conserved, told
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.move.old_checkpoint import OldCheckpoint
from spark_purgatory.spark.move.survey import Survey
from spark_purgatory.spark.move.tables import COPY_AGAIN, ROW, manifest_of, read_manifest, read_table, schemas_of
from spark_purgatory.spark.operator.stream_plan import Query

FAULTS_DDL = "column string, what string, rows bigint, remedy string"
CHECKED_IN = 64  # Groups in which rows are checked. Rows of one identity are in the same group


def check_arguments(partitions: object, removed: Mapping[str, int], tables: str | None) -> None:
    """Raise ConfigError for a wrong number of partitions, or a wrong statement of removed rows."""
    if partitions is not None and (isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1):
        raise ConfigError(f"partitions={partitions!r} must be a whole number from 1")
    wrong = [name for name in removed if name not in TABLES]
    wrong += [n for n, rows in removed.items() if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0]
    if wrong or (removed and tables is None):
        raise ConfigError(
            f"removed={dict(removed)!r}: give the number of rows that you removed from each of {', '.join(TABLES)}, "
            "such as removed={'operations': 4}, together with tables="
        )


def check_tables(
    spark: SparkSession, folder: str, *, query: Query, old: OldCheckpoint, found: Survey, removed: Mapping[str, int]
) -> int:
    """Check tables that a query will take over from a checkpoint, and return the number of operations in them.

    Raises ConfigError if they have faults or belong to another micro-batch.
    """
    manifest = read_manifest(spark, folder)
    if (manifest.query_id, manifest.batch_id) != (old.query_id, old.batch_id):
        raise ConfigError(
            f"tables={folder!r} are of micro-batch {manifest.batch_id} of query {manifest.query_id}, and "
            f"source={old.path!r} is at micro-batch {old.batch_id} of query {old.query_id}: export the state again"
        )
    if manifest != manifest_of(found, old.query_id, {**manifest.rows, "operations": found.operations}):
        raise ConfigError(
            f"tables={folder!r}: table 'counts', column 'manifest', does not match the state of source={old.path!r}: "
            f"{COPY_AGAIN}, or export the state again"
        )
    facts = found.found[0].facts
    roles = {role: facts["columns"][at] for role, at in facts["roles"].items()}
    rules = TableRules(query.spec, query.route == "key", roles)
    texts, waits = [], 0
    for name, schema in schemas_of(found).items():
        rows = read_table(spark, folder, name)
        wanted = {ROW: "bigint", **{field.name: field.dataType.simpleString() for field in schema}}
        _check_columns(folder, name, dict(rows.dtypes), wanted)
        count = rows.count()
        waits = count if name == "operations" else waits
        faults = _faults(name, rows, rules) or conserved(name, count, manifest.rows[name], removed.get(name, 0))
        texts += told(name, faults)
    if texts:
        raise ConfigError(f"tables={folder!r}: {'; '.join(texts)}")
    return waits


def _check_columns(folder: str, name: str, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    if wrong := [f"{each} {kind}" for each, kind in wanted.items() if there.get(each) != kind]:
        raise ConfigError(
            f"tables={folder!r}: table {name!r} must have {', '.join(wrong)}: write the columns as export_state did"
        )
    if more := [each for each in there if each not in wanted]:
        raise ConfigError(f"tables={folder!r}: table {name!r} has columns not in the export: drop {', '.join(more)}")


def _faults(name: str, rows: DataFrame, rules: TableRules) -> list[Fault]:
    by = [F.xxhash64(ROW)]
    if name == "operations":
        identity = [F.col("id"), F.col("keys")[0]][: rules.spec.identity_width]
        by = [F.when(F.col("id").isNull(), by[0]).otherwise(F.xxhash64(*identity))]
        if "operation" in rows.columns:
            fields = [F.col("operation").getField(field).alias(field) for field in {*(rules.roles or {}).values()}]
            own = F.struct(F.lit(True).alias("is_there"), *fields)
            rows = rows.withColumn("operation", F.when(F.col("operation").isNotNull(), own))
    elif name == "events":
        rows = rows.select(*(each for each in rows.columns if each != "columns"))

    def check(table: pa.Table) -> pa.Table:
        found = [vars(fault) for fault in rules.faults(name, table)]
        schema = [("column", pa.string()), ("what", pa.string()), ("rows", pa.int64()), ("remedy", pa.string())]
        return pa.Table.from_pylist(found, schema=pa.schema(schema))

    checked = rows.groupBy(F.pmod(by[0], F.lit(CHECKED_IN))).applyInArrow(check, FAULTS_DDL)
    summed = checked.groupBy("column", "what", "remedy").agg(F.sum("rows").alias("rows")).orderBy("column", "what")
    return [Fault(**row.asDict()) for row in summed.collect()]
