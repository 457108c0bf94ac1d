"""How Spark writes small files of a checkpoint on a local disk: left alone, with ten processes for each file."""

from __future__ import annotations

from typing import Any, cast

import pyspark
from pyspark.sql import SparkSession

from spark_purgatory.spark.host.requirements import FILE_MANAGER, HADOOP_LOCAL_FILES, KEEPS_OLD_FILES
from spark_purgatory.spark.storage.spark_access import told

_SINCE_4_1 = "" if pyspark.__version__.startswith("4.0.") else "checkpointing."
LOCAL_CHECKPOINT = {
    FILE_MANAGER: f"org.apache.spark.sql.execution.streaming.{_SINCE_4_1}{KEEPS_OLD_FILES}",
    HADOOP_LOCAL_FILES: "org.apache.hadoop.fs.LocalFileSystem",
    f"{HADOOP_LOCAL_FILES}.disable.cache": "true",  # The session may have opened Hive's local storage before.
}


def without_processes(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return settings of a start; none if the checkpoint is elsewhere, or the session has chosen how to write it."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or not told(spark, "spark.master").startswith("local"):
        return {}
    try:
        conf = cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()
        is_local = jvm.org.apache.hadoop.fs.Path(checkpoint).getFileSystem(conf).getUri().getScheme() == "file"
        is_chosen = any(conf.get(name) is not None for name in LOCAL_CHECKPOINT)
    except Exception:  # A vendor's session may not let Python ask.
        return {}
    return LOCAL_CHECKPOINT if is_local and not is_chosen else {}
