"""What a session must have for a purgatory, and what ``host="transformWithState"`` needs and likes beyond that."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Mapping

import pyspark
from pyspark.sql import SparkSession, is_remote

from spark_purgatory.errors import ConfigError
from spark_purgatory.worker_python import why_unfit

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
COUNT_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
TRANSFORM_WITH_STATE_SETTINGS: Mapping[str, str] = {
    # transformWithState runs on no other store.
    PROVIDER: ROCKSDB,
    # A commit uploads what the micro-batch wrote; without it, whole files of RocksDB.
    CHANGELOG: "true",
    # With it, each write first reads what is there: for a snapshot, megabytes that nobody looks at.
    COUNT_ROWS: "false",
}
"""Settings of a session for ``Purgatory(host="transformWithState")``: it needs the first, the others make it faster."""
OLDEST_SPARK = (4, 1)
PROTOBUF = "'protobuf>=6.33.5,<7'"

logger = logging.getLogger(__name__)


def check_local_workers(spark: SparkSession) -> None:
    """Raise ConfigError where Spark would run its workers, on this machine, with a Python that lacks the packages.

    That happens where a virtual environment's Python is called by its path: Spark takes the ``python3`` of the PATH.
    The workers' own error is hundreds of lines long. On a cluster, `doctor` asks the workers.
    """
    if is_remote() or not (spark.conf.get("spark.master", None) or "").startswith("local"):
        return
    executable = os.environ.get("PYSPARK_PYTHON") or "python3"
    if why := why_unfit(executable):
        raise ConfigError(
            f"Spark would run its Python workers with {executable!r}, {why}: set the environment variable "
            f"PYSPARK_PYTHON={sys.executable} before the session starts"
        )


def check_log_host(spark: SparkSession) -> None:
    """Raise ConfigError where a session lacks what the host needs; warn of what makes it slow."""
    asked = 'host="transformWithState"'
    release = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    if release is not None and (int(release[1]), int(release[2])) < OLDEST_SPARK:
        raise ConfigError(
            f"{asked} needs Spark 4.1 or later, and pyspark is {pyspark.__version__}: leave host= out, or upgrade Spark"
        )
    if importlib.util.find_spec("google") is None or importlib.util.find_spec("google.protobuf") is None:
        raise ConfigError(
            f"{asked} needs the module google.protobuf, on the driver and on every executor: "
            f"pip install 'spark-purgatory[spark]', or pip install {PROTOBUF}"
        )
    provider = spark.conf.get(PROVIDER)
    if "RocksDB" not in (provider or ""):
        raise ConfigError(
            f"{asked} needs RocksDB as state store, and {PROVIDER} is {provider}: set it to {ROCKSDB} before "
            "resolve(), or set all of spark_purgatory.TRANSFORM_WITH_STATE_SETTINGS"
        )
    if spark.conf.get(CHANGELOG) != "true":
        logger.warning(
            "%s is not true: each micro-batch uploads whole files of RocksDB instead of what it wrote; set it to true "
            "before the query starts",
            CHANGELOG,
        )
