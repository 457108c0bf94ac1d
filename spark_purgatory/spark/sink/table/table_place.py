"""The place of a table: names with catalog and schema, absolute paths; and the claim of a checkpoint to it.

The claim is a small file in the staging folder, which names the table of the staged rows. Without it they would go to
any table that the query is started with. It is written before a query's first start, which proves that the storage
takes files, and binds once Spark has written its own ``metadata``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.config import SinkOptions
from spark_purgatory.config.places import Place
from spark_purgatory.errors import MAX_SAID, START_OVER, ConfigError, StagingError, StorageError, sentence_of
from spark_purgatory.spark.storage.checkpoint_files import Damage
from spark_purgatory.spark.storage.storage_access import absolute, back_ticked, in_checkpoint, literal, write_line
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)
SESSION_CATALOG = "spark_catalog"
OF_DELTA = ("_delta_log", "_change_data", "_delta_index")  # Delta's own folders in a table's folder.
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"  # It keeps names where the session does.
FORGETS_NAMES = (
    "This session's catalog is in memory (spark.sql.catalogImplementation): it forgets the names of tables when the "
    "Spark application ends, and their files stay"
)
_NAME_PART = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CLAIM = "staging/table"  # Below the checkpoint.
_BEGUN, _COMMIT = re.compile(r"/metadata$|/(?:commits|offsets)/\d+$"), re.compile(r"/commits/(\d+)$")
_LOG = re.compile(r"/staging/log/")
# ``path`` or ``table``: the table; ``given``: the user's name for it; ``id``: its own, empty if it did not exist.
Claimed = dict[str, str]
KEYS = ({"path", "given", "id"}, {"table", "given", "id"})


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
    found = _NAME_PART.findall(name)
    return [part[1:-1].replace("``", "`") if part.startswith("`") else part for part in found]


def sql_name(*parts: str) -> str:
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


# --- the table to which a checkpoint is bound ------------------------------------------------------------------------


def claim_path(checkpoint: str) -> str:
    """Return the folder of the claim, which exists once `claim` has returned."""
    return f"{checkpoint.rstrip('/')}/{CLAIM}"


def claim(spark: SparkSession, checkpoint: str, ours: Claimed, has_filled: Callable[[], bool]) -> tuple[Claimed, bool]:
    """Claim a checkpoint for a table; return its claim, and True if the query has run before.

    A table with a new name is recognised by its id, or by the query's rows in it (``has_filled``). Raises ConfigError
    if the checkpoint belongs to another table, StagingError if it belongs to another sink.
    """
    write = partial(write_line, spark, claim_path(checkpoint), json.dumps(ours))
    try:
        write("ignore")
        wanted = in_checkpoint(
            literal(checkpoint.rstrip("/")), "metadata", "commits", "offsets", "staging/log", anchor=CLAIM
        )
        files = spark.read.option("recursiveFileLookup", "true").text(wanted).inputFiles()
        has_begun, has_log = (any(map(pattern.search, files)) for pattern in (_BEGUN, _LOG))
        claimed = _claimed(spark, checkpoint, has_begun)
        if claimed != ours and not has_begun:
            write("overwrite")
    except SPARK_FAULTS as error:
        raise StorageError(
            f"checkpoint={checkpoint!r} cannot be written: {sentence_of(error)}. Nothing was started. Give a folder "
            "that the session may write to, and the jars that its file system needs"
        ) from error
    if not has_begun:
        return ours, False
    if claimed and not is_one_table(claimed, ours):
        if not (claimed["id"] == ours["id"] != "" or has_filled()):
            raise ConfigError(
                f"checkpoint={checkpoint!r} belongs to table {_said(claimed)}, for which it may hold staged rows. This "
                f"query writes to {_said(ours)}. Nothing was started. Give each table a checkpoint of its own"
            )
        LOG.warning("table %s is called %s now: the query goes on with it", _said(claimed), _said(ours))
        claimed = ours
        write("overwrite")
    if not claimed and has_log and not has_filled():
        raise StagingError(
            f"{claim_path(checkpoint)} should name the table of the checkpoint but is empty, as a power loss leaves it."
            f" Nothing was started. If {_said(ours)} is the table that the query has always written to, remove that "
            "folder and start again"
        )
    commits = [int(match[1]) for file in files if (match := _COMMIT.search(file))]
    if commits and not has_log:
        raise StagingError(
            f"checkpoint={checkpoint!r} is at micro-batch {max(commits) + 1}, but nothing in it was staged: it belongs "
            "to another sink, or its folder 'staging' was removed. Nothing was started. Bring the folder back, or "
            f"{START_OVER}"
        )
    if not claimed:
        write("overwrite")
        return ours, True
    return claimed, True


def claimed_by(spark: SparkSession, checkpoint: str) -> Claimed:
    """Return {"path" or "table": the table} of a checkpoint's claim, empty without one. StagingError if damaged."""
    try:
        claimed = _claimed(spark, checkpoint)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    return {kind: place for kind, place in claimed.items() if kind in ("path", "table")}


def _claimed(spark: SparkSession, checkpoint: str, binds: bool = True) -> Claimed:
    rows = spark.read.text([literal(claim_path(checkpoint))] * 2).collect()  # two: see `is_checkpoint`
    if not rows:
        return {}
    try:
        claimed = json.loads(rows[0]["value"])
    except ValueError:
        claimed = None
    if not isinstance(claimed, dict) or claimed.keys() not in KEYS:
        if not binds:
            return {}
        raise StagingError(
            f"{claim_path(checkpoint)} should name the table of the checkpoint but is damaged: "
            f"{rows[0]['value'][:MAX_SAID]!r}. Bring its file back from a copy, or {START_OVER}"
        )
    return claimed


def is_one_table(claimed: Claimed, ours: Claimed) -> bool:
    """Return True if both claims are for one table, or the user called it the same."""
    if ("path" in claimed) != ("path" in ours):
        return False
    if claimed.get("given", "") == ours.get("given"):
        return True
    if "path" in ours:
        return Place.of(claimed["path"]).same_as(Place.of(ours["path"]))
    return claimed["table"].lower() == ours["table"].lower()


def _said(claimed: Claimed) -> str:
    return (claimed.get("path") or claimed["table"])[:MAX_SAID]


def app_id_of(spark: SparkSession, checkpoint: str) -> str:
    """Return the app id, which has Spark's id of the query: made at its first start and kept."""
    rows = spark.read.text(f"{literal(checkpoint)}/metadata").collect()
    try:
        query_id = json.loads(rows[0]["value"])["id"]
    except (IndexError, KeyError, ValueError) as error:
        raise StagingError(f"checkpoint {checkpoint} is damaged: {Damage('metadata', 'names no query id')}") from error
    return f"spark_purgatory/{query_id}"
