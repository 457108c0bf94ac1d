"""The Iceberg table that rows end in: a drain is written to the query's own branch, and picked into the table.

docs/how-to/iceberg.md says how that is exactly once. A drain that expired before it was read back is recognised by its
files. If these were rewritten too, the query stops.

Iceberg identifies columns by ids that no statement shows. So staged rows carry a checksum of the order of their columns
in the table: a renamed column is missing, and columns that exchanged names have another order.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, SchemaMismatchError, StorageError, sentence_of
from spark_purgatory.spark.sink.staging.ledger import Intent
from spark_purgatory.spark.sink.table.column_rules import StagedColumns, paths, unfit, with_types
from spark_purgatory.spark.sink.table.history import (
    COMMITTED,
    FIRST_LOOK,
    NO_VERSION,
    NOT_COMMITTED,
    SAYS,
    DrainCommit,
    History,
    Mark,
    TableFacts,
    TableLook,
    TableState,
    TableVersion,
    Undone,
    Words,
)
from spark_purgatory.spark.sink.table.table_place import SESSION_CATALOG, name_parts, sql_name
from spark_purgatory.spark.sink.table.target import COLUMNS_AS_OF, SpecialColumns, Target
from spark_purgatory.spark.storage.storage_access import back_ticked, sql_text
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)
EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
RUNTIMES = {"4.0": "1.11.0", "4.1": "1.12.0"}  # Iceberg's by Spark's release. Later ones have none yet.
NO_CUT = 1 << 40
_EXPIRED = re.compile(r"\b(?:FileNotFound|NotFound|NoSuchFile)Exception\b")
_THERE = re.compile(r"DuplicateWAPCommitException|CherrypickAncestorCommitException")
# Names in a snapshot's summary: Iceberg's own, and the uuid of a drain's intent.
WRITTEN, PICKED, SOURCE, INTENT = "wap.id", "published-wap-id", "source-snapshot-id", "spark_purgatory.intent"


def branch_of(app_id: str) -> str:
    return app_id.replace("/", "_").replace("-", "_")


@dataclass(frozen=True)
class SnapshotHistory(History):
    """The snapshots of an Iceberg table; the entries are the current one and its ancestors.

    A version is a snapshot's id, which is random (docs/how-to/iceberg.md). Expiry removes ancestors, also between two
    that it keeps. So a history is whole since a version if that is an ancestor, or if the first snapshot of all is.
    """

    before: int = NO_VERSION  # The expired snapshot before the oldest entry; `NO_VERSION` if there was none.
    snapshots: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # Summaries of all snapshots.
    refs: Mapping[str, int] = field(default_factory=dict)  # Branches and tags.
    parents: Mapping[int, int] = field(default_factory=dict)  # Of all snapshots that have one.
    proven: DrainCommit | None = None  # A drain whose snapshot expired, and that is in the table.
    words = Words(
        version="snapshot",
        restore="Bring the table back (set_current_snapshot) to snapshot",
    )

    @property
    def _reaches_first(self) -> bool:
        return self.before == NO_VERSION

    def is_whole_since(self, version: int) -> bool:
        """Also True if the version expired and the history has its successor."""
        return self._reaches_first or version == self.before or self.is_whole_from(version)

    def is_whole_from(self, version: int) -> bool:
        """True for an ancestor, or if no ancestor is missing."""
        return self._reaches_first or any(entry.version == version for entry in self.entries)

    def lacks(self, version: int, app_id: str) -> bool:
        """No snapshot has the id. One that expired would have left the query's branch."""
        return version not in self.snapshots and (self._reaches_first or branch_of(app_id) not in self.refs)

    def undone(self, version: int) -> Undone | None:
        """A rollback keeps the snapshots that it undoes, until they expire."""
        if not self._reaches_first or any(entry.version == version for entry in self.entries):
            return None
        return Undone(f"rolled back to snapshot {self.version}, or replaced", self.version)

    def drains(self, app_id: str) -> dict[int, DrainCommit]:
        proven = {} if self.proven is None else {self.proven.number: self.proven}
        return {**proven, **super().drains(app_id)}

    def written(self, intent_uuid: str) -> int | None:
        return next((id for id, summary in self.snapshots.items() if summary.get(INTENT) == intent_uuid), None)


def snapshot_history(rows: Iterable[Mapping[str, Any]], refs: Mapping[str, int]) -> SnapshotHistory:
    of = {row["snapshot_id"]: row for row in rows}
    summaries = {id: dict(row["summary"] or {}) for id, row in of.items()}
    parents = {id: row["parent_id"] for id, row in of.items() if row["parent_id"] is not None}
    entries: list[TableVersion] = []
    at = refs.get("main", NO_VERSION)
    while at in of:
        row = of[at]
        commit = _commit(at, summaries)
        entries.append(TableVersion(at, row["operation"] or "", {}, commit, row.get("at", "")))
        at = parents.get(at, NO_VERSION)
    return SnapshotHistory(tuple(entries), at, summaries, refs, parents)


def _commit(id: int, summaries: Mapping[int, Mapping[str, str]]) -> DrainCommit | None:
    summary = summaries[id]
    app_id, _, number = (summary.get(PICKED) or summary.get(WRITTEN) or "").rpartition("/")
    if not app_id.startswith("spark_purgatory/") or not number.isdigit():
        return None
    source = summaries.get(int(summary.get(SOURCE) or id), {})
    found = (summary.get(f"added-{what}") for what in ("records", "data-files", "files-size"))
    counts = (None if count is None else int(count) for count in found)
    return DrainCommit(id, app_id, int(number), source.get(INTENT, ""), *counts)


def iceberg_package(spark_version: str) -> str | None:
    """Return the package with Iceberg's jars for a release of Spark; None if there is none."""
    minor = ".".join(spark_version.split(".")[:2])
    return f"org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:{RUNTIMES[minor]}" if minor in RUNTIMES else None


class IcebergTarget(Target):
    format = "Iceberg"
    no_history = SnapshotHistory(())

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.file_bytes = options.bytes_of("batch_size")
        self._written_by_us = self._picked = ""  # The uuids of the intents that were written and picked last.

    def check_session(self, spark: SparkSession) -> None:
        """The extension proves that the jars are there: a session that names it does not start without them."""
        if EXTENSION in (spark.conf.get("spark.sql.extensions", None) or ""):
            return
        package = iceberg_package(spark.version)
        has = f"--packages {package}" if package else f"a Spark that Iceberg has a runtime for ({', '.join(RUNTIMES)})"
        raise ConfigError(
            f"this Spark session cannot write Iceberg table {self}: it has no spark.sql.extensions={EXTENSION}. "
            f"Nothing was started. Start the session, or the server of Spark Connect, with this setting, those of your "
            f"catalog, and {has}. They cannot be set in a running session"
        )

    def facts(self, spark: SparkSession) -> TableFacts | None:
        """Read DESCRIBE. ``partition_by`` lacks columns with a transform: the sink groups rows by the others."""
        if not self.is_known(spark):
            return None
        self.refresh(spark)
        rows = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE EXTENDED {self.table}").collect()]
        detail = dict(rows)
        if detail.get("Provider") != "iceberg":
            raise ConfigError(f"table {self} is not an Iceberg table: name one, or a table that does not exist yet")
        names = [name for name, _ in rows]
        parts: list[str] = []
        for heading, at in (("# Partitioning", 1), ("# Partition Information", 0)):
            if heading in names:
                below = rows[names.index(heading) + 1 :]
                parts = [row[at] for row in below[: [name for name, _ in below].index("")] if row[0] != "# col_name"]
        properties = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {self.table}").collect()}
        partition_by = tuple(part.strip("`") for part in parts if part.strip("`") in names[: names.index("")])
        return TableFacts("", detail.get("Location") or "", partition_by, properties=properties)

    def history(self, spark: SparkSession, since: int | None = None, first: int = FIRST_LOOK) -> SnapshotHistory:
        self.refresh(spark)
        at = F.date_format("committed_at", "yyyy-MM-dd HH:mm:ss").alias("at")
        refs = {row["name"]: row["snapshot_id"] for row in spark.table(f"{self.table}.refs").collect()}
        wanted = spark.table(f"{self.table}.snapshots").select("snapshot_id", "parent_id", "operation", "summary", at)
        rows = [row.asDict() for row in wanted.collect()]
        is_of_one_time = "main" not in refs or any(row["snapshot_id"] == refs["main"] for row in rows)
        return snapshot_history(rows, refs) if is_of_one_time else self.history(spark)

    def state_after(
        self, spark: SparkSession, app_id: str, intent: Intent, looked: TableLook | None, looks: int = 5
    ) -> TableState:
        """If expiry has cut the history, look for other traces of an intent. StorageError if there are none."""
        try:
            if (facts := self.facts(spark)) is None:
                return TableState(None, self.no_history)
            history = self.history(spark)
            is_shown = intent.number in history.drains(app_id) or history.is_whole_since(intent.base_version)
            if not is_shown and self._has(spark, facts, history, app_id, intent):
                history = replace(history, proven=DrainCommit(NO_VERSION, app_id, intent.number, intent.uuid))
            return TableState(facts, history)
        except SPARK_FAULTS as error:
            if looks == 1 or not _EXPIRED.search(str(error)):
                raise
        return self.state_after(spark, app_id, intent, looked, looks - 1)  # Files expired while they were read.

    def _has(
        self, spark: SparkSession, facts: TableFacts, history: SnapshotHistory, app_id: str, intent: Intent
    ) -> bool:
        """Return True if a drain is in the table although its snapshot expired."""
        said = facts.properties.get(SAYS + intent.uuid)
        written = history.written(intent.uuid)
        if said in (COMMITTED, NOT_COMMITTED):
            return said == COMMITTED
        if self._picked == intent.uuid:
            return True
        if any(summary.get(PICKED) == f"{app_id}/{intent.number}" for summary in history.snapshots.values()):
            return True
        if written is not None and self._has_files(spark, written):
            return True
        if written is None and branch_of(app_id) in history.refs:
            return False  # A written snapshot stays on the branch until it is picked.
        raise StorageError(
            f"Iceberg table {self} does not show whether it has drain {intent.number}. Snapshots since "
            f"{intent.base_version} expired before the drain was read back, and the table has none of its files: it "
            "was not committed, or its files were rewritten. Nothing was written, and staged rows wait. Look in the "
            f"table for any row of the checkpoint's Parquet file staging/{intent.taken[0].path}. If it is there, run "
            f"ALTER TABLE {self} SET TBLPROPERTIES ('{SAYS}{intent.uuid}' = '{COMMITTED}'), else the same with "
            f"'{NOT_COMMITTED}', and start again. Keep snapshots longer than the query may be down"
        )

    def _has_files(self, spark: SparkSession, snapshot: int) -> bool:
        added = f"SELECT data_file.file_path AS path FROM {self.table}.entries VERSION AS OF {snapshot}"
        there = f"SELECT 1 FROM {self.table}.files AS now JOIN ({added} WHERE snapshot_id = {snapshot}) AS then"
        return bool(spark.sql(f"{there} ON now.file_path = then.path LIMIT 1").collect())

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        self.refresh(spark)
        reader = spark.read if version is None else spark.read.option("versionAsOf", version)
        return reader.table(str(self.table))

    def file_sizes(self, spark: SparkSession) -> list[int]:
        return sorted(row[0] for row in spark.sql(f"SELECT file_size_in_bytes FROM {self.table}.data_files").collect())

    def append(
        self, rows: DataFrame, looked: TableLook, mark: Mark, max_file_rows: int, check_alone: Callable[[], None]
    ) -> None:
        """Write to the branch, unless this intent was written there before, and pick what was written."""
        spark, branch, intent_uuid = rows.sparkSession, branch_of(mark.app_id), mark.intent_uuid
        if looked.facts is None:
            self._create(rows)
        history = self.history(spark)
        if history.written(intent_uuid) is None:
            # A table without a snapshot has one on the branch if a try has failed. Iceberg would not replace that.
            if branch not in history.refs or history.version not in (NO_VERSION, history.refs[branch]):
                self._move(spark, branch, history.version)
            summary = {WRITTEN: f"{mark.app_id}/{mark.number}", INTENT: intent_uuid}
            rows = rows if looked.types is None else self._fitted(rows, looked.types)
            self._write(rows, branch, summary, self.file_bytes if max_file_rows else NO_CUT)
            self._written_by_us = intent_uuid
        check_alone()  # Another run may have ended the drain meanwhile, and the table may have forgotten it since.
        written = self.history(spark).written(intent_uuid)
        if looked.facts is not None and SAYS + intent_uuid in looked.facts.properties:
            self._forget(spark, intent_uuid)  # What was said of the last attempt says nothing of this one.
        self._pick(spark, written)
        self._picked = intent_uuid

    def _forget(self, spark: SparkSession, intent_uuid: str) -> None:
        spark.sql(f"ALTER TABLE {self.table} UNSET TBLPROPERTIES ('{SAYS}{intent_uuid}')")

    def _create(self, rows: DataFrame) -> None:
        names = [F.col(back_ticked(name)) for name in self.partition_by]
        creator = rows.limit(0).writeTo(str(self.table)).using("iceberg")
        (creator.partitionedBy(*names) if names else creator).create()

    def _fitted(self, rows: DataFrame, types: T.StructType) -> DataFrame:
        rows = with_types(rows, types)
        if rows.sparkSession.version.startswith("4.0"):  # It does not fill in columns that rows lack.
            has = set(map(str.lower, rows.columns))
            lacks = [field for field in self.read(rows.sparkSession).schema if field.name.lower() not in has]
            rows = rows.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in lacks))
        return rows

    def _write(self, rows: DataFrame, branch: str, mark: Mapping[str, str], file_bytes: int) -> None:
        options = {
            **{f"snapshot-property.{name}": value for name, value in mark.items()},
            # Each task has the rows of one file, or of table partitions that the sink cannot compute.
            "distribution-mode": "none",
            "fanout-enabled": "true",
            "target-file-size-bytes": str(file_bytes),
        }
        rows.writeTo(f"{self.table}.branch_{branch}").options(**options).append()

    def _pick(self, spark: SparkSession, written: int | None) -> None:
        """Publish the written snapshot; if another attempt has published it, it is read back."""
        catalog, *name = name_parts(str(self.table))
        table = sql_text(sql_name(catalog, *name))  # Its schema alone could be the name of another catalog.
        call = f"CALL {sql_name(catalog)}.system.cherrypick_snapshot(table => {table}, snapshot_id => {written})"
        try:
            spark.sql(call).collect()
        except SPARK_FAULTS as error:
            if not _THERE.search(str(error)):
                raise

    def settle(self, spark: SparkSession, state: TableState, before: int, commit: DrainCommit) -> None:
        """Move the branch to the last drain's snapshot, which then does not expire.

        If an earlier run wrote the snapshot, it may still be alive and pick it again. The branch then moves to the
        parent, so that the snapshot expires no later than the ancestors from which Iceberg knows that it was picked.
        """
        version, branch = commit.version, branch_of(commit.app_id)
        try:
            history = self.history(spark)
            if version == NO_VERSION:
                version = history.version
            elif history.snapshots.get(version, {}).get(INTENT, self._written_by_us) != self._written_by_us:
                parent = history.parents.get(version, NO_VERSION)
                version = parent if parent in history.snapshots else version
            if history.refs.get(branch) != version:
                self._move(spark, branch, version)
        except SPARK_FAULTS as error:
            LOG.warning(f"Iceberg table {self}: the last drain's snapshot may expire: {sentence_of(error)}")

    def _move(self, spark: SparkSession, branch: str, version: int) -> None:
        at = "" if version == NO_VERSION else f" AS OF VERSION {version}"
        spark.sql(f"ALTER TABLE {self.table} CREATE OR REPLACE BRANCH {branch}{at}")

    def refresh(self, spark: SparkSession) -> None:
        """Drop the session's cached table, which it would use for half a minute."""
        spark.sql(f"REFRESH TABLE {self.table}")

    # --- columns -----------------------------------------------------------------------------------------------------

    def check_names(self, columns: StagedColumns, facts: TableFacts, there: T.StructType, history: History) -> None:
        """Their order identifies them."""
        now = order_of(columns.rows, there)
        if columns.version in (NO_VERSION, now) or facts.properties.get(COLUMNS_AS_OF) == str(now):
            return
        known = {".".join(path).lower() for path in paths(there)}
        lost = [name for name in map(".".join, paths(columns.rows)) if name.lower() not in known]
        what, given = "has columns of the stream in another order than", "Add a column that was dropped again"
        if lost:
            what = f"lacks {', '.join(lost)}, which it had"
        else:
            given = "If staged rows may go to the columns that have their names now, say so: "
            given += f"ALTER TABLE {self} SET TBLPROPERTIES ('{COLUMNS_AS_OF}' = '{now}')"
        raise SchemaMismatchError(
            f"Iceberg table {self} {what} when rows were staged: columns were renamed, moved or dropped, and Iceberg "
            "does not show which. Nothing was written, and staged rows wait. Rename them back, start the stream as it "
            f"was, run close() and rename them again. {given}, and start again"
        )

    def names_version(self, rows: T.StructType, there: T.StructType, history: History) -> int:
        return order_of(rows, there)

    def unfit(
        self, spark: SparkSession, rows: T.StructType, partition_by: Sequence[str], facts: TableFacts | None
    ) -> Iterable[str]:
        return unfit(rows, partition_by, is_mapped=True, format=self.format)

    def check_new(self, spark: SparkSession, place: str | None, was_begun: bool) -> None:
        """Spark's own catalog, and Delta's, would refuse it only in the first drain, and again in each retry."""
        used = spark.conf.get(f"spark.sql.catalog.{SESSION_CATALOG}", None) or "Spark's own"
        if name_parts(str(self.table))[0] == SESSION_CATALOG and "iceberg" not in used:
            raise ConfigError(
                f"table={self.table!r}: {SESSION_CATALOG} is {used} in this session, which makes no Iceberg tables. "
                "Nothing was started. Name a table in a catalog of Iceberg's, as catalog.schema.table"
            )

    def check_start(
        self, spark: SparkSession, facts: TableFacts, rows: T.StructType, waiting: StagedColumns | None
    ) -> tuple[T.StructType, int, SpecialColumns]:
        """The columns of rows that wait must have the order that they had."""
        there = self.read(spark).schema
        if waiting is not None:
            self.check_names(waiting, facts, there, self.no_history)
        return there, order_of(rows, there), SpecialColumns()


def order_of(rows: T.StructType, there: T.StructType) -> int:
    """Return a checksum of the order of the rows' columns in a table; `NO_VERSION` if it lacks one."""
    ours = {tuple(map(str.lower, path)) for path in paths(rows)}
    known = [tuple(map(str.lower, path)) for path in paths(there)]
    return crc32(repr([path for path in known if path in ours]).encode()) if ours <= {*known} else NO_VERSION
