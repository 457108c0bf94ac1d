"""Through Spark Connect as its own process, from a client that has `pyspark-client` and the wheel alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.delta_files import delta_rows
from tests.support.places_world import World, differences
from tests.support.remote_client import client_python, connect_server

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
