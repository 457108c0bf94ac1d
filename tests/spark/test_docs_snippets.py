"""The tutorial and the how-to pages do what they say: their Python, YAML and commands run, and print what is shown.

The blocks of a page run in order, in one namespace. A ``text`` block is what the block before it prints: word for word
after Python, and without its numbers, which are times and sizes, after a command.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from spark_purgatory.cli import app
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = ("/lake", "/tmp/shop")
"""What the pages call the folder that the test makes."""
FILE_NAME = re.compile(r"\A# ([\w./-]+\.yaml)\n")
WIDTH = 100
"""Columns of the terminal in which the commands run."""
SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
"""Settings of the session that a page may change."""


class Page:
    """One page, run block by block."""

    def __init__(self, text: str, name: str, folder: Path, spark: SparkSession) -> None:
        self.names: dict[str, Any] = {"spark": spark}
        self.name = name
        self.folder = folder
        self.ran: list[str] = []
        self._text = text
        self._printed = ""

    def run(self) -> None:
        """Run every block; AssertionError if one prints something else than the page shows."""
        for match in BLOCK.finditer(self._text):
            language, code = match.groups()
            for folder in FOLDERS:
                code = code.replace(folder, str(self.folder))
            line = self._text.count("\n", 0, match.start(2))
            match language:
                case "python":
                    self._printed = self._python(code, line)
                case "bash":
                    self._printed = "".join(self._command(each) for each in code.splitlines())
                case "yaml":
                    name = FILE_NAME.match(code)
                    assert name, f"{self.name}, line {line}: the first line of a YAML block names its file"
                    Path(name[1]).write_text(code, encoding="utf-8")
                case "text":
                    self._compare(code, line)
                case _:
                    continue
            self.ran.append(language)

    def _python(self, code: str, line: int) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Blank lines in front, so that a traceback has the page's line numbers.
            exec(compile("\n" * line + code, self.name, "exec"), self.names)
        return printed.getvalue()

    def _command(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        if words[:1] != ["spark-purgatory"]:
            return ""  # pip and the like
        if words[1] == "run":
            # What the command does with its session, but for the end: it would stop the one of all tests.
            printed = io.StringIO()
            console = Console(file=printed, width=WIDTH)
            run(self.names["spark"], load_config(Path(words[2])), console, StopRequest())
            return printed.getvalue()
        done = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(app, words[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}"
        return done.output

    def _compare(self, shown: str, line: int) -> None:
        said = f"{self.name}, line {line}: the page shows\n{shown}\nand this was printed:\n{self._printed}"
        wanted, printed = lines_of(shown), lines_of(self._printed)
        if self.ran[-1] == "python":
            assert wanted and wanted == printed, said
        else:
            assert {without_numbers(each) for each in wanted} <= {without_numbers(each) for each in printed}, said


def lines_of(text: str) -> list[str]:
    """The lines that are not blank, without spaces at their ends."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def without_numbers(line: str) -> str:
    """A line as words: numbers, and the lines and spaces that their width changes, left out."""
    return " ".join(re.sub(r"[\d.,]+|[─━┏┳┓┡╇┩└┴┘│┃]+", " ", line).split())


@pytest.fixture
def folder(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for the page's files, with a short name, which tables show in one line; all is undone after."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    with tempfile.TemporaryDirectory(prefix="docs_", ignore_cleanup_errors=True) as name:
        monkeypatch.chdir(name)
        yield Path(name)
        for query in spark.streams.active:
            query.stop()
        monkeypatch.undo()
    for setting, value in before.items():
        spark.conf.set(setting, value)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_does_what_it_says(path: Path, spark: SparkSession, folder: Path) -> None:
    page = Page(path.read_text(encoding="utf-8"), path.name, folder, spark)
    page.run()
    assert "python" in page.ran or path.name == "index.md"


def test_the_tutorial_has_blocks_of_every_kind(spark: SparkSession) -> None:
    languages = set(re.findall(r"^```(\w+)$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE))
    assert languages == {"bash", "python", "text", "yaml"}


@pytest.mark.parametrize(
    "text",
    ["```python\nprint(1)\n```\n\n```text\n2\n```\n", "```python\nprint(1)\n```\n\n```python\nnowhere\n```\n"],
    ids=["another output", "an error in the second block"],
)
def test_a_page_that_is_wrong_fails(text: str, spark: SparkSession, folder: Path) -> None:
    with pytest.raises((AssertionError, NameError)):
        Page(text, "made_up.md", folder, spark).run()
