"""The Delta table that rows end in: what it must be before a drain, and the one way to write to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, SchemaMismatchError, TableForgetsError, TableLostError
from spark_purgatory.spark.entries import literal

LEAN_SETTINGS: Mapping[str, str] = {
    # Reading the table's log is one task for each partition of the snapshot, at every commit. 50 are for
    # tables of millions of files; with 2 an append to a small table costs a quarter (about 1 s, not 4 s).
    "spark.databricks.delta.snapshotPartitions": "2",
    # Minima and maxima of the first 32 columns are computed at every append; the first few serve nearly all.
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "4",
}
"""Session settings that make small appends cheap; defaults, for a session of one's own."""
FORGETS = "delta.setTransactionRetentionDuration"
AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


@dataclass(frozen=True)
class TableFacts:
    """A table as Delta describes it."""

    id: str
    location: str
    partition_by: tuple[str, ...]


class DeltaTarget:
    """A table by path or by name."""

    def __init__(self, options: SinkOptions) -> None:
        self.path, self.table = options.path, options.table
        self.partition_by = options.partition_by

    def __str__(self) -> str:
        return str(self.table or self.path)

    def exists(self, spark: SparkSession) -> bool:
        """Whether the table is there."""
        return self._detail(spark) is not None

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """The table, as it stands or stood."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self.table) if self.table else reader.load(str(self.path))

    def facts(self, spark: SparkSession) -> TableFacts | None:
        """What is written there now, None if nothing is. Raises TableForgetsError, ConfigError (partitions)."""
        detail = self._detail(spark)
        if detail is None:
            return None
        retention = (detail["properties"] or {}).get(FORGETS)
        if retention is not None:
            raise TableForgetsError(
                f"table {self} has {FORGETS} = {retention!r}: after that time it would take rows a second time. "
                f"Nothing was written, staged rows wait. ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}')"
            )
        facts = TableFacts(detail["id"], detail["location"], tuple(detail["partitionColumns"]))
        ours = [name.lower() for name in self.partition_by]
        if ours and ours != [name.lower() for name in facts.partition_by]:
            raise ConfigError(
                f"partition_by={list(self.partition_by)!r}, but table {self} is partitioned by "
                f"{list(facts.partition_by)!r}: give these, or write to a new table"
            )
        return facts

    def check(self, spark: SparkSession, table_id: str | None, schema: T.StructType) -> TableFacts | None:
        """Look at the table before a drain: is it the one known as ``table_id``, does it take the columns."""
        facts = self.facts(spark)
        if table_id is not None and (facts is None or facts.id != table_id):
            what = "is gone" if facts is None else f"was replaced (its id is {facts.id}, not {table_id})"
            raise TableLostError(
                f"table {self} {what}. Nothing was written, staged rows wait. Bring the table back "
                "(RESTORE, or from a copy), or start with a new checkpoint, which reads the sources again"
            )
        if facts is not None and spark.conf.get(AUTO_MERGE, "false") != "true":
            self._check_columns(self.read(spark).schema, schema)
        return facts

    def append(self, rows: DataFrame, app_id: str, number: int, metadata: Mapping[str, object],
               max_file_rows: int = 0, partition_by: tuple[str, ...] = ()) -> None:  # fmt: skip
        """Write rows in one transaction of the table, marked with app id and number."""
        writer = (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id)
            .option("txnVersion", number)
            .option("userMetadata", json.dumps(metadata))
            .option("maxRecordsPerFile", max_file_rows)
        )
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        if self.table:
            writer.saveAsTable(self.table)
        else:
            writer.save(str(self.path))

    def _detail(self, spark: SparkSession) -> Row | None:
        """Delta's own words, in SQL: its Python class asks the JVM, and Spark Connect for a plugin of the server."""
        name = self._known_name(spark) if self.table else self._known_path(spark)
        if name is None:
            return None
        detail = spark.sql(f"DESCRIBE DETAIL {name}")
        row = detail.select("format", "id", "location", "partitionColumns", "properties").first()
        if row is not None and row["format"] == "delta":
            return row
        if self.table:
            raise ConfigError(f"table {self} is no Delta table: give the name of one, or of none yet")
        return None

    def _known_name(self, spark: SparkSession) -> str | None:
        """The table's name if there is such a table; what is no name could be SQL of another meaning."""
        try:
            return self.table if spark.catalog.tableExists(str(self.table)) else None
        except AnalysisException as error:
            raise ConfigError(
                f"table={self.table!r} is no table's name ({error.getCondition()}). Write catalog.schema.table, in "
                "back-ticks the parts with other characters than letters, digits and _"
            ) from None

    def _known_path(self, spark: SparkSession) -> str | None:
        """The table's folder, as a literal of SQL, if it holds a log."""
        try:
            _ = spark.read.text(f"{literal(str(self.path))}/_delta_log").schema
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None
        return "'" + str(self.path).replace("\\", r"\\").replace("'", r"\'") + "'"

    def _check_columns(self, there: T.StructType, staged: T.StructType) -> None:
        known = {field.name.lower(): field.dataType for field in there.fields}
        strange = [field.name for field in staged.fields if field.name.lower() not in known]
        changed = [
            f"{field.name} ({field.dataType.simpleString()}, in the table {known[field.name.lower()].simpleString()})"
            for field in staged.fields
            if field.name not in strange and not _fits(field.dataType, known[field.name.lower()])
        ]
        if strange or changed:
            lacks = f"lacks {', '.join(strange)}" if strange else ""
            differs = f"has other types for {', '.join(changed)}" if changed else ""
            raise SchemaMismatchError(
                f"table {self} {' and '.join(filter(None, (lacks, differs)))}, which staged rows have. Nothing was "
                f"written, staged rows wait. ALTER TABLE ... ADD COLUMNS, or {AUTO_MERGE}=true, and start again"
            )


def _fits(staged: T.DataType, there: T.DataType) -> bool:
    """Whether Delta could cast; inside nested types that is Delta's to say."""
    atomic = (T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType)
    if isinstance(staged, atomic) or isinstance(there, atomic):
        return type(staged) is type(there)
    nested = (T.StructType, T.ArrayType, T.MapType)
    return not (isinstance(staged, nested) or isinstance(there, nested)) or type(staged) is type(there)
