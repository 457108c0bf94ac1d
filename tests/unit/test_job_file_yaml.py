"""A job's file as people write YAML: what it cannot mean is refused at its line, and what is said twice is no guess."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from spark_purgatory import Operations
from spark_purgatory.errors import ConfigError
from spark_purgatory.job.config_file import JobConfigError, load_config
from spark_purgatory.job.job_config import JobConfig

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
    with pytest.raises(JobConfigError, match="a number or truth value cannot be read: put it in quotes"):
        load(tmp_path, f"{JOB}name: {value}\n")


@pytest.mark.parametrize("value", ["&a [*a]", "&a {x: *a}", "[" * 1000 + "]" * 1000])
def test_a_value_without_end_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(JobConfigError, match="contains itself, or is nested too deeply"):
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
    assert (problem.field, problem.allowed) == ("purgatory.criterion.need", "must be a number")


def test_a_timeout_beyond_the_longest_duration_is_refused_when_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(JobConfigError, match=r"operations.timeout='99999 weeks' is longer than 1000 years"):
        load(tmp_path, JOB, ["operations.timeout=99999 weeks"])
    for field in ("trigger.processingTime", "metrics.gauges_every", "operations.idle_after"):
        with pytest.raises(JobConfigError, match=rf"{field}: '99999 weeks' is longer than 1000 years"):
            load(tmp_path, JOB, [f"{field}=99999 weeks"])
    with pytest.raises(ConfigError, match=r"operations.timeout=.* is longer than 1000 years"):
        Operations(id="id", keys="id", created="at", timeout=timedelta(days=400_000))
