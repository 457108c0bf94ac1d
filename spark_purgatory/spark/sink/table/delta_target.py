"""The Delta table that rows end in: what it must be before a drain, and the one way to write to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, ConfigError, SchemaMismatchError, TableForgetsError, TableLostError
from spark_purgatory.spark.sink.table.column_rules import Taking, changed, fitted_columns
from spark_purgatory.spark.sink.table.history import (
    COLUMNS,
    FIRST_LOOK,
    NO_VERSION,
    History,
    TableFacts,
    TableState,
    mark,
    whole_history,
)
from spark_purgatory.spark.sink.table.renames import StagedColumns, UnknownColumnsError, followed, with_names
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import back_ticked, described, sql_text

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
COLUMN_MAPPING = "delta.columnMapping.mode"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
TYPE_WIDENING = "typeWidening"
COLUMNS_AS_OF = "spark_purgatory.columnsAsOf"
"""A property by which a table's owner says that no column was renamed between a version and what its history has."""
MAX_ADDED = 5
"""More columns that a table lacks were hardly forgotten: it looks like another table."""
MAX_LISTED = 12


class DeltaTarget:
    """A table by path or by name."""

    def __init__(self, options: SinkOptions, since: int = NO_VERSION) -> None:
        self.path, self.table = options.path, options.table
        self.partition_by = options.names_of("partition_by")
        self.since = since
        """The table's version whose names of columns ``partition_by`` has."""
        self._facts: TableFacts | None = None
        """The table when it was last looked at; None if it was not there."""
        self._columns: StagedColumns | None = None
        """The columns of the rows to be written next, with the table's names when it was looked at last."""
        self._written: T.StructType | None = None
        """The same as they are written: with the table's names and types."""
        self.has_folder = False
        """There was something at the path then, a table or not."""

    def __str__(self) -> str:
        return str(self.table or self.path)

    @property
    def place(self) -> str:
        """The table as Delta's statements have it."""
        return self.table or sql_text(str(self.path))

    @property
    def merge_place(self) -> str:
        """The table as Spark's statements have it."""
        return self.table or f"delta.{back_ticked(str(self.path))}"

    def history(self, spark: SparkSession, since: int | None = None, first: int = FIRST_LOOK) -> History:
        """Return the last versions of the table, and of all after version ``since``."""
        at = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss").alias("at")

        def rows_of(limit: int) -> list[dict[str, Any]]:
            rows = spark.sql(f"DESCRIBE HISTORY {self.place} LIMIT {limit}").select(*COLUMNS, at).collect()
            return [row.asDict() for row in rows]

        return whole_history(rows_of, since, first)

    def exists(self, spark: SparkSession) -> bool:
        """Return True if the table is there."""
        return self._detail(spark) is not None

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """The table, as it is now or was when it was read."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self.table) if self.table else reader.load(str(self.path))

    def facts(self, spark: SparkSession) -> TableFacts | None:
        """Return what Delta says of the table, None without one. Raises TableForgetsError, ConfigError (partitions)."""
        self._facts = None
        if (detail := self._detail(spark)) is None:
            return None
        properties = detail["properties"] or {}
        if (retention := properties.get(FORGETS)) is not None:
            raise TableForgetsError(
                f"table {self} has {FORGETS} = {retention!r}: after that time it would take rows a second time. "
                f"Nothing was written, staged rows wait. ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}')"
            )
        folders, features = tuple(detail["partitionColumns"]), tuple(detail["tableFeatures"] or ())
        is_mapped = properties.get(COLUMN_MAPPING, "none") != "none"
        facts = TableFacts(detail["id"], detail["location"], folders, features, is_mapped, properties=properties)
        if not _is_partitioned_by(self.partition_by, facts):
            ours = T.StructType([T.StructField(name, T.NullType()) for name in self.partition_by])
            now = self.columns_now(spark, StagedColumns(ours, self.since), facts, self.read(spark).schema)
            if not _is_partitioned_by((now.there or ours).names, facts):
                raise self.partitioned_otherwise(self.partition_by, facts)
        self._facts = facts
        return facts

    def partitioned_otherwise(self, partition_by: Sequence[str], facts: TableFacts) -> ConfigError:
        """The error that says so."""
        return ConfigError(
            f"partition_by={list(partition_by)!r}, but table {self} is partitioned by {list(facts.partition_by)!r}: "
            "give these, or write to a new table"
        )

    def state(self, spark: SparkSession, since: int | None) -> TableState:
        """Return the table as it is, with all versions after ``since``. Raises as `facts`."""
        facts = self.facts(spark)
        return TableState(facts, History(()) if facts is None else self.history(spark, since))

    def check(self, spark: SparkSession, table_id: str | None, schema: str) -> TableFacts | None:
        """Look at the table before a drain: is it the one known as ``table_id``, does it take the columns.

        ``schema``: the columns as the staging log has them (`StagedColumns`).
        """
        facts = self.facts(spark)
        if table_id is not None and (facts is None or facts.id != table_id):
            what = "is gone" if facts is None else f"was replaced (its id is {facts.id}, not {table_id})"
            raise TableLostError(
                f"table {self} {what}. Nothing was written, staged rows wait. Bring the table back "
                f"(RESTORE, or from a copy), or {START_OVER}"
            )
        self._columns = self._written = None
        if facts is not None:
            there = self.read(spark).schema
            self._columns = self.columns_now(spark, StagedColumns.of(schema), facts, there)
            names = self._columns.there or self._columns.rows
            self.check_columns(spark, there, names)
            self._written = fitted_columns(names, there)
        return facts

    def columns_now(
        self, spark: SparkSession, columns: StagedColumns, facts: TableFacts, there: T.StructType
    ) -> StagedColumns:
        """The columns with the names that the table, whose columns are ``there``, has for them now.

        Raises SchemaMismatchError where nobody can tell.
        """
        if not facts.may_be_renamed:
            return columns
        history = self.history(spark, columns.version)
        try:
            names, lost = followed(columns, history, there)
        except UnknownColumnsError:
            if facts.properties.get(COLUMNS_AS_OF) == str(columns.version):
                return columns
            raise SchemaMismatchError(
                f"the history of table {self} does not say which columns were renamed since version {columns.version}, "
                f"whose names the staged rows have ({_listed((columns.there or columns.rows).names)}): it was cut, or "
                "restored to a time. Nothing was written; rows that are staged already wait. If no column was renamed "
                f"or dropped since then, say so: ALTER TABLE {self.merge_place} SET TBLPROPERTIES ('{COLUMNS_AS_OF}' = "
                f"'{columns.version}'), and start again"
            ) from None
        if lost:
            raise SchemaMismatchError(
                f"table {self} has dropped {', '.join(lost)}, which the staged rows have, and has given the name to "
                "another column. Nothing was written; rows that are staged already wait. Rename that column back, add "
                "the one that was dropped again (ALTER TABLE ... ADD COLUMNS), and start again"
            )
        return columns.at(history, names)

    def noted(self, schema: str, version: int) -> str:
        """The columns of staged rows, as an intent notes them that is made at a version of the table."""
        if (columns := self._columns) is None:
            return schema
        return (columns if columns.there else replace(columns, version=version)).text

    def folders_of(self, rows: T.StructType) -> list[str]:
        """The table's partition columns as the rows to be written next name them."""
        renamed = None if self._columns is None else self._columns.there
        given = {} if renamed is None else dict(zip(renamed.names, rows.names, strict=True))
        folders = (self._facts and self._facts.partition_by) or self.partition_by
        return [given.get(name, name) for name in folders if given.get(name, name) in rows.names]

    def append(self, rows: DataFrame, app_id: str, number: int, intent_uuid: str, *, max_file_rows: int) -> None:
        """Write rows in one transaction of the table, with the mark of a drain; ``max_file_rows``: 0 is no limit."""
        metadata = mark(app_id, number, intent_uuid)
        if self._written is not None:
            rows = with_names(rows, self._written)
        writer = rows.write.format("delta").mode("append").option("maxRecordsPerFile", max_file_rows)
        writer = writer.options(txnAppId=app_id, txnVersion=number, userMetadata=metadata)
        if self.partition_by and (self._facts is None or self._facts.partition_by == self.partition_by):
            # Else they are named in another case, or Delta computes some: it takes the table's own, if asked for none.
            # By name Spark parses them; by path it takes them as they are.
            writer = writer.partitionBy(*(map(back_ticked, self.partition_by) if self.table else self.partition_by))
        # Given twice: the write that creates a table by name reads it from the session only.
        with settings(rows.sparkSession, {USER_METADATA: metadata}):
            if self.table:
                writer.saveAsTable(self.table)
            else:
                writer.save(str(self.path))

    def _detail(self, spark: SparkSession) -> Row | None:
        """A SQL statement of Delta: its Python class needs the JVM, or under Spark Connect a plugin."""
        try:
            row = described(spark, self.place) if self.path or self._is_known(spark) else None
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith("EXPECT_TABLE_NOT_VIEW"):
                raise
            raise ConfigError(f"table {self} is a view: name a table, or one that does not exist yet") from None
        self.has_folder = row is not None
        if row is None or row["format"] == "delta":
            return row
        if self.table:
            raise ConfigError(f"table {self} is not a Delta table: name one, or a table that does not exist yet")
        return None

    def _is_known(self, spark: SparkSession) -> bool:
        """Return True if there is a table of the name; what is no name could be SQL of another meaning."""
        try:
            return spark.catalog.tableExists(str(self.table))
        except AnalysisException as error:
            raise ConfigError(
                f"table={self.table!r} is not the name of a table ({error.getCondition()}). Write "
                "catalog.schema.table, with back-ticks around a part that has more than letters a to z, digits and _"
            ) from None

    def check_columns(self, spark: SparkSession, there: T.StructType, staged: T.StructType) -> None:
        """Raise SchemaMismatchError if the table does not take rows of such columns."""
        adds = spark.conf.get(AUTO_MERGE, "false") == "true"
        taking = Taking(adds, widens=adds and self._facts is not None and TYPE_WIDENING in self._facts.features)
        known = {field.name.lower(): field.dataType for field in there.fields}
        new = [field for field in staged.fields if field.name.lower() not in known]
        strange = [] if adds else [field.name for field in new]
        other = [
            change
            for field in staged.fields
            if field not in new
            for change in changed(field.dataType, known[field.name.lower()], field.name, taking)
        ]
        if strange and (len(strange) == len(staged.fields) or len(strange) > MAX_ADDED):
            known_names = len(staged.fields) - len(strange)
            has = f"only {known_names} of the {len(staged.fields)} columns" if known_names else "no column"
            raise SchemaMismatchError(
                f"table {self} has {has} of the stream: it looks like another table. It has {_listed(there.names)}; it "
                f"lacks {_listed(strange)}. Nothing was written; rows that are staged already wait. Name the "
                "stream's own table, or one that does not exist yet, which the first drain makes. If it is the right "
                f"table, add the columns to it, or set {AUTO_MERGE}=true, and start again"
            )
        faults = []
        if strange:
            added = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in new)
            adding = f"Run ALTER TABLE {self.merge_place} ADD COLUMNS ({added}), or set {AUTO_MERGE}=true"
            faults.append((f"lacks {', '.join(strange)}", f"{adding}, and start again"))
        if other:
            casting = (
                f"Widen the columns of the table: set its property delta.enableTypeWidening = true, then ALTER TABLE "
                f"{self.merge_place} ALTER COLUMN ... TYPE. If no such rows are staged, you may cast the columns of "
                "the stream instead. Then start again"
            )
            faults.append((f"has other types for {', '.join(other)}", casting))
        if faults:
            lacks, remedies = zip(*faults, strict=True)
            raise SchemaMismatchError(
                f"table {self} {' and '.join(lacks)}, which the rows have. Nothing was written; rows that are staged "
                f"already wait. {'. '.join(remedies)}"
            )


def _is_partitioned_by(names: Sequence[str], facts: TableFacts) -> bool:
    """Return True if a table has these partition columns; it may have more, which Delta computes."""
    ours = [name.lower() for name in names]
    return ours == [name.lower() for name in facts.partition_by if name.lower() in ours]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more
