"""A purgatory in Spark's declarative pipelines, run again and again: `resolve` in the module, over files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from benchmarks.jars import resolved
from spark_purgatory import STATE_STORE_SETTINGS
from spark_purgatory.spark.sink.table.delta_target import DELTA_SETTINGS
from tests.support.delta_files import delta_rows
from tests.support.pipelines import run_pipeline
from tests.support.places_world import World, differences

pytestmark = [pytest.mark.spark, pytest.mark.long]

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from spark_purgatory import Completions, Operations, Purgatory, criteria

spark = SparkSession.active()


def landed(name, schema):
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.json(f"{spark.conf.get('orders.landing')}/{name}")


purgatory = Purgatory(
    operations=Operations(
        id="order_id", keys="order_id", created="ordered_at", timeout="10 minutes", watermark="1 hour"
    ),
    completions=Completions(key="order_id", time="paid_at", watermark="1 hour"),
    criterion=criteria.any_key(),
    emit="final",
    shards=2,
    host=spark.conf.get("orders.host"),
)
OUTCOMES = purgatory.resolve(
    landed("orders", "order_id string, ordered_at timestamp"), landed("payments", "order_id string, paid_at timestamp")
)

"""
TABLE = """

@dp.table(format="parquet")
def outcomes():
    return OUTCOMES
"""
SINK = """
# As a table of the pipeline, Delta would end the second run: DELTA_CANNOT_CHANGE_PROVIDER.
dp.create_sink("outcomes", "delta", {"path": spark.conf.get("orders.table")})


@dp.append_flow(target="outcomes", name="resolved")
def resolved():
    return OUTCOMES
"""


@pytest.mark.parametrize(
    ("host", "written"),
    [("applyInPandasWithState", TABLE), ("transformWithState", SINK)],
    ids=["table", "delta-sink"],
)
def test_each_run_goes_on_from_the_one_before(tmp_path: Path, host: str, written: str) -> None:
    world = World(orders=4_000)
    folder = tmp_path / "pipeline"
    folder.mkdir()
    table = folder / "spark-warehouse" / "outcomes"
    (folder / "orders.py").write_text(PIPELINE + written, encoding="utf-8")
    spec = {
        "name": "orders",
        "storage": f"file://{folder}/storage",
        "libraries": [{"glob": {"include": "orders.py"}}],
        "configuration": {
            **STATE_STORE_SETTINGS,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "orders.landing": str(tmp_path),
            "orders.host": host,
            "orders.table": str(table),
        },
    }
    (folder / "spark-pipeline.yml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    # Spark's own catalog is in memory: the second run would find the table's folder, and not the table.
    settings = {"spark.sql.catalogImplementation": "hive", **DELTA_SETTINGS}
    # With --packages the session that Spark Connect makes does not find Delta.
    ivy = tmp_path / "ivy"
    resolved([configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]], ivy)
    jars = ":".join(map(str, ivy.glob("jars/io.delta_delta-s*.jar")))
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    options += ["--driver-class-path", jars]
    for first in (0, 2_000):
        world.land(tmp_path, range(first, first + 2_000))
        run_pipeline(folder, *options)
    world.land_closing(tmp_path)
    for _ in range(2):  # the watermark of the first lets the second expire what is due
        run_pipeline(folder, *options)
    columns = ["order_id", "status"]
    rows = delta_rows(table, columns) if written is SINK else pq.read_table(table, columns=columns)
    assert differences(rows, world.expected()) == {}
