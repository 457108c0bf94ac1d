"""A Spark Connect server, and a Python that has `pyspark-client` alone: no JVM, no py4j, no jars."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from tests.support.children import ROOT
from tests.support.cluster import HOST, free_port
from tests.support.worker_python import built_wheel, python_with

CLIENT_HAS = (
    *("numpy", "pandas", "pyarrow", "python-dateutil", "pytz", "tzdata", "six"),
    *("protobuf", "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "typing_extensions"),
)
START_S = 180


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
    log = folder / "server.log"
    with log.open("wb") as said:
        server = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, cwd=folder)
    try:
        deadline_s = time.monotonic() + START_S
        while True:
            with socket.socket() as client:
                if client.connect_ex((HOST, port)) == 0:
                    break
            assert server.poll() is None and time.monotonic() < deadline_s, log.read_text(encoding="utf-8")[-3000:]
            time.sleep(0.2)
        yield f"sc://{HOST}:{port}"
    finally:
        server.terminate()
        server.wait()
