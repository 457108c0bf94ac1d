"""What the asset bundle deploys runs: the job on the test's session, the pipeline with `spark-pipelines`."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from bundle import orders_job
from spark_purgatory.demo.landing import Landed, write_landing
from spark_purgatory.demo.runner import recount
from tests.support.children import ROOT
from tests.support.pipelines import run_pipeline


@pytest.fixture
def landing(tmp_path: Path) -> Landed:
    """Orders and payments in `landing`."""
    return write_landing(tmp_path / "landing", 1500, seed=3)


def statuses(rows: DataFrame) -> Counter[str]:
    return Counter({row["status"]: row["count"] for row in rows.groupBy("status").count().collect()})


@pytest.mark.long
def test_the_job_gives_every_order_its_outcome_and_goes_on_where_it_ended(
    spark: SparkSession, tmp_path: Path, landing: Landed, capsys: pytest.CaptureFixture[str]
) -> None:
    orders_job.main(str(tmp_path / "landing"), str(tmp_path / "lake"))
    table = tmp_path / "lake" / "order_outcomes"
    counted = recount(spark, tmp_path / "landing", table)
    waiting = counted.pop("PENDING").expected
    assert waiting > 0 and all(status.different == 0 for status in counted.values())
    assert f"orders: {waiting:,} wait" in capsys.readouterr().out
    before = spark.read.format("delta").load(str(table)).count()
    assert before + waiting == landing.orders
    orders_job.main(str(tmp_path / "landing"), str(tmp_path / "lake"))
    outcomes = spark.read.format("delta").load(str(table))
    assert outcomes.count() == before
    [completed, expired] = (outcomes.where(f"status = '{status}'").limit(1) for status in ("COMPLETED", "EXPIRED"))
    lost = completed.collect()[0]["order_id"]
    spoilt = outcomes.where(f"order_id <> '{lost}' OR order_id IS NULL").unionAll(expired)
    spoilt.write.format("delta").save(str(tmp_path / "spoilt"))
    counted = recount(spark, tmp_path / "landing", tmp_path / "spoilt")
    assert (counted["COMPLETED"].different, counted["EXPIRED"].different) == (1, 1), "a lost and a doubled one are seen"


@pytest.mark.slow
def test_the_pipeline_gives_the_same_outcomes_as_the_job(spark: SparkSession, tmp_path: Path, landing: Landed) -> None:
    orders_job.main(str(tmp_path / "landing"), str(tmp_path / "lake"))
    by_job = statuses(spark.read.format("delta").load(str(tmp_path / "lake" / "order_outcomes")))
    pipeline = tmp_path / "pipeline"
    pipeline.mkdir()
    shutil.copy(ROOT / "bundle" / "orders_pipeline.py", pipeline)
    spec = {
        "name": "orders",
        "storage": f"file://{pipeline}/storage",
        "libraries": [{"glob": {"include": "orders_pipeline.py"}}],
        "configuration": {"orders.landing": str(tmp_path / "landing"), "spark.sql.shuffle.partitions": "2"},
    }
    (pipeline / "spark-pipeline.yml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    run_pipeline(pipeline)
    tables = pipeline / "spark-warehouse"
    assert statuses(spark.read.parquet(str(tables / "order_outcomes"))) == by_job
    view = spark.read.parquet(str(tables / "order_statuses")).collect()
    assert {row["status"]: row["count(1)"] for row in view} == by_job
