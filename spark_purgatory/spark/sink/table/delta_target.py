"""The Delta table that rows end in: what it must be before a drain, and the one way to write to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import (
    START_OVER,
    ConfigError,
    SchemaMismatchError,
    StorageError,
    TableForgetsError,
    TableLostError,
    sentence_of,
)
from spark_purgatory.spark.sink.staging.ledger import Intent
from spark_purgatory.spark.sink.table.column_rules import StagedColumns, Taking, unfit, with_types
from spark_purgatory.spark.sink.table.history import (
    COLUMNS,
    FIRST_LOOK,
    LOOKED_AT,
    NO_VERSION,
    DeltaHistory,
    DrainCommit,
    History,
    Mark,
    TableFacts,
    TableLook,
    TableState,
    metadata_of,
    whole_history,
)
from spark_purgatory.spark.sink.table.table_place import FORGETS_NAMES, forgets_names, place_of_name, resolved
from spark_purgatory.spark.sink.table.target import COLUMNS_AS_OF, SpecialColumns, Target
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import back_ticked, described, literal, sql_text, write_nothing
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_SETTINGS: Mapping[str, str] = {  # A session must be started with these and Delta's jars.
    "spark.sql.extensions": EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
TESTED_DELTA = "4.4.0"  # For the name of the package where only the client of Spark Connect is installed.
# Conditions of DESCRIBE DETAIL without the extension, and without the catalog.
WITHOUT_DELTA = ("PARSE_SYNTAX_ERROR", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG")
_CLOSED = re.compile(r"\[DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED\].*? column (.+?) is not supported")
# Only tables with one of these features can have columns that Delta fills.
SPECIAL_FEATURES = frozenset({"allowColumnDefaults", "generatedColumns", "identityColumns"})
WHOLE_PLAN = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": "1000000000"}
# A table's property under this prefix, without ``delta.``, is the session's default for new tables.
DEFAULTS = "spark.databricks.delta.properties.defaults."
SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
LEAN_SETTINGS: Mapping[str, str] = {  # Defaults that make small appends cheap, for a session of one's own.
    # Reading the table's log is one task for each partition of the snapshot, at every commit. 50 are for
    # tables of millions of files; with 2 an append to a small table costs a quarter (about 1 s, not 4 s).
    SNAPSHOT_PARTITIONS: "2",
    # Minima and maxima of the first 32 columns are computed at every append; the first few serve nearly all.
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "4",
}
SMALL_TABLE = 20_000  # The most files of a table whose log two tasks read: chosen, not measured.
FORGETS = "delta.setTransactionRetentionDuration"
AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"
COLUMN_MAPPING = "delta.columnMapping.mode"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
TYPE_WIDENING = "typeWidening"
SESSION_ZONE, UTC_FOLDERS = "spark.sql.session.timeZone", "spark.databricks.delta.write.utcTimestampPartitionValues"
COMPUTING = frozenset({"allowColumnDefaults", "checkConstraints", "generatedColumns"})  # In the session's time zone.


class DeltaTarget(Target):
    format = "Delta"
    no_history = DeltaHistory(())
    adding = AUTO_MERGE
    widening = "set its property delta.enableTypeWidening = true, then "
    renaming = "with its property delta.columnMapping.mode = name, "
    _is_small = False  # At the last look it had few files, or there was no table.

    @property
    def place(self) -> str:
        return self.table or sql_text(str(self.path))

    @property
    def sql_place(self) -> str:
        """A path needs the word delta in Spark's statements."""
        return self.table or f"delta.{back_ticked(str(self.path))}"

    def check_session(self, spark: SparkSession) -> None:
        """Without Delta a name may be unknown, and only Delta understands this statement."""
        try:
            described(spark, sql_text("/"))
        except SPARK_FAULTS as error:
            if is_without_delta(error):
                raise ConfigError(what_lacks(spark)) from None

    def history(self, spark: SparkSession, since: int | None = None, first: int = FIRST_LOOK) -> DeltaHistory:
        at = F.date_format("timestamp", "yyyy-MM-dd HH:mm:ss").alias("at")

        def rows_of(limit: int) -> list[dict[str, Any]]:
            rows = spark.sql(f"DESCRIBE HISTORY {self.place} LIMIT {limit}").select(*COLUMNS, at).collect()
            return [row.asDict() for row in rows]

        return whole_history(rows_of, None if since is None else max(since - 1, NO_VERSION), first)

    def state_after(self, spark: SparkSession, app_id: str, intent: Intent, looked: TableLook | None) -> TableState:
        """Without another look at the facts if the drain's version is the only one since ``looked``."""
        if looked is not None and looked.facts is not None:
            with suppress(AnalysisException):  # The table is gone.
                history = self.history(spark, intent.base_version)
                commit = history.entries[0].commit if history.entries else None
                is_next = history.entries[1:2] == looked.history.entries[:1]
                if commit is not None and commit.intent_uuid == intent.uuid and is_next:
                    return TableState(looked.facts, history)
        return self.state(spark, intent.base_version)

    def exists(self, spark: SparkSession) -> bool:
        """A folder without a table does not count."""
        return self._detail(spark) is not None

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self.table) if self.table else reader.load(str(self.path))

    def facts(self, spark: SparkSession) -> TableFacts | None:
        """Read DESCRIBE DETAIL. TableForgetsError if the table forgets transactions."""
        if (detail := self._detail(spark)) is None:
            return None
        properties = detail["properties"] or {}
        if (retention := properties.get(FORGETS)) is not None:
            raise TableForgetsError(
                f"table {self} has {FORGETS} = {retention!r}: after that time it would take rows a second time. "
                f"Nothing was written, and staged rows wait. Run ALTER TABLE ... UNSET TBLPROPERTIES ('{FORGETS}')"
            )
        folders, features = tuple(detail["partitionColumns"]), tuple(detail["tableFeatures"] or ())
        is_mapped = properties.get(COLUMN_MAPPING, "none") != "none"
        return TableFacts(detail["id"], detail["location"], folders, features, is_mapped, properties=properties)

    def check_names(self, columns: StagedColumns, facts: TableFacts, there: T.StructType, history: History) -> None:
        """The history shows renames, which only tables that map names have."""
        late = self._renamed(facts, history, columns.version)
        if late is None:
            return
        why = f"version {late} of table {self} renamed, dropped or replaced columns"
        if not history.is_whole_since(columns.version):
            why = f"the history of table {self} was cut, and does not show whether columns were renamed or dropped"
        known = {name.lower() for name in there.names}
        lacking = [field for field in columns.rows.fields if field.name.lower() not in known]
        adding = f"{self._adding(lacking)}, and " if lacking else ""
        raise SchemaMismatchError(
            f"{why} after rows were staged under the names of version {columns.version}. Nothing was written, and "
            "staged rows wait. Rename a column back whose rows should go to it, and start again. If staged rows may "
            f"go to the columns that have these names now, {adding}say so: {self._as_of(history.version)}, and start "
            "again"
        )

    def names_version(self, rows: T.StructType, there: T.StructType, history: History) -> int:
        return history.version

    def _renamed(self, facts: TableFacts, history: History, since: int) -> int | None:
        """Return a version that took a name after ``since`` and after the version that the table's owner names."""
        assert isinstance(history, DeltaHistory)
        named = facts.properties.get(COLUMNS_AS_OF, "")
        since = max(since, int(named) if named.isdigit() else since)
        return history.renamed(since) if facts.may_be_renamed else None

    def _as_of(self, version: int) -> str:
        return f"ALTER TABLE {self.sql_place} SET TBLPROPERTIES ('{COLUMNS_AS_OF}' = '{version}')"

    def append(
        self, rows: DataFrame, looked: TableLook, mark: Mark, max_file_rows: int, check_alone: Callable[[], None]
    ) -> None:
        """Delta skips the transaction if it has one of the app id with this number, or a later one."""
        metadata, facts = metadata_of(mark), looked.facts
        if looked.types is not None:
            rows = with_types(rows, looked.types)
        writer = rows.write.format("delta").mode("append").option("maxRecordsPerFile", max_file_rows)
        writer = writer.options(txnAppId=mark.app_id, txnVersion=mark.number, userMetadata=metadata)
        if self.partition_by and (facts is None or facts.partition_by == self.partition_by):
            # Otherwise their case differs, or Delta computes some: without names it takes the table's own.
            # Spark parses them by name, and takes them as they are by path.
            writer = writer.partitionBy(*(map(back_ticked, self.partition_by) if self.table else self.partition_by))
        # A write that creates a table by name reads it from the session only, where other threads' writes find it, too.
        named = {USER_METADATA: metadata} if self.table and facts is None else {}
        with settings(rows.sparkSession, named | self._zone(rows, facts) | self._lean(rows.sparkSession)):
            if self.table:
                writer.saveAsTable(self.table)
            else:
                writer.save(str(self.path))

    def settle(self, spark: SparkSession, state: TableState, before: int, commit: DrainCommit) -> None:
        """Delta looks for columns by name when a write begins, which is after the look at the table."""
        version, history = commit.version, state.history.up_to(commit.version)
        late = self._renamed(state.facts, history, before) if state.facts and history.entries else None
        if late is not None:
            raise SchemaMismatchError(
                f"version {late} of table {self} renamed, dropped or replaced columns while a drain was written, so "
                f"rows of the drain, version {version}, may be in columns that have their names now. Staged rows wait. "
                f"Look at the rows that version {version} added, and put right what is in the wrong column. Then say "
                f"so: {self._as_of(version)}, and start again"
            )

    def taking(self, spark: SparkSession, facts: TableFacts) -> Taking:
        """The session lets Delta add columns, and the table lets it widen types."""
        adds = spark.conf.get(AUTO_MERGE, "false") == "true"
        return Taking(adds, widens=adds and TYPE_WIDENING in facts.features)

    def unfit(
        self, spark: SparkSession, rows: T.StructType, partition_by: Sequence[str], facts: TableFacts | None
    ) -> Iterable[str]:
        """Apply Delta's rules, and the session's defaults for a new table."""
        is_mapped = default(spark, COLUMN_MAPPING) != "none" if facts is None else facts.is_mapped
        return unfit(rows, partition_by, is_mapped=is_mapped)

    def check_new(self, spark: SparkSession, place: str | None, was_begun: bool) -> None:
        """A new table must keep all transactions, and its folder must be empty."""
        if (retention := default(spark, FORGETS)) != "none":
            raise TableForgetsError(
                f"{DEFAULTS}{FORGETS.removeprefix('delta.')} = {retention!r} is set, so table {self} would "
                "have that property, and after that time take rows a second time. Nothing was started. Unset it"
            )
        if place is not None:
            check_place(spark, str(self), place, by_name=not self.path, was_begun=was_begun)

    def check_start(
        self, spark: SparkSession, facts: TableFacts, rows: T.StructType, waiting: StagedColumns | None
    ) -> tuple[T.StructType, int, SpecialColumns]:
        """Rows that wait must have its names."""
        # Read before the columns, so that a later rename is found.
        history = self.history(spark) if waiting is None else self.history_of_names(spark, waiting, facts)
        there, version = self.read(spark).schema, history.version
        # Of a table that was replaced or restored, the query's first look at it says whether it is lost.
        if waiting is not None and history.undone(waiting.version) is None:
            self.check_names(waiting, facts, there, history)
            version = waiting.version if waiting.rows == rows else version
        special = SpecialColumns()
        if SPECIAL_FEATURES & set(facts.features):
            special = special_columns(spark, self.sql_place, there.names, rows.names)
        return there, version, special

    def _zone(self, rows: DataFrame, facts: TableFacts | None) -> dict[str, str]:
        """Return the zone to write in: Delta reads a partition's time from a name, which two hours may share."""
        folders = {name.lower() for name in (facts.partition_by if facts else self.partition_by)}
        times = {field.name.lower() for field in rows.schema.fields if isinstance(field.dataType, T.TimestampType)}
        computes = facts is not None and not COMPUTING.isdisjoint(facts.features)
        in_utc = not computes and rows.sparkSession.conf.get(UTC_FOLDERS, "true") == "true"
        return {SESSION_ZONE: "UTC"} if in_utc and folders & times else {}

    def _lean(self, spark: SparkSession) -> dict[str, str]:
        """Return the number of tasks that read the log of a small table, unless the session has chosen one."""
        chosen = spark.conf.get(SNAPSHOT_PARTITIONS, None)
        return {SNAPSHOT_PARTITIONS: "2"} if self._is_small and chosen is None else {}

    def _detail(self, spark: SparkSession) -> Row | None:
        """Read DESCRIBE DETAIL. Delta's Python class would need the JVM, or a plugin under Spark Connect."""
        try:
            with settings(spark, self._lean(spark)):
                row = described(spark, self.place) if self.path or self.is_known(spark) else None
        except AnalysisException as error:
            if not (error.getCondition() or "").startswith("EXPECT_TABLE_NOT_VIEW"):
                raise
            raise ConfigError(f"table {self} is a view: name a table, or one that does not exist yet") from None
        files = 0 if row is None or row["format"] != "delta" else row["numFiles"]
        self._is_small = files is not None and files <= SMALL_TABLE
        if row is None or row["format"] == "delta":
            return row
        if self.table:
            raise ConfigError(f"table {self} is not a Delta table: name one, or a table that does not exist yet")
        return None


# --- the place of a new table ----------------------------------------------------------------------------------------


def default(spark: SparkSession, name: str) -> str:
    """Return a property that new tables get from the session."""
    return spark.conf.get(f"{DEFAULTS}{name.removeprefix('delta.')}", "none") or "none"


def special_columns(spark: SparkSession, place: str, there: Sequence[str], given: Iterable[str]) -> SpecialColumns:
    """Return the columns that Delta fills itself: generated, identity, default. No column's description shows them.

    Delta plans a MERGE that would insert the stream's columns alone, and does not run it. The plan has a value for each
    column of the table, and ``null`` for columns that Delta does not fill. It works by name and by path (``place``).
    A column that the plan does not show counts as filled: the first drain finds out.
    """
    ours = {name.lower() for name in given}
    closed: set[str] = set()
    while True:
        taken = [name for name in there if name.lower() in ours - closed]
        plan = _plan(spark, place, taken) if taken else ""
        refused = _CLOSED.search(plan)
        if refused is None or refused[1].lower() not in ours - closed:
            break
        closed.add(refused[1].lower())
    lacking = {name.lower(): re.escape(back_ticked(name)) for name in there if name.lower() not in ours}
    filled = {name for name, quoted in lacking.items() if not re.search(quoted + r" = null[,\]]", plan)}
    return SpecialColumns(frozenset(filled), frozenset(closed))


def _plan(spark: SparkSession, place: str, columns: Sequence[str]) -> str:
    names = [back_ticked(name) for name in columns]
    values = ", ".join(f"new.{name}" for name in names)
    with settings(spark, WHOLE_PLAN):
        explained = spark.sql(
            f"EXPLAIN EXTENDED MERGE INTO {place} AS old USING (SELECT * FROM {place} WHERE false) AS new ON false "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
        ).first()
    return "" if explained is None else str(explained[0])


def check_known(
    spark: SparkSession, table: str, place: str, drains: int = 0, app_id: str | None = None, field: str = "output"
) -> None:
    """Raise TableLostError if the catalog has forgotten a table: it lies in its folder, or has taken drains.

    ``place``: the folder that the name would get. ``drains``: how many the checkpoint has completed. ``app_id``: None
    for a query that makes no drains. ``field``: the section of a job's file that has the name.
    """
    forgets = f" {FORGETS_NAMES}." if forgets_names(spark, table) else ""
    found = described(spark, sql_text(place))
    if found is not None and found["format"] == "delta":
        history = DeltaTarget(SinkOptions(path=place)).history(spark, first=LOOKED_AT)
        numbers = [] if app_id is None else history.drains(app_id)
        has = f", with drains of this query up to number {max(numbers)}" if numbers else ""
        raise TableLostError(
            f"the catalog has no table {table}, but its folder {place} has a whole Delta table at version "
            f"{history.version}{has}.{forgets} Nothing was started, and nothing is lost. Give path={place!r} in place "
            f"of the name ({field}.path in a job's file), or register it in this session and start again: "
            f"CREATE TABLE {table} USING delta LOCATION {sql_text(place)}"
        )
    if drains and forgets:
        raise TableLostError(
            f"the catalog has no table {table}, to which the checkpoint has made {drains} drain{'s' * (drains != 1)}, "
            f"and {place} is not its folder. Nothing was started. If the table was renamed, start with its new name."
            f"{forgets} If that has happened, find its folder, which begins at spark.sql.warehouse.dir of the first "
            f"run, and give it as path ({field}.path in a job's file). If it is gone, {START_OVER}"
        )


def check_name(spark: SparkSession, table: str, drains: int = 0, app_id: str | None = None) -> None:
    """Raise as `check_known` for any name of a table that the catalog does not have."""
    name = str(resolved(spark, SinkOptions(table=table)).table)
    if (place := place_of_name(spark, name)) is not None:
        check_known(spark, name, place, drains, app_id)


def check_place(spark: SparkSession, target: str, place: str, *, by_name: bool, was_begun: bool) -> None:
    """Raise ConfigError or StorageError if the table cannot be created in its place; as `Target.check_new`."""
    try:
        there = described(spark, sql_text(place)) is not None
        files = spark.read.option("recursiveFileLookup", "true").text(literal(place)).inputFiles() if there else []
        if files and (by_name or not was_begun):  # Delta makes a table by name in an empty folder only.
            raise ConfigError(
                f"table {target} would be made in {place}, which has {len(files):,} files and no Delta table. Nothing "
                "was started. If another query is making the table now, start again. If a query was killed there in "
                "its first drain, start it with its own checkpoint; if that is this query, its staged rows wait: move "
                "the folder elsewhere and start again. Otherwise give a folder that is empty or does not exist"
            )
        write_nothing(spark, place, "append")
    except SPARK_FAULTS as error:
        raise StorageError(
            f"table {target} cannot be made in {place}: {sentence_of(error)}. Nothing was started. Give the session "
            "what its storage needs (jars, credentials, permission), or another place"
        ) from error


# --- the session's Delta ----------------------------------------------------------------------------------------------


def is_without_delta(error: BaseException) -> bool:
    return isinstance(error, AnalysisException) and error.getCondition() in WITHOUT_DELTA


def delta_package(spark_version: str) -> str:
    major, minor = spark_version.split(".")[:2]
    try:
        delta = version("delta-spark")
    except PackageNotFoundError:
        delta = TESTED_DELTA
    return f"io.delta:delta-spark_{major}.{minor}_2.13:{delta}"


def what_lacks(spark: SparkSession) -> str:
    lacks = [name for name, value in DELTA_SETTINGS.items() if value not in (spark.conf.get(name, None) or "")]
    found = f"Delta is not in {' and '.join(lacks)}" if lacks else "its settings name Delta, but its jars are missing"
    lines = [f"--packages {delta_package(spark.version)}"]
    lines += [f"--conf {name}={value}" for name, value in DELTA_SETTINGS.items()]
    return (
        f"this Spark session cannot write Delta tables: {found}. Nothing was started. Start the session, or the server "
        "of Spark Connect, with all of\n    " + "\n    ".join(lines) + "\nIn Python, "
        "delta.configure_spark_with_delta_pip(builder) adds the package. Settings of a session that runs cannot be "
        "changed. For an Iceberg table set format='iceberg'"
    )
