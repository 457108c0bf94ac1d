"""``spark-purgatory check``, and what is refused before Spark starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_purgatory.errors import ConfigError
from spark_purgatory.spark import check_release

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, path: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(filter(None, (path, str(ROOT))))
    command = [sys.executable, *arguments]
    given = {**os.environ, "PYTHONPATH": python_path, "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=given, check=False)


def check(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "spark_purgatory", "check", *arguments, **environment)


def test_a_file_that_is_right_is_shown_without_java_and_without_secrets(tmp_path: Path) -> None:
    ran = check("conf/kafka.yaml", KAFKA_PASSWORD="hidden", JAVA_HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    for text in (
        "kafka topic commands",
        "quorum(2)",
        "timeout 30 seconds",
        "every 5 seconds",
        "table commands_outcomes",
    ):
        assert text in ran.stdout
    assert "hidden" not in ran.stdout and "PlainLoginModule" not in ran.stdout


def test_a_rule_of_each_row_is_shown_by_its_columns() -> None:
    changes = ("--set", "purgatory.criterion={by_row: {rule: how, need: many}}", "--set", "completions.value=amount")
    ran = check("conf/orders.yaml", *changes, "--set", "completions.idle_after=5 seconds")
    assert ran.returncode == 0
    assert "of each row: rule how, need many" in ran.stdout
    assert "watermark 10 minutes, idle_after 5 seconds" in ran.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("operations.timeuot=1", "unknown field, did you mean 'timeout'"),
        ("purgatory.tick=1 us", "tick='1 us' must be at least 1 millisecond"),
        ("purgatory.criterion={quorum: 0}", "criterion quorum needs a whole number of at least 1, got 0"),
        ("output.batch_size=huge", "output.batch_size: 'huge': this is not a size"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_field(change: str, message: str) -> None:
    ran = check("conf/orders.yaml", "--set", change)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_file_is_checked_without_importing_spark() -> None:
    code = (
        "import sys; from pathlib import Path; from rich.console import Console\n"
        "from spark_purgatory.job.check_file import check_file\n"
        "assert check_file(Path('conf/orders.yaml'), [], Console()) == 0\n"
        "assert 'pyspark' not in sys.modules"
    )
    ran = run("-c", code)
    assert ran.returncode == 0, ran.stderr


def test_releases_before_4_are_refused_by_name() -> None:
    check_release("4.0.0")
    check_release("4.2.0.dev0")
    check_release("5.0.0")
    with pytest.raises(ConfigError, match=r"pyspark is 3\.5\.6, and spark_purgatory needs 4\.0 or later"):
        check_release("3.5.6")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__version__ = '3.5.6'", "ConfigError: pyspark is 3.5.6, and spark_purgatory needs 4.0 or later"),
        (
            "raise ModuleNotFoundError('gone', name='pyspark')",
            "there is no module 'pyspark': pip install 'spark-purgatory[spark]'",
        ),
    ],
)
def test_an_old_pyspark_and_none_are_one_sentence(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(source)
    ran = run("-c", "from spark_purgatory import Purgatory", path=str(tmp_path))
    assert ran.returncode == 1
    assert message in ran.stderr.splitlines()[-1]


def test_the_example_is_a_jobs_file_that_check_takes(tmp_path: Path) -> None:
    printed = run("-m", "spark_purgatory", "example")
    assert (printed.returncode, printed.stderr) == (0, "")
    job = tmp_path / "job.yaml"
    job.write_text(printed.stdout, encoding="utf-8")
    ran = check(str(job))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "timeout" in ran.stdout or "deadline" in ran.stdout
