"""A job's file that writes an Iceberg table with ``spark-purgatory run``."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.support.iceberg_lake import has_iceberg

if not has_iceberg(pyspark.__version__):
    pytest.skip("Iceberg has no runtime for this Spark: make test-iceberg", allow_module_level=True)
pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
ORDERS = 40
JOB = """
name: orders
operations:
  source: {{format: parquet, path: {folder}/orders, schema: "id string, at timestamp"}}
  id: id
  keys: id
  created: at
  timeout: 1 hour
  watermark: 0 seconds
completions:
  source: {{format: parquet, path: {folder}/payments, schema: "id string, at timestamp"}}
  key: id
  time: at
  watermark: 0 seconds
purgatory: {{criterion: any_key, shards: 2}}
output: {{table: lake.sales.outcomes, format: iceberg, linger: 0 seconds}}
checkpoint: {folder}/checkpoint
trigger: {{availableNow: true}}
spark:
  spark.master: local[2]
  spark.ui.enabled: false
  spark.sql.shuffle.partitions: 2
  spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.lake.type: hadoop
  spark.sql.catalog.lake.warehouse: {folder}/lake
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "spark_purgatory", *arguments]
    return subprocess.run(line, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)


def test_a_job_writes_an_iceberg_table(tmp_path: Path) -> None:
    start = datetime(2024, 5, 1, 9, tzinfo=UTC)
    times = [start + timedelta(minutes=n) for n in range(ORDERS)]
    for name, ids in (("orders", range(ORDERS)), ("payments", range(0, ORDERS, 2))):
        (tmp_path / name).mkdir()
        rows = {"id": [f"o-{n}" for n in ids], "at": pa.array([times[n] for n in ids], pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(rows), tmp_path / name / "0.parquet")
    (tmp_path / "lake" / "sales").mkdir(parents=True)
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(folder=tmp_path), encoding="utf-8")
    ran = command("run", str(file))
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    files = list((tmp_path / "lake" / "sales" / "outcomes" / "data").rglob("*.parquet"))
    ids = [row["id"] for path in files for row in pq.read_table(path).to_pylist()]
    assert sorted(ids) == sorted(f"o-{n}" for n in range(0, ORDERS, 2)), "the others wait"
    assert "Files" not in ran.stdout and f"{ORDERS // 2} with an outcome" in ran.stdout
    assert list((tmp_path / "lake" / "sales" / "outcomes" / "metadata").glob("*.avro"))
