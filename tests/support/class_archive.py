"""`python -m tests.support.class_archive FILE`: archive the classes that a Delta stream loads.

Every JVM of the tests that is started with the archive has its first query done in two thirds of the time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_purgatory.demo.runner import QUICK_JAVA
from tests.support.crash_child import builder_with

EXIT_SECONDS = 120


def _write(batch: DataFrame, batch_id: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def main(archive: Path) -> None:
    """Run a stream, and have the JVM write its classes when it ends."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    unfinished = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory() as name:
        builder = builder_with(SparkSession.builder.master("local[2]"), Path(name))
        java = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
        spark = builder.config("spark.driver.extraJavaOptions", java).getOrCreate()
        spark.range(100).write.format("delta").save(f"{name}/table")
        rows = spark.readStream.format("delta").load(f"{name}/table")
        writer = rows.writeStream.foreachBatch(_write).option("checkpointLocation", f"{name}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        gateway = SparkContext._gateway
        assert gateway is not None
        spark.stop()
        # The JVM ends when nobody talks to it any more.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(EXIT_SECONDS)
    unfinished.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
