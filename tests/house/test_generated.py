"""Files that a command makes are what it makes now, and the schema of a job's file takes what a job takes."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

from notebooks.to_jupyter import HEADER, MAGIC, cells, pasteable
from spark_purgatory.doctor.machine import verified, verified_releases
from tests.matrix.__main__ import with_tables
from tests.matrix.cells import CELLS, DEVELOPMENT
from tests.support.doc_page import BLOCK
from tools import bench_picture, job_schema, notebook_pages, timeline_pictures

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("0*.py"))
SCHEMA = json.loads(job_schema.SCHEMA.read_text(encoding="utf-8"))
FILES = [*sorted((ROOT / "conf").glob("*.yaml")), ROOT / "spark_purgatory" / "demo" / "orders.yaml"]


def test_pictures_are_those_that_their_tools_draw() -> None:
    drawn = {ROOT / "docs" / "pictures" / name: content for name, content in timeline_pictures.pictures().items()}
    for file, content in (drawn | {bench_picture.PICTURE: bench_picture.drawn()}).items():
        assert file.read_text(encoding="utf-8") == content, f"run the tool that draws {file.name} (CONTRIBUTING.md)"


def test_pictures_of_pages_exist_and_have_words_for_those_who_do_not_see_them() -> None:
    for page in (ROOT / "README.md", *PAGES):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r'(?:src|srcset)="([^"]+\.svg)"', text):
            assert (page.parent / path).is_file(), f"{page.name}: {path}"
        assert all('alt="' in image for image in re.findall(r"<img [^>]+>", text)), page.name


def test_the_schema_of_a_job_is_that_of_the_models_and_takes_the_files_of_the_repository_and_of_the_pages() -> None:
    assert job_schema.SCHEMA.read_text(encoding="utf-8") == job_schema.text(), "run python -m tools.job_schema"
    shown = [code for page in PAGES for kind, code in BLOCK.findall(page.read_text("utf-8")) if kind == "yaml"]
    whole = [code for code in shown if re.search("^checkpoint: ", code, re.MULTILINE) and "\noperations:" in code]
    assert len(whole) >= 3
    for text in (*whole, *(file.read_text(encoding="utf-8") for file in FILES)):
        jsonschema.validate(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("purgatory", "shards", "many"),
        ("purgatory", "emit", "later"),
        ("purgatory", "shard", 4),
        ("purgatory", "shards", 0),
        ("operations", "timout", "1 minute"),
        ("output", "batch_size", []),
    ],
)
def test_the_schema_refuses_a_wrong_field(section: str, name: str, value: Any) -> None:
    job = yaml.safe_load(FILES[-1].read_text(encoding="utf-8"))
    job[section][name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, SCHEMA)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_page_and_jupyter_notebook_have_the_cells_of_the_source(path: Path) -> None:
    said = f"run python -m tools.notebook_pages {path.stem}"
    file = ROOT / "notebooks" / "jupyter" / f"{path.stem}.ipynb"
    assert file.read_text(encoding="utf-8") == notebook_pages.jupyter_of(path), said
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    source = pasteable(path.read_text(encoding="utf-8"))
    code = [text for kind, text, _ in source if kind == "code"]
    assert [cell["source"] for cell in notebook.cells if cell["cell_type"] == "code"] == code
    page = (ROOT / "docs" / "notebooks" / f"{path.stem}.md").read_text(encoding="utf-8")
    shown = [each for each in code if not notebook_pages.is_left_out(each)]
    assert [each for each in shown if not notebook_pages.shows_only_output(each)] == re.findall(
        r"^```python\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL
    ), said
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert printed == re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) != [], said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\n", "the first line must be"),
        (f"{HEADER}\n{MAGIC} %md\n# a comment\n", "line 2: a cell is either Python"),
        (f"{HEADER}\nx = 1\n\n# COMMAND ----------\n\n{MAGIC} %sql\n{MAGIC} SELECT 1\n", "line 6: a cell is either"),
    ],
)
def test_what_is_no_notebook_is_refused(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cells(source)


LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
ROW = re.compile(r"^\| (`spark_purgatory\..*?) \| ([A-Z]+) \| ", re.MULTILINE)


def test_the_page_has_each_logger_at_each_level_of_the_code() -> None:
    code = set()
    for file in (ROOT / "spark_purgatory").rglob("*.py"):
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "LOG":
                code |= {(name, LEVELS[node.attr])} if node.attr in LEVELS else set()
    rows = ROW.findall((ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"))
    page = [(name, level) for names, level in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert len(code) > 10 and sorted(page) == sorted(code)


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
