"""Through Spark Connect as its own process, from a client that has `pyspark-client` and the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from tests.support.children import ROOT
from tests.support.cluster import HOST, free_port
from tests.support.delta_files import delta_rows
from tests.support.places_world import World, differences
from tests.support.server import server
from tests.support.worker_python import built_wheel, python_with

pytestmark = [pytest.mark.spark, pytest.mark.long]

FILES = 6
CLIENT = """
import sys
from pyspark.sql import SparkSession
from spark_purgatory import Completions, Operations, Purgatory, RecordAccumulator, criteria

address, folder, host = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
files = spark.readStream.option("maxFilesPerTrigger", 1)
orders = files.schema("order_id string, ordered_at timestamp").json(f"{folder}/orders")
payments = files.schema("order_id string, paid_at timestamp").json(f"{folder}/payments")
purgatory = Purgatory(
    operations=Operations(
        id="order_id", keys="order_id", created="ordered_at", timeout="10 minutes", watermark="1 hour"
    ),
    completions=Completions(key="order_id", time="paid_at", watermark="1 hour"),
    criterion=criteria.any_key(),
    emit="final",
    shards=4,
    host=host,
)
sink = RecordAccumulator(path=f"{folder}/outcomes", linger="5 seconds")
query = sink.write_stream(
    purgatory.resolve(orders, payments), checkpoint=f"{folder}/checkpoint", trigger={"availableNow": True}
)
query.awaitTermination()
print(sink.read(spark).count(), "outcomes")
"""
STATE = {"spark.sql.shuffle.partitions": "4", "spark.sql.session.timeZone": "UTC"}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


CLIENT_HAS = (
    *("numpy", "pandas", "pyarrow", "python-dateutil", "pytz", "tzdata", "six"),
    *("protobuf", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "typing_extensions"),
)


def client_python(folder: Path) -> Path:
    """An interpreter with `pyspark-client`, what it needs, and the wheel of this checkout."""
    python = python_with(folder, CLIENT_HAS)
    [packages] = (folder / "lib").glob("python*/site-packages")
    wheel = built_wheel(folder / "dist", ROOT)
    wanted = [f"pyspark-client=={pyspark.__version__}", str(wheel)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *wanted]
    subprocess.run(command, check=True, capture_output=True)
    has = "import importlib.util as u; print([bool(u.find_spec(name)) for name in ('py4j', 'delta', 'pyspark')])"
    found = subprocess.run([python, "-E", "-c", has], check=True, capture_output=True, text=True, cwd=folder).stdout
    assert found.strip() == "[False, False, True]", found
    return python


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """The address of a server with Delta, within the block."""
    port = free_port()
    home = Path(pyspark.__file__).parent
    delta = configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]
    given = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.jars.packages": delta,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        **settings,
    }
    confs = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2,4]", *confs, *main]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}
    with server(command, (HOST, port), folder / "server.log", environment):
        yield f"sc://{HOST}:{port}"


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_a_client_without_py4j_gets_each_outcome_once(tmp_path: Path, host: str) -> None:
    world = World(orders=54_000)
    size = world.orders // FILES
    for first in range(0, world.orders, size):
        world.land(tmp_path, range(first, first + size))
    world.land_closing(tmp_path)
    script = tmp_path / "client.py"
    script.write_text(CLIENT, encoding="utf-8")
    python = client_python(tmp_path / "client")
    settings = {**STATE, "spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    with connect_server(tmp_path, settings) as address:
        for _ in range(2):  # the second run has the clock that the closing rows moved
            command = [python, str(script), address, str(tmp_path), host]
            ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
            assert ran.returncode == 0, ran.stderr[-3000:]
    assert differences(delta_rows(tmp_path / "outcomes", ["order_id", "status"]), world.expected()) == {}
