"""The claim of a checkpoint: a small file in its staging folder that names the table of its staged rows.

Without it, staged rows of one table would go to any table that the query is started with. It is written before a
query's first start, which proves that the storage takes files, and binds once Spark has written its own ``metadata``.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import partial

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_purgatory.config.places import Place
from spark_purgatory.errors import MAX_SAID, START_OVER, ConfigError, StagingError, StorageError, sentence_of
from spark_purgatory.spark.storage.checkpoint_files import Damage
from spark_purgatory.spark.storage.storage_access import beside, literal, write_line
from spark_purgatory.spark.storage.storage_errors import SPARK_FAULTS

LOG = logging.getLogger(__name__)
CLAIM = "staging/table"  # Below the checkpoint.
_BEGUN, _COMMIT = re.compile(r"/metadata$|/commits/\d+$"), re.compile(r"/commits/(\d+)$")
_LOG = re.compile(r"/staging/log/")
# ``path`` or ``table``: the table; ``given``: the user's name for it; ``id``: its own, empty if it did not exist.
Claimed = dict[str, str]
KEYS = ({"path", "given", "id"}, {"table", "given", "id"})


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
        wanted = beside(literal(checkpoint.rstrip("/")), CLAIM, "metadata", "commits", "staging/log")
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
    kind = "path" if "path" in ours else "table"
    if claimed["given"] == ours["given"] and claimed[kind] != ours[kind]:
        said = "%s=%r still means %s, as when the query was made; in this session it would be %s now"
        LOG.warning(said, kind, ours["given"], claimed[kind], ours[kind])
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
