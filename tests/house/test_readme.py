"""The README's snippets and commands run as they stand, one after the other, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_purgatory.doctor.verified import verified
from tests.support.doc_page import Page

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"^```python\n.*?^```\n", re.MULTILINE | re.DOTALL)


def page(text: str, name: str, folder: Path, spark: SparkSession) -> Page:
    """A page without its commands."""
    text = re.sub(r"^```bash\n.*?^```\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return Page(text, name, {"/tmp/readme": str(folder)}, lambda words: "", {"spark": spark})


@pytest.mark.spark
def test_the_snippets_of_the_readme_print_what_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    readme = page(README, "README.md", tmp_path, spark)
    readme.run()
    assert readme.ran.count("text") == 2


@pytest.mark.spark
def test_the_home_page_prints_what_it_shows_of_the_rows_of_the_readme(spark: SparkSession, tmp_path: Path) -> None:
    rows = PYTHON.search(README)
    assert rows is not None
    home = page(rows[0] + HOME, "index.md", tmp_path, spark)
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


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
