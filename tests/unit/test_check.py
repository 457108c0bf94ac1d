"""``spark-purgatory check``, and what is refused before Spark starts, at its line, as people write YAML."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import chdir
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from spark_purgatory import Operations
from spark_purgatory.cli import app
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.job_config import JobConfig
from spark_purgatory.job.run_report import guarded
from spark_purgatory.terminal import terminal

ROOT = Path(__file__).resolve().parents[2]
ORDERS = ROOT / "conf" / "orders.yaml"


def run(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(filter(None, (path, str(ROOT))))
    command = [sys.executable, *arguments]
    given = {**os.environ, "PYTHONPATH": python_path, "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, check=False)


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in this process, which has its modules already; an exception that it lets out is raised."""
    with chdir(ROOT):
        done = CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def test_a_file_that_is_right_is_shown_without_java_and_without_secrets(tmp_path: Path) -> None:
    ran = run("-m", "spark_purgatory", "check", "conf/kafka.yaml", KAFKA_PASSWORD="hidden", JAVA_HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    shown, last = ran.stdout.rstrip().rsplit("\n", 1)
    assert last.startswith("conf/kafka.yaml is right")
    job = yaml.safe_load(shown)
    assert job["operations"]["source"]["topic"] == ["commands"] and job["operations"]["timeout"] == "30 seconds"
    assert job["purgatory"]["criterion"] == {"quorum": 2} and job["purgatory"]["emit"] == "early"
    assert set(job["operations"]["source"]["options"].values()) == {"***"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("purgatory.tick=1 us", "tick='1 us' must be at least 1 millisecond"),
        ("purgatory.criterion={quorum: 0}", "criterion quorum needs a whole number of at least 1, got 0"),
        ("output.batch_size=huge", "output.batch_size: 'huge' is not a size"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_field(change: str, message: str) -> None:
    ran = check("conf/orders.yaml", "--set", change)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_no_fault_hides_another(tmp_path: Path) -> None:
    changes = (
        "operations.created=taken_at", "operations.deadline=null", "operations.timeout=30", "operations.watermark=null",
        "completions.source.path=.demo/checkpoint", "completions.time=${NO_SUCH_VARIABLE}",
        "purgatory.criterion=count 2", "purgatory.emit=finall", "output.partition_by=cty", "output.linger=soon",
    )  # fmt: skip
    with pytest.raises(JobConfigError) as refused:
        load_config(ORDERS, changes)
    said = sorted((problem.field, str(problem)) for problem in refused.value.problems)
    for (field, text), (wanted, part) in zip(
        said,
        [
            ("", "completions.source.path '.demo/checkpoint' and checkpoint '.demo/checkpoint' are one place"),
            ("completions.time", "${NO_SUCH_VARIABLE}: set this environment variable"),
            ("operations.created", "'taken_at' is not a column. There are"),
            ("operations.timeout", "30: a number alone has no unit"),
            ("operations.watermark", "is not set: give the delay"),
            ("output.linger", "'soon' is not a duration"),
            ("output.partition_by", "'cty' is not a column"),
            (
                "purgatory.criterion.count 2",
                "unknown field, did you mean 'count'? Allowed: by_row, any_key, all_keys, ",
            ),
            ("purgatory.emit", "Input should be 'early' or 'final', did you mean 'final'?"),
        ],
        strict=True,
    ):
        assert field == wanted and part in text


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("count 2", "did you mean 'count'?"),
        ("any_kye", "did you mean 'any_key'?"),
        ("quorum", "quorum needs a number: {quorum: 2}"),
        ("{cuont: 2}", "unknown field, did you mean 'count'?"),
        ("{quorum: 1, level: 2}", "give one rule for all operations, or by_row; got quorum and level"),
        ("{count 2}", "did you mean 'count'?"),
    ],
)
def test_a_criterion_that_is_nearly_right_says_what_to_write(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(ORDERS, [f"purgatory.criterion={written}"])
    assert said in str(refused.value)


def test_a_job_file_that_a_command_reads_is_refused_with_all_its_problems(capsys: pytest.CaptureFixture[str]) -> None:
    def read() -> None:
        load_config("conf/orders.yaml", ["operations.timeuot=1", "output.ligner=1 second"])

    assert guarded(terminal(stderr=True), read) == 2
    assert "did you mean 'timeout'" in (said := capsys.readouterr().err)
    assert "did you mean 'linger'" in said


def test_a_file_is_checked_without_importing_spark() -> None:
    code = (
        "import sys; from pathlib import Path; from rich.console import Console\n"
        "from spark_purgatory.job.config_file import check_file\n"
        "assert check_file(Path('conf/orders.yaml'), [], Console()) == 0\n"
        "assert 'pyspark' not in sys.modules"
    )
    ran = run("-c", code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__version__ = '3.5.6'", "ConfigError: pyspark is 3.5.6, but spark_purgatory needs 4.0 or later"),
        (
            "raise ModuleNotFoundError('gone', name='pyspark')",
            "the module 'pyspark' is missing: pip install 'spark-purgatory[spark]'",
        ),
    ],
)
def test_an_old_pyspark_and_none_are_one_sentence(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(source)
    ran = run("-c", "from spark_purgatory import Purgatory", path=str(tmp_path))
    assert ran.returncode == 1
    assert message in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["operations.deadline=null", "operations.timeout=30 minuts"], "'minuts' is not a unit of time"),
        (
            ["operations.created=orderd_at"],
            "operations.created: 'orderd_at' is not a column, did you mean 'ordered_at'?",
        ),
        (["completions.key=nothing"], "completions.key: 'nothing' is not a column. There are payment_id, order_id"),
        (["purgatory.scope=amoun"], "purgatory.scope: 'amoun' is not a column, did you mean 'amount'?"),
        (["completions.select=[order_id as id, paid_at]"], "completions.key: 'order_id' is not a column"),
        (["completions.key=ORDER_ID"], "completions.key: 'ORDER_ID' is not a column, did you mean 'order_id'?"),
        (["completions.key='`order_id`'"], "completions.key: '`order_id`' is not a column"),
        (["operations.exclude=[amont]"], "operations.exclude: 'amont' is not a column, did you mean 'amount'?"),
        (["trigger=10 seconds"], "trigger must have fields: processingTime, availableNow"),
        (
            ["completions.key=[shop, number]"],
            "completions.key must be one column: to use several, join them into one in both inputs",
        ),
        (["purgatory={emit: final}"], "purgatory.criterion: Field required"),
        (
            ["output.partition_by=[customer_id, staus]"],
            "output.partition_by: 'staus' is not a column, did you mean 'status'",
        ),
        (
            ["completions.source.schema=order_id string, paid_at string"],
            "completions.time: 'paid_at' is string, not timestamp: correct the schema, or write "
            "completions.select: [order_id, to_timestamp(paid_at) as paid_at]",
        ),
        (
            ["completions.source.schema=order_id string, paid_at bigint"],
            "is bigint, not timestamp: correct the schema, or write "
            "completions.select: [order_id, timestamp_seconds(paid_at) as paid_at]",
        ),
        (["output=outcomes"], "output must have fields: topic, options, path, table"),
    ],
)
def test_what_is_wrong_with_columns_and_sections_is_said_before_spark_starts(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(ORDERS, changes)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["purgatory.criterion={sum_at_least: 5}"], "line 30: completions.value is missing"),
        (["purgatory.criterion={level: 5}"], "line 30: completions.value is missing"),
        (
            ["operations.source.schema=order_id double, ordered_at timestamp, pay_by timestamp"],
            "line 24: operations.keys: 'order_id' is double, which cannot be a key: cast it to string, decimal or "
            "bigint in operations.select",
        ),
        (["checkpoint=./.demo//outcomes/"], "are one place: each needs its own"),
        ([f"checkpoint=file:{ROOT}/.demo/outcomes"], "and output.path '.demo/outcomes' are one place"),
        (["output.path=.//.demo/checkpoint"], "line 54: checkpoint '.demo/checkpoint' and output.path"),
        (
            ["operations.source={format: delta, path: .demo/outcomes}"],
            "operations.source.path '.demo/outcomes' and output.path '.demo/outcomes' are one place",
        ),
        (
            ["completions.source={format: delta, table: Sales.Outcomes}", "output={table: sales.`outcomes`}"],
            "completions.source.table 'Sales.Outcomes' and output.table 'sales.`outcomes`' are one place",
        ),
        (
            ["checkpoint='/lake/my job #1/ck'"],
            "checkpoint has ' ', '#', and Spark finds no state at such a path",
        ),
        (["purgatory.shards=1:30"], "purgatory.shards: Input should be a valid integer"),
    ],
)
def test_what_could_never_work_is_refused_before_spark_starts(changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(ORDERS, changes)
    assert message in str(refused.value)


def test_a_number_with_leading_zeros_is_no_octal_one() -> None:
    assert load_config(ORDERS, ["purgatory.shards=010"]).options().shards == 10


def test_each_problem_has_the_line_of_its_field_in_the_file(tmp_path: Path) -> None:
    text = ORDERS.read_text(encoding="utf-8").replace("  id: order_id  ", "  id: orders_id  ")
    (tmp_path / "job.yaml").write_text(text.replace("  linger: 5 minutes", "  ligner: 5 minutes"))
    numbers = {line.split(":")[0].strip(): i for i, line in enumerate(text.splitlines(), 1)}
    with pytest.raises(ConfigError, match=rf"\n  line {numbers['linger']}: output\.ligner: unknown field"):
        load_config(tmp_path / "job.yaml")
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"\n  line {numbers['id']}: operations\.id: 'orders_id' is not a column"):
        load_config(tmp_path / "job.yaml")
    with pytest.raises(ConfigError, match=r"\n  operations\.id: 'ids' is not a column"):
        load_config(tmp_path / "job.yaml", ["operations.id=ids"])


def test_columns_of_every_name_and_type_that_spark_reads_are_right() -> None:
    schema = "`order.id` string, paid_at timestamp, at time(6), place struct<zip:string>, word character(3), g geometry"
    changes = [f"completions.source.schema='{schema}'", "completions.columns=[at, place.zip, g]"]
    load_config(ORDERS, [*changes, "completions.key=order.id"])
    load_config(ORDERS, [*changes, "completions.key=place.zip"])


def test_the_example_is_a_jobs_file_that_check_takes(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["example"])
    assert (printed.exit_code, printed.stderr) == (0, "")
    job = tmp_path / "job.yaml"
    job.write_text(printed.stdout, encoding="utf-8")
    ran = check(str(job))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "timeout" in ran.stdout or "deadline" in ran.stdout


JOB = """\
operations:
  source: {format: parquet, path: /in/orders, schema: "id string, at timestamp"}
  id: id
  keys: id
  created: at
  timeout: 5 minutes
  watermark: 1 minute
completions:
  source: {format: parquet, path: /in/payments, schema: "id string, at timestamp, v double"}
  key: id
  time: at
  value: v
  watermark: 1 minute
output: {path: /out}
checkpoint: /checkpoint
"""
LINES = JOB.count("\n")
WHOLE = f"{JOB}purgatory: {{criterion: any_key}}\n"


def load(tmp_path: Path, text: str, overrides: Sequence[str] = ()) -> JobConfig:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_config(path, overrides)


@pytest.mark.parametrize(
    "assignment",
    ["hunter2", ".hunter2=x", "name=*hunter2", "name=!hunter2", "name=!hunter2!x", "name=&hunter2 &hunter2"],
)
def test_an_assignment_that_cannot_be_read_is_not_repeated(tmp_path: Path, assignment: str) -> None:
    with pytest.raises(JobConfigError, match="--set") as caught:
        load(tmp_path, JOB, ["name=a", assignment])
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{{ name }}", "the name of a field must be text: put a value that begins with {{ in quotes"),
        ("{[a]: 1}", "the name of a field must be text"),
        ("*secret", "not YAML: put a value that begins with *, & or ! in quotes"),
        ("!secret!x", "not YAML: put a value that begins with *, & or ! in quotes"),
    ],
)
def test_a_value_that_yaml_cannot_read_is_refused_at_its_line(tmp_path: Path, value: str, said: str) -> None:
    with pytest.raises(JobConfigError) as caught:
        load(tmp_path, f"{JOB}name: {value}\n")
    [problem] = caught.value.problems
    assert problem.field.startswith(f"line {LINES + 1}, column ")
    assert said in problem.allowed
    with pytest.raises(JobConfigError) as caught:
        load(tmp_path, JOB, [f"name={value}"])
    assert caught.value.origin == "--set name"
    assert said in caught.value.problems[0].allowed


@pytest.mark.parametrize("value", ["9" * 5000, "!!float abc", "!!bool abc", "!!timestamp abc"])
def test_a_value_that_only_looks_like_a_number_or_truth_value_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(JobConfigError, match="a value cannot be read: put it in quotes"):
        load(tmp_path, f"{JOB}name: {value}\n")


@pytest.mark.parametrize("value", ["&a [*a]", "&a {x: *a}", "[" * 1000 + "]" * 1000])
def test_a_value_without_end_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(JobConfigError, match="a value cannot be read: put it in quotes"):
        load(tmp_path, f"{JOB}name: {value}\n")


def test_a_mapping_takes_what_another_has_and_may_say_it_otherwise(tmp_path: Path) -> None:
    merged = WHOLE.replace(
        "source: {format: parquet, path: /in/orders", "source: &in {format: parquet, path: /in/orders"
    )
    own = "source: {format: parquet, path: /in/payments"
    job = load(tmp_path, merged.replace(own, "source: {<<: *in, path: /in/payments"))
    assert job.completions.source.format == "parquet"
    assert getattr(job.completions.source, "path", None) == "/in/payments"
    assert getattr(job.operations.source, "path", None) == "/in/orders"
    # What lies deeper is read later, when another has taken from it.
    deep = WHOLE.replace('timestamp"}', 'timestamp", options: &low {<<: {spark.a: 1}, spark.a: 2}}', 1)
    assert load(tmp_path, f"{deep}spark: {{<<: *low, spark.b: 3}}\n").spark == {"spark.a": "2", "spark.b": "3"}
    with pytest.raises(JobConfigError, match="'processingTime' is given twice"):
        load(tmp_path, f"{WHOLE}trigger: {{<<: {{processingTime: 1 second, processingTime: 2 seconds}}}}\n")
    with pytest.raises(JobConfigError, match="'<<' is given twice"):
        load(tmp_path, f"{WHOLE}spark: {{<<: {{spark.a: 1}}, <<: {{spark.b: 1}}}}\n")


@pytest.mark.parametrize(
    "field",
    ["purgatory.shards", "purgatory.max_evidence", "purgatory.max_pending_per_shard", "metrics.prometheus_port"],
)
@pytest.mark.parametrize("word", ["yes", "true", "on", "no"])
def test_a_truth_value_is_no_number(tmp_path: Path, field: str, word: str) -> None:
    with pytest.raises(JobConfigError, match=rf"{field}: (True|False) must be a whole number"):
        load(tmp_path, JOB, [f"{field}={word}"])


@pytest.mark.parametrize("rule", ["quorum", "count", "sum_at_least", "level"])
@pytest.mark.parametrize("need", ["yes", "[2]", "{a: 2}"])
def test_a_need_is_a_number(tmp_path: Path, rule: str, need: str) -> None:
    with pytest.raises(JobConfigError) as caught:
        load(tmp_path, f"{JOB}purgatory: {{criterion: {{{rule}: {need}}}}}\n")
    [problem] = caught.value.problems
    assert (problem.field, problem.allowed) == (f"purgatory.criterion.{rule}", "must be a number")


def test_a_timeout_beyond_the_longest_duration_is_refused_when_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(JobConfigError, match=r"operations.timeout='99999 weeks' is longer than 1000 years"):
        load(tmp_path, JOB, ["operations.timeout=99999 weeks"])
    for field in ("trigger.processingTime", "metrics.gauges_every", "operations.idle_after"):
        with pytest.raises(JobConfigError, match=rf"{field}: '99999 weeks' is longer than 1000 years"):
            load(tmp_path, JOB, [f"{field}=99999 weeks"])
    with pytest.raises(ConfigError, match=r"operations.timeout=.* is longer than 1000 years"):
        Operations(id="id", keys="id", created="at", timeout=timedelta(days=400_000))
