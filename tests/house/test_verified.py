"""What the package says of tested releases is what `make test-matrix` found, and the pages say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from spark_purgatory.doctor.machine import verified, verified_releases
from tests.matrix.__main__ import with_tables
from tests.matrix.cells import CELLS, DEVELOPMENT

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_page_has_the_tables_of_the_file() -> None:
    page = (ROOT / "docs" / "shipping.md").read_text(encoding="utf-8")
    assert with_tables(page, verified()) == page, "run: python -m tests.matrix --table"


def test_every_cell_that_was_run_is_green_or_says_why_not() -> None:
    cells = verified()["cells"]
    assert {cell["name"] for cell in cells} <= {cell.name for cell in CELLS}
    for cell in cells:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", cell["date"])
        assert (cell["passed"] and not cell["failed"]) or cell["named"], cell


def test_the_extra_takes_the_tested_releases_that_have_delta_and_development_takes_one() -> None:
    [spark] = [each for each in map(Requirement, PROJECT["spark"]) if each.name == "pyspark"]
    with_delta = {cell["spark"] for cell in verified()["cells"] if cell["delta"]}
    assert with_delta and all(spark.specifier.contains(release) for release in with_delta)
    assert f"pyspark=={DEVELOPMENT}" in PROJECT["dev"] and DEVELOPMENT in verified_releases()
