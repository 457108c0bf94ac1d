"""The place of a table: names with catalog and schema, absolute paths."""

from __future__ import annotations

import re
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.config.places import Place
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.storage_access import absolute, back_ticked

SESSION_CATALOG = "spark_catalog"
OF_DELTA = ("_delta_log", "_change_data", "_delta_index")  # Delta's own folders in a table's folder.
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"  # It keeps names where the session does.
FORGETS_NAMES = (
    "This session's catalog is in memory (spark.sql.catalogImplementation): it forgets the names of tables when the "
    "Spark application ends, and their files stay"
)
_NAME_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def resolved(spark: SparkSession, options: SinkOptions) -> SinkOptions:
    """Return the options with a place that will always mean the same table: catalog.schema.table, or an absolute path.

    A name without a catalog or schema gets the session's current ones.
    """
    if options.path:
        return replace(options, path=absolute(spark, options.path))
    parts = name_parts(str(options.table))
    if len(parts) == 2 and (parts[0] == SESSION_CATALOG or spark.conf.get(f"spark.sql.catalog.{parts[0]}", None)):
        name = sql_name(parts[0], "SCHEMA", parts[1])
        raise ConfigError(f"table={options.table!r} has no schema, but {parts[0]} is a catalog: name it {name}")
    if len(parts) < 3:
        namespace = name_parts(spark.catalog.currentDatabase()) if len(parts) == 1 else []
        parts = [spark.catalog.currentCatalog(), *namespace, *parts]
    return replace(options, table=sql_name(*parts))


def forgets_names(spark: SparkSession, table: str) -> bool:
    """Return True if the catalog of a `resolved` name lasts no longer than the Spark application."""
    is_plain = spark.conf.get(f"spark.sql.catalog.{SESSION_CATALOG}", DELTA_CATALOG) == DELTA_CATALOG
    is_ours = is_plain and name_parts(table)[0] == SESSION_CATALOG
    return is_ours and spark.conf.get("spark.sql.catalogImplementation") == "in-memory"


def name_parts(name: str) -> list[str]:
    """Return the parts of a name, without back-ticks."""
    found = _NAME_PART.findall(name)
    return [part[1:-1].replace("``", "`") if part.startswith("`") else part for part in found]


def sql_name(*parts: str) -> str:
    """Return a name for SQL, with back-ticks where its parts need them."""
    return ".".join(part if _PLAIN.fullmatch(part) else back_ticked(part) for part in parts)


def place_of_name(spark: SparkSession, table: str) -> str | None:
    """Return the folder that a table of a `resolved` name would get; None if a catalog other than Spark's chooses it.

    Raises ConfigError if there is no such schema, or the catalog would refuse the name.
    """
    catalog, *namespace, name = name_parts(table)
    schema = sql_name(catalog, *namespace)
    if not spark.catalog.databaseExists(schema):
        raise ConfigError(
            f"table={table!r}: there is no schema {schema}. Nothing was started. Run CREATE SCHEMA {schema}, or "
            "correct the name"
        )
    if catalog != SESSION_CATALOG:
        return None
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise ConfigError(
            f"table={table!r}: in {SESSION_CATALOG} a table's name has only letters from a to z, digits and _. "
            "Nothing was started. Give another name, or a path"
        )
    try:
        facts = {row[0]: row[1] for row in spark.sql(f"DESCRIBE DATABASE {schema}").collect()}
    except AnalysisException:
        return None
    location = facts.get("Location")
    return f"{location.rstrip('/')}/{name.lower()}" if location else None


def check_outside(spark: SparkSession, checkpoint: str, folder: str, must_be_empty: bool = False) -> None:
    """Raise ConfigError if VACUUM of the table in ``folder`` would remove the checkpoint's staged rows.

    VACUUM keeps folders whose name begins with an underscore. ``must_be_empty``: the table will be created there by
    name, which Delta does in an empty folder only.
    """
    inside = Place.of(absolute(spark, checkpoint)).below(Place.of(absolute(spark, folder)))
    first = (inside or "").partition("/")[0]
    if inside is not None and must_be_empty:
        raise ConfigError(
            f"checkpoint={checkpoint!r} lies in the folder {folder!r}, in which the table would be made, and Delta "
            "makes a table by name in an empty folder only: name a folder outside"
        )
    if inside is not None and (not first.startswith("_") or first in OF_DELTA or "=" in first):
        raise ConfigError(
            f"checkpoint={checkpoint!r} lies in the table's folder {folder!r}, where VACUUM would remove its staged "
            f"rows: name a folder outside, or below {folder.rstrip('/')}/_checkpoints"
        )
