"""One real Spark session for all tests that ask for it, with Delta."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.sink_streams import Stream

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["no_proxy"] = "127.0.0.1,localhost"  # the servers that tests start
WITH_SPARK = (
    "tests/spark/",
    "tests/crash/",
    "tests/house/test_readme.py::test_the_home_page",
    "tests/law/test_stream_law.py",
)
"""Where tests of `make test` are that take the session."""
hypothesis.settings.register_profile("at any speed", parent=hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("at any speed")
pytest.register_assert_rewrite("tests.support")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--host transformWithState``: the purgatories of all tests that name no host have this one."""
    parser.addoption("--host", default=None, help="Purgatory's host where a test names none")
    parser.addoption("--connect", action="store_true", help="The session is a client of Spark Connect")
    parser.addoption("--without-delta", action="store_true", help="For a Spark for which there is no Delta yet")


def pytest_configure(config: pytest.Config) -> None:
    """Make the host that was asked for the default."""
    host = config.getoption("host")
    if host is not None:
        from spark_purgatory import Purgatory

        # A dataclass's defaults are those of its __init__; `replace` and `fields` are not asked for them.
        Purgatory.__init__.__kwdefaults__["host"] = host


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that take the session, leave out tests of another host, and have workers begin with Spark, which takes
    longest.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.spark)
    if config.getoption("host") not in (None, "applyInPandasWithState"):
        items[:] = [item for item in items if not item.get_closest_marker("blob_host")]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(WITH_SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadgroup``: one worker has all files with Spark, in one JVM, and the other takes a file at a time.

    Not by marks: for them xdist 3.8 changes a field that pytest 9.2 no longer has.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(WITH_SPARK) else str(super()._split_scope(nodeid))

    return OneSession(config, log)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two cores and two shuffle partitions."""
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    from spark_purgatory.config.options import LOG_HOST
    from spark_purgatory.demo.runner import QUICK_SETTINGS
    from spark_purgatory.spark.checkpoint.start_check import LOCAL_CHECKPOINT
    from spark_purgatory.spark.host.exchange import unix_sockets
    from spark_purgatory.spark.host.requirements import STATE_STORE_SETTINGS
    from spark_purgatory.spark.sink.table.delta_target import DELTA_SETTINGS
    from tests.support.children import only_connect_server
    from tests.support.quick_spark import OF_TESTS, YOUNG, forget_defaults_of_map_reduce, remember_java_classes

    is_client = request.config.getoption("connect")
    builder = (
        (SparkSession.builder.remote("local[2]") if is_client else SparkSession.builder.master("local[2]"))
        .appName("spark_purgatory tests")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    settings = {**QUICK_SETTINGS, **OF_TESTS, **unix_sockets(tempfile.gettempdir())}
    settings["spark.driver.extraJavaOptions"] += YOUNG
    if request.config.getoption("host") == LOG_HOST:
        settings |= STATE_STORE_SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not request.config.getoption("without_delta"):
        for name, value in DELTA_SETTINGS.items():
            builder = builder.config(name, value)
        builder = configure_spark_with_delta_pip(builder)
    with only_connect_server() if is_client else nullcontext():
        remember_java_classes()
        session = builder.getOrCreate()
        if not is_client:
            forget_defaults_of_map_reduce(session)
        for name, value in LOCAL_CHECKPOINT.items():  # Spark's own sinks start ten processes for each file without it.
            session.conf.set(name, value)
        yield session
        if not is_client:  # At the end of the process each client still asks the server.
            session.stop()


@pytest.fixture(autouse=True)
def _settings_of_the_host(request: pytest.FixtureRequest) -> None:
    """Under ``--host``: what the host needs, which a test before may have taken back."""
    from spark_purgatory.config.options import LOG_HOST

    if request.config.getoption("host") == LOG_HOST and "spark" in request.fixturenames:
        from spark_purgatory import STATE_STORE_SETTINGS

        session = request.getfixturevalue("spark")
        for name, value in STATE_STORE_SETTINGS.items():
            session.conf.set(name, value)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    """Files of rows that a test adds, and the table that they are written to."""
    from tests.support.sink_streams import Stream

    return Stream(spark, tmp_path)
