"""The Spark host, with DataFrames only, so that it runs under Spark Connect too."""

from __future__ import annotations

import re

from spark_purgatory.errors import ConfigError

OLDEST_SPARK = 4  # Releases before 4.0 lack what the library calls.


def check_release(pyspark_version: str) -> None:
    """Raise ConfigError for a PySpark that is too old to run this."""
    major = re.match(r"\d+", pyspark_version)
    if major is not None and int(major[0]) < OLDEST_SPARK:
        raise ConfigError(
            f"pyspark is {pyspark_version}, but spark_purgatory needs {OLDEST_SPARK}.0 or later: "
            "pip install 'spark-purgatory[spark]', or run it on a cluster with Spark 4"
        )


try:
    from pyspark import __version__ as _release
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    missing = "spark_purgatory runs on Spark, but the module 'pyspark' is missing: pip install 'spark-purgatory[spark]'"
    raise ModuleNotFoundError(missing, name="pyspark") from error
check_release(_release)
