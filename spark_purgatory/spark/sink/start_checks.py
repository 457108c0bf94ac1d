"""What `write_stream` looks at before it starts the query, the first time and at every restart.

A query that starts reads its sources, changes its state and stages rows; an error of the first drain comes when all
that has happened, and cannot always be mended then. So what can be checked before is checked before:

1. Delta is in the session.
2. The checkpoint lies outside the table's folder and is this table's (`table_claim`).
3. The columns: a Delta table can hold them, and this one takes them.
4. There is a table, which lets this sink write exactly once; or it can be made.
5. The state of the checkpoint is one that a purgatory in the query can go on from (`settings_to_start`).

A reader of the table sees nothing of it: a table that is missing is not made. Its folder may be, empty.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import ConfigError, SchemaMismatchError, StorageError, TableForgetsError, sentence_of
from spark_purgatory.spark.sink.staging.ledger import Ledger
from spark_purgatory.spark.sink.staging.ledger_format import read_ledger
from spark_purgatory.spark.sink.staging.staging_folder import StagingFolder
from spark_purgatory.spark.sink.table.column_rules import unfit
from spark_purgatory.spark.sink.table.delta_session import check_features, is_without_delta, what_lacks
from spark_purgatory.spark.sink.table.delta_target import FORGETS, DeltaTarget
from spark_purgatory.spark.sink.table.history import LOOKED_AT, NO_VERSION, TableFacts
from spark_purgatory.spark.sink.table.renames import StagedColumns, UnknownColumnsError, followed, moved, paths
from spark_purgatory.spark.sink.table.table_claim import app_id_of, claim
from spark_purgatory.spark.sink.table.table_place import check_outside, place_of_name, resolved
from spark_purgatory.spark.storage.checkpoint_files import check_files
from spark_purgatory.spark.storage.paths import literal
from spark_purgatory.spark.storage.spark_access import SMALL_QUERY, settings
from spark_purgatory.spark.storage.storage_access import back_ticked, described, sql_text, write_nothing
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)
MAX_OTHERS = 3
"""Queries that are named, of those that have filled a table."""
DEFAULTS = "spark.databricks.delta.properties.defaults."
"""Before the name of a table's property without ``delta.``: the session's default for new tables."""
CHECKS_TYPES = "spark.databricks.delta.schema.typeCheck.enabled"
SPECIAL_FEATURES = frozenset({"allowColumnDefaults", "generatedColumns", "identityColumns"})
"""Features of a table that may have such columns; other tables need not be asked."""
WHOLE_PLAN = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": "1000000000"}
_CLOSED = re.compile(r"\[DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED\].*? column (.+?) is not supported")


class SpecialColumns(NamedTuple):
    """Names in lower case."""

    filled: frozenset[str] = frozenset()
    """Columns that the stream lacks, and Delta fills."""
    closed: frozenset[str] = frozenset()
    """Columns that the stream has, and that take no values from rows: ``GENERATED ALWAYS AS IDENTITY``."""


def checked(
    spark: SparkSession, schema: T.StructType, options: SinkOptions, checkpoint: str
) -> tuple[SinkOptions, int]:
    """Raise what would keep a stream of these columns from its table; return the options to start with, and the version
    of the table whose names of columns the stream has.

    In these ``partition_by`` names the columns as the stream does, also where the table alone says what they are.
    Partition columns that Delta computes, and the stream lacks, are left out.
    """
    with settings(spark, SMALL_QUERY):
        given = replace(options, partition_by=())
        if given.table:
            _facts(spark, DeltaTarget(given))  # A temporary view has no other name.
        now, since, ledger = resolved(spark, given), NO_VERSION, Ledger()
        target, facts, folder = _looked_at(spark, now, checkpoint)
        names, table_id = [str(each.path or each.table) for each in (now, given)], facts.id if facts else ""
        ours = {"path" if given.path else "table": names[0], "given": names[1], "id": table_id}
        claimed, has_begun = claim(spark, checkpoint, ours, lambda: _has_filled(spark, DeltaTarget(now), checkpoint))
        bound = replace(now, path=claimed.get("path"), table=claimed.get("table"))
        if bound != now:
            target, facts, folder = _looked_at(spark, bound, checkpoint)
        if has_begun:
            check_files(spark, checkpoint)
            ledger = read_ledger(spark, StagingFolder.of(spark, checkpoint))
        if facts is None:
            partition_by = tuple(_in_stream(spark, name, schema) for name in options.names_of("partition_by"))
            _check_new_columns(spark, target, schema, partition_by, _default(spark, "columnMapping.mode") != "none")
            if (retention := _default(spark, forgets := FORGETS.removeprefix("delta."))) != "none":
                raise TableForgetsError(
                    f"{DEFAULTS}{forgets} = {retention!r} is set, so table {target} would be made with that property, "
                    "and after that time take rows a second time. Nothing was started. Unset it"
                )
            _check_place(spark, target, folder, was_begun=ledger.intent is not None and ledger.intent.number == 0)
        else:
            check_features(spark, str(target), target.merge_place, facts.features)
            version = target.history(spark).version  # Before the columns are read: a rename after that is one.
            there = target.read(spark).schema
            known = None if ledger.schema is None else StagedColumns.of(ledger.schema)
            is_named = not facts.may_be_renamed or _is_named(spark, target, schema, there, known)
            is_same = known is not None and [*paths(known.rows)] == [*paths(schema)]
            since = known.version if known is not None and is_same and is_named else version
            special = SpecialColumns()
            if SPECIAL_FEATURES & set(facts.features):
                special = _special_columns(spark, target.merge_place, there.names, schema.names)
            partition_by = _of_table(spark, options, schema, facts, special)
            target.check_columns(spark, there, schema)
            types = {field.name.lower(): field.dataType for field in there.fields}
            has_new = any(field.dataType != types.get(field.name.lower()) for field in schema.fields)
            if has_new or len({*map(str.lower, schema.names)}) < len(schema.names):
                _check_new_columns(spark, target, schema, (), facts.is_mapped)
            _check_special(target, schema, there, special)
            if not (has_begun or options.shares_table):
                _warn_of_others(spark, target, checkpoint)
        return replace(bound, partition_by=partition_by), since


def _has_filled(spark: SparkSession, target: DeltaTarget, checkpoint: str) -> bool:
    """Return True if the checkpoint's query has brought rows to a table."""
    return target.exists(spark) and app_id_of(spark, checkpoint) in target.history(spark, first=LOOKED_AT).queries()


def _warn_of_others(spark: SparkSession, target: DeltaTarget, checkpoint: str) -> None:
    """A new query reads its sources from their beginning: what another has brought from them would come again."""
    others = [
        f"{app_id} ({len(drains):,} drain{'s' * (len(drains) != 1)}, the last in version {drains[0].version} at "
        f"{drains[0].at})"
        for app_id, drains in target.history(spark, first=LOOKED_AT).queries().items()
    ]
    if others:
        LOG.warning(
            f"table {target} was filled by {' and by '.join(others[:MAX_OTHERS])}. Checkpoint {checkpoint} is new: its "
            "query reads the sources from their beginning and may write rows that the table already has. To go on, "
            "start with the other query's checkpoint. If several queries fill the table, each from other sources, give "
            "shares_table=True"
        )


def _looked_at(
    spark: SparkSession, options: SinkOptions, checkpoint: str
) -> tuple[DeltaTarget, TableFacts | None, str | None]:
    """The table, what it is, and its folder where that is known, in which the checkpoint may not be."""
    target = DeltaTarget(options)
    facts = _facts(spark, target)
    folder = facts.location if facts else options.path or place_of_name(spark, str(options.table))
    if folder is not None:
        check_outside(spark, checkpoint, folder, must_be_empty=facts is None and options.table is not None)
    return target, facts, folder


def _facts(spark: SparkSession, target: DeltaTarget) -> TableFacts | None:
    try:
        if target.table:
            try:  # Without Delta a name may be unknown, and Delta alone understands this.
                described(spark, sql_text("/"))
            except SPARK_FAULTS as error:
                if is_without_delta(error):
                    raise
        return target.facts(spark)
    except SPARK_FAULTS as error:
        if is_without_delta(error):
            raise ConfigError(what_lacks(spark)) from None
        raise StorageError(
            f"table {target} cannot be read: {sentence_of(error)}. Nothing was started. Give the session what its "
            "storage or catalog needs (jars, credentials), or another place"
        ) from error


def _default(spark: SparkSession, name: str) -> str:
    """A property that new tables get from the session."""
    return spark.conf.get(f"{DEFAULTS}{name}", "none") or "none"


# --- partition columns -----------------------------------------------------------------------------------------------


def _in_stream(spark: SparkSession, name: str, schema: T.StructType, anyhow: bool = False) -> str:
    """A column as the stream names it, found as Spark finds columns; ``anyhow`` as Delta does, whatever the case."""
    sensitive = not anyhow and spark.conf.get("spark.sql.caseSensitive", "false") == "true"
    for known in schema.names:
        if known == name or (not sensitive and known.lower() == name.lower()):
            return known
    raise ConfigError(f"partition_by={name!r} is not a column of the stream; it has {', '.join(schema.names)}")


def _of_table(
    spark: SparkSession, options: SinkOptions, schema: T.StructType, facts: TableFacts, special: SpecialColumns
) -> tuple[str, ...]:
    """The table's partition columns that the stream has, as it names them."""
    theirs = [name.lower() for name in facts.partition_by]
    ours = options.names_of("partition_by")
    for name in ours:
        if name.lower() not in special.filled:
            _in_stream(spark, name, schema)
    if ours and [name.lower() for name in ours] != theirs:
        raise DeltaTarget(options).partitioned_otherwise(ours, facts)
    lower = {name.lower() for name in schema.names}
    lacking = [name for name in facts.partition_by if name.lower() not in lower]
    if strange := [name for name in lacking if name.lower() not in special.filled]:
        raise SchemaMismatchError(
            f"table {options.table or options.path} is partitioned by {', '.join(strange)}, which the stream lacks; it "
            f"has {', '.join(schema.names)}. Nothing was started. Add the column to the stream"
        )
    return tuple(_in_stream(spark, name, schema, anyhow=True) for name in facts.partition_by if name not in lacking)


# --- columns ---------------------------------------------------------------------------------------------------------


def _check_new_columns(
    spark: SparkSession, target: DeltaTarget, schema: T.StructType, partition_by: Sequence[str], is_mapped: bool
) -> None:
    collations = spark.conf.get(CHECKS_TYPES, "true") == "false"
    reasons = list(unfit(schema, partition_by, is_mapped=is_mapped, collations=collations))
    if len({name.lower() for name in partition_by}) < len(partition_by):
        reasons.append(f"partition_by={list(partition_by)!r} names a column twice: name it once")
    if reasons:
        raise ConfigError(f"table {target} cannot hold the stream: {'; '.join(reasons)}. Nothing was started")


def _is_named(
    spark: SparkSession, target: DeltaTarget, schema: T.StructType, there: T.StructType, known: StagedColumns | None
) -> bool:
    """Return True if the history says that the stream names its columns as the table does; ``known`` were staged last.

    Raises SchemaMismatchError if the stream has columns under names that the table's had before.
    """
    now = [*paths(schema)]
    before = [] if known is None else [*paths(known.rows)]
    common = [path for path in before if path in now]  # The stream may have columns more, or less.
    in_order = bool(common) and [path for path in now if path in before] == common
    is_as_before = in_order and len(common) in (len(before), len(now))
    lacking = {*map(str.lower, schema.names)} - {*map(str.lower, there.names)}
    if not (is_as_before or lacking):
        return True
    columns = known if known is not None and is_as_before else StagedColumns(schema)
    history = target.history(spark, columns.version)
    if not is_as_before:  # Help is as good as what is left of the history.
        columns = StagedColumns(schema, history.entries[-1].version - 1)
    try:
        renamed = moved(columns.rows, followed(columns, history, there)[0])
    except UnknownColumnsError:
        return False  # The first drain says so, if rows are staged under those names.
    are_old = (
        {".".join(path) for path in common} if is_as_before else {old for old in renamed if old.lower() in lacking}
    )
    if changes := [f"{old} is {renamed[old]}" for old in renamed if old in are_old]:
        raise SchemaMismatchError(
            f"columns of table {target} were renamed: {', '.join(changes)} now. Nothing was started. Rename them in "
            "the stream too: withColumnsRenamed, behind resolve() if there is one. If that is done, and the stream has "
            "the same names in another sense, give its columns another order: select. Rows that are staged go to the "
            "renamed columns by themselves"
        )
    return True


def _check_special(target: DeltaTarget, schema: T.StructType, there: T.StructType, special: SpecialColumns) -> None:
    """Columns of a table that is there, which takes no values for them, or no rows without."""
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


def _special_columns(spark: SparkSession, place: str, there: Sequence[str], given: Iterable[str]) -> SpecialColumns:
    """The columns of a table that Delta fills itself: generated, identity, default. No column's description says so.

    Delta plans a MERGE that would insert nothing but the stream's columns, and runs nothing: its plan has a value for
    each column of the table, and ``null`` for those that nobody fills. It works by name and by path (``place``),
    whoever keeps the log. What Delta does not say is left to the first drain: it counts as filled.
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


# --- the place of a table that is to be made -------------------------------------------------------------------------


def _check_place(spark: SparkSession, target: DeltaTarget, place: str | None, was_begun: bool) -> None:
    """Raise ConfigError or StorageError if the table cannot be made where it is to be.

    ``was_begun``: the first drain was, and may have been killed there before there was a table.
    """
    if place is None:
        return
    try:
        there = target.has_folder if target.path else described(spark, sql_text(place)) is not None
        files = spark.read.option("recursiveFileLookup", "true").text(literal(place)).inputFiles() if there else []
        if files and was_begun and target.table:  # Delta makes a table by name in an empty folder only.
            raise ConfigError(
                f"table {target} would be made in {place}, which has {len(files):,} files that the first drain left "
                "when it was killed. Nothing was started. Remove the folder and start again: the rows in it were not "
                "delivered, and that drain brings them"
            )
        if files and not was_begun:
            raise ConfigError(
                f"table {target} would be made in {place}, which has {len(files):,} files and no Delta table. "
                "Nothing was started. Give a folder that is empty or does not exist. If another query was killed in "
                "its first drain there, it left the files: start with its checkpoint, or remove them"
            )
        write_nothing(spark, place, "append")
    except SPARK_FAULTS as error:
        raise StorageError(
            f"table {target} cannot be made in {place}: {sentence_of(error)}. Nothing was started. Give the session "
            "what its storage needs (jars, credentials, permission), or another place"
        ) from error
