"""The settings and packages that a session needs for a purgatory, and those for ``host="transformWithState"``."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession, is_remote

from spark_purgatory.config.options import LOG_HOST
from spark_purgatory.errors import ConfigError
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION
from spark_purgatory.worker_python import arrow_remedy, why_unfit

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
COUNT_ROWS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
STATE_STORE_SETTINGS: dict[str, str] = {
    PROVIDER: ROCKSDB,  # transformWithState runs on no other store
    # A commit uploads the writes of the micro-batch. Without it, whole files of RocksDB are uploaded.
    CHANGELOG: "true",
    COUNT_ROWS: "false",  # With it, each write first reads the old value, for a snapshot megabytes that nobody looks at
    # A run that has ended cannot overwrite the state of the next one. Spark 4.0 cannot read states of this format.
    **({} if pyspark.__version__.startswith("4.0.") else {FORMAT_VERSION: "2"}),
}
"""Settings of a session for ``Purgatory(host="transformWithState")``. It needs the first. The next two make it faster,
and with the last one a run that crashed does not change the state of the next."""
PASTE = "transformWithState runs on RocksDB. Before the query starts, paste:" + "".join(
    f'\n    spark.conf.set("{name}", "{value}")' for name, value in STATE_STORE_SETTINGS.items()
)
"""The remedy if a session has another state store. `RecordAccumulator.write_stream` sets it for its own query."""
MESSAGES = "pyspark.sql.streaming.proto.StateMessage_pb2"
"""Spark's messages for the log host. Protobuf generated them, and only a protobuf of the same age can import them."""
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
ONLY_WITH_ROWS = (  # The consequence of `NO_DATA` = false, and the remedy
    "an operation whose deadline the watermark has passed gets its outcome only when further rows arrive: set "
    f"idle_after= of operations and completions, or {NO_DATA} = true before the query starts"
)
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
HADOOP_LOCAL_FILES = "fs.file.impl"
LOCAL_FILES = f"spark.hadoop.{HADOOP_LOCAL_FILES}"
KEEPS_OLD_FILES = "FileSystemBasedCheckpointFileManager"
"""A class that keeps an old file if its storage cannot rename over it. A state would then be that of a micro-batch's
first run, and the rows those of its last. Hadoop's own local storage replaces files, and Hive's does not."""

LOG = logging.getLogger(__name__)


def check_streaming(
    settings: Callable[[str, str], str | None], checkpoint: str = "", fixed: Mapping[str, str] | None = None
) -> None:
    """Raise ConfigError if the faster input would move the watermark, or a replay would keep an older run's state.

    ``settings`` are the session's, and ``fixed`` those that the checkpoint keeps from its first start.
    """
    manager = settings(FILE_MANAGER, "") or ""
    if manager.endswith(KEEPS_OLD_FILES) and not any(settings(name, "") for name in (LOCAL_FILES, HADOOP_LOCAL_FILES)):
        raise ConfigError(
            f"the session has {FILE_MANAGER}={manager!r}, which may keep an old file instead of replacing it. After "
            "a crash, the state would be that of a micro-batch's first run, and the rows those of its last. Unset it"
        )
    where = f"checkpoint={checkpoint!r}" if fixed else "the session"
    if (policy := (fixed or {}).get(POLICY) or settings(POLICY, "min") or "min").lower() != "min":
        raise ConfigError(
            f"{where} has {POLICY}={policy!r}: the faster input would move the watermark, and operations would expire "
            "before events of the slower one arrive. Set it to 'min', and begin with a new checkpoint if a query has "
            "run with it"
        )


def other_format(version: str) -> str:
    """Return the remedy if Spark would look for states of another format than the checkpoint's."""
    return (
        f"the checkpoint has states of format {version}, for which "
        f'spark.conf.set("{FORMAT_VERSION}", "{version}") must come before each start and each read. '
        "RecordAccumulator.write_stream does it itself, but not through Spark Connect"
    )


def check_local_workers(spark: SparkSession) -> None:
    """Raise ConfigError if Spark would run its workers on this machine with a Python that lacks the packages.

    That happens if a virtual environment's Python is called by its path: Spark takes the ``python3`` of the PATH.
    """
    if is_remote() or not (spark.conf.get("spark.master", None) or "").startswith("local"):
        return
    executable = os.environ.get("PYSPARK_PYTHON") or "python3"
    if why := why_unfit(executable):
        raise ConfigError(
            f"Spark would run its Python workers with {executable!r}, {why}: set the environment variable "
            f"PYSPARK_PYTHON={sys.executable} before the session starts"
        )


def check_blob_host(spark: SparkSession) -> None:
    if not is_remote() and (remedy := arrow_remedy(spark.version, pa.__version__)):
        raise ConfigError(
            f'host="applyInPandasWithState" fails in Spark {spark.version} with pyarrow {pa.__version__}, because '
            f"Spark passes a float where pyarrow takes an int: {remedy}, on the driver and on every executor"
        )


def why_no_messages() -> str:
    """Return why this Python cannot import the messages of the log host, in a line; "" if it can."""
    try:
        import_module(MESSAGES)
    except Exception as error:  # Each release of protobuf refuses in another way.
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def fitting_protobuf() -> str:
    """Return the versions of protobuf that PySpark's messages were generated for, as pip takes them."""
    file = Path(pyspark.__file__).parents[1] / f"{MESSAGES.replace('.', '/')}.py"
    generated = re.search(r"Protobuf Python Version: (\d+)([\d.]*)", file.read_text(encoding="utf-8"))
    assert generated is not None, f"bug: {file} does not name the protobuf that generated it"
    return f"'protobuf>={generated[1]}{generated[2]},<{int(generated[1]) + 1}'"


def runs_only_with_rows(spark: SparkSession) -> bool:
    """Return True if Spark runs no micro-batch when the watermark has moved but no row has arrived."""
    return (spark.conf.get(NO_DATA, None) or "true").lower() == "false"


def check_log_host(spark: SparkSession) -> None:
    asked = f'host="{LOG_HOST}"'
    if why := why_no_messages():
        raise ConfigError(
            f"{asked} needs the package protobuf, on the driver and on every executor, of a version that fits PySpark "
            f"{pyspark.__version__} ({why}): pip install {fitting_protobuf()}"
        )
    provider = spark.conf.get(PROVIDER) or ""
    if "RocksDB" not in provider:
        if spark.conf.get(PROVIDER, None) is None:
            return  # `write_stream` sets it. If another start does not, Spark refuses, and `query_watch` logs `PASTE`.
        raise ConfigError(f"{asked} and {PROVIDER} = {provider}: {PASTE}")
    if spark.conf.get(CHANGELOG, None) != "true":
        LOG.warning(
            "%s is not true: unless RecordAccumulator.write_stream starts the query, each micro-batch uploads whole "
            "files of RocksDB instead of what it wrote; set it to true before the query starts",
            CHANGELOG,
        )
