"""One real Spark session for all tests that ask for it, with Delta."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.sink_streams import Stream

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["no_proxy"] = "127.0.0.1,localhost"  # the servers that tests start
hypothesis.settings.register_profile("at any speed", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("at any speed")
pytest.register_assert_rewrite("tests.support")

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""A test's query runs once, on few rows: to compile it was a seventh of the CPU of two long files. Runs in processes
of their own, the job, the kills, Spark Connect, compile as everybody's do."""
OF_TESTS = {
    "spark.sql.icu.caseMappings.enabled": "false",  # The first upper() of a JVM took two seconds, to load ICU's rules.
    "spark.python.authenticate.socketTimeout": "300s",  # On a busy machine a worker needs more than Spark's 15 s.
}
"""What changes how long a test takes, and nothing that it sees."""
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's own choice."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--host transformWithState``: the purgatories of all tests that name no host have this one."""
    parser.addoption("--host", default=None, help="Purgatory's host where a test names none")
    parser.addoption("--without-delta", action="store_true", help="For a Spark for which there is no Delta yet")


def pytest_configure(config: pytest.Config) -> None:
    """Make the host that was asked for the default."""
    host = config.getoption("host")
    if host is not None:
        from spark_purgatory import Purgatory

        # A dataclass's defaults are those of its __init__; `replace` and `fields` are not asked for them.
        Purgatory.__init__.__kwdefaults__["host"] = host


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of another host. Workers take a file at a time, in this order: the long ones first, so that none
    is left over at the end.
    """
    if config.getoption("host") not in (None, "applyInPandasWithState"):
        items[:] = [item for item in items if not item.get_closest_marker("blob_host")]
    if hasattr(config, "workerinput"):
        with_spark = {item.path for item in items if item.get_closest_marker("spark")}
        items.sort(key=lambda item: item.path not in with_spark)


def remember_java_classes() -> None:
    """Each ``F.col`` asks the JVM for the class `functions`, which it looks for in a dozen packages of 300 jars."""
    from py4j.java_gateway import JavaClass, JVMView

    look_up = JVMView.__getattr__

    def remembered(view: JVMView, name: str) -> Any:
        found = look_up(view, name)
        if isinstance(found, JavaClass):
            vars(view)[name] = found
        return found

    JVMView.__getattr__ = remembered


def forget_defaults_of_map_reduce(session: SparkSession) -> None:
    """Spark sends Hadoop's whole configuration with each scan, state store and write: it was a fifteenth of the JVM's
    CPU, and most of it are defaults of MapReduce and YARN, which their code has as well.
    """
    jvm = session.sparkContext._jvm
    loader, look_up = jvm.Thread.currentThread().getContextClassLoader(), jvm.java.lang.Class.forName
    look_up("org.apache.hadoop.mapred.JobConf", True, loader)  # It adds them, once.
    configuration = look_up("org.apache.hadoop.conf.Configuration", True, loader)
    field = configuration.getDeclaredField("defaultResources")
    field.setAccessible(True)
    resources = field.get(None)
    for name in {"mapred-default.xml", "yarn-default.xml"} & set(resources):
        resources.remove(name)
    getattr(jvm, configuration.getName()).reloadExistingConfigurations()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two cores and two shuffle partitions."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from spark_purgatory.config.purgatory_options import LOG_HOST
    from spark_purgatory.demo.runner import QUICK_SETTINGS
    from spark_purgatory.spark.host.exchange import unix_sockets
    from spark_purgatory.spark.host.requirements import TRANSFORM_WITH_STATE_SETTINGS
    from spark_purgatory.spark.sink.table.delta_session import DELTA_SETTINGS

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark_purgatory tests")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    settings = {**QUICK_SETTINGS, **INTERPRETED, **OF_TESTS, **unix_sockets(tempfile.gettempdir())}
    settings["spark.driver.extraJavaOptions"] += " -Xmn384m"  # Of a small young generation everything is copied often.
    if request.config.getoption("host") == LOG_HOST:
        settings |= TRANSFORM_WITH_STATE_SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not request.config.getoption("without_delta"):
        for name, value in DELTA_SETTINGS.items():
            builder = builder.config(name, value)
        builder = configure_spark_with_delta_pip(builder)
    remember_java_classes()
    session = builder.getOrCreate()
    forget_defaults_of_map_reduce(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _settings_of_the_host(request: pytest.FixtureRequest) -> None:
    """Under ``--host``: what the host needs, which a test before may have taken back."""
    from spark_purgatory.config.purgatory_options import LOG_HOST

    if request.config.getoption("host") == LOG_HOST and "spark" in request.fixturenames:
        from spark_purgatory import TRANSFORM_WITH_STATE_SETTINGS

        session = request.getfixturevalue("spark")
        for name, value in TRANSFORM_WITH_STATE_SETTINGS.items():
            session.conf.set(name, value)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """Files of rows that a test adds, and the table that they are written to."""
    from tests.support.sink_streams import Stream

    return Stream(spark, tmp_path)
