"""The table that rows end in, by path or by name: the interface of all formats.

A target describes its table and its history since a version (`History`), checks the columns that it takes, and appends
the rows of a drain once, with the drain's mark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, ConfigError, SchemaMismatchError, TableLostError, without_login
from spark_purgatory.spark.sink.staging.ledger import Intent
from spark_purgatory.spark.sink.table.column_rules import StagedColumns, Taking, changed, fitted_columns
from spark_purgatory.spark.sink.table.history import (
    FIRST_LOOK,
    DrainCommit,
    History,
    Mark,
    TableFacts,
    TableLook,
    TableState,
)

# A property by which a table's owner says that staged rows go to the columns that have their names at a version.
COLUMNS_AS_OF = "spark_purgatory.columnsAsOf"


class SpecialColumns(NamedTuple):
    """Names of columns in lower case."""

    filled: frozenset[str] = frozenset()  # The stream lacks them, and the table fills them.
    closed: frozenset[str] = frozenset()  # The stream has them, but they take no values (IDENTITY).


class Target(ABC):
    format: ClassVar[str]  # Its name in texts.
    no_history: ClassVar[History]  # The history of a table that does not exist.
    adding: ClassVar[str] = ""  # The setting by which a drain may add columns that the table lacks.
    widening: ClassVar[str] = ""  # The remedy that must come before a column's type is widened.
    renaming: ClassVar[str] = ""  # The remedy that must come before a column is renamed.

    def __init__(self, options: SinkOptions) -> None:
        self.path, self.table = options.path, options.table
        self.partition_by = options.names_of("partition_by")

    def __str__(self) -> str:
        return without_login(str(self.table or self.path))

    @property
    def sql_place(self) -> str:
        return str(self.table)

    @abstractmethod
    def check_session(self, spark: SparkSession) -> None:
        """Raise ConfigError if the session lacks what the format needs."""

    def exists(self, spark: SparkSession) -> bool:
        return self.is_known(spark)

    @abstractmethod
    def facts(self, spark: SparkSession) -> TableFacts | None:
        """Return the table's facts, None without a table. Raises TableForgetsError, ConfigError."""

    @abstractmethod
    def history(self, spark: SparkSession, since: int | None = None, first: int = FIRST_LOOK) -> History:
        """Return the last versions of the table, and all from version ``since``."""

    @abstractmethod
    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """Return the table now, or at a version."""

    def file_sizes(self, spark: SparkSession) -> list[int]:
        files = self.read(spark).select("_metadata.file_path", "_metadata.file_size").distinct().collect()
        return sorted(row["file_size"] for row in files)

    @abstractmethod
    def check_names(self, columns: StagedColumns, facts: TableFacts, there: T.StructType, history: History) -> None:
        """Raise SchemaMismatchError if a name of staged rows may no longer mean the same column of the table.

        ``there``: the table's columns. ``history``: as `history_of_names` returns it.
        """

    @abstractmethod
    def names_version(self, rows: T.StructType, there: T.StructType, history: History) -> int:
        """Return what identifies the names that the table has for such columns now."""

    def history_of_names(
        self, spark: SparkSession, columns: StagedColumns, facts: TableFacts, since: int | None = None
    ) -> History:
        """Return all versions from ``since``, and from that of staged columns if they may be renamed."""
        versions = [
            version for version in (since, columns.version if facts.may_be_renamed else None) if version is not None
        ]
        return self.history(spark, min(versions, default=None))

    @abstractmethod
    def append(
        self, rows: DataFrame, looked: TableLook, mark: Mark, max_file_rows: int, check_alone: Callable[[], None]
    ) -> None:
        """Write rows in one transaction, with the mark of a drain.

        ``max_file_rows`` of 0 is no limit. ``check_alone`` is called last if rows that nobody reads are written first.
        """

    @abstractmethod
    def settle(self, spark: SparkSession, state: TableState, before: int, commit: DrainCommit) -> None:
        """Check and keep the version of a drain that was found, for which the table was looked at in ``before``."""

    def refresh(self, spark: SparkSession) -> None:  # noqa: B027
        """Let the session see what other sessions have committed."""

    def taking(self, spark: SparkSession, facts: TableFacts) -> Taking:
        """Return how the table takes rows in this session."""
        return Taking()

    @abstractmethod
    def unfit(
        self, spark: SparkSession, rows: T.StructType, partition_by: Sequence[str], facts: TableFacts | None
    ) -> Iterable[str]:
        """Return the reasons why the table, or a new one, cannot hold such rows."""

    def check_new(self, spark: SparkSession, place: str | None, was_begun: bool) -> None:  # noqa: B027
        """Raise ConfigError, StorageError or TableForgetsError if a table cannot be created.

        ``place``: its folder, if that is known. ``was_begun``: the first drain was begun, and may have been killed
        before it created the table.
        """

    @abstractmethod
    def check_start(
        self, spark: SparkSession, facts: TableFacts, rows: T.StructType, waiting: StagedColumns | None
    ) -> tuple[T.StructType, int, SpecialColumns]:
        """Check an existing table for a stream of such rows; ``waiting`` are the columns of rows that may be staged.

        Returns its columns, the version whose column names the stream has, and its special columns. Raises
        SchemaMismatchError.
        """

    def partitioned_otherwise(self, partition_by: Sequence[str], facts: TableFacts) -> ConfigError:
        return ConfigError(
            f"partition_by={list(partition_by)!r}, but table {self} is partitioned by {list(facts.partition_by)!r}: "
            "give these, or write to a new table"
        )

    def state(self, spark: SparkSession, since: int | None) -> TableState:
        """Return the table with all versions from ``since``. Raises as `facts`."""
        facts = self.facts(spark)
        return TableState(facts, self.no_history if facts is None else self.history(spark, since))

    @abstractmethod
    def state_after(self, spark: SparkSession, app_id: str, intent: Intent, looked: TableLook | None) -> TableState:
        """Return the table since an intent was made, with the commit of the intent if the table has it.

        ``looked``: the table before that commit, if this run made it. Raises as `facts`, and StorageError if the table
        no longer shows whether it has the commit.
        """

    def check(self, spark: SparkSession, table_id: str | None, schema: str, since: int | None) -> TableLook:
        """Check before a drain the table's id and columns, and return the table with all versions from ``since``."""
        facts = self.facts(spark)
        if table_id is not None and (facts is None or facts.id != table_id):
            what = "is gone" if facts is None else f"was replaced (its id is {facts.id}, not {table_id})"
            raise TableLostError(
                f"table {self} {what}. Nothing was written, and staged rows wait. Bring the table back "
                f"(RESTORE, or from a copy), or {START_OVER}"
            )
        if facts is None:
            return TableLook(None, self.no_history, schema)
        # The columns first: the history then shows a rename in between.
        columns, there = StagedColumns.of(schema), self.read(spark).schema
        history = self.history_of_names(spark, columns, facts, since)
        self.check_names(columns, facts, there, history)
        if not _is_partitioned_by(self.partition_by, facts):
            raise self.partitioned_otherwise(self.partition_by, facts)
        self.check_columns(spark, facts, there, columns.rows)
        named = replace(columns, version=self.names_version(columns.rows, there, history))
        return TableLook(facts, history, named.text, fitted_columns(columns.rows, there))

    def is_known(self, spark: SparkSession) -> bool:
        """Return True if there is a table of the name. Other text could be SQL of another meaning."""
        try:
            return spark.catalog.tableExists(str(self.table))
        except AnalysisException as error:
            raise ConfigError(
                f"table={self.table!r} is not the name of a table ({error.getCondition()}). Name a catalog of this "
                "session (spark.sql.catalog.NAME) as catalog.schema.table, with back-ticks around a part that has more "
                "than letters a to z, digits and _"
            ) from None

    def _adding(self, new: Iterable[T.StructField]) -> str:
        added = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in new)
        return f"ALTER TABLE {self.sql_place} ADD COLUMNS ({added})"

    def check_columns(self, spark: SparkSession, facts: TableFacts, there: T.StructType, staged: T.StructType) -> None:
        taking, or_adding = self.taking(spark, facts), f", or set {self.adding}=true" if self.adding else ""
        known = {field.name.lower(): field for field in there.fields}
        new = [field for field in staged.fields if field.name.lower() not in known]
        pairs = [(field, known[field.name.lower()]) for field in staged.fields if field not in new]
        others = [each for one, other in pairs for each in changed(one.dataType, other.dataType, one.name, taking)]
        faults = []
        if new and not taking.adds:
            run = "Rename a column back that had such a name, or run" if facts.may_be_renamed else "Run"
            adding = f"{run} {self._adding(new)}{or_adding}, and start again"
            faults.append((f"lacks {', '.join(field.name for field in new)}", adding))
        if others:
            changing = (
                f"Widen the columns of the table: {self.widening}ALTER TABLE {self.sql_place} ALTER COLUMN ... TYPE. "
                "If no type holds the values of both, give such a column of the table another name "
                f"({self.renaming}ALTER TABLE {self.sql_place} RENAME COLUMN ... TO ...) and add one of the rows' type "
                f"(ALTER TABLE {self.sql_place} ADD COLUMNS ...). If no such rows are staged, you may cast the columns "
                "of the stream instead. Then start again"
            )
            faults.append((f"has other types for {', '.join(others)}", changing))
        if faults:
            lacks, remedies = zip(*faults, strict=True)
            raise SchemaMismatchError(
                f"table {self} does not fit the rows: it {' and '.join(lacks)}. Nothing was written, and staged rows "
                f"wait. {'. '.join(remedies)}"
            )


def _is_partitioned_by(names: Sequence[str], facts: TableFacts) -> bool:
    """Return True if a table has these partition columns. It may have more, which Delta computes."""
    ours = [name.lower() for name in names]
    return ours == [name.lower() for name in facts.partition_by if name.lower() in ours]
