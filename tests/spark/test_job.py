"""The job: what it says about a wrong file, how it stops, and what it reads and writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_purgatory.demo.landing import FILES, write_landing
from spark_purgatory.demo.runner import QUICK_SETTINGS, demo_config, run_demo
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.job_config import InputSection, JobConfig, MetricsOutput
from spark_purgatory.job.kafka_values import fields_of, rows_of
from spark_purgatory.job.run_report import ExitCode
from spark_purgatory.job.runner import run, topic_records
from spark_purgatory.job.session import settings_of
from spark_purgatory.job.source_config import KafkaSource
from spark_purgatory.job.sources import purgatory_of, read_input
from spark_purgatory.job.stopping import StopRequest
from spark_purgatory.spark.host.requirements import COUNT_ROWS
from spark_purgatory.spark.sink.table.delta_target import delta_package
from spark_purgatory.spark.storage.spark_access import FORMAT_VERSION
from tests.support.job_process import JobProcess

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ROOT / "conf" / "orders.yaml"
JOB = (sys.executable, "-m", "jobs.await_completion")
OPERATIONS = 3000
FILES_A_BATCH = 2

# --- what is said about a wrong file --------------------------------------------------------------

WRONG = [
    ("operations.timeout=5 minutes", "operations: give exactly one of timeout and deadline, got timeout and deadline"),
    ("operations.source.format=parket", "line 15: operations.source: Input tag 'parket'"),
    ("operations.source.format=parket", "'delta', 'kafka', did you mean 'parquet'?"),
    ("operations.source.schema=", "operations.source.schema: Input should be a valid string"),
    ("completions.source={format: kafka, topic: t, schema: a int}", "completions.source.options: Field required"),
    ("completions.source={path: x}", "completions.source must have a format, 'parquet', 'json', 'csv'"),
    ("output.linger=1 hour", "output: delivery_timeout"),
    ("output={path: a, table: b}", "output: give exactly one of path and table, got path='a', table='b'"),
    ("trigger={processingTime: soon}", "trigger.processingTime: 'soon' is not a duration"),
    ("spark={master: local}", "spark.master: String should match pattern '^spark"),
    ("state_store=redis", "state_store: Input should be 'hdfs' or 'rocksdb'"),
    ("name", "--set has 1 problem:\n  write it as field.name=value; number 1 is not"),
    ("name.first=a", "name holds a value, not fields"),
]


def test_an_error_names_the_field_the_value_and_what_is_allowed(tmp_path: Path) -> None:
    """Other fields: `tests/unit/test_check.py`."""
    for assignment, said in WRONG:
        with pytest.raises(JobConfigError, match=re.escape(said)):
            load_config(ORDERS, [assignment])
    (tmp_path / "job.yaml").write_text("- a\n", encoding="utf-8")
    for file, said in (("job.yaml", "must hold fields"), ("nowhere.yaml", r"nowhere\.yaml")):
        with pytest.raises(JobConfigError, match=said):
            load_config(tmp_path / file)


def test_a_dotted_setting_is_one_name() -> None:
    config = load_config(ORDERS, ["spark.spark.sql.shuffle.partitions=3", "purgatory.criterion={count: 2}"])
    assert settings_of(config)["spark.sql.shuffle.partitions"] == "3"
    assert purgatory_of(config).criterion.need == 2


@pytest.mark.parametrize("host", ["applyInPandasWithState", "transformWithState"])
def test_rocksdb_does_not_count_its_rows_unless_the_file_says_so(host: str) -> None:
    store = ["state_store=rocksdb", f"purgatory.host={host}"]
    assert settings_of(load_config(ORDERS, store))[COUNT_ROWS] == "false"
    assert FORMAT_VERSION not in settings_of(load_config(ORDERS, store)), "a store of spark-submit's may lack it"
    assert settings_of(load_config(ORDERS, [*store, f"spark.{COUNT_ROWS}=true"]))[COUNT_ROWS] == "true"


def test_workers_are_told_a_checkout_and_not_the_folder_of_all_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    name = "spark.executorEnv.PYTHONPATH"
    assert settings_of(load_config(ORDERS))[name] == str(ROOT)
    monkeypatch.setattr("spark_purgatory.job.session.ROOT", tmp_path / "site-packages")
    assert name not in settings_of(load_config(ORDERS))


@pytest.mark.parametrize(
    ("trigger", "master", "expected"),
    [
        ("{processingTime: 10 seconds}", "local[2]", True),
        ("{processingTime: 1 minute}", "local[2]", False),
        ("{availableNow: true}", "local[2]", True),
        ("{availableNow: true}", "yarn", False),
    ],
)
def test_unix_sockets_are_for_this_machine_and_workers_not_idle_for_a_minute(
    trigger: str, master: str, expected: bool
) -> None:
    config = load_config(ORDERS, [f"trigger={trigger}"])
    settings = settings_of(config, {"spark.master": master})
    assert (settings.get("spark.python.unix.domain.socket.enabled") == "true") == expected


@pytest.mark.parametrize(
    ("trigger", "is_short", "expected"),
    [
        ("{availableNow: true}", False, True),
        ("{processingTime: 10 seconds}", False, False),
        ("{processingTime: 10 seconds}", True, True),
    ],
)
def test_a_jvm_that_lives_for_minutes_compiles_less_unless_the_file_says_so(
    trigger: str, is_short: bool, expected: bool
) -> None:
    config = load_config(ORDERS, [f"trigger={trigger}"])
    said = settings_of(config, short=is_short).get("spark.driver.defaultJavaOptions", "")
    assert ("-XX:TieredStopAtLevel=1" in said) == expected
    own = load_config(ORDERS, [f"trigger={trigger}", "spark.spark.driver.defaultJavaOptions=-Dours=1"])
    assert settings_of(own, short=is_short)["spark.driver.defaultJavaOptions"] == "-Dours=1"


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_in_conf_makes_a_purgatory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    monkeypatch.setenv("FLIGHTS", "/lake/flights")
    config = load_config(path)
    assert purgatory_of(config).operations.id == config.operations.id


# --- real runs ------------------------------------------------------------------------------------


def settings_for(folder: Path, trigger: str) -> list[str]:
    """Assignments that make conf/orders.yaml work in a folder."""
    places = {
        "operations.source.path": "landing/orders",
        "completions.source.path": "landing/payments",
        "output.path": "outcomes",
        "checkpoint": "checkpoint",
    }
    settings = [f"{field}={json.dumps(str(folder / at))}" for field, at in places.items()]
    for side in ("operations", "completions"):
        settings.append(f"{side}.source.options.maxFilesPerTrigger={FILES_A_BATCH}")
    settings.append("output.linger=0 seconds")
    quick = [f"spark.{name}={value}" for name, value in QUICK_SETTINGS.items()]
    return [*settings, "purgatory.shards=2", f"trigger={trigger}", *quick]


def running(folder: Path, command: Sequence[str] = JOB) -> JobProcess:
    """The job in a process group of its own, with its JVM and workers in it."""
    job = JobProcess(Path(shutil.copy(ORDERS, folder / "job.yaml")), folder / "checkpoint", command)
    job.start(*(word for each in settings_for(folder, "{processingTime: 0 seconds}") for word in ("--set", each)))
    return job


SUBMIT = (
    str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    "--packages",
    delta_package(pyspark.__version__),
    "jobs/await_completion.py",
)
"""With it the process is the JVM, and the job's Python its child."""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("command", "whole_group", "exit_code"),
    # A JVM that SIGTERM ends says so in its exit code, whatever was done before.
    [(JOB, True, 0), (SUBMIT, False, 143), (SUBMIT, True, 143)],
    ids=["systemd and timeout", "spark-submit", "spark-submit in systemd"],
)
def test_sigterm_to_the_jvm_is_a_clean_stop_also_after_a_kill(
    tmp_path: Path, command: Sequence[str], whole_group: bool, exit_code: int
) -> None:
    write_landing(tmp_path / "landing", OPERATIONS, seed=11)
    # As soon as Spark has planned the first micro-batch, which is then run again.
    running(tmp_path).wait_until((tmp_path / "checkpoint" / "offsets" / "0").exists).kill()
    job = running(tmp_path, command)
    job.wait_until(lambda: "batch 0: " in job.said())
    assert job.terminate(whole_group) == exit_code, job.said()
    said = job.said()
    assert "Stopped by SIGTERM" in said and "Nothing lost: " in said, said
    assert "STREAM_FAILED" not in said and "ERROR:root" not in said, said
    own, _, _ = said.partition("Nothing lost: ")  # Spark's workers that get the signal as well end after that.
    assert "Traceback" not in own, said


def test_a_file_that_is_three_months_older_than_the_newest_is_read(spark: SparkSession, tmp_path: Path) -> None:
    given = InputSection(source={"format": "json", "path": str(tmp_path / "in"), "schema": "n bigint"})
    (tmp_path / "in").mkdir()
    for n, days in ((1, 0), (2, 90)):
        file = tmp_path / "in" / f"{n}.json"
        file.write_text(f'{{"n": {n}}}')
        os.utime(file, (time.time() - days * 86_400,) * 2)
        writer = read_input(spark, given, "operations").writeStream.option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(format="parquet").awaitTermination()
    assert sorted(row["n"] for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [1, 2]


def test_what_spark_refuses_is_blamed_on_the_field(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "landing" / "orders").mkdir(parents=True)
    (tmp_path / "landing" / "payments").mkdir()
    config = demo_config(tmp_path)

    def changed(**fields: object) -> JobConfig:
        return config.model_copy(update={"operations": config.operations.model_copy(update=fields)})

    gone = config.operations.source.model_copy(update={"path": str(tmp_path / "gone")})
    for wrong, said in (
        (changed(where="no_such_column > 1"), "operations.where: .*no_such_column"),
        (changed(select=["order_id +"]), "operations.select: .*PARSE_SYNTAX_ERROR"),
        (changed(source=gone), "operations.source: .*PATH_NOT_FOUND"),
    ):
        with pytest.raises(JobConfigError, match=said):
            run(spark, wrong, Console(file=StringIO()), StopRequest())


def test_a_port_that_is_taken_is_said_before_a_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    write_landing(tmp_path / "landing", OPERATIONS, seed=11)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        config = demo_config(tmp_path).model_copy(update={"metrics": MetricsOutput(prometheus_port=port)})
        with pytest.raises(ConfigError, match=rf"prometheus\(port={port}\) cannot listen: Address already in use"):
            run(spark, config, Console(file=StringIO()), StopRequest())
    assert [path.name for path in tmp_path.iterdir()] == ["landing"], "no checkpoint and no table was made"


def test_a_job_whose_events_are_all_rejected_says_so_and_why(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "1.csv").write_text("a,2024-01-01 08:00:00\n")
    (tmp_path / "payments").mkdir()
    (tmp_path / "payments" / "1.csv").write_text("order,time\na,never\nb,2024-01-01 08:00\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        f"""
        operations:
          source: {{format: csv, path: "{tmp_path}/orders", schema: "id string, at timestamp"}}
          id: id
          keys: [id]
          created: at
          timeout: 1 minute
          watermark: 0 seconds
        completions:
          source: {{format: csv, path: "{tmp_path}/payments", schema: "time timestamp, order string"}}
          key: order
          time: time
          watermark: 0 seconds
        purgatory: {{criterion: any_key}}
        output: {{path: "{tmp_path}/table"}}
        checkpoint: "{tmp_path}/checkpoint"
        trigger: {{availableNow: true}}
        """
    )
    said = StringIO()
    run(spark, load_config(job), Console(file=said, width=200), StopRequest())
    *_, sums, warning = said.getvalue().splitlines()
    assert sums == "No batch was committed: there is no table yet."
    assert warning.startswith(
        "Warning: In this run 3 of 3 events were rejected and complete nothing (the time is null: 3). If you"
    )


def test_a_delta_table_and_csv_in_a_table_by_name_out(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        "SELECT 1 AS wait_ms, id, timestamp'2024-01-01 08:00:00' AS at, 60000 AS within "
        "FROM VALUES ('a'), ('b') AS t(id)"
    ).write.format("delta").save(str(tmp_path / "requests"))
    (tmp_path / "replies").mkdir()
    (tmp_path / "replies" / "1.csv").write_text("to;time\na;2024-01-01 08:00:30\n-;2024-01-01 09:00:00\n")
    job = tmp_path / "job.yaml"
    job.write_text(
        f"""
        operations:
          source: {{format: delta, path: "{tmp_path}/requests"}}
          select: ["*", "at as created", "make_dt_interval(0, 0, 0, within / 1000) as wait"]
          id: id
          keys: [id]
          created: created
          timeout: wait
          exclude: [wait, within]
          watermark: 0 seconds
        completions:
          source:
            format: csv
            path: "{tmp_path}/replies"
            schema: to string, time timestamp
            options: {{header: true, sep: ;}}
          key: to
          time: time
          watermark: 0 seconds
        purgatory: {{criterion: any_key, prefix: outcome_}}
        output: {{table: replies_awaited, partition_by: outcome_status}}
        checkpoint: "{tmp_path}/checkpoint"
        trigger: {{availableNow: true}}
        """
    )
    spark.sql("DROP TABLE IF EXISTS replies_awaited")
    said = StringIO()
    summary = run(spark, load_config(job), Console(file=said, width=200), StopRequest())
    assert summary is not None
    assert summary.conserved, said.getvalue()
    assert summary.tally.pending == 1, "the clock stands at the requests' time: the other one still waits"
    [row] = spark.read.table("replies_awaited").collect()
    assert not {"wait", "within"} & set(row.asDict()), (
        "excluded columns do not reach the table, which cannot hold intervals"
    )
    assert (row["id"], row["outcome_status"], row["outcome_wait_ms"], row["wait_ms"]) == ("a", "COMPLETED", 30_000, 1)
    spark.sql("DROP TABLE replies_awaited")


def test_records_of_kafka_become_columns_and_garbage_becomes_nulls(spark: SparkSession) -> None:
    values = [b'{"id": "a", "n": 1}', b"not json", b'{"id": "\xff"}', None]
    records = spark.createDataFrame(
        [(b"k", value, "t", 0, offset) for offset, value in enumerate(values)],
        "key binary, value binary, topic string, partition int, offset bigint",
    )
    source = KafkaSource.model_validate(
        {"format": "kafka", "topic": "t", "schema": "id string, n int", "options": {"kafka.bootstrap.servers": "b:1"}}
    )
    rows = rows_of(records, source, "operations")
    assert fields_of(rows) == ["`id`", "`n`"]
    found = rows.selectExpr("id", "n", "cast(kafka_key as string)", "kafka_topic", "kafka_offset").collect()
    nulls = [(None, None, "k", "t", offset) for offset in (1, 2, 3)]
    assert [tuple(row) for row in found] == [("a", 1, "k", "t", 0), *nulls]


def test_outcomes_as_records_have_the_id_as_key_and_all_fields_as_value(spark: SparkSession) -> None:
    outcomes = spark.sql("SELECT 7 AS `order.id`, struct(8 AS id) AS order, 'EXPIRED' AS status")
    [record] = topic_records(outcomes, "order.id").collect()
    expected = {"order.id": 7, "order": {"id": 8}, "status": "EXPIRED"}
    assert (record["key"], json.loads(record["value"])) == ("7", expected), "the column, as the purgatory reads it"
    [record] = topic_records(spark.sql("SELECT timestamp'2026-10-25 02:30:00+02:00' AS at"), "at").collect()
    assert record["key"] == "2026-10-25 00:30:00Z", "in no zone of a session"
    times = spark.sql(
        "SELECT 1 AS id, timestamp'2026-10-25 02:30:00.123456Z' AS at, timestamp_ntz'2026-10-25 01:00' AS n"
    )
    [record] = topic_records(times, "id").collect()
    said = json.loads(record["value"])
    assert datetime.fromisoformat(said["at"]) == datetime(2026, 10, 25, 2, 30, 0, 123456, UTC), "no microsecond is lost"
    assert said["n"] == "2026-10-25T01:00:00.000000"


# --- the demo -------------------------------------------------------------------------------------


def test_the_same_seed_lands_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_landing(tmp_path / name, 1000, seed=3)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 2 * FILES
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_the_demo_leaves_a_folder_in_use_alone(tmp_path: Path) -> None:
    said = StringIO()
    stranger = tmp_path / "thesis.txt"
    stranger.touch()
    code = run_demo(tmp_path, Console(file=said, width=200), operations=1000, seed=1)
    assert code == ExitCode.REFUSED
    assert "is in use, because it contains thesis.txt" in said.getvalue()
    stranger.unlink()

    shutil.copytree(ROOT / "conf", tmp_path / "landing")
    (tmp_path / "demo.json").write_text('{"operations": 1000, "seed": 1}', encoding="utf-8")
    console = Console(file=said, width=200)
    assert run_demo(tmp_path, console, operations=1000, seed=2) == ExitCode.REFUSED
    assert "has a demo of 1,000 operations with seed 1" in said.getvalue()
    assert (tmp_path / "landing").exists()
