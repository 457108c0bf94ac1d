"""Between the runs of a job: a wrong source file is corrected by a rebuild, and nothing may be new."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.last_run import nothing_new
from spark_purgatory.job.rebuild import RebuildRequest, planned
from spark_purgatory.job.run_report import RunReport
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest

pytestmark = pytest.mark.spark


def job(folder: Path, **purgatory: object) -> JobConfig:
    def source(name: str, schema: str) -> dict[str, object]:
        (folder / name).mkdir(exist_ok=True)
        return {"format": "json", "path": str(folder / name), "schema": schema}

    document = {
        "operations": {
            "source": source("orders", "id string, at timestamp"),
            "id": "id",
            "keys": "id",
            "created": "at",
            "timeout": "30 minutes",
            "watermark": "0 seconds",
        },
        "completions": {
            "source": source("payments", "id string, paid timestamp"),
            "key": "id",
            "time": "paid",
            "watermark": "0 seconds",
        },
        "purgatory": {"criterion": "any_key", "emit": "final", "shards": 2, **purgatory},
        "output": {"path": str(folder / "table")},
        "checkpoint": str(folder / "checkpoint"),
        "trigger": {"availableNow": True},
        "summary": False,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return load_config(folder / "job.yaml")


def land(folder: Path, name: str, file: str, *rows: tuple[str | None, str]) -> None:
    time = {"orders": "at", "payments": "paid"}[name]
    lines = [json.dumps({"id": id, time: f"2026-11-01T{at}:00Z"}) for id, at in rows]
    (folder / name / f"{file}.json").write_text("\n".join(lines))


def run_once(spark: SparkSession, config: JobConfig) -> None:
    run(spark, config, Console(quiet=True), StopRequest())


def statuses(spark: SparkSession, config: JobConfig) -> Counter[tuple[str | None, str]]:
    table = spark.read.format("delta").load(str(config.output.path))
    return Counter((row["id"], row["status"]) for row in table.collect())


@pytest.mark.long
def test_a_corrected_file_is_decided_again_and_the_query_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    config = job(tmp_path, orphans="all")
    with pytest.raises(ConfigError, match="does not exist yet: run the job"):
        planned(spark, config, RebuildRequest())
    land(tmp_path, "orders", "1", ("a", "10:00"), ("b", "10:05"), ("c", "11:00"), ("clock", "12:00"))
    land(tmp_path, "payments", "1", ("a", "10:10"), ("wrong", "10:12"), ("c", "11:05"), ("none", "12:00"))
    run_once(spark, config)
    orphan = (None, "ORPHAN")
    assert statuses(spark, config) == Counter(
        {("a", "COMPLETED"): 1, ("b", "EXPIRED"): 1, ("c", "COMPLETED"): 1, orphan: 2}
    )

    with pytest.raises(ConfigError, match=r"--event-time-end='noon' is not a time"):
        planned(spark, config, RebuildRequest(event_time_end="noon"))
    topic = {"topic": "t", "options": {"kafka.bootstrap.servers": "h:9092"}}
    document = yaml.safe_load((tmp_path / "job.yaml").read_text()) | {"output": topic}
    (tmp_path / "topic.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="only a table can be rebuilt"):
        planned(spark, load_config(tmp_path / "topic.yaml"), RebuildRequest())

    land(tmp_path, "payments", "1", ("b", "10:12"), ("c", "11:40"), ("none", "12:00"))
    rebuild = planned(spark, config, RebuildRequest(event_time_end="2026-11-01 11:00:00"))
    assert rebuild.counts == {"COMPLETED": (1, 1), "EXPIRED": (1, 1), "ORPHAN": (1, 0)}
    rebuild.write()
    earlier = Counter({("a", "EXPIRED"): 1, ("b", "COMPLETED"): 1})
    assert statuses(spark, config) == earlier + Counter({("c", "COMPLETED"): 1, orphan: 1}), "c is outside the window"
    planned(spark, config, RebuildRequest()).write()
    rebuilt = earlier + Counter({("c", "EXPIRED"): 1, orphan: 2})
    assert statuses(spark, config) == rebuilt

    land(tmp_path, "orders", "2", ("d", "12:10"), ("clock 2", "13:00"))
    land(tmp_path, "payments", "2", ("d", "12:20"), ("none", "13:00"))
    run_once(spark, config)
    later = Counter({("clock", "EXPIRED"): 1, ("d", "COMPLETED"): 1, orphan: 1})
    assert statuses(spark, config) == rebuilt + later


@pytest.mark.long
def test_a_run_knows_that_nothing_is_new_since_the_last(spark: SparkSession, tmp_path: Path) -> None:
    job(tmp_path)
    changes = ["summary=true", "output.drain_at_end=false"]
    config = load_config(tmp_path / "job.yaml", changes[:1])
    land(tmp_path, "orders", "1", ("a", "10:00"), ("b", "10:05"), ("clock", "12:00"))
    assert nothing_new(config) is None
    run_once(spark, load_config(tmp_path / "job.yaml", changes))
    assert nothing_new(load_config(tmp_path / "job.yaml", changes)) is None, "there is no table yet"
    land(tmp_path, "payments", "1", ("a", "10:10"), ("none", "12:00"))
    report = RunReport()
    run(spark, config, Console(quiet=True), StopRequest(), report=report)
    assert report.summary is not None and report.summary.by_status == {"COMPLETED": 1, "EXPIRED": 1}
    assert nothing_new(config) == (report.summary, report.gauges)
    assert nothing_new(load_config(tmp_path / "job.yaml", [*changes[:1], "purgatory.shards=4"])) is None
    until = "complete_until.completions=2026-11-01 13:00"
    assert nothing_new(load_config(tmp_path / "job.yaml", [*changes[:1], until])) is None
    for file in ("checkpoint/offsets/9", "checkpoint/sources/0/9", "checkpoint/moved", "orders/part=1/new.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
        assert nothing_new(config) is None, file
        (tmp_path / file).unlink()
    assert nothing_new(config) is not None
    last = max((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda file: int(file.name))
    text = last.read_text()
    last.write_text("")
    assert nothing_new(config) is None, "the checkpoint is damaged"
    last.write_text(text)
    commit = max((tmp_path / "table/_delta_log").glob("*.json"))
    at_ns = commit.stat().st_mtime_ns
    os.utime(commit, ns=(at_ns, at_ns + 1_000_000))
    assert nothing_new(config) is None, "another table of this version"
    os.utime(commit, ns=(at_ns, at_ns))
    assert nothing_new(config) is not None
    spark.sql(f"DELETE FROM delta.`{tmp_path}/table` WHERE id = 'a'")
    assert nothing_new(config) is None


def test_a_rebuild_writes_what_the_job_wrote_and_refuses_files_that_it_has_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query would decide them once more."""
    config = job(tmp_path, emit="early", orphans="all")
    land(tmp_path, "orders", "1", ("a", "10:00"), ("clock", "12:00"))
    land(tmp_path, "payments", "1", ("a", "10:10"), ("none", "12:00"))
    run_once(spark, config)
    rebuild = planned(spark, config, RebuildRequest(event_time_start="2026-11-01 09:00:00"))
    assert rebuild.counts == {"COMPLETED": (1, 1), "ORPHAN": (1, 1)}
    rebuild.write()
    assert statuses(spark, config) == Counter({("a", "COMPLETED"): 1, (None, "ORPHAN"): 1})
    land(tmp_path, "orders", "2", ("new", "12:10"))
    with pytest.raises(ConfigError, match=r"operations.source has 1 files that the job has not read: run the job once"):
        planned(spark, config, RebuildRequest())


@pytest.mark.long
def test_a_rebuild_decides_nothing_that_the_query_has_not_finished(spark: SparkSession, tmp_path: Path) -> None:
    config = job(tmp_path, emit="early")
    land(tmp_path, "orders", "1", ("a", "10:00"), ("clock", "12:00"))
    land(tmp_path, "payments", "1", ("a", "10:10"), ("none", "12:00"))
    run_once(spark, config)
    land(tmp_path, "orders", "2", ("new", "12:10"), (None, "12:10"))
    land(tmp_path, "payments", "2", ("new", "12:20"))
    commit = max((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda file: int(file.name))
    run_once(spark, config)
    (tmp_path / "payments/1.json").rename(tmp_path / "1.json")
    with pytest.raises(ConfigError, match=r"1 files that the job has read are gone, such as \S+1.json: without"):
        planned(spark, config, RebuildRequest())
    without = planned(spark, config, RebuildRequest(missing_files_ok=True))
    assert (without.counts, without.waiting) == ({"COMPLETED": (2, 1), "EXPIRED": (0, 1), "REJECTED": (1, 1)}, 1)
    (tmp_path / "1.json").rename(tmp_path / "payments/1.json")
    by_uri = load_config(tmp_path / "job.yaml", [f"checkpoint=file:{tmp_path}/checkpoint"])
    planned(spark, by_uri, RebuildRequest()).write()
    run_once(spark, config)
    rejected = (None, "REJECTED")
    assert statuses(spark, config) == Counter({("a", "COMPLETED"): 1, ("new", "COMPLETED"): 1, rejected: 1})
    for later in (tmp_path / "checkpoint/commits").glob("[0-9]*"):
        if int(later.name) > int(commit.name):
            later.unlink()
    with pytest.raises(ConfigError, match="has a micro-batch that is not finished: run the job once, and"):
        planned(spark, config, RebuildRequest())


@pytest.mark.long
def test_an_operation_that_waits_after_late_rows_has_one_outcome(spark: SparkSession, tmp_path: Path) -> None:
    """The query has forgotten the payment of `x`; the batch query knows of it. The extension of `a` came too late."""
    job(tmp_path, emit="early")
    schema = "id string, paid timestamp, kind string, seconds double"
    completions = {"source": {"schema": schema}, "kind": "kind", "value": "seconds"}
    document = yaml.safe_load((tmp_path / "job.yaml").read_text())
    document["completions"] |= completions | {"source": {**document["completions"]["source"], **completions["source"]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    config = load_config(tmp_path / "job.yaml")

    def pay(file: str, *rows: tuple[str, str, str, float]) -> None:
        lines = [{"id": i, "paid": f"2026-11-01T{at}:00Z", "kind": kind, "seconds": s} for i, at, kind, s in rows]
        (tmp_path / "payments" / f"{file}.json").write_text("\n".join(map(json.dumps, lines)))

    land(tmp_path, "orders", "1", ("a", "10:00"), ("clock", "12:00"))
    pay("1", ("none", "12:00", "complete", 0), ("x", "11:50", "complete", 0))
    run_once(spark, config)
    land(tmp_path, "orders", "2", ("x", "11:48"))
    pay("2", ("a", "10:20", "extend", 7200))
    run_once(spark, config)
    before = Counter({("a", "EXPIRED"): 1})
    assert statuses(spark, config) == before
    planned(spark, config, RebuildRequest()).write()
    assert statuses(spark, config) == before
    land(tmp_path, "orders", "3", ("later", "14:00"))
    pay("3", ("none", "14:00", "complete", 0))
    run_once(spark, config)
    later = before + Counter({("x", "EXPIRED"): 1, ("clock", "EXPIRED"): 1})
    assert statuses(spark, config) == later
    planned(spark, config, RebuildRequest()).write()
    assert statuses(spark, config) == later - Counter({("x", "EXPIRED"): 1}) + Counter({("x", "COMPLETED"): 1})


@pytest.mark.long
def test_a_rebuild_from_delta_tables_reads_what_the_query_has_read(spark: SparkSession, tmp_path: Path) -> None:
    job(tmp_path, emit="early")
    document = yaml.safe_load((tmp_path / "job.yaml").read_text())
    for name, time in (("operations", "at"), ("completions", "paid")):
        document[name]["source"] = {"format": "delta", "path": str(tmp_path / f"{name}_table")}

        def append(*rows: tuple[str, str], name: str = name, time: str = time) -> None:
            new = spark.createDataFrame(rows, "id string, at string").selectExpr("id", f"timestamp(at) as {time}")
            new.coalesce(1).write.format("delta").mode("append").save(str(tmp_path / f"{name}_table"))

        document[name]["append"] = append
    orders, payments = (document[name].pop("append") for name in ("operations", "completions"))
    (tmp_path / "delta.yaml").write_text(yaml.safe_dump(document))
    config = load_config(tmp_path / "delta.yaml")
    orders(("a", "2026-11-01 10:00"), ("clock", "2026-11-01 12:00"))
    payments(("a", "2026-11-01 10:10"), ("none", "2026-11-01 12:00"))
    run_once(spark, config)
    rebuild = planned(spark, config, RebuildRequest())
    orders(("new", "2026-11-01 12:10"))
    payments(("new", "2026-11-01 12:20"))
    assert rebuild.counts == {"COMPLETED": (1, 1)}, "what comes later is not read"
    with pytest.raises(ConfigError, match=r"operations.source has 1 versions that the job has not read"):
        planned(spark, config, RebuildRequest())
    run_once(spark, config)
    spark.sql(f"OPTIMIZE delta.`{tmp_path}/operations_table`")
    run_once(spark, config)
    planned(spark, config, RebuildRequest()).write()
    run_once(spark, config)
    assert statuses(spark, config) == Counter({("a", "COMPLETED"): 1, ("new", "COMPLETED"): 1})
