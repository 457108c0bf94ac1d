"""The README's snippets and commands run as they stand, one after the other, and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.doctor.machine import verified
from tests.support.doc_page import Page

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"^```python\n.*?^```\n", re.MULTILINE | re.DOTALL)


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^pyspark (?:.*\\\n)*.*$", re.MULTILINE)


def as_pasted(text: str) -> str:
    """The Python and what it prints, the rows first: the code at the top of README.md is pasted after them."""
    blocks = [found for found in BLOCK.finditer(text) if found[1] in ("python", "text")]
    rows = next(found for found in blocks if "orders = spark.sql" in found[2])
    return "\n".join(found[0] for found in (rows, *(each for each in blocks if each is not rows)))


def test_the_readme_begins_with_few_lines_of_code_and_the_commands_of_a_clone() -> None:
    (language, code), (_, rows), (_, commands), *_ = BLOCK.findall(README)
    address = re.search(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert language == "python" and len(code.splitlines()) <= 16
    assert len(re.findall(r"^\| +o-\d", rows, re.MULTILINE)) == 5
    assert address is not None and commands.startswith(f"git clone {address[1]}\n")
    assert {"make demo", "make test"} <= {line.partition("#")[0].strip() for line in commands.splitlines()}


def test_a_block_of_the_readme_fits_80_columns() -> None:
    assert [line for _, code in BLOCK.findall(README) for line in code.splitlines() if len(line) > 80] == []


def test_the_line_of_facts_says_what_is_so() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = next(line for line in README.splitlines() if line.startswith("`Spark "))
    oldest = project["requires-python"].removeprefix(">=")
    assert f"`Python {oldest} or later`" in facts and f"`{project['license']}`" in facts
    assert "`alpha`" in facts and any("3 - Alpha" in each for each in project["classifiers"])
    workflow = re.search(r"actions/workflows/(\w+\.yml)/badge\.svg", README)
    assert workflow is not None and (ROOT / ".github" / "workflows" / workflow[1]).is_file()


@pytest.mark.spark
def test_the_snippets_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    """In a shell that is started as README.md says, with all of Spark's own settings."""
    started = SHELL.search(README)
    assert started is not None
    command = shlex.split(started[0].replace("\\\n", ""))
    script = tmp_path / "pasted.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.support.doc_page import Page\n"
        f"page = Page({as_pasted(README)!r}, 'README.md', {{'/tmp/readme': {str(tmp_path)!r}}}, lambda words: '', "
        "{'spark': spark})\n"
        "page.run()\n"
        "Path('ran').write_text(' '.join(page.ran))\n",
        encoding="utf-8",
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON_OPTS": "-i",  # as at a terminal: only then Spark's shell makes its session
    }
    shell = subprocess.run(
        [Path(sys.executable).with_name(command[0]), *command[1:]],
        input=f"exec(open({str(script)!r}).read())\n",
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (tmp_path / "ran").is_file(), shell.stderr[-4000:]
    assert (tmp_path / "ran").read_text() == "python python text python text"


def test_the_home_page_prints_what_it_shows_of_the_rows_of_the_readme(spark: SparkSession, tmp_path: Path) -> None:
    rows = as_pasted(README).partition("```\n")[0] + "```\n"
    text = re.sub(r"^```bash\n.*?^```\n", "", HOME, flags=re.MULTILINE | re.DOTALL)
    home = Page(rows + text, "index.md", {}, lambda words: "", {"spark": spark})
    home.run()
    assert home.ran[:3] == ["python", "python", "text"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("text", [README, HOME], ids=["README", "home"])
def test_the_commands_run_one_after_the_other(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(words: list[str]) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "spark_purgatory", *words[1:]], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    commands = Page(
        PYTHON.sub("", re.sub(r"^```text\n.*?^```\n", "", text, flags=re.MULTILINE | re.DOTALL)), "", {}, command
    )
    commands.run()
    assert set(commands.ran) == {"bash"}


def test_the_releases_of_spark_that_the_pages_name_are_those_that_were_tested() -> None:
    passed = {cell["spark"]: cell["delta"] for cell in verified()["cells"]}
    newest, with_delta = (max(map(minor, found)) for found in (passed, [each for each in passed if passed[each]]))
    says = f"Spark 4.0.5 to {with_delta} with Delta 4.4.0; Spark {newest} works without Delta"
    assert says in " ".join(README.split())
    assert says in " ".join(HOME.split())
    assert f"4.0.5 to {newest}" in (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")


def minor(release: str) -> str:
    """``4.2.0`` -> ``4.2``."""
    return ".".join(release.split(".")[:2])
