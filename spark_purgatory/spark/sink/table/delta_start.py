"""Start checks for a Delta table: the place of a new one, and columns that Delta fills itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyspark.sql import SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.errors import START_OVER, ConfigError, StorageError, TableLostError, sentence_of
from spark_purgatory.spark.sink.table.delta_history import COLUMNS, whole_history
from spark_purgatory.spark.sink.table.history import LOOKED_AT
from spark_purgatory.spark.sink.table.table_place import FORGETS_NAMES, forgets_names, place_of_name, resolved
from spark_purgatory.spark.sink.table.target import SpecialColumns
from spark_purgatory.spark.storage.spark_access import settings
from spark_purgatory.spark.storage.storage_access import back_ticked, described, literal, sql_text, write_nothing
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

# A table's property under this prefix, without ``delta.``, is the session's default for new tables.
DEFAULTS = "spark.databricks.delta.properties.defaults."
# Only tables with one of these features can have columns that Delta fills.
SPECIAL_FEATURES = frozenset({"allowColumnDefaults", "generatedColumns", "identityColumns"})
WHOLE_PLAN = {"spark.sql.debug.maxToStringFields": "1000000", "spark.sql.maxPlanStringLength": "1000000000"}
_CLOSED = re.compile(r"\[DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED\].*? column (.+?) is not supported")


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
        rows = spark.sql(f"DESCRIBE HISTORY {sql_text(place)} LIMIT {LOOKED_AT}").select(*COLUMNS).collect()
        history = whole_history(lambda _: [row.asDict() for row in rows])
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


def check_place(spark: SparkSession, target: str, place: str, is_there: bool | None, was_begun: bool) -> None:
    """Raise ConfigError or StorageError if the table cannot be created in its place.

    ``is_there``: the folder of a table by path exists; None for a table by name. ``was_begun``: the first drain was
    begun, and may have been killed before it created the table.
    """
    try:
        by_name = is_there is None
        there = described(spark, sql_text(place)) is not None if by_name else is_there
        files = spark.read.option("recursiveFileLookup", "true").text(literal(place)).inputFiles() if there else []
        if files and was_begun and by_name:  # Delta makes a table by name in an empty folder only.
            raise ConfigError(
                f"table {target} would be made in {place}, which has {len(files):,} files and no Delta table: the "
                "first drain may have left them when it was killed. Nothing was started, and staged rows wait. Move "
                "the folder elsewhere and start again: that drain brings its rows from the checkpoint"
            )
        if files and not was_begun:
            raise ConfigError(
                f"table {target} would be made in {place}, which has {len(files):,} files and no Delta table. "
                "Nothing was started. Give a folder that is empty or does not exist. If another query is making the "
                "table now, start again. If a query was killed there in its first drain, start it again with its own "
                "checkpoint"
            )
        write_nothing(spark, place, "append")
    except SPARK_FAULTS as error:
        raise StorageError(
            f"table {target} cannot be made in {place}: {sentence_of(error)}. Nothing was started. Give the session "
            "what its storage needs (jars, credentials, permission), or another place"
        ) from error
