"""The tutorial and the how-to pages do what they say: their Python, YAML and commands run, and print what is shown."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from spark_purgatory.cli import app
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest
from tests.support.doc_page import WIDTH, Page

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
WITH_SERVERS = {"kafka.md", "object_store.md"}
"""`tests/places/test_pages.py` runs these."""
HOW_TO = (path for path in (ROOT / "docs" / "how-to").glob("*.md") if path.name not in WITH_SERVERS)
PAGES = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "sources.md", ROOT / "docs" / "criteria.md", *sorted(HOW_TO)]
FOLDERS = ("/lake", "/tmp/shop")
"""What the pages call the folder that the test makes."""
SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
"""Settings of the session that a page may change."""


def page_of(text: str, name: str, folder: Path, spark: SparkSession) -> Page:
    """A page whose commands run in this process, on the session of all tests."""

    def command(words: list[str]) -> str:
        if words[1] == "run":
            # What the command does with its session, but for the end: it would stop the one of all tests.
            printed = io.StringIO()
            run(spark, load_config(Path(words[2])), Console(file=printed, width=WIDTH), StopRequest())
            return printed.getvalue()
        done = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(app, words[1:])
        assert done.exit_code == 0, f"{words}\n{done.output}"
        return done.output

    return Page(text, name, dict.fromkeys(FOLDERS, str(folder)), command, {"spark": spark})


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
    page = page_of(path.read_text(encoding="utf-8"), path.name, folder, spark)
    page.run()
    assert "python" in page.ran or path.name in ("index.md", "sources.md")


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
        page_of(text, "made_up.md", folder, spark).run()
