"""A stream whose every text is a canary: ``python -m tests.support.canary_child HOST FOLDER``.

All that a stranger may see goes to stderr: Spark's log at INFO, reports of micro-batches, gauges, samples of
metrics, the error of a limit with the worker's trace, and the names of all files, those of the workers' folders among
them. The outcomes go to ``FOLDER/told.json``, so that the test can tell that rows went through.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_purgatory import STATE_STORE_SETTINGS, Purgatory, criteria, gauges, metrics, monitor
from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.spark.host.exchange import unix_sockets
from tests.support.stream_rows import event, operation, purgatory
from tests.support.streams import Host, Landing

CANARY = "canary-3b9e"
OPERATIONS = 6


def main(host: Host, folder: Path) -> None:
    """The stream, a restart, and a limit that ends it."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    log_host = STATE_STORE_SETTINGS if host == "transformWithState" else {}
    needed = {**QUICK_SETTINGS, **log_host, **unix_sockets(tempfile.gettempdir())}
    for name, value in {**needed, "spark.ui.enabled": "false", "spark.log.level": "INFO"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    made = purgatory(host=host, criterion=criteria.any_key(), shards=2)
    landing = Landing(folder)
    samples: list[metrics.Sample] = []
    for start in (0.0, 20.0):
        names = [f"{CANARY}-{start:.0f}-{n}" for n in range(OPERATIONS)]
        landing.add([operation(name, start, start + 15) for name in names], [])
        landing.add([], [event(name, start + 1) for name in (*names[:2], f"{CANARY}-unknown")])
        run(spark, landing, made, samples)
    rows = landing.written(spark)
    (folder / "told.json").write_text(json.dumps(Counter(row["status"] for row in rows)), encoding="utf-8")
    assert all(CANARY in row["id"] and CANARY in row["key"] for row in rows)
    print(gauges(spark, checkpoint=str(landing.checkpoint)), [sample.flat() for sample in samples])

    new = [operation(f"{CANARY}-more-{n}", 40, 90) for n in range(OPERATIONS)]
    landing.add(new, [event(f"{CANARY}-more-{n}", 41) for n in range(OPERATIONS)])
    limited = purgatory(host=host, criterion=criteria.any_key(), shards=2, max_pending_per_shard=1)
    try:
        run(spark, landing, limited, samples)
    except PySparkException:
        print("the limit ended it:", traceback.format_exc())
    print(*(path for place in (folder, Path(tempfile.gettempdir())) for path in place.rglob("*")), sep="\n")
    spark.stop()


def run(spark: SparkSession, landing: Landing, made: Purgatory, samples: list[metrics.Sample]) -> None:
    writer = made.resolve(*landing.frames(spark)).writeStream.format("parquet").option("path", str(landing.outcomes))
    query = writer.option("checkpointLocation", str(landing.checkpoint)).trigger(availableNow=True).start()
    monitor(query, samples.append)
    try:
        query.awaitTermination()
    finally:
        print(*query.recentProgress, sep="\n")


if __name__ == "__main__":
    os.dup2(2, 1)  # The JVM and the workers inherit it.
    main(sys.argv[1], Path(sys.argv[2]))  # type: ignore[arg-type]
