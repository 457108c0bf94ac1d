"""Code and commands that a page shows: a test runs the code, and the command line takes the commands."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from spark_purgatory.cli import app
from spark_purgatory.job.job_config import JobConfig
from tests.support.doc_page import BLOCK, FRAGMENTS, IN_TURN, WITH_SERVERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*/README.md")]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
RUN = {
    *(path.relative_to(ROOT).as_posix() for path in (*IN_TURN, *FRAGMENTS)),
    *(f"docs/how-to/{name}" for name in WITH_SERVERS),
    "README.md",  # tests/house/test_readme.py
    "docs/index.md",  # the same
    "docs/gallery.md",  # tests/spark/test_notebooks.py: its code is of notebooks
    "docs/how-to/iceberg.md",  # tests/iceberg/test_iceberg_sink.py
    "docs/testing.md",  # tests/spark/test_docs_snippets.py
    "bundle/README.md",  # tests/places/test_pipelines.py has the whole pipeline
}
"""Pages whose code a test runs. Beside these `tests/spark/test_notebooks.py` compares docs/notebooks."""
COMMAND = re.compile(r"`(spark-purgatory [^`\n]+)`|^ *(spark-purgatory (?:.*\\\n)*.+)$", re.MULTILINE)
UsageError = typer.BadParameter.__bases__[0]
"""click's own, or that of the click within typer."""
USAGE = "docs/command_line.md"
"""Made from the commands themselves."""


def commands(text: str) -> list[list[str]]:
    """The words of each command that a page shows, without where its output goes."""
    shown = [(inline or line).replace("\\\n", " ") for inline, line in COMMAND.findall(text)]
    return [shlex.split(each, comments=True) for each in (line.partition(" > ")[0] for line in shown)]


def taken(words: list[str]) -> None:
    """UsageError if the command line refuses these words; a command's name alone is a word of a sentence."""
    group: Any = typer.main.get_command(app)
    if words[1] not in group.commands:
        raise UsageError(f"no such command: {words[1]}")
    if words[2:]:
        group.commands[words[1]].make_context(words[1], words[2:])


@pytest.mark.parametrize("page", [name for name in TEXTS if name != USAGE])
def test_the_command_line_takes_each_command_of_a_page(page: str) -> None:
    for words in commands(TEXTS[page]):
        taken(words)


@pytest.mark.parametrize("page", TEXTS)
def test_make_has_each_target_of_a_page(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:`|^)make ([a-z-]+)[ `]", TEXTS[page], re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_make_has_each_job_that_the_build_server_asks_for() -> None:
    makefile, jobs = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "tests/jobs.py"))
    asked = set(re.findall(r"test-[a-z]+", (ROOT / ".ci" / "run").read_text(encoding="utf-8")))
    assert asked - {"test-all"}, "it names its jobs"
    for job in asked:
        assert f"\n{job}: " in makefile and (job == "test-all" or f'"{job}":' in jobs), job


def test_a_test_runs_the_code_of_each_page() -> None:
    shown = {name for name, text in TEXTS.items() if any(language != "text" for language, _ in BLOCK.findall(text))}
    shown = {name for name in shown if not name.startswith("docs/notebooks/")}
    assert shown - RUN == set()


@pytest.mark.parametrize("page", [path.name for path in FRAGMENTS])
def test_parts_of_a_job_s_file_fit_it(page: str) -> None:
    job = yaml.safe_load((ROOT / "conf" / "kafka.yaml").read_text(encoding="utf-8"))
    for language, code in BLOCK.findall(TEXTS[f"docs/{page}"]):
        if language == "yaml":
            JobConfig.model_validate({**job, **yaml.safe_load(code)})


def test_the_hourly_page_has_a_line_of_cron_and_a_task_of_airflow_that_start_its_job() -> None:
    blocks = dict(BLOCK.findall(TEXTS["docs/how-to/hourly.md"]))
    *times, command = blocks["ini"].split(maxsplit=5)
    assert len(times) == 5
    assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    task = ast.unparse(ast.parse(blocks["py"]))
    for words in (command.partition("bin/")[2], re.findall(r"bash_command='?\"?(.*?)\"?,", task)[0]):
        shell = shlex.split(words.partition(">>")[0].replace("\\'", "'"))
        taken(shell)
