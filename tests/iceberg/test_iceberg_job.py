"""A job's file that writes Iceberg tables with ``spark-purgatory run``, and the commands that look at them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 40
JOB = """
name: orders
operations:
  source: {{format: json, path: {folder}/orders, schema: "id string, at timestamp"}}
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
dead_letters: {{table: lake.sales.letters, format: iceberg}}
checkpoint: {folder}/checkpoint
trigger: {{availableNow: true}}
spark:
  spark.master: local[2]
  spark.ui.enabled: false
  spark.sql.shuffle.partitions: 2
"""
CATALOG = """
  spark.sql.catalog.lake: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.lake.type: hadoop
  spark.sql.catalog.lake.warehouse: {folder}/lake
"""


def command(*arguments: str) -> str:
    line = [sys.executable, "-m", "spark_purgatory", *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    ran = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def test_a_job_writes_an_iceberg_table(tmp_path: Path) -> None:
    start = datetime(2024, 5, 1, 9, tzinfo=UTC)
    times = [start + timedelta(minutes=n) for n in range(ORDERS)]
    for name in ("orders", "payments"):
        (tmp_path / name).mkdir()
    orders = [json.dumps({"id": f"o-{n}", "at": times[n].isoformat()}) for n in range(ORDERS)]
    (tmp_path / "orders" / "0.json").write_text("\n".join([*orders, "no order"]), encoding="utf-8")
    ids = range(0, ORDERS, 2)
    rows = {"id": [f"o-{n}" for n in ids], "at": pa.array([times[n] for n in ids], pa.timestamp("us", "UTC"))}
    pq.write_table(pa.table(rows), tmp_path / "payments" / "0.parquet")
    (tmp_path / "lake" / "sales").mkdir(parents=True)
    file = tmp_path / "job.yaml"
    file.write_text((JOB + CATALOG.strip("\n")).format(folder=tmp_path), encoding="utf-8")
    said = command("check", str(file))
    assert "lake.sales.letters" in said
    said = command("run", str(file))
    files = list((tmp_path / "lake" / "sales" / "outcomes" / "data").rglob("*.parquet"))
    ids = [row["id"] for path in files for row in pq.read_table(path).to_pylist()]
    assert Counter(ids) == Counter([*(f"o-{n}" for n in range(0, ORDERS, 2)), None]), "the others wait"
    assert f"Files: {len(files)}" in said and f"{ORDERS // 2 + 1} with an outcome" in said
    assert "Dead letters: 1 in lake.sales.letters" in said
    assert list((tmp_path / "lake" / "sales" / "letters" / "data").glob("*.parquet"))
    assert list((tmp_path / "lake" / "sales" / "outcomes" / "metadata").glob("*.avro"))
    checkpoint, table = str(tmp_path / "checkpoint"), "lake.sales.outcomes"
    settings = [line.strip().replace(": ", "=") for line in CATALOG.format(folder=tmp_path).splitlines() if line]
    conf = [word for setting in settings for word in ("--conf", setting)]
    assert f"Table: {table}" in command("status", checkpoint)
    said = command("status", checkpoint, "--spark", *conf)
    assert f"{table}: Iceberg, in " in said and "fit: 1 drain, the last complete" in said
    said = command("doctor", "--spark", *conf)
    assert "in this session" in next(line for line in said.splitlines() if "Iceberg  " in line)
    page = tmp_path / "report.html"
    assert "Written: " in command("report", checkpoint, "-o", str(page), *conf)
    assert f"Files: {len(files)} with" in page.read_text(encoding="utf-8")
    assert "there is nothing to repair" in command("repair", checkpoint, "--dry-run", *conf)
