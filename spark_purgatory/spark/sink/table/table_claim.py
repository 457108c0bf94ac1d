"""The table of a checkpoint: a small file in its staging folder names the table that its rows are staged for.

Without it rows that were staged for one table, and not drained yet, would go to whichever table the query is started
with. It is written before a query's first start, which shows that the checkpoint's storage takes files, and binds once
Spark has begun: once there is Spark's own file ``metadata``.
"""

from __future__ import annotations

import json
import re

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_purgatory.errors import ConfigError, StagingError, StorageError
from spark_purgatory.spark.sink.table.delta_target import DeltaTarget
from spark_purgatory.spark.storage.paths import beside, literal
from spark_purgatory.spark.storage.spark_access import NO_SUCCESS_FILE
from spark_purgatory.spark.storage.storage_errors import MAX_SAID, SPARK_FAULTS, said

CLAIM = "staging/table"
"""Below the checkpoint."""
_BEGUN, _COMMIT, _LOG = (re.compile(pattern) for pattern in (r"/metadata$", r"/commits/(\d+)$", r"/staging/log/"))


def claim_path(checkpoint: str) -> str:
    """The folder of the claim; it is there once `claim` has returned."""
    return f"{checkpoint.rstrip('/')}/{CLAIM}"


def claim(spark: SparkSession, checkpoint: str, target: DeltaTarget) -> None:
    """Claim a checkpoint for a table. ConfigError if it is another table's, StagingError if it is another sink's."""
    ours = json.dumps({"path" if target.path else "table": str(target)})
    try:
        _write(spark, checkpoint, ours, "ignore")
        reader = spark.read.option("recursiveFileLookup", "true")
        files = reader.text(
            beside(literal(checkpoint.rstrip("/")), CLAIM, "metadata", "commits", "staging/log")
        ).inputFiles()
        claimed = [row["value"] for row in spark.read.text(literal(claim_path(checkpoint))).collect()]
        has_begun = any(_BEGUN.search(file) for file in files)
        if claimed != [ours] and not (has_begun and claimed):
            _write(spark, checkpoint, ours, "overwrite")
    except SPARK_FAULTS as error:
        raise StorageError(
            f"checkpoint={checkpoint!r} cannot be written: {said(error)}. Nothing was started. Give a folder that the "
            "session may write to, and the jars that its file system needs"
        ) from error
    if not has_begun:
        return
    if claimed and claimed != [ours]:
        raise ConfigError(
            f"checkpoint={checkpoint!r} is that of {_said(claimed)}, and rows may be staged in it that go there; this "
            f"query writes to {ours}. Nothing was started. Give each table a checkpoint of its own, and name a table "
            "in one way"
        )
    commits = [int(match[1]) for file in files if (match := _COMMIT.search(file))]
    if commits and not any(_LOG.search(file) for file in files):
        raise StagingError(
            f"checkpoint={checkpoint!r} is at micro-batch {max(commits) + 1}, but nothing in it was staged: it is that "
            "of another sink, or its folder 'staging' was removed. Nothing was started. Bring the folder back, or "
            "start with a new checkpoint, which reads the sources again"
        )


def claimed_by(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """The table that a checkpoint is claimed for, as its query names it: {"path" or "table": name}.

    It is empty where no RecordAccumulator has claimed the checkpoint. Raises StagingError if the file is damaged.
    """
    try:
        rows = spark.read.text(literal(claim_path(checkpoint))).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    if not rows:
        return {}
    try:
        claimed = json.loads(rows[0]["value"])
    except ValueError:
        claimed = None
    if not isinstance(claimed, dict) or claimed.keys() not in ({"path"}, {"table"}):
        raise StagingError(
            f"{claim_path(checkpoint)} is to name the table of the checkpoint and is damaged: "
            f"{rows[0]['value'][:MAX_SAID]!r}. Bring its file back from a copy, or start with a new checkpoint, which "
            "reads the sources again"
        )
    return claimed


def _write(spark: SparkSession, checkpoint: str, text: str, mode: str) -> None:
    line = spark.range(0, 1, 1, 1).select(F.lit(text).alias("value"))
    line.write.mode(mode).option(NO_SUCCESS_FILE, "false").text(claim_path(checkpoint))


def _said(claimed: list[str]) -> str:
    return "table " + " ".join(claimed)[:MAX_SAID]
