"""The job's Spark session, with settings that fit it. A JVM of our own gets the jars of Delta, downloaded once; that of
``spark-submit --packages io.delta:... jobs/await_completion.py`` is used as it is.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyspark
from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_purgatory.config.units import parse_duration
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.arguments import writing_to
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.source_config import KafkaSource
from spark_purgatory.spark.host import requirements
from spark_purgatory.spark.host.exchange import EXCHANGE_SETTINGS, unix_sockets
from spark_purgatory.spark.sink.table.delta_target import DELTA_SETTINGS, EXTENSION, LEAN_SETTINGS, delta_package
from spark_purgatory.spark.sink.table.iceberg_target import EXTENSION as ICEBERG
from spark_purgatory.spark.sink.table.iceberg_target import RUNTIMES, iceberg_package
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "spark.jars.packages"
KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13"
AVRO_PACKAGE = "org.apache.spark:spark-avro_2.13"
STATE_STORES = {
    "hdfs": {requirements.PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"},
    # Only RocksDB has the format, and spark-submit may name another store: the start of the query sets it.
    "rocksdb": {k: v for k, v in requirements.STATE_STORE_SETTINGS.items() if k != FORMAT_VERSION},
}
# A JVM that lives for minutes would spend half of them on compiling code that runs a few times. With one compiler, Java
# reserves 48 MB for code by default, and a stream of some hundred micro-batches ends in a VirtualMachineError.
SHORT_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"  # Spark puts spark.driver.extraJavaOptions behind them: the last word
IDLE_WORKER_US = 60_000_000  # Spark ends a Python worker that had no work for a minute
QUIET = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
BOTH_EXTENSIONS = {"spark.sql.extensions": f"{EXTENSION},{ICEBERG}"}
# They print every error of Spark's analysis as five thousand characters of JSON; the commands print it in a line
TALKERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def settings_of(config: JobConfig, submitted: Mapping[str, str] | None = None, short: bool = False) -> dict[str, str]:
    """Return the job's Spark settings. spark-submit's replace ours, and the file's replace both."""
    defaults = {
        "spark.app.name": config.name,
        "spark.master": "local[*,4]",  # A worker that dies is tried again only where a number of failures is given
        **DELTA_SETTINGS,
        **STATE_STORES[config.state_store],
        **QUIET,
        **LEAN_SETTINGS,
        **EXCHANGE_SETTINGS,
        **({JAVA_OPTIONS: SHORT_JAVA} if short or config.trigger.availableNow else {}),
    }
    # So that workers find the package when it was not installed but lies in a checkout. An installed one they must have
    # themselves: its folder has all packages of this Python, which would go before those of the workers' own.
    checkout = str(ROOT) if (ROOT / "pyproject.toml").exists() else ""
    pythonpath = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH", ""))))
    settings = {**defaults, "spark.executorEnv.PYTHONPATH": pythonpath} if pythonpath else defaults
    if _needs_iceberg(config):
        settings |= BOTH_EXTENSIONS
    settings = {**settings, **(submitted or {}), **config.spark}
    # Micro-batches follow each other, while rows come, before Spark ends a Python worker for want of work.
    is_busy = parse_duration(config.trigger.processingTime or "0 s", "trigger.processingTime") < IDLE_WORKER_US
    # Folders of other machines are not known here.
    if settings["spark.master"].startswith("local") and is_busy:
        settings = {**unix_sockets(tempfile.gettempdir()), **settings}
    return settings


def build_session(config: JobConfig, jvm_log: Path | None = None, short: bool = False) -> SparkSession:
    """Start or join the session, ``short`` for minutes; our own JVM writes into ``jvm_log`` what it would print."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if (submitted := _submitted_settings()) is not None:
        return _session_with(settings_of(config, submitted))
    with _stderr_into(jvm_log):
        return _session_with(settings_of(config, short=short), packages=_packages(config))


def reading_session(settings: Mapping[str, str], jvm_log: Path | None = None, delta: bool = False) -> SparkSession:
    """Start a local session that reads a job's output, with ``delta`` also tables; ``settings`` replace ours."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.app.name": "spark-purgatory",
        "spark.master": "local[*]",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        JAVA_OPTIONS: SHORT_JAVA,
        **QUIET,
        **(DELTA_SETTINGS if delta else {}),
    }
    packages: list[str] | None = [] if delta else None
    if delta and _has_iceberg_catalog(settings):
        defaults |= BOTH_EXTENSIONS
        packages = _iceberg_packages(settings.get(PACKAGES, ""))
    with _stderr_into(jvm_log):
        return _session_with({**defaults, **settings}, packages=packages)


def _session_with(settings: Mapping[str, str], packages: list[str] | None = None) -> SparkSession:
    for name in TALKERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    builder: Any = SparkSession.builder.config(map=dict(settings))
    if packages is not None:
        from delta import configure_spark_with_delta_pip

        packages = [*packages, *filter(None, settings.get(PACKAGES, "").split(","))]
        builder = configure_spark_with_delta_pip(builder, extra_packages=packages)
    try:
        return cast("SparkSession", builder.getOrCreate())
    except Py4JError as error:
        master = str(settings.get("spark.master", ""))
        if master.startswith("spark://") and "stopped SparkContext" in str(error):
            raise ConfigError(
                f"spark.master={master!r}: no standalone master answers at this address. Start it, and write the "
                "address that is in its log"
            ) from error
        raise


def _has_iceberg_catalog(settings: Mapping[str, Any]) -> bool:
    return any(str(value).startswith("org.apache.iceberg.") for value in settings.values())


def _needs_iceberg(config: JobConfig) -> bool:
    formats = [getattr(place, "format", None) for place in (config.output, config.dead_letters)]
    return "iceberg" in formats or _has_iceberg_catalog(config.spark)


def _iceberg_packages(named: str) -> list[str]:
    """Return Iceberg's package, if it is not ``named``. ConfigError if there is none for this Spark."""
    if "iceberg-spark-runtime" in named:
        return []
    if package := iceberg_package(pyspark.__version__):
        return [package]
    raise ConfigError(
        f"Iceberg has no runtime for Spark {pyspark.__version__} yet. Nothing was started. Take a Spark that it has "
        f"one for (pip install 'pyspark=={[*RUNTIMES][-1]}.*'), or name a runtime (packages of a job, or {PACKAGES})"
    )


def _packages(config: JobConfig) -> list[str]:
    read = [given.source for given in (config.operations, config.completions) if isinstance(given.source, KafkaSource)]
    needed = {
        KAFKA_PACKAGE: bool(read) or config.output.topic is not None,
        AVRO_PACKAGE: any(source.avro is not None for source in read),
    }
    named = ",".join((*config.packages, str(config.spark.get(PACKAGES, ""))))
    packages = [f"{package}:{pyspark.__version__}" for package, is_needed in needed.items() if is_needed]
    packages += _iceberg_packages(named) if _needs_iceberg(config) else []
    return [*config.packages, *(package for package in packages if package.rpartition(":")[0] not in named)]


def _submitted_settings() -> dict[str, str] | None:
    """Settings of the JVM that spark-submit started for us, or None. Raises ConfigError if it cannot load Delta."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    gateway = java_gateway.launch_gateway()
    spark = gateway.jvm.org.apache.spark
    settings = {pair._1(): pair._2() for pair in spark.SparkConf(True).getAll()}
    has_delta = spark.util.Utils.classIsLoadable(EXTENSION)
    gateway.close()
    if not has_delta:
        raise ConfigError(
            "Delta's jars are not on the classpath of spark-submit: "
            f"spark-submit --packages {delta_package(pyspark.__version__)} jobs/await_completion.py ..."
        )
    return {name: value for name, value in settings.items() if not name.startswith("spark.app.")}


@contextmanager
def _stderr_into(path: Path | None) -> Iterator[None]:
    """Start processes with their stderr in a file; this process prints to its own."""
    if path is None:
        yield
        return
    with writing_to("--spark-log", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = path.open("a", encoding="utf-8")
    sys.stderr.flush()
    own_stderr = os.dup(2)
    with opened as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own_stderr, 2)
            os.close(own_stderr)
