"""Lanes whose source is Kafka, in a process whose session has Kafka's connector.

``python -m tests.support.kafka_lanes_child FOLDER ADDRESS SEED SINK OPTIONS STOPS``, the last two as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from spark_purgatory.demo.runner import QUICK_SETTINGS
from spark_purgatory.job.session import KAFKA_PACKAGE
from spark_purgatory.spark.sink.table.delta_session import DELTA_SETTINGS
from tests.support.lanes import compare_lanes


def main(folder: str, address: str, seed: str, sink: str, options: str, stops: str) -> None:
    """Compare the lane that is moved with the one that stays."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    settings = {**QUICK_SETTINGS, **DELTA_SETTINGS, "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
    for name, value in {**settings, "spark.ui.enabled": "false"}.items():
        builder = builder.config(name, value)
    package = f"{KAFKA_PACKAGE}:{pyspark.__version__}"
    spark = configure_spark_with_delta_pip(builder, [package]).getOrCreate()
    compare_lanes(spark, Path(folder), int(seed), sink, json.loads(options), json.loads(stops), address)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
